#!/usr/bin/env python3
"""Tests the table of tools/mutate.py, and what the tool makes of it."""

import collections
import pathlib
import sys
import tempfile
import threading
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import mutate  # noqa: E402
from mutants import ctest, instrument, table, test_run  # noqa: E402
from mutants.results import Results  # noqa: E402
from mutants.source_copy import Failure  # noqa: E402


def mutant(name="wrong", before="a + b", after="MUTANT ? a - b : a + b"):
    return table.Mutant(name, "comm", "x.cc", before, after, "the sign")


class Table(unittest.TestCase):

    def test_has_enough_mutants_in_every_room(self):
        self.assertGreaterEqual(len(table.MUTANTS), 40)
        of_room = collections.Counter(one.room for one in table.MUTANTS)
        self.assertEqual(set(of_room), set(table.ROOMS))
        for room, count in of_room.items():
            self.assertGreaterEqual(count, 2, room)

    def test_names_each_mutant_once(self):
        names = [one.name for one in table.MUTANTS]
        self.assertEqual(len(names), len(set(names)))
        for name in names:
            self.assertRegex(name, r"^[a-z0-9_]+$")
            self.assertNotIn(name, table.ROOMS)

    def test_changes_code_that_is_in_this_tree_once(self):
        for one in table.MUTANTS:
            text = (ROOT / one.path).read_text(encoding="utf-8")
            self.assertEqual(text.count(one.before), 1,
                             f"{one.path}: {one.name}")
            self.assertRegex(one.after, r"\bMUTANT\b", one.name)
            self.assertNotEqual(one.before, one.after)

    def test_can_be_put_into_this_tree(self):
        changed = instrument.changed_files(ROOT, table.MUTANTS)
        chosen = "".join(changed.values())
        for one in table.MUTANTS:
            self.assertIn(f'is_chosen("{one.name}")', chosen)
        self.assertNotRegex(chosen, r"\bMUTANT\b")
        for path, text in changed.items():
            if path == instrument.HEADER_NAME:
                continue
            code = (ROOT / path).read_text(encoding="utf-8")
            self.assertEqual(text.partition("#line 1\n")[2].count("\n"),
                             code.count("\n"), path)


class Instrumenting(unittest.TestCase):

    def test_asks_for_the_name_where_mutant_is(self):
        text = instrument.put_in("int f() {\n  return a + b;\n}\n", [mutant()])
        self.assertTrue(text.startswith(
            '#include "lockstep/mutant.h"\n#line 1\nint f() {\n'))
        condition = instrument.condition("wrong")
        self.assertIn(f"return {condition} ? a - b : a + b;\n", text)

    def test_keeps_the_numbers_of_lines(self):
        text = instrument.put_in(
            "f(a,\n  b);\ng();\n",
            [mutant(before="f(a,\n  b);", after="if (!MUTANT)\n{\nf(a,\nb);}")])
        self.assertEqual(text.partition("#line 1\n")[2].splitlines()[2], "g();")

    def test_refuses_code_that_is_missing_or_there_twice(self):
        for code in ("a - b", "a + b + a + b"):
            with self.assertRaisesRegex(Failure, "lockstep/x.cc: .* wrong is"):
                instrument.put_in(code, [mutant()])

    def test_refuses_mutants_of_the_same_code(self):
        with self.assertRaisesRegex(Failure, "wrong changes code of another"):
            instrument.put_in("a + b", [
                mutant("right", "a +", "MUTANT ? b : c +"), mutant()])


