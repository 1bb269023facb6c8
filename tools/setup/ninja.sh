#!/bin/bash
# ninja.sh NAME TARGET: builds in build/NAME, and says how long it may take.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
. "$here/common.sh"

build=build/$1
target=$2
steps=$(ninja -C "$build" -n "$target" 2>/dev/null |
  grep -oE '^\[[0-9]+/[0-9]+\]' | tail -1 | tr -dc '/0-9' | cut -d/ -f2)
if [ "${steps:-0}" -gt 20 ]; then
  say "building $target: $steps steps (up to 10 minutes on 2 cores)"
fi
jobs=${JOBS:-$(nproc)}
# A compiler takes up to 1.5 GB for torch's headers.
by_memory=$(awk '/MemAvailable/ {print int($2 / 1500000)}' /proc/meminfo)
[ "$by_memory" -ge 1 ] || by_memory=1
[ "$jobs" -le "$by_memory" ] || jobs=$by_memory
NINJA_STATUS='[%f/%t] ' exec ninja -C "$build" -j "$jobs" "$target"
