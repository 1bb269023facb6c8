#!/bin/bash
# docs.sh OUT: writes the pages of the public API to OUT/html, and fails if
# Doxygen warns.
#
# Every class, structure and enumeration of a public header has a comment. A
# field or a function that its name and type explain needs no comment. Doxygen
# has no setting to turn off only that warning, so it is filtered out.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$1
mkdir -p "$out"

# The public headers, and the public types in those that they include.
mapfile -t headers < <(sed '/^# \[internal\]/,$d' cmake/public_headers.txt |
  grep '^lockstep/')
{
  cat docs/Doxyfile
  printf 'OUTPUT_DIRECTORY = "%s"\n' "$out"
  printf 'INPUT = docs/api_pages.dox %s\n' "${headers[*]}"
  printf 'WARN_LOGFILE = "%s/warnings.log"\n' "$out"
} >"$out/Doxyfile"
doxygen "$out/Doxyfile"

warnings=$(grep -vE 'warning: Member .*\((function|variable|typedef)\) .* is not documented\.$' \
  "$out/warnings.log" || true)
if [ -n "$warnings" ]; then
  printf '%s\n' "$warnings" >&2
  echo "docs.sh: Doxygen warns; expected no warning" >&2
  exit 1
fi
[ -s "$out/html/index.html" ]
echo "${#headers[@]} headers: $out/html/index.html"
