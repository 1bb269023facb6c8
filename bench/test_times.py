"""Runs the tests of a build as ctest does, and measures the time of each one."""

import dataclasses
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

MEASURE = pathlib.Path(__file__).with_name("measure_process.py")
DEFAULT_TIMEOUT_S = 1500
# Time that measure_process.py has to kill the processes of its test.
KILL_S = 60
# Bytes of the output that are kept of a test that did not pass.
KEPT_OUTPUT = 4000
# Properties that this runner supports, and others that change nothing here.
SUPPORTED = {"DISABLED", "ENVIRONMENT", "FAIL_REGULAR_EXPRESSION",
          "FIXTURES_REQUIRED", "FIXTURES_SETUP", "LABELS",
          "PASS_REGULAR_EXPRESSION", "PROCESSORS", "RESOURCE_LOCK", "RUN_SERIAL",
          "SKIP_REGULAR_EXPRESSION", "SKIP_RETURN_CODE", "TIMEOUT", "WILL_FAIL",
          "WORKING_DIRECTORY"}
UNIMPORTANT = {"COST", "ATTACHED_FILES", "ATTACHED_FILES_ON_FAIL", "MEASUREMENT"}
CASE = re.compile(r"^\[ +(?:OK|FAILED|SKIPPED) +\] (\S+?),? .*?\((\d+) ms\)$", re.M)
SKIPPED_CASE = re.compile(r"^\[  SKIPPED \] \S+ \(\d+ ms\)$", re.M)


@dataclasses.dataclass
class Test:
    """A test of ctest, with its properties by name."""

    name: str
    command: list
    properties: dict

    def listed(self, name):
        """Returns a property that is a list, or one text."""
        value = self.properties.get(name, [])
        return [value] if isinstance(value, str) else value

    @property
    def labels(self):
        return self.listed("LABELS")

    @property
    def is_serial(self):
        return bool(self.properties.get("RUN_SERIAL"))

    @property
    def sets_up(self):
        """Returns whether the test prepares something for other tests."""
        return "FIXTURES_SETUP" in self.properties

    def slots(self, jobs):
        """Returns how many of the jobs the test takes."""
        if self.is_serial or self.sets_up:
            return jobs
        return min(jobs, int(self.properties.get("PROCESSORS", 1)))

    def matches(self, name, output):
        """Returns whether the output matches an expression of a property."""
        return any(re.search(pattern, output) for pattern in self.listed(name))


def read_tests(listing):
    """Returns the tests in the JSON of `ctest --show-only=json-v1`."""
    tests = []
    for found in listing["tests"]:
        properties = {each["name"]: each["value"]
                      for each in found.get("properties", [])}
        unknown = set(properties) - SUPPORTED - UNIMPORTANT
        if unknown:
            sys.exit(f"[baseline] {found['name']} has properties that this script "
                     "does not support; expected some of "
                     f" {', '.join(sorted(SUPPORTED))}, got "
                     f"{', '.join(sorted(unknown))}; add them to {__file__}")
        tests.append(Test(found["name"], found.get("command", []), properties))
    return tests


