#!/bin/bash
# consumption.sh package|subdirectory SOURCE BUILD: uses Lockstep the way its
# users do, from a folder of its own, and runs what comes out.
set -euo pipefail
mode=$1
source=$2
build=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
options=(-G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER="$compiler")

run_examples() {
  local program
  for program in "$@"; do
    echo "--- $program"
    # They may write to where they are.
    (cd "$work" && "$program")
  done
}

case $mode in
package)
  cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
  cmake -S "$source/examples" -B "$work/build" "${options[@]}" \
    -DCMAKE_PREFIX_PATH="$work/prefix"
  cmake --build "$work/build"
  mapfile -t programs < <(find "$work/build" -maxdepth 2 -type f -executable)
  [ ${#programs[@]} -gt 0 ]
  run_examples "${programs[@]}"
  python=$(sed -n 's/^LOCKSTEP_PYTHON:[A-Z]*=//p' "$build/CMakeCache.txt")
  python3 "$source/tests/cli/practical_programs.py" "$work/build/bin" \
    "$work/prefix/bin" ${python:+"$python"}
  "$work/prefix/bin/lockstep" --version
  # The other half of the program, which has LibTorch.
  "$work/prefix/bin/lockstep" help train | grep -e --strategy
  ;;
subdirectory)
  # Links one layer, so that not all of Lockstep is built again.
  cat >"$work/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(consumer LANGUAGES CXX)
add_subdirectory($source lockstep EXCLUDE_FROM_ALL)
if(NOT TARGET lockstep::lockstep)
  message(FATAL_ERROR "no target lockstep::lockstep")
endif()
add_executable(minimal $source/examples/minimal/main.cc)
target_link_libraries(minimal PRIVATE lockstep::device)
END
  torch=$(grep -E '^(Torch_DIR|LOCKSTEP_PYTHON):' "$build/CMakeCache.txt" |
    sed 's/^/-D/')
  mapfile -t torch <<<"$torch"
  cmake -S "$work" -B "$work/build" "${options[@]}" "${torch[@]}"
  cmake --build "$work/build" --target minimal
  run_examples "$work/build/minimal"
  ;;
*)
  echo "consumption.sh: expected package or subdirectory, got '$mode'" >&2
  exit 2
  ;;
esac
