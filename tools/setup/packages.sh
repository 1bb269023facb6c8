#!/bin/bash
# packages.sh LIST...: installs the missing packages of these lists in
# packages.txt, on Debian and Ubuntu. On Fedora, it names the packages. On other
# systems, it names the missing programs. Prints nothing if all are there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

log=$log_dir/packages.log
table=${LOCKSTEP_PACKAGE_LIST:-$here/packages.txt}

# The id of the system and of similar systems: "linuxmint ubuntu debian".
system=$(. "${LOCKSTEP_OS_RELEASE:-/etc/os-release}" 2>/dev/null &&
  echo "${ID:-} ${ID_LIKE:-}") || system=
case " $system " in
*' ubuntu '*) column=3 ;;
*' debian '*) column=2 ;;
*' fedora '*) column=4 ;;
*) column= ;;
esac

# packages_of COLUMN LIST...
packages_of() {
  local column=$1
  shift
  awk -v column="$column" -v lists=" $* " \
    'index(lists, " " $1 " ") && $column != "-" {print $column}' "$table"
}

if [ -z "$column" ]; then
  for program in clang++ cmake ninja; do
    command -v "$program" >/dev/null || fail "$program is missing" \
      "Debian, Ubuntu or Fedora, or the like of these packages of Debian:" \
      "${system:-an unknown system}" "install it and $(
        packages_of 2 "$@" | tr '\n' ' ')with your package manager"
  done
  exit 0
fi
mapfile -t wanted < <(packages_of "$column" "$@")

if [ "$column" = 4 ]; then
  missing=()
  for package in "${wanted[@]}"; do
    rpm -q --whatprovides "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] || fail "packages are missing" \
    "them to be installed" "none of ${missing[*]}" \
    "as root run: dnf install ${missing[*]}"
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
  command -v sudo >/dev/null || fail "packages are missing" \
    "root or sudo to install them" "neither" \
    "as root run: apt-get install ${missing[*]}"
  as_root=(sudo)
  # Ask for a password only at a terminal, because CI must not wait for one.
  [ -t 0 ] && sudo -v || sudo -n true 2>/dev/null ||
    fail "packages are missing" "sudo to work" "a refusal" \
      "as root run: apt-get install ${missing[*]}"
fi
apt() {
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y \
    -o DPkg::Lock::Timeout=300 "$@"
}

say "packages, missing: ${missing[*]}"
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
