#!/bin/bash
# configure.sh PRESET [NAME]: runs CMake for build/NAME (build/PRESET) when there
# is no build folder yet, or when the user names another torch than the last
# time. Ninja does the rest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

preset=$1
name=${2:-$preset}
build=build/$name
if [ -n "${Torch_DIR:-}" ]; then
  torch="Torch_DIR=$(realpath -s "$Torch_DIR")"
else
  python=$(command -v "${LOCKSTEP_PYTHON:-.venv/bin/python}")
  torch="LOCKSTEP_PYTHON=$(realpath -s "$python")"
fi
# Where the link leads is part of it: other pins are another torch.
chosen="$torch $(readlink .venv || true) ${CMAKE_ARGS:-}"
# A preset that changed is read again.
chosen="$chosen $(cksum <CMakePresets.json)"
stamp=$build/configured_with
if [ -e "$build/build.ninja" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$chosen" ]
then
  exit 0
fi

log=$log_dir/configure-$name.log
say "configuring build/$name (${torch%%=*}; log: $log)"
# Empty values undo what an earlier choice left in the cache.
# shellcheck disable=SC2086
run_logged "$log" cmake --preset "$preset" -B "$build" -DTorch_DIR= -DLOCKSTEP_PYTHON= \
  "-D$torch" ${CMAKE_ARGS:-} || {
  grep -A4 'CMake Error' "$log" | head -20 >&2
  fail "cmake --preset $preset failed" "a build folder" "an error" \
    "the whole output is in $log"
}
grep -E '^-- LibTorch' "$log" | sed 's/^-- /[setup] /'
echo "$chosen" >"$stamp"
