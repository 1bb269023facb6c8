#!/bin/bash
# run_tests.sh [OPTIONS] BUILD [ctest options]: runs ctest, then prints which
# tests were skipped and why. ctest writes that only to its log.
#
#   --tier TIER     quick, full (quick and full) or nightly (all tests)
#   --label LABEL   only tests with that label, such as gpu
#   --filter NAME   only tests whose names match. Each suite is a test then.
#   --rerun         runs tests that failed once more, one at a time. A test that
#                   then passes is flaky. Flaky tests are listed, and up to two
#                   of them don't fail the run.
set -uo pipefail
reruns=
selection=()
while [[ $1 == --* ]]; do
  case $1 in
  --rerun) reruns=1 ;;
  --tier)
    case $2 in
    quick) selection+=(-L '^quick$') ;;
    full) selection+=(-L '^(quick|full)$') ;;
    nightly) ;;
    *)
      echo "[tests] there is no tier $2; expected quick, full or nightly;" \
        "run: make test TIER=quick" >&2
      exit 2
      ;;
    esac
    shift
    ;;
  --label)
    selection+=(-L "^($2)\$")
    shift
    ;;
  --filter)
    selection+=(-R "$2")
    export LOCKSTEP_TEST_SUITES=1
    shift
    ;;
  *)
    echo "[tests] unknown option $1; expected one of --rerun, --tier," \
      "--label and --filter" >&2
    exit 2
    ;;
  esac
  shift
done
build=$1
shift

most_flaky=2
# More failures than this are not accidental.
most_reruns=10
results=$build/Testing/Temporary

# A temporary folder for this run, so that a killed test leaves nothing behind.
TMPDIR=$(mktemp -d)
# A test reads its files as another user, and expects to be refused one of them.
chmod 755 "$TMPDIR"
export TMPDIR
# c10d's store looks up the names of its peers to log them. A name server that
# loses a packet then costs a second instead of the resolver's five.
export RES_OPTIONS="${RES_OPTIONS:-timeout:1 attempts:1}"
# Two tests at once have more OpenMP threads than there are cores. A thread that
# spins while it waits then takes the core from the thread that it waits for.
export OMP_WAIT_POLICY="${OMP_WAIT_POLICY:-passive}"
trap 'rm -rf "$TMPDIR"' EXIT

# Prints the names of the tests that failed in the last run, sorted.
failed_tests() {
  sed 's/^[0-9]*://' "$results/LastTestsFailed.log" 2>/dev/null | sort
}

rm -f "$results/LastTestsFailed.log"
ctest --test-dir "$build" --output-on-failure --no-tests=error \
  "${selection[@]}" "$@" |
  tee "$build/ctest.log"
result=${PIPESTATUS[0]}

# A test may be a process with many suites, so these name the cases in it.
failed_cases() {
  grep -hoE '^\[  FAILED  \] [A-Za-z0-9_/]+\.[A-Za-z0-9_/]+' "$build/ctest.log" |
    sort -u
}

reasons=$(grep -A3 -hE ': Skipped$' "$results/LastTest.log" 2>/dev/null |
  grep -vE ': Skipped$|^--$|^\[|^$|^<end of output>|^Test time' |
  sort | uniq -c | sort -rn)

failed=$(failed_tests)
count=$(grep -c . <<<"$failed")
flaky=
if [ -n "$reruns" ] && [ "$result" -ne 0 ] && [ "$count" -gt 0 ] &&
  [ "$count" -le "$most_reruns" ]; then
  printf '\n[tests] running the failed tests once more, one at a time\n'
  ctest --test-dir "$build" --output-on-failure --no-tests=error \
    --rerun-failed --parallel 1 | tee "$build/ctest_rerun.log"
  rerun_result=${PIPESTATUS[0]}
  # ctest keeps the previous list if all tests pass.
  failed_again=
  [ "$rerun_result" -ne 0 ] && failed_again=$(failed_tests)
  flaky=$(comm -23 <(echo "$failed") <(echo "$failed_again"))
  flaky_count=$(grep -c . <<<"$flaky")
  [ "$rerun_result" -eq 0 ] && [ "$flaky_count" -le "$most_flaky" ] && result=0
fi

if [ -n "$reasons" ]; then
  printf '\nSkipped, and why:\n%s\n' "$reasons"
fi
# Repeat this so that it is at the end of the output.
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
[ "$count" -gt 0 ] && failed_cases | sed 's/^\[  FAILED  \]/[tests] failed:/'
exit "$result"
