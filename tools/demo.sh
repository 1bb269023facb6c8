#!/bin/bash
# demo.sh LOCKSTEP: runs the same training on one device, with DataParallel on
# two devices, and in two processes. Then it compares their times, and checks
# that all of them end with the same parameters. Takes a minute on two cores.
# Fails if the parameters differ.
set -euo pipefail
lockstep=$(realpath "$1")
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT
cd "$runs"

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\033[1m' plain=$'\033[0m'
fi
# Draw the table's lines unless the locale says that it is not UTF-8.
export LANG=${LANG:-C.UTF-8}

step() {
  printf '\n%s$ lockstep %s%s\n' "$bold" "$*" "$plain"
  "$lockstep" "$@"
}

threads_of() {
  sed -n 's/.*"intra_op_threads": \([0-9]*\).*/\1/p' "$1.json"
}

digest_of() {
  sed -n 's/.*"parameter_sha256": "\([0-9a-f]*\)".*/\1/p' "$1.json"
}

# Two slices of the CPU stand for two GPUs. With one core there is only one.
devices=2xcpu
[ "$(nproc)" -ge 2 ] || devices=cpu
# Each batch is cut into two shards on any number of devices, because the bits
# of a run depend on the number of shards and of the threads that compute one.
work=(--shards 2 --max-steps "${LOCKSTEP_DEMO_STEPS:-100}")
step train "${work[@]}" --strategy single --devices cpu \
  --report single.json
step train "${work[@]}" --strategy dp --devices $devices \
  --report dp.json
step train "${work[@]}" --strategy ddp --devices $devices \
  --report ddp.json
step compare --runs single.json dp.json ddp.json

threads="$(threads_of single) threads"
[ "$threads" != "1 threads" ] || threads="1 thread"
printf '\n%sThe parameters at the end (SHA-256, 2 shards, %s each):%s\n' \
  "$bold" "$threads" "$plain"
for run in single dp ddp; do
  printf '  %-7s %s\n' "$run" "$(digest_of $run)"
done
first=$(digest_of single)
if [ -z "$first" ] || [ "$(digest_of dp)" != "$first" ] ||
  [ "$(digest_of ddp)" != "$first" ]; then
  echo 'The digests differ. They must not: please report this.' >&2
  exit 1
fi
echo 'The digests are equal: one device, two devices in one process and two'
echo 'processes have trained the same parameters, to the last bit.'