def tests_of(build):
    """Returns the tests of a build."""
    done = subprocess.run(["ctest", "--test-dir", str(build), "--show-only=json-v1"],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout.startswith("{"):
        sys.exit(f"[baseline] ctest lists no tests of {build}; expected JSON and exit "
                 f"code 0, got {done.returncode}:\n{done.stderr}build all targets "
                 "first: make all")
    return read_tests(json.loads(done.stdout))


def known_seconds(build):
    """Returns how long each test took before, as far as ctest wrote it down."""
    try:
        text = (build / "Testing/Temporary/CTestCostData.txt").read_text()
    except OSError:
        return {}
    rows = [line.split() for line in text.partition("---")[0].splitlines()]
    return {row[0]: float(row[2]) for row in rows
            if len(row) == 3 and float(row[2]) > 0}


def verdict(test, result, output):
    """Returns whether a test passed, failed or was skipped, as ctest decides it."""
    if result.get("error") or result.get("timed_out"):
        return "failed"
    if (result["exit_code"] == test.properties.get("SKIP_RETURN_CODE", -1000)
            or test.matches("SKIP_REGULAR_EXPRESSION", output)):
        return "skipped"
    passed = result["exit_code"] == 0
    if test.listed("PASS_REGULAR_EXPRESSION"):
        passed = test.matches("PASS_REGULAR_EXPRESSION", output)
    if test.matches("FAIL_REGULAR_EXPRESSION", output):
        passed = False
    return "passed" if passed != bool(test.properties.get("WILL_FAIL")) else "failed"


def not_run(test):
    """Returns why a test can't run, or ""."""
    if test.properties.get("DISABLED"):
        return "disabled"
    if not test.command or test.name.endswith(".NOT_BUILT"):
        return "not built"
    return ""


class Running:
    """A test that runs below measure_process.py."""

    def __init__(self, test, folder, number):
        self.test = test
        self.output = folder / f"baseline-output-{number}"
        self.result = folder / f"baseline-result-{number}"
        timeout = float(test.properties.get("TIMEOUT") or DEFAULT_TIMEOUT_S)
        variables = dict(each.split("=", 1) for each in test.listed("ENVIRONMENT"))
        self.process = subprocess.Popen(
            [sys.executable, str(MEASURE), "--timeout", str(timeout), "--output",
             str(self.output), "--result", str(self.result), "--", *test.command],
            cwd=test.properties.get("WORKING_DIRECTORY"), stdin=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": str(folder), **variables},
            start_new_session=True)

    def end(self):
        """Returns the row of a test whose process ended."""
        self.process.wait()
        try:
            result = json.loads(self.result.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            result = {"error": f"measure_process.py: {self.process.returncode}"}
        output = ""
        if self.output.exists():
            output = self.output.read_bytes().decode(errors="replace")
        row = {"result": verdict(self.test, result, output),
               **result,
               "skipped_cases": len(SKIPPED_CASE.findall(output)),
               "cases_ms": {name: int(ms) for name, ms in CASE.findall(output)
                            if int(ms) >= 10}}
        if row["result"] != "passed":
            row["output"] = output[-KEPT_OUTPUT:]
        for path in (self.output, self.result):
            path.unlink(missing_ok=True)
        return row


def fits(test, running, jobs):
    """Returns whether a test may start while others run."""
    locks = {lock for other in running for lock in other.listed("RESOURCE_LOCK")}
    return (sum(other.slots(jobs) for other in running) + test.slots(jobs) <= jobs
            and not locks.intersection(test.listed("RESOURCE_LOCK")))


class Remaining:
    """The time that the tests which have not run will take."""

    def __init__(self, tests, jobs, known):
        self.left = {test.name: test for test in tests}
        self.jobs, self.known = jobs, known
        self.done = []

    def finish(self, name, seconds):
        self.left.pop(name)
        self.done.append(seconds)

    def seconds(self):
        usual = sum(self.done) / len(self.done) if self.done else 0
        return sum(self.known.get(test.name, usual) * test.slots(self.jobs)
                   for test in self.left.values()) / self.jobs


def minutes(seconds):
    """Returns a time for people: "about 3 min"."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min"


def kill(running):
    """Ends tests with all their processes, and waits for that."""
    for each in running:
        each.process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + KILL_S
    for each in running:
        try:
            each.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.process.kill()


def run_tests(tests, jobs, known, keep):
    """Runs tests, `jobs` at a time, and calls `keep(name, row)` after each one.

    Tests that set up a fixture are first, and those with RUN_SERIAL last. If this is interrupted, the tests that run are
    killed.
    """
    waiting = sorted(tests, key=lambda test: (not test.sets_up, test.is_serial))
    remaining = Remaining(tests, jobs, known)
    running = {}

    def finish(test, row):
        remaining.finish(test.name, row.get("wall_s", 0))
        keep(test.name, {"labels": test.labels, "serial": test.is_serial, **row})
        print(f"[baseline] {len(remaining.done)}/{len(tests)} {test.name}: "
              f"{row['result']}, {row.get('wall_s', 0):.1f} s, "
              f"CPU {row.get('cpu_s', 0):.1f} s; {minutes(remaining.seconds())} left",
              file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="lockstep-tests-") as folder:
        # A test reads its files as another user.
        os.chmod(folder, 0o755)
        try:
            while waiting or running:
                busy = [each.test for each in running.values()]
                ready = next((each for each in waiting if fits(each, busy, jobs)), None)
                if ready:
                    waiting.remove(ready)
                    if not_run(ready):
                        finish(ready, {"result": not_run(ready)})
                        continue
                    started = Running(ready, pathlib.Path(folder), len(waiting))
                    running[started.process.pid] = started
                else:
                    pid = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid
                    ended = running.pop(pid)
                    finish(ended.test, ended.end())
        finally:
            kill(running.values())
