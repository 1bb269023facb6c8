#!/bin/bash
# examples.sh BUILD [EXAMPLE ...]: installs Lockstep in BUILD/prefix, and uses
# it to build the named programs of examples/, or all of them, in
# BUILD/examples/bin.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$1
shift
. tools/setup/common.sh

# The parts of the package besides the program.
"$(command -v ninja)" -C "$build" lockstep/all
cmake --install "$build" --prefix "$PWD/$build/prefix" >"$build/install.log"
compiler=$(sed -n 's/^CMAKE_CXX_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
fresh=$(fresh_if_moved "$build/examples" examples)
cmake ${fresh:+"$fresh"} -S examples -B "$build/examples" -G Ninja \
  -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$PWD/$build/prefix"
cmake --build "$build/examples" --parallel "${JOBS:-$(nproc)}" \
  ${@+--target "$@"}
