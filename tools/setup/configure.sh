#!/bin/bash
# configure.sh PRESET [NAME [program]]: runs CMake for build/NAME (build/PRESET)
# if there is no build folder yet, or if the user names a different torch than
# the last time. Otherwise, Ninja runs it when necessary.
#
# With `program`, a new build folder has no tests and no benchmarks, which need
# more packages than the program. A later call without it adds them.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

preset=$1
name=${2:-$preset}
scope=${3:-all}
build=build/$name
if [ -n "${Torch_DIR:-}" ]; then
  torch="Torch_DIR=$(realpath -s "$Torch_DIR")"
else
  python=$(command -v "${LOCKSTEP_PYTHON:-.venv/bin/python}")
  torch="LOCKSTEP_PYTHON=$(realpath -s "$python")"
fi
# The target of the link is included, because other pins mean a different torch.
chosen="$torch $(readlink .venv || true) ${CMAKE_ARGS:-}"
# A changed preset is read again.
chosen="$chosen $(cksum <CMakePresets.json)"
case $preset in
deb | fuzz) cuda=OFF ;;
*) cuda=${LOCKSTEP_CUDA:-AUTO} ;;
esac
chosen="$chosen CUDA=$cuda"
stamp=$build/configured_with
done_before=$(cat "$stamp" 2>/dev/null || true)
# Keep tests that are already configured.
tests=ON
if [ "$scope" = program ] && [[ $done_before != *' with tests' ]]; then
  tests=OFF
fi
[ $tests = OFF ] || chosen="$chosen with tests"
fresh=$(fresh_if_moved "$build" .)
if [ -z "$fresh" ] && [ -e "$build/build.ninja" ] &&
  [ "$done_before" = "$chosen" ]; then
  exit 0
fi

log=$log_dir/configure-$name.log
say "configuring build/$name (${torch%%=*}; log: $log)"
# Empty values remove an earlier choice from the cache.
# shellcheck disable=SC2086
run_logged "$log" cmake $fresh --preset "$preset" -B "$build" -DTorch_DIR= \
  -DLOCKSTEP_PYTHON= "-D$torch" -DLOCKSTEP_CUDA=$cuda \
  -DLOCKSTEP_BUILD_TESTS=$tests -DLOCKSTEP_BUILD_BENCH=$tests \
  ${CMAKE_ARGS:-} || {
  grep -A4 'CMake Error' "$log" | head -20 >&2
  fail "cmake --preset $preset failed" "a build folder" "an error" \
    "the whole output is in $log"
}
grep -E '^-- LibTorch' "$log" | sed 's/^-- /[setup] /'
echo "$chosen" >"$stamp"
