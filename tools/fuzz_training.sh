#!/bin/bash
# fuzz_training.sh BUILD SECONDS [SEED]: trains random modules, and runs random
# training programs, for that long with each strategy and with plain LibTorch.
# Exits with 1 if the results differ, or if a program is refused without a
# reason. The reduced cases are then in BUILD/found/training. Without a seed,
# each call tries different cases.
set -uo pipefail
build=$1
seconds=$2
seed=${3:-$(($(date +%s) * 1000))}

# Files that a run writes stay in memory.
TMPDIR=$(mktemp -d -p /dev/shm)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

failed=0
fuzz() {
  "$build/bin/test_differential" fuzz "$@" --seed "$seed" --seconds "$seconds" \
    --shrink --keep "$build/found/training" || failed=1
}
for kind in dp world ddp; do fuzz --kind "$kind"; done
for kind in dp shm tcp ddp; do fuzz --programs --kind "$kind"; done
exit $failed
