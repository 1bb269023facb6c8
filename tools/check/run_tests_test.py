#!/usr/bin/env python3
"""Tests how tools/run_tests.sh and .ci/run handle tests that fail."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Fails only the first time.
FLAKY = "test -e {mark} || {{ touch {mark}; exit 1; }}"
MAKEFILE = """
all:
\t@true
test:
\t@tools/run_tests.sh $(if $(RERUN),--rerun) build --parallel 2
"""


class RunTests(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tree = pathlib.Path(folder.name)
        (self.tree / "build").mkdir()
        for script in ("tools/run_tests.sh", "tools/slowest.py", ".ci/run"):
            (self.tree / script).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / script, self.tree / script)
        (self.tree / "Makefile").write_text(MAKEFILE, encoding="utf-8")

    def suite(self, labels=None, **scripts):
        """Writes the tests of a build: names and shell commands."""
        lines = [f'add_test({name} "/bin/sh" "-c" "{script}")'
                 for name, script in scripts.items()]
        lines += [f'set_tests_properties({name} PROPERTIES LABELS "{label}")'
                  for name, label in (labels or {}).items()]
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

    def selected_by(self, *options):
        """Returns the tests that run with these options."""
        self.suite(labels={"small": "quick", "large": "full",
                           "huge": "nightly", "chip": "full;gpu"},
                   small="true", large="true", huge="true", chip="true")
        code, output = self.run_words("tools/run_tests.sh", *options, "build")
        self.assertEqual(code, 0, output)
        return set(re.findall(r"Test +#\d+: (\w+)", output))

    def test_runs_the_tests_of_a_tier_and_those_of_the_tiers_below(self):
        self.assertEqual(self.selected_by("--tier", "quick"), {"small"})
        self.assertEqual(self.selected_by("--tier", "full"),
                         {"small", "large", "chip"})
        self.assertEqual(self.selected_by("--tier", "nightly"),
                         {"small", "large", "chip", "huge"})

    def test_runs_the_tests_of_a_label_or_name(self):
        self.assertEqual(self.selected_by("--label", "gpu"), {"chip"})
        self.assertEqual(self.selected_by("--filter", "^h"), {"huge"})
        self.assertEqual(self.selected_by("--tier", "full", "--filter", "l"),
                         {"small", "large"})

    def test_refuses_a_tier_that_does_not_exist(self):
        self.suite(good="true")
        code, output = self.run_words("tools/run_tests.sh", "--tier", "fast",
                                      "build")
        self.assertEqual(code, 2, output)
        self.assertIn("expected quick, full or nightly", output)

    def test_names_the_cases_of_a_group_that_failed(self):
        self.suite(group="echo '[  FAILED  ] Sum.IsExact (3 ms)'; false",
                   good="echo '[  FAILED  ] Sum.IsFast'")
        _, output = self.rerun()
        self.assertTrue(output.endswith("[tests] failed: Sum.IsExact\n"), output)

    def test_ci_says_what_was_flaky_in_its_closing_lines(self):
        self.suite(good="true", one=self.flaky("one"))
        code, output = self.run_words(".ci/run")
        self.assertEqual(code, 0, output)
        summary = output[output.index("=== summary"):]
        self.assertIn("50% tests passed, 1 tests failed out of 2", summary)
        self.assertIn("[tests] 1 flaky: failed, then passed\n"
                      "[tests]   one\n", summary)
        self.assertTrue(summary.endswith("tests: ok\n"), summary)

    def test_ci_fails_with_what_fails_twice(self):
        self.suite(good="true", bad="false")
        code, output = self.run_words(".ci/run")
        self.assertNotEqual(code, 0, output)
        summary = output[output.index("=== summary"):]
        self.assertIn("[tests] failed twice\n[tests]   bad\n", summary)
        self.assertTrue(summary.endswith("tests: FAILED\n"), summary)

    def test_ci_runs_no_test_of_what_does_not_build(self):
        self.suite(good="true")
        (self.tree / "Makefile").write_text("all:\n\tfalse\n", encoding="utf-8")
        code, output = self.run_words(".ci/run")
        self.assertEqual(code, 1, output)
        self.assertTrue(output.endswith("build: FAILED\n"), output)


if __name__ == "__main__":
    unittest.main()
