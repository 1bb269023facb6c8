#!/usr/bin/env python3
"""Tests bench/baseline.py and tools/slowest.py, with small suites of ctest."""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import baseline  # noqa: E402
import baseline_tables  # noqa: E402
import slowest  # noqa: E402
import test_times  # noqa: E402

DEADLINE_S = 60
NINJA_LOG = """# ninja log v5
0\t9000\t1\tlib/CMakeFiles/old.dir/gone.cc.o\taaaa
10\t2010\t1\ttests/CMakeFiles/test_a.dir/Unity/unity_0_cxx.cxx.o\tbbbb
5\t1005\t1\tcmake_pch.hxx.pch\tcccc
5\t1005\t1\tcmake_pch.hxx.pch.d\tcccc
2010\t4510\t1\tbin/test_a\tdddd
0\t500\t2\tlib/CMakeFiles/old.dir/gone.cc.o\taaaa
600\t7"""
USES_CPU = "import time\nwhile time.process_time() < 0.3: pass"


def a_baseline(**sections):
    return {"began": "yesterday", "revision": "abc", "loads": {},
            "machine": {"processor": "P", "cores": 2, "flags": [],
                        "torch": "2.15.0"}, **sections}


def digests(*values):
    return {"mlp fp32": dict(zip(baseline.STRATEGIES, values))}


def wait_until(is_done):
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {DEADLINE_S} s")
        time.sleep(0.005)


def runs(pid):
    """Returns whether a process runs."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class NinjaLog(unittest.TestCase):

    def test_counts_a_step_with_two_outputs_once(self):
        steps = slowest.read_ninja_log(NINJA_LOG)
        self.assertEqual(sorted(step[0] for step in steps), [0.5, 1, 2, 2.5])
        self.assertIn((1.0, 0.005, 1.005,
                       ["cmake_pch.hxx.pch", "cmake_pch.hxx.pch.d"]), steps)

    def test_takes_the_latest_time_of_an_output(self):
        times = {step[3][0]: step[0] for step in slowest.read_ninja_log(NINJA_LOG)}
        self.assertEqual(times["lib/CMakeFiles/old.dir/gone.cc.o"], 0.5)

    def test_refuses_another_format(self):
        with self.assertRaisesRegex(SystemExit, "expected '# ninja log v5', got"):
            slowest.read_ninja_log("# ninja log v99\n")

    def test_reads_the_tests_that_ctest_printed(self):
        text = """    Start 2: silent
 2/12 Test  #2: silent ......***Failed  Required regular expression not found. Regex=[a
