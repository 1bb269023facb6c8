#!/bin/bash
# bench.sh FOLDER: runs every benchmark program in FOLDER.
set -euo pipefail
shopt -s nullglob
programs=("$1"/bench_*)
if [ ${#programs[@]} -eq 0 ]; then
  echo "no benchmark was built in $1" >&2
  exit 1
fi
for program in "${programs[@]}"; do
  "$program" --benchmark_min_time=0.2
done
