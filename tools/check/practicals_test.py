#!/usr/bin/env python3
"""Tests the scripts that fill the practicals, and the programs' sizes."""

import difflib
import json
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
from practical_pages import check, pages, runner, values  # pylint: disable=wrong-import-position

MAX_LINES = 60
PROGRAMS = ("practical5_single", "practical5_dp", "practical6_ddp",
            "resnet34_cifar10", "language_model", "practical_faults")
PAGE = """It takes <!-- value step one -->.<!-- /value -->.

<!-- run one keep=1,1
echo 'Step time: 0.02 s'; seq 4
-->
```
$ something else
```
"""


def source(name):
    text = (ROOT / "examples" / name / "main.cc").read_text(encoding="utf-8")
    return text.splitlines()


class Programs(unittest.TestCase):

    def test_have_sixty_lines_at_most(self):
        for name in PROGRAMS:
            self.assertLessEqual(len(source(name)), MAX_LINES, name)

    def test_data_parallel_is_one_line_more_than_nothing(self):
        changed = [line for line in difflib.unified_diff(
            source("practical5_single"), source("practical5_dp"), n=0,
            lineterm="") if re.match(r"[-+](?![-+])", line)]
        self.assertEqual(changed, ["-  auto model = net;",
                                   "+  auto model = DataParallel(net, list);"])


class Pages(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.place = runner.Place(self.folder.name, ROOT, ROOT, ROOT, None)

    def filled(self, page):
        text = pages.fill_blocks(page, self.place.run)
        known = values.Values(self.place.outputs,
                              pathlib.Path(self.folder.name))
        return pages.fill_values(text, known.of)

    def findings(self, text):
        page = pathlib.Path(self.folder.name, "page.md")
        page.write_text(text, encoding="utf-8")
        return check.findings(page, ROOT)

    def test_are_filled_and_long_outputs_are_cut(self):
        text = self.filled(PAGE)
        self.assertIn("It takes <!-- value step one -->20 ms<!-- /value -->.",
                      text)
        self.assertIn("```\n$ echo 'Step time: 0.02 s'; seq 4\n"
                      "Step time: 0.02 s\n... (3 lines left out)\n4\n```",
                      text)
        self.assertEqual(self.findings(text), [])
        self.assertEqual(self.filled(text), text)

    def test_that_are_not_filled_are_found(self):
        found = " ".join(self.findings(PAGE))
        self.assertIn("shows another command", found)
        self.assertIn("'step one' is not filled in", found)

    def test_measured_numbers_outside_of_values_are_found(self):
        for number in ("12 ms", "3.5 s", "40 %", "24.1 MiB", "1.3x"):
            self.assertEqual(len(self.findings(f"It was {number}, here.\n")), 1,
                             number)
        self.assertEqual(self.findings("64 over 3 are `22 ms`, in 2 parts.\n"),
                         [])

    def test_a_command_that_fails_or_hangs_stops_the_page(self):
        for command, head in (("exit 3", "one"), ("true", "one fails"),
                              ("sleep 60", "one timeout=0.2")):
            with self.assertRaises(runner.Failed):
                self.filled(f"<!-- run {head}\n{command}\n-->\n```\n```\n")

    def test_a_bar_on_a_terminal_is_a_line_each_time(self):
        text = self.filled("<!-- run one terminal\nprintf 'a\\rb\\n'; test -t 1"
                           "\n-->\n```\n```\n")
        self.assertIn("\na\nb\n```", text)

    def test_examples_that_do_not_exist_are_found(self):
        found = self.findings("<!-- run one\npractical9_x\n-->\n```\n"
                              "$ practical9_x\n1\n```\n")
        self.assertEqual(found, ["block one: no example practical9_x"])


class Sentences(unittest.TestCase):

    @staticmethod
    def of(name, *arguments, **steps):
        outputs = {block: f"Step time: {step} s | Total time: 1 s\n"
                          "cpu:0 memory peak: 20.0 MiB\n"
                          "cpu:1 memory peak: 10.0 MiB\n"
                   for block, step in steps.items()}
        return values.Values(outputs, pathlib.Path()).of(name, *arguments)

    def test_say_what_was_measured_whichever_way(self):
        for step, expected in ((0.02, "Yes: 2.00 times as fast"),
                               (0.04, "No, it is level: 1.00"),
                               (0.08, "No, it became slower: 0.50")):
            self.assertIn(expected, self.of("faster", "a", "b", a=0.04, b=step))
        self.assertTrue(self.of("proportional", "a", "b", a=0.04,
                                b=0.02).startswith("Yes"))
        self.assertIn("this is 60 %", self.of("proportional", "a", "b",
                                              a=0.06, b=0.05))

    def test_name_the_fullest_device(self):
        self.assertIn("cpu:0 is the fullest, 2.0 times cpu:1",
                      self.of("memory", "a", "b", a=1, b=1))
        self.assertEqual(values.Values.fullest({"a": 10, "b": 10.1}),
                         "They are equally full.")

    def test_tell_digests_that_differ(self):
        known = values.Values({name: "parameter_sha256 " + digit * 64
                               for name, digit in (("a", "1"), ("b", "1"),
                                                   ("c", "2"))},
                              pathlib.Path())
        self.assertIn("are equal", known.of("same_digest", "a", "b"))
        self.assertIn("differ", known.of("same_digest", "a", "c"))

    def test_call_better_what_is_faster_with_one_more_device(self):
        def run(strategy, mean, forward, backward):
            return {"strategy": strategy, "engine": "lockstep",
                    "phases_s": {"forward": forward, "backward": backward},
                    "step_time_s": {"mean": mean, "median": mean}}

        with tempfile.TemporaryDirectory() as folder:
            for name, factor in (("two", 1), ("three", 1.5)):
                # ddp is faster, and slows down more on shared cores.
                runs = [run("ddp", 0.02 * factor ** 2, 0.008, 0.008),
                        run("dp-classic", 0.04 * factor, 0.01, 0.01)]
                pathlib.Path(folder, name).write_text(json.dumps({"runs": runs}))
            known = values.Values({}, pathlib.Path(folder))
            text = known.of("scales_better", "two", "three", "dp-classic", "ddp")
        self.assertTrue(text.startswith("`ddp`: with one more device"), text)
        self.assertIn("takes 45 ms, and with `dp-classic` 60 ms", text)
        self.assertIn("4 ms of a step on two devices with `ddp`, 20 ms with "
                      "`dp-classic`", text)

    def test_refuse_what_no_command_printed(self):
        with self.assertRaises(values.Unknown):
            self.of("step", "nothing")
        with self.assertRaises(values.Unknown):
            self.of("guess")


if __name__ == "__main__":
    unittest.main()
