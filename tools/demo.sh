#!/bin/bash
# demo.sh LOCKSTEP: one device, then DataParallel, then both side by side.
set -euo pipefail
lockstep=$1
runs=$(mktemp -d)
trap 'rm -rf "$runs"' EXIT

step() {
  printf '\n\033[1m$ lockstep %s\033[0m\n' "$*"
  "$lockstep" "$@"
}

step train --model resnet18 --data synthetic --strategy single \
  --devices cpu:2 --batch-size 64 --max-steps 12 --out-dir "$runs/single"
step train --model resnet18 --data synthetic --strategy dp \
  --devices cpu:2 --batch-size 64 --max-steps 12 --out-dir "$runs/dp"
step compare --model mlp --batch-size 64 \
  --strategies single,dp-classic,dp --devices cpu:2
