#!/usr/bin/env python3
"""Tests how tools/run_tests.sh and .ci/run handle tests that fail."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Fails only the first time.
FLAKY = "test -e {mark} || {{ touch {mark}; exit 1; }}"
MAKEFILE = """
test:
\t@tools/run_tests.sh $(if $(RERUN),--rerun) build --parallel 2
check:
\t@true
"""


class RunTests(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        (self.tree / "build").mkdir()
        for script in ("tools/run_tests.sh", ".ci/run"):
            (self.tree / script).parent.mkdir()
            shutil.copy(ROOT / script, self.tree / script)
        (self.tree / "Makefile").write_text(MAKEFILE, encoding="utf-8")

    def suite(self, **scripts):
        """Writes the tests of a build: names and shell commands."""
        lines = [f'add_test({name} "/bin/sh" "-c" "{script}")'
                 for name, script in scripts.items()]
        (self.tree / "build/CTestTestfile.cmake").write_text(
            "\n".join(lines), encoding="utf-8")

    def flaky(self, name):
        return FLAKY.format(mark=self.tree / f"{name}.mark")

    def run_words(self, *words):
        done = subprocess.run(words, cwd=self.tree, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              check=False, timeout=60)
        return done.returncode, done.stdout

    def rerun(self):
        return self.run_words("tools/run_tests.sh", "--rerun", "build")

    def test_passes_what_passes(self):
        self.suite(good="true", better="true")
        code, output = self.rerun()
        self.assertEqual(code, 0, output)
        self.assertNotIn("flaky", output)
        self.assertEqual(output.count("100% tests passed"), 2, output)

    def test_lists_flaky_tests_and_passes_two_of_them(self):
        self.suite(good="true", one=self.flaky("one"), two=self.flaky("two"))
        code, output = self.rerun()
        self.assertEqual(code, 0, output)
        self.assertIn("33% tests passed, 2 tests failed out of 3", output)
        self.assertTrue(output.endswith(
            "[tests] 2 flaky: failed, then passed\n"
            "[tests]   one\n[tests]   two\n"), output)

    def test_fails_with_three_flaky_tests(self):
        self.suite(**{n: self.flaky(n) for n in ("one", "two", "three")})
        code, output = self.rerun()
        self.assertNotEqual(code, 0, output)
        self.assertIn("[tests] 3 flaky", output)
        self.assertIn("[tests] more than 2 flaky tests fail the run", output)

    def test_fails_with_a_test_that_fails_twice(self):
        self.suite(good="true", bad="exit 3", one=self.flaky("one"))
        code, output = self.rerun()
        self.assertNotEqual(code, 0, output)
        self.assertTrue(output.endswith(
            "[tests] 1 flaky: failed, then passed\n[tests]   one\n"
            "[tests] failed twice\n[tests]   bad\n"), output)

    def test_runs_each_test_once_more_at_most(self):
        count = self.tree / "count"
        self.suite(bad=f"echo x >> {count}; false")
        self.rerun()
        self.assertEqual(count.read_text(encoding="utf-8"), "x\nx\n")

    def test_does_not_run_again_what_is_broken_altogether(self):
        self.suite(**{f"t{i}": self.flaky(f"t{i}") for i in range(11)})
        code, output = self.rerun()
        self.assertNotEqual(code, 0, output)
        self.assertNotIn("once more", output)

    def test_fails_at_once_without_being_asked_to_rerun(self):
        self.suite(one=self.flaky("one"))
        code, output = self.run_words("tools/run_tests.sh", "build")
        self.assertNotEqual(code, 0, output)
        self.assertNotIn("flaky", output)

    def test_fails_without_any_test(self):
        self.suite()
        code, output = self.rerun()
        self.assertNotEqual(code, 0, output)

    def test_takes_no_list_of_an_earlier_run(self):
        self.suite(bad="false")
        self.rerun()
        self.suite(bad="false", good="true")
        code, output = self.run_words("tools/run_tests.sh", "--rerun",
                                      "build", "-R", "good")
        self.assertEqual(code, 0, output)

    def test_ci_says_what_was_flaky_in_its_closing_lines(self):
        self.suite(good="true", one=self.flaky("one"))
        code, output = self.run_words(".ci/run")
        self.assertEqual(code, 0, output)
        summary = output[output.index("=== summary"):]
        self.assertIn("50% tests passed, 1 tests failed out of 2", summary)
        self.assertIn("[tests] 1 flaky: failed, then passed\n"
                      "[tests]   one\n", summary)
        self.assertTrue(summary.endswith("tests: ok\nchecks: ok\n"), summary)

    def test_ci_fails_with_what_fails_twice(self):
        self.suite(good="true", bad="false")
        code, output = self.run_words(".ci/run")
        self.assertNotEqual(code, 0, output)
        summary = output[output.index("=== summary"):]
        self.assertIn("[tests] failed twice\n[tests]   bad\n", summary)
        self.assertTrue(summary.endswith("tests: FAILED\nchecks: ok\n"),
                        summary)


if __name__ == "__main__":
    unittest.main()
