#!/bin/bash
# Installs the Debian packages that are missing, and says nothing when none is.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

log=$log_dir/packages.log
mapfile -t wanted < <(grep -vE '^[[:space:]]*(#|$)' \
  "${LOCKSTEP_PACKAGE_LIST:-$here/debian_packages.txt}")

if ! command -v dpkg-query >/dev/null; then
  # Not Debian: what is there is used, and what is not is named.
  for program in clang++ clang-format cmake ninja; do
    command -v "$program" >/dev/null || fail "$program is missing" \
      "a Debian system, or these installed: ${wanted[*]}" \
      "neither" "install it with your distribution's package manager"
  done
  exit 0
fi

installed=$(dpkg-query -W -f '${db:Status-Abbrev} ${Package}\n' 2>/dev/null |
  awk '$1 == "ii" {print $2}')
missing=()
for package in "${wanted[@]}"; do
  grep -qxF -- "$package" <<<"$installed" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "Debian packages are missing" \
    "root or sudo to install them" "neither" \
    "as root run: apt-get install ${missing[*]}"
  as_root=(sudo)
  # Asks for a password at a terminal only: CI must not wait for one.
  [ -t 0 ] && sudo -v || sudo -n true 2>/dev/null ||
    fail "Debian packages are missing" "sudo to work" "a refusal" \
      "as root run: apt-get install ${missing[*]}"
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y \
    -o DPkg::Lock::Timeout=300 "$@"
}

say "Debian packages, missing: ${missing[*]}"
say "refreshing the package lists (about 10 MB; log: $log)"
run_logged "$log" apt -o Acquire::Retries=2 -o APT::Update::Error-Mode=any \
  update || fail "apt-get update failed" "the package lists" \
  "$(cause_of "$log")" \
  "check the network and /etc/apt; the whole output is in $log"
size=$("${as_root[@]}" apt-get -qq --print-uris -y \
  install --no-install-recommends "${missing[@]}" 2>/dev/null |
  awk "/^'/ {bytes += \$3} END {printf \"%d\", bytes / 1e6}") || size=
[ "${size:-0}" -gt 0 ] && size="$size MB" || size="under 1 MB"
say "installing them ($size to download; log: $log)"
run_logged "$log" apt -o Acquire::Retries=2 install --no-install-recommends \
  "${missing[@]}" || fail "apt-get install failed" \
  "the packages ${missing[*]}" "$(cause_of "$log")" \
  "the whole output is in $log"
