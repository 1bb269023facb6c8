#!/bin/bash
# fuzz_training.sh BUILD SECONDS [SEED]: trains random modules for that long
# with each strategy and with plain LibTorch. Ends with 1 if they differ; the
# cases, made small, are then in BUILD/found/training. Without a seed each call
# tries other cases.
set -uo pipefail
build=$1
seconds=$2
seed=${3:-$(($(date +%s) * 1000))}

# What a run writes stays in memory.
TMPDIR=$(mktemp -d -p /dev/shm)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

failed=0
for kind in dp world ddp; do
  "$build/bin/test_differential" fuzz --kind "$kind" --seed "$seed" \
    --seconds "$seconds" --shrink --keep "$build/found/training" || failed=1
done
exit $failed
