#!/usr/bin/env python3
"""Tests how tools/flips.py finds values in memory, and what it reads from jobs."""

import ctypes
import os
import pathlib
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import flips  # pylint: disable=wrong-import-position

DIGEST = "a" * 64
CASE = flips.Case("parameter", 0, 4, "tcp")


def judged(lines, code=0, rank=2, after=7):
    outcome = flips.Outcome(CASE, rank, flipped_after=after, code=code)
    flips.judge(outcome, list(enumerate(lines)), DIGEST)
    return outcome


def step(number):
    return f"[rank 0] step {number}/80 | epoch 0 | loss 2.0778"


LAST = f"[rank 0] parameter_sha256 {DIGEST} (4 shards, 1 thread each)"


class Judge(unittest.TestCase):

    def test_a_run_that_noticed_and_ends_with_the_same_bits_is_repaired(self):
        outcome = judged([step(9), "[train] after step 10 the ranks have "
                          "different parameters or optimizer state", LAST])
        self.assertEqual(outcome.end, "repaired")
        self.assertEqual(outcome.steps, 3)
        self.assertEqual(outcome.blame, "nobody")
        self.assertFalse(outcome.is_bad)

    def test_other_bits_and_no_error_are_bad(self):
        outcome = judged([step(80), LAST.replace("a", "b")])
        self.assertEqual(outcome.end, "OTHER BITS")
        self.assertTrue(outcome.is_bad)

    def test_an_error_is_a_refusal(self):
        outcome = judged([step(9), "[ddp] the values of parameter 'w' differ: "
                          "rank 1 from those of rank 0"], code=1)
        self.assertEqual(outcome.end, "refused")
        self.assertEqual(outcome.steps, 2)

    def test_names_of_ranks(self):
        for text, blame in (
                ("step 10 was repeated: rank 2 had been wrong; a bit", "right"),
                ("step 10 was repeated: rank 1 had been wrong; a bit", "wrong"),
                ("step 10 was repeated: ranks 1, 2 had been wrong; a", "wrong"),
                ("step 10 was repeated: rank 1 had been wrong, but it can't "
                 "be known", "nobody"),
                ("step 10 was repeated: all ranks had been wrong", "nobody"),
                ("after step 10 parameters or optimizer state of rank 2 differ "
                 "from those", "right"),
                ("rank 1 had different parameters from the other ranks",
                 "wrong")):
            self.assertEqual(judged([text, LAST]).blame, blame, text)

    def test_the_table_has_a_row_for_each_case(self):
        one = judged([step(9), LAST])
        rows = flips.table([one, one]).splitlines()
        self.assertEqual(len(rows), 3)
        self.assertEqual(len({row.count("|") for row in rows}), 1)
        self.assertIn("| parameter | tcp | 4 | 0 | 2 |", rows[2])


class Memory(unittest.TestCase):

    def test_finds_and_flips_a_bit_of_a_child(self):
        values = ctypes.create_string_buffer(os.urandom(4096), 4096)
        address = ctypes.addressof(values)
        before = values.raw
        child = os.fork()
        if child == 0:
            while True:
                time.sleep(1)
        try:
            with flips.Stopped([child], time.monotonic() + 10), \
                    flips.Memory(child) as memory:
                self.assertTrue(flips.is_stopped(child))
                mappings = [m for m in flips.writable_mappings(child)
                            if m.begin <= address < m.end]
                self.assertEqual(len(mappings), 1)
                self.assertEqual(memory.read(address, 4096), before)
                memory.flip(address + 100, 6)
                after = memory.read(address, 4096)
            self.assertEqual(after[100], before[100] ^ 64)
            self.assertEqual(after[:100] + after[101:],
                             before[:100] + before[101:])
            self.assertEqual(values.raw, before)
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)


if __name__ == "__main__":
    unittest.main()