b
]  0.25 sec
10/12 Test #10: a/b.C/0 ....   Passed  101.50 sec
99% tests passed, 1 tests failed out of 12
"""
        found = slowest.read_ctest_log(text)
        self.assertEqual([row[:2] for row in found], [(0.25, "silent"),
                                                      (101.5, "a/b.C/0")])
        self.assertEqual(found[1][2], "Passed")
        self.assertTrue(found[0][2].startswith("Failed Required"), found)

    def test_prints_the_slowest_compilations_and_no_other_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / ".ninja_log").write_text(NINJA_LOG, encoding="utf-8")
            self.assertEqual(slowest.slowest_compilations(build, 2),
                             [(2.0, "tests/test_a/Unity/unity_0_cxx.cxx.o"),
                              (1.0, "cmake_pch.hxx.pch")])
            self.assertEqual(slowest.slowest_tests(build, 2), [])

    def test_sums_the_steps_of_a_build(self):
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            (build / ".ninja_log").write_text(NINJA_LOG, encoding="utf-8")
            found = baseline.build_times(build)
        self.assertEqual((found["steps"], found["compilations"]), (4, 3))
        self.assertAlmostEqual(found["sum_s"], 6.0)
        self.assertAlmostEqual(found["wall_s"], 4.51)


class Comparison(unittest.TestCase):

    def test_accepts_the_same_digests(self):
        both = a_baseline(digests=digests("x", "x", "x", "x"))
        self.assertEqual(baseline_tables.problems(both, both), [])
        self.assertIn("| digests that are the same | 4 of 4 |",
                      baseline_tables.comparison(both, both))

    def test_names_the_digests_that_changed(self):
        old = a_baseline(digests=digests("x", "x", "x", "x"))
        new = a_baseline(digests=digests("y", "y", "y", "y"))
        problem, = baseline_tables.problems(old, new)
        self.assertIn("4 digests changed", problem)
        self.assertIn("mlp fp32 ddp tcp", problem)

    def test_refuses_strategies_with_different_digests(self):
        new = a_baseline(digests=digests("x", "x", "y", "x"))
        problem, = baseline_tables.problems({}, new)
        self.assertIn("the strategies of mlp fp32 have different digests", problem)

    def test_does_not_pass_when_no_digest_is_compared(self):
        old = a_baseline(digests={"cnn fp32": {"single": "x"}})
        new = a_baseline(digests=digests("x", "x", "x", "x"))
        self.assertIn("no digest was compared",
                      " ".join(baseline_tables.problems(old, new)))

    def test_compares_no_digests_if_none_were_recorded_now(self):
        old = a_baseline(digests=digests("x", "x", "x", "x"))
        self.assertEqual(baseline_tables.problems(old, a_baseline()), [])

    def test_divides_the_old_time_by_the_new_one_in_each_round(self):
        # Both builds are twice as slow in the last round: the machine was busy.
        found = {"old": {"shm 4096": [2, 2, 4]}, "new": {"shm 4096": [1, 1, 2]}}
        lines = baseline_tables.tables(a_baseline(bench=found))
        self.assertIn("| shm 4096 | 1 | 1 | 2 | 2 | 2.00 |", lines)

    def test_compares_tests_and_lists_other_results(self):
        def row(result, cpu):
            return {"result": result, "labels": ["unit"], "serial": False,
                    "wall_s": cpu, "cpu_s": cpu}
        old = a_baseline(tests={"jobs": 2, "rows": {
            "a.A": row("passed", 4), "a.B": row("passed", 2)}})
        new = a_baseline(tests={"jobs": 2, "rows": {
            "a.A": row("failed", 2), "a.C": row("passed", 1)}})
        lines = baseline_tables.comparison(old, new)
        self.assertIn("| CPU time of all (s) | 6 | 3 |", lines)
        self.assertIn("| CPU time of those in both (s) | 4 | 2 |", lines)
        self.assertIn("| a.A | passed | failed |", lines)
        self.assertIn("| a.A | 4.0 | 2.0 | 2.00 |", lines)

    def test_makes_a_text_that_never_changes(self):
        # Digests of earlier baselines depend on it.
        self.assertTrue(hashlib.sha256(baseline.made_text().encode()).hexdigest()
                        .startswith("0b745c0a1dba6326"))


class Tests(unittest.TestCase):
    """Suites of shell commands."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = pathlib.Path(folder.name)
        self.out = self.build / "baseline.json"

    def suite(self, *tests):
        """Writes the tests of a build: (name, shell command, properties)."""
        lines = []
        for name, script, properties in tests:
            path = self.build / f"{name}.sh"
            path.write_text(script, encoding="utf-8")
            lines.append(f'add_test({name} "/bin/sh" "{path}")')
            if properties:
                lines.append(f"set_tests_properties({name} PROPERTIES {properties})")
        (self.build / "CTestTestfile.cmake").write_text("\n".join(lines),
                                                        encoding="utf-8")

    def words(self, *words):
        return [sys.executable, ROOT / "bench/baseline.py", "tests", "--build",
                self.build, "--out", self.out, *words]

    def measure(self, *words):
        """Runs the tests, and returns their rows."""
        done = subprocess.run(self.words(*words), capture_output=True, text=True,
                              check=False, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.rows()

    def rows(self):
        found = json.loads(self.out.read_text(encoding="utf-8"))
        return found["tests"]["rows"]

    def test_decides_as_ctest_does(self):
        self.suite(
            ("good", "true", ""), ("bad", "exit 3", ""), ("killed", "kill -9 $$", ""),
            ("late", "sleep 30", "TIMEOUT 1"),
            ("skipped_code", "exit 7", "SKIP_RETURN_CODE 7"),
            ("skipped_text", "echo '[  SKIPPED ] A.B (0 ms)'",
             r'SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]"'),
            ("says_so", "echo all is well; exit 1",
             'PASS_REGULAR_EXPRESSION "is well;is bad"'),
            ("silent", "true", 'PASS_REGULAR_EXPRESSION "is well;is bad"'),
            ("says_no", "echo oh no", 'FAIL_REGULAR_EXPRESSION "oh no"'),
            ("will_fail", "false", "WILL_FAIL ON"),
            ("will_pass", "true", "WILL_FAIL ON"),
            ("variable", 'test "$A" = b=c && test "$D" = e',
             'ENVIRONMENT "A=b=c;D=e"'),
            ("folder", "test $(pwd) = /", 'WORKING_DIRECTORY "/"'),
            ("serial", "true", "RUN_SERIAL ON"), ("wide", "true", "PROCESSORS 8"),
            ("off", "true", "DISABLED ON"),
            ("input", "! read line", ""))
        with open(self.build / "ctest.log", "w", encoding="utf-8") as log:
            subprocess.run(["ctest", "--test-dir", self.build, "--parallel", "4"],
                           stdout=log, stderr=log, check=False, timeout=DEADLINE_S)
        ctest = {name: result for _, name, result in slowest.read_ctest_log(
            (self.build / "ctest.log").read_text(encoding="utf-8"))}
        rows = self.measure()
        self.assertEqual(set(rows), set(ctest))
        words = {"passed": "Passed", "skipped": "Skipped", "disabled": "Not Run",
                 "failed": "Failed|Timeout|Subprocess killed"}
        for name, row in rows.items():
            self.assertRegex(ctest[name], f"^({words[row['result']]})", name)

    def test_counts_the_time_of_orphans(self):
        result = self.build / "result"
        orphan = f"({sys.executable} -c '{USES_CPU}' &) ; exit 3"
        subprocess.run([sys.executable, test_times.MEASURE, "--grace", str(DEADLINE_S),
                        "--output", self.build / "output", "--result", result, "--",
                        "sh", "-c", orphan], check=True, timeout=2 * DEADLINE_S)
        found = json.loads(result.read_text(encoding="utf-8"))
        self.assertGreaterEqual(found["cpu_s"], 0.3)
        self.assertEqual((found["exit_code"], found["left_behind"]), (3, 0))

    def test_does_not_mix_up_tests_that_run_at_the_same_time(self):
        busy = f"{sys.executable} -c '{USES_CPU}'"
        self.suite(*((f"busy{i}", busy, "") for i in range(3)),
                   *((f"idle{i}", "true", "") for i in range(3)))
        for name, row in self.measure("--jobs", "4").items():
            self.assertEqual(row["cpu_s"] >= 0.3, name.startswith("busy"), row)

    def test_ends_what_a_test_leaves_behind(self):
        pid = self.build / "pid"
        self.suite(("left", f"setsid sleep 600 & echo $! > {pid}", ""))
        self.assertEqual(self.measure()["left"]["left_behind"], 1)
        self.assertFalse(runs(int(pid.read_text(encoding="utf-8"))))

    def test_ends_a_test_that_takes_too_long_with_all_its_processes(self):
        pid = self.build / "pid"
        self.suite(("late", f"setsid sleep 600 & echo $! > {pid}; sleep 600",
                    "TIMEOUT 1"))
        row = self.measure()["late"]
        self.assertTrue(row["timed_out"], row)
        self.assertEqual(row["result"], "failed")
        self.assertFalse(runs(int(pid.read_text(encoding="utf-8"))))

    def test_keeps_what_it_has_and_goes_on(self):
        pid, count, go = (self.build / name for name in ("pid", "count", "go"))
        self.suite(("first", f"echo x >> {count}", ""),
                   ("second", f"test -e {go} && exit; echo $$ > {pid}; sleep 600",
                    "RUN_SERIAL ON"))
        with subprocess.Popen(self.words(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: pid.exists() and pid.read_text(encoding="utf-8"))
            process.send_signal(signal.SIGTERM)
            self.assertEqual(process.wait(DEADLINE_S), 143)
        self.assertFalse(runs(int(pid.read_text(encoding="utf-8"))))
        self.assertEqual(set(self.rows()), {"first"})
        go.touch()
        rows = self.measure("--resume")
        self.assertEqual({row["result"] for row in rows.values()}, {"passed"})
        self.assertEqual(count.read_text(encoding="utf-8"), "x\n")

    def test_ends_its_tests_when_it_is_killed(self):
        pid = self.build / "pid"
        self.suite(("long", f"echo $$ > {pid}; sleep 600", ""))
        with subprocess.Popen(self.words(), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL,
                              env={**os.environ, "TMPDIR": str(self.build)}) as process:
            wait_until(lambda: pid.exists() and pid.read_text(encoding="utf-8"))
            process.kill()
        wait_until(lambda: not runs(int(pid.read_text(encoding="utf-8"))))

    def test_replaces_no_earlier_baseline(self):
        self.suite(("good", "true", ""))
        self.out.write_text("precious", encoding="utf-8")
        done = subprocess.run(self.words(), capture_output=True, text=True,
                              check=False, timeout=DEADLINE_S)
        self.assertEqual(done.returncode, 1)
        self.assertIn("baseline.json exists; expected a new file", done.stderr)
        self.assertEqual(self.out.read_text(encoding="utf-8"), "precious")

    def test_runs_only_the_chosen_tests(self):
        self.suite(("a.one", "true", "LABELS quick"), ("a.two", "true", "LABELS full"),
                   ("b.one", "true", 'LABELS "quick;full"'))
        self.assertEqual(set(self.measure("--filter", "one", "--label", "full")),
                         {"b.one"})

    def test_reads_the_times_of_the_cases(self):
        text = ("[       OK ] A.Fast (3 ms)\n[       OK ] A.Slow (1234 ms)\n"
                "[  FAILED  ] A/B.Bad/0, where GetParam() = 7 (50 ms)\n"
                "[  FAILED  ] A/B.Bad/0, where GetParam() = 7\n")
        self.suite(("cases", f"cat <<'END'\n{text}END", ""))
        self.assertEqual(self.measure()["cases"]["cases_ms"],
                         {"A.Slow": 1234, "A/B.Bad/0": 50})

    def test_starts_tests_beside_each_other_as_their_properties_say(self):
        def test(**properties):
            return test_times.Test("name", ["true"], properties)
        plain, wide = test(), test(PROCESSORS=3)
        serial, locked = test(RUN_SERIAL=True), test(RESOURCE_LOCK=["port"])
        for running, next_one, jobs, expected in (
                ([], plain, 1, True), ([plain], plain, 1, False),
                ([plain], plain, 2, True), ([plain, plain], plain, 2, False),
                ([], serial, 4, True), ([plain], serial, 4, False),
                ([serial], plain, 4, False), ([plain], wide, 4, True),
                ([plain, plain], wide, 4, False), ([wide], plain, 2, False),
                ([locked], locked, 4, False), ([locked], plain, 4, True)):
            with self.subTest(running=running, next_one=next_one, jobs=jobs):
                self.assertEqual(test_times.fits(next_one, running, jobs), expected)

    def test_refuses_a_property_that_it_does_not_know(self):
        listing = {"tests": [{"name": "a", "command": ["true"], "properties": [
            {"name": "FIXTURES_CLEANUP", "value": ["x"]}]}]}
        with contextlib.redirect_stderr(io.StringIO()):
            with self.assertRaisesRegex(SystemExit, "got FIXTURES_CLEANUP"):
                test_times.read_tests(listing)


if __name__ == "__main__":
    unittest.main()
