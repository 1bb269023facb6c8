#!/bin/bash
# run_tests.sh BUILD [ctest options]: runs ctest, then says what was skipped
# and why, which ctest itself keeps to its log.
set -uo pipefail
build=$1
shift

# A temporary folder of this run, so that a killed test leaves nothing.
TMPDIR=$(mktemp -d)
# A test reads its files as another user, to be refused one of them.
chmod 755 "$TMPDIR"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

ctest --test-dir "$build" --output-on-failure --no-tests=error "$@" |
  tee "$build/ctest.log"
result=${PIPESTATUS[0]}

log=$build/Testing/Temporary/LastTest.log
reasons=$(grep -A3 -hE ': Skipped$' "$log" 2>/dev/null |
  grep -vE ': Skipped$|^--$|^\[|^$' | sort | uniq -c | sort -rn)
if [ -n "$reasons" ]; then
  printf '\nSkipped, and why:\n%s\n' "$reasons"
fi
# Once more, so that it is the end of the output.
echo
grep -E '% tests passed|^Total Test time' "$build/ctest.log"
exit "$result"
