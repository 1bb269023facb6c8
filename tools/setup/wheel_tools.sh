#!/bin/bash
# wheel_tools.sh: makes build/wheel/tools, the Python environment with the tools
# of `make wheel`. Does nothing if it is there with the pinned versions.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

env=build/wheel/tools
pins=$here/wheel_requirements.txt
if cmp -s "$pins" "$env/installed.txt"; then
  exit 0
fi
log=$log_dir/wheel-tools.log
say "installing the tools for wheels (log: $log)"
rm -rf "$env"
mkdir -p build/wheel
run_logged "$log" "${PYTHON:-/usr/bin/python3}" -m venv "$env" || fail \
  "python3 -m venv failed" "an environment" "$(cause_of "$log")" \
  "is python3-venv installed? The whole output is in $log"
run_logged "$log" "$env/bin/pip" install --disable-pip-version-check \
  -r "$pins" || fail \
  "pip failed" "the packages of $pins" "$(cause_of "$log")" \
  "check the network, and look at $log"
cp "$pins" "$env/installed.txt"
