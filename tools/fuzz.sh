#!/bin/bash
# fuzz.sh BUILD SECONDS: runs every fuzz target for that long, starting from its
# corpus. Exits with 1 and prints the path of the input if a target failed.
#
# To find new inputs that are worth keeping (few: by edges reached, not by
# counts):
#   build/fuzz/bin/fuzz_X -set_cover_merge=1 -use_counters=0 \
#     tests/fuzz/corpus/X build/fuzz/found/X
set -uo pipefail
build=$1
seconds=$2

# Files that a target writes stay in memory.
TMPDIR=$(mktemp -d -p /dev/shm)
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

options=(
  -max_total_time="$seconds"
  -max_len=16384
  -timeout=10
  # A small file that causes a large allocation is a finding.
  -malloc_limit_mb=16
  -rss_limit_mb=4096
  -print_final_stats=1
)
# options_of NAME: options of a target that override those above.
options_of() {
  # A PNG with one colour and one bit has 8 * 1032 pixels per byte.
  [ "$1" = image ] && echo -max_len=4096 -malloc_limit_mb=128
}
# number WHAT LOG: the last number that libFuzzer printed for WHAT.
number() {
  grep -aoE "$1 *[0-9]+" "$2" | tail -1 | grep -oE '[0-9]+$' || echo 0
}

failed=0
targets=0
for program in "$build"/bin/fuzz_*; do
  [ -x "$program" ] || continue
  targets=$((targets + 1))
  name=${program##*/fuzz_}
  found=$build/found/$name
  crashes=$build/crashes/$name
  log=$build/fuzz_$name.log
  mkdir -p "$found" "$crashes"
  echo "[fuzz] $name: $seconds s (log: $log; new inputs: $found)"
  # shellcheck disable=SC2046  # some, or none
  "$program" "${options[@]}" $(options_of "$name") -dict="tests/fuzz/$name.dict" \
    -artifact_prefix="$crashes/" "$found" "tests/fuzz/corpus/$name" \
    >"$log" 2>&1
  result=$?
  echo "[fuzz] $name: $(number 'executed_units:' "$log") runs," \
    "coverage $(number 'cov:' "$log")," \
    "$(number 'new_units_added:' "$log") new inputs"
  if [ "$result" -ne 0 ]; then
    failed=1
    input=$(grep -aoE 'Test unit written to .*' "$log" | tail -1 |
      sed 's/^Test unit written to //')
    grep -aE 'what\(\)|ERROR:|runtime error:' "$log" | head -3 >&2
    echo "[fuzz] $name: FAILED on ${input:-no input, see $log};" \
      "again with: $program ${input:-}" >&2
  fi
done
if [ "$targets" -eq 0 ]; then
  echo "[fuzz] no target in $build/bin; expected fuzz_*, got none" >&2
  exit 1
fi
exit "$failed"
