#!/bin/bash
# run_tests.sh [--rerun] BUILD [ctest options]: runs ctest, then says what was
# skipped and why, which ctest itself keeps to its log.
#
# With --rerun, tests that failed are run once more, alone. Those that pass then
# are flaky: they are listed, and up to two of them fail nothing.
set -uo pipefail
reruns=
if [ "$1" = --rerun ]; then
  reruns=1
  shift
fi
build=$1
shift

most_flaky=2
# More than so many are no accident.
most_reruns=10
results=$build/Testing/Temporary

# A temporary folder of this run, so that a killed test leaves nothing.
TMPDIR=$(mktemp -d)
# A test reads its files as another user, to be refused one of them.
chmod 755 "$TMPDIR"
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT

# The names of the tests that failed in the last run, sorted.
failed_tests() {
  sed 's/^[0-9]*://' "$results/LastTestsFailed.log" 2>/dev/null | sort
}

rm -f "$results/LastTestsFailed.log"
ctest --test-dir "$build" --output-on-failure --no-tests=error "$@" |
  tee "$build/ctest.log"
result=${PIPESTATUS[0]}

reasons=$(grep -A3 -hE ': Skipped$' "$results/LastTest.log" 2>/dev/null |
  grep -vE ': Skipped$|^--$|^\[|^$' | sort | uniq -c | sort -rn)

failed=$(failed_tests)
count=$(grep -c . <<<"$failed")
flaky=
if [ -n "$reruns" ] && [ "$result" -ne 0 ] && [ "$count" -gt 0 ] &&
  [ "$count" -le "$most_reruns" ]; then
  printf '\n[tests] once more, alone: what failed\n'
  ctest --test-dir "$build" --output-on-failure --no-tests=error \
    --rerun-failed --parallel 1 | tee "$build/ctest_rerun.log"
  rerun_result=${PIPESTATUS[0]}
  # ctest leaves the former list where all pass.
  failed_again=
  [ "$rerun_result" -ne 0 ] && failed_again=$(failed_tests)
  flaky=$(comm -23 <(echo "$failed") <(echo "$failed_again"))
  flaky_count=$(grep -c . <<<"$flaky")
  [ "$rerun_result" -eq 0 ] && [ "$flaky_count" -le "$most_flaky" ] && result=0
fi

if [ -n "$reasons" ]; then
  printf '\nSkipped, and why:\n%s\n' "$reasons"
fi
# Once more, so that it is the end of the output.
echo
grep -E '% tests passed|^Total Test time' "$build/ctest.log"
if [ -n "$flaky" ]; then
  printf '[tests] %d flaky: failed, then passed\n' "$flaky_count"
  sed 's/^/[tests]   /' <<<"$flaky"
  if [ "$flaky_count" -gt "$most_flaky" ]; then
    echo "[tests] more than $most_flaky flaky tests fail the run"
  fi
fi
if [ -n "${failed_again:-}" ]; then
  printf '[tests] failed twice\n'
  sed 's/^/[tests]   /' <<<"$failed_again"
fi
exit "$result"