class FakeBuild(unittest.TestCase):
    """Judges mutants by shell commands that stand for tests."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(
            tempfile.TemporaryDirectory()))
        self.enterContext(unittest.mock.patch.object(
            mutate, "FOLDER", self.folder))
        self.enterContext(unittest.mock.patch.object(
            mutate, "say", lambda text: None))
        self.enterContext(unittest.mock.patch.object(
            test_run, "is_stopped", threading.Event()))

    def fake(self, name, script, tier="quick"):
        return ctest.Test(name, tier, ("/bin/sh", "-c", script),
                          str(self.folder), 60, None)

    def judged(self, tests, tiers=("quick", "full"), name="wrong"):
        state = Results(self.folder / "state.json", "", ("tests", "results"),
                        False)
        mutate.Run([mutant(name)], tests, list(tiers), 1, state).judge_all()
        return state["results"][name]

    def test_is_killed_by_the_first_test_that_fails_with_it(self):
        result = self.judged([
            self.fake("base.A", "true"),
            self.fake("comm.B", '[ "$LOCKSTEP_MUTANT" != wrong ]'),
            self.fake("comm.C", "exit ${LOCKSTEP_MUTANT:+1}", "full")])
        self.assertEqual(result["result"], "killed")
        self.assertEqual((result["tier"], result["test"]), ("quick", "comm.B"))

    def test_is_judged_by_the_suites_of_its_room_first(self):
        note = self.folder / "order"
        self.judged([self.fake(name, f"echo {name} >> {note}")
                     for name in ("base.A", "shm.B", "comm.C")], ["quick"])
        self.assertEqual(note.read_text().split()[:2], ["comm.C", "comm.C"])

    def test_survives_if_all_tests_pass(self):
        result = self.judged([self.fake("comm.A", "true")])
        self.assertEqual(result["result"], "survived")
        self.assertEqual(set(result["survived"]), {"quick", "full"})

    def test_is_not_killed_by_a_test_that_now_fails_by_itself(self):
        note = self.folder / "runs"
        result = self.judged([self.fake(  # passes in its first run only
            "comm.A", f"echo >> {note}; [ $(wc -l < {note}) = 1 ]")])
        self.assertEqual(result["result"], "survived")

    def test_needs_tests_that_pass_without_it(self):
        with self.assertRaisesRegex(Failure, "comm.A failed without a mutant"):
            self.judged([self.fake("comm.A", "false")])

    def test_keeps_a_result_until_the_test_changes(self):
        note = self.folder / "runs"
        script = f"echo >> {note}; [ -z \"$LOCKSTEP_MUTANT\" ]"
        self.judged([self.fake("comm.A", script)])
        runs = note.read_text()
        self.judged([self.fake("comm.A", script)])
        self.assertEqual(note.read_text(), runs)
        result = self.judged([self.fake("comm.A", script + " || true")])
        self.assertEqual(result["result"], "survived")

    def test_is_listed_with_the_test_that_kills_it(self):
        self.judged([self.fake("comm.A", '[ -z "$LOCKSTEP_MUTANT" ]')])
        page = (self.folder / "mutants.md").read_text()
        self.assertIn("1 killed by quick.", page)
        self.assertIn("| comm | `wrong` | the sign | killed by comm.A (quick, "
                      "failed) |", page)


class Names(unittest.TestCase):

    def test_have_the_program_the_suite_and_the_case(self):
        self.assertEqual(mutate.full_name("shm.Group", "Group.A"), "shm.Group.A")
        self.assertEqual(mutate.full_name("cli.Run.A", "Run.A"), "cli.Run.A")
        self.assertEqual(mutate.full_name("faults.some", "faults.some"),
                         "faults.some")
        self.assertEqual(mutate.full_name("shm.Group", "the end of it"),
                         "shm.Group, the end of it")


class Runs(unittest.TestCase):

    def test_end_at_their_deadline_with_their_children(self):
        outcome = test_run.run(["/bin/sh", "-c", "tail -f /dev/null | cat"], {}, 0.2)
        self.assertEqual(outcome.how, "hung")

    def test_end_without_an_outcome_when_the_tool_stops(self):
        with unittest.mock.patch.object(test_run, "is_stopped",
                                        threading.Event()):
            threading.Timer(0.1, test_run.stop).start()
            with self.assertRaises(test_run.Stopped):
                test_run.run(["/usr/bin/tail", "-f", "/dev/null"], {}, 60)
        self.assertFalse(test_run.children)

    def test_name_the_signal_that_ended_them(self):
        outcome = test_run.run(["/bin/sh", "-c", "kill -SEGV $$"], {}, 60)
        self.assertEqual(outcome.how, "SIGSEGV")

    def test_of_a_case_leave_the_others_of_the_suite_out(self):
        suite = ctest.Test("shm.Group", "quick",
                           ("/bin/test_shm", "--gtest_filter=Group.*"), ".",
                           60, None)
        self.assertEqual(suite.of_case("Group.A").command,
                         ("/bin/test_shm", "--gtest_filter=Group.A"))
        self.assertEqual(suite.of_case("the start of it"), suite)


if __name__ == "__main__":
    unittest.main()
