#!/bin/bash
# demo.sh LOCKSTEP: one device, then DataParallel, then both side by side.
set -euo pipefail
lockstep=$1
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

bold='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
  bold=$'\033[1m' plain=$'\033[0m'
fi
# The table's rules, where the locale does not say that it is not UTF-8.
export LANG=${LANG:-C.UTF-8}

step() {
  printf '\n%s$ lockstep %s%s\n' "$bold" "$*" "$plain"
  "$lockstep" "$@"
}

# Two slices stand in for two GPUs; of one core there is but one.
devices=cpu:2
[ "$(nproc)" -ge 2 ] || devices=cpu
work=(--model resnet18 --data synthetic --batch-size 32 --max-steps 15
  --lr 0.02 --no-eval)
step train "${work[@]}" --strategy single --devices cpu \
  --report "$runs/single.json"
step train "${work[@]}" --strategy dp --devices $devices \
  --report "$runs/dp.json"
step compare --runs "$runs/single.json" "$runs/dp.json"
