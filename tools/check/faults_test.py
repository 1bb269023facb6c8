#!/usr/bin/env python3
"""Tests the page that tools/faults.py writes, and the plan of the restarts."""

import pathlib
import socket
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
# pylint: disable=wrong-import-position
from fault_table import node_restarts, page
from fault_table.faults import FAULTS, PHASES, all_cases
from fault_table.forwarder import Forwarder
from fault_table.outcome import Outcome

RESET = "agents' link reset, static"
SILENT = "agents' link silent for 5 s, c10d"


def outcome(fault, done_s, problem="", phase="all-reduce"):
    return Outcome(fault, phase, recovered_s=0.5, done_s=done_s, steps_again=0,
                   commands=1, codes=(0, 0), problem=problem)


def row(text, fault):
    """Returns the cells of the row of this fault."""
    lines = [line for line in text.splitlines()
             if line.startswith(f"| {fault} |")]
    assert len(lines) == 1, lines
    return lines[0].strip("| ").split(" | ")[1:]


class Page(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "faults.md"

    def write_faults(self, *outcomes):
        page.write_faults(self.path, outcomes, "/bin/true")
        return self.path.read_text()

    def write_torchrun(self, *outcomes):
        page.write_torchrun(self.path, outcomes, "2.15")
        return self.path.read_text()

    def test_both_launchers_are_in_one_row_whoever_is_written_first(self):
        ours = [outcome(RESET, 1.0), outcome(SILENT, 2.0)]
        theirs = [outcome(RESET, 300.0, "ends with 1"), outcome(SILENT, 4.0)]
        self.write_faults(*ours)
        text = self.write_torchrun(*theirs)
        self.assertEqual(row(text, RESET),
                         ["0.50", "1.00", "itself", "0, 0", "same",
                          "0.50", "300.00", "itself", "0, 0", "ends with 1"])
        self.assertIn("1 of 2 rows end with the same bits.",
                      " ".join(text.split()))
        self.path.unlink()
        self.write_torchrun(*theirs)
        again = self.write_faults(*ours)
        for fault in (RESET, SILENT):
            self.assertEqual(row(again, fault), row(text, fault))

    def test_one_launcher_keeps_the_other_ones_part(self):
        self.write_faults(outcome(RESET, 1.0))
        self.write_torchrun(outcome(RESET, 300.0))
        text = self.write_faults(outcome(RESET, 5.0), outcome(SILENT, 2.0))
        self.assertEqual(row(text, RESET)[1::5], ["5.00", "300.00"])
        self.assertEqual(row(text, SILENT)[1::5], ["2.00", "–"])
        self.assertEqual(text.count(page.TORCHRUN_BEGINS), 1)
        text = self.write_torchrun(outcome(SILENT, 7.0))
        self.assertEqual(row(text, RESET)[1::5], ["5.00", "300.00"])
        self.assertEqual(row(text, SILENT)[1::5], ["2.00", "7.00"])
        self.assertEqual(text.count(page.TORCHRUN_BEGINS), 1)
        self.assertEqual(text.count(page.NOTES[RESET].split()[-1]), 1)

    def test_the_head_counts_the_cases_and_says_how_they_ended(self):
        one = outcome("kill -9", 1.0, phase="forward")
        text = self.write_faults(one, outcome(RESET, 1.0), outcome(SILENT, 1.0))
        head = " ".join(text.partition("\n## ")[0].split())
        self.assertIn("in 3 cases", head)
        self.assertIn(": 1 case - [Two nodes](#two-nodes): 2 cases", head)
        self.assertIn("All 3 cases ended as promised.", head)
        text = self.write_faults(one, outcome(RESET, 1.0, "hangs"))
        head = " ".join(text.partition("\n## ")[0].split())
        self.assertIn("1 of 2 cases ended as promised", head)

    def test_a_section_keeps_the_others_and_has_its_place(self):
        self.write_faults(outcome(RESET, 1.0))
        restart = node_restarts.plan(1)[0]
        both = {backend: outcome("node 0 restarted", 1.0)
                for backend in node_restarts.BACKENDS}
        before = self.path.read_text()
        self.path.write_text(before + "\n## Random kills\n\nOld.\n")
        page.write_restarts(self.path, [(restart, both)], "/bin/true")
        text = self.path.read_text()
        self.assertTrue(text.startswith(before))
        self.assertTrue(text.endswith("\n\n## Random kills\n\nOld.\n"))
        self.assertIn("All 2 jobs ended as promised.", " ".join(text.split()))

    def test_a_note_names_a_fault(self):
        self.assertEqual([name for name in page.NOTES if name not in FAULTS],
                         [])


class Plan(unittest.TestCase):

    def test_each_phase_is_hit_with_both_ends_of_node_1(self):
        pairs = {(restart.phase, restart.node_1_before)
                 for restart in node_restarts.plan(2 * len(PHASES))}
        self.assertEqual(len(pairs), 2 * len(PHASES))

    def test_node_1_is_back_after_0_to_8_seconds(self):
        times = [restart.node_1_after_s for restart in node_restarts.plan(20)]
        self.assertEqual((times[0], times[-1]), (0.0, 8.0))
        self.assertEqual(len(set(times)), 20)

    def test_a_case_is_in_one_of_the_tables(self):
        cases = [FAULTS[fault] for fault, _ in all_cases()]
        networks = [fault.name for fault in cases if fault.is_of_network]
        self.assertEqual(len(networks), len(set(networks)))
        self.assertIn(RESET, networks)
        self.assertNotIn("cut link", networks)


class Links(unittest.TestCase):

    def setUp(self):
        self.server = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.server.close)
        self.forwarder = Forwarder(self.server.getsockname())
        self.addCleanup(self.forwarder.close)

    def connect(self):
        """Returns both ends of a new connection, which carries bytes."""
        ends = [socket.create_connection(("127.0.0.1", self.forwarder.port)),
                self.server.accept()[0]]
        for end in ends:
            self.addCleanup(end.close)
            end.settimeout(10)
        ends[0].sendall(b"x")
        self.assertEqual(ends[1].recv(1), b"x")
        return ends

    def test_new_connections_work_after_one_broke_in_one_direction(self):
        self.server.settimeout(10)
        self.connect()
        with self.forwarder.lock:
            self.forwarder.break_off(self.forwarder.pipes[1])
        self.connect()

    def test_a_reset_ends_both_ends_and_new_connections_work(self):
        self.server.settimeout(10)
        for end in self.connect():
            self.forwarder.reset()
            with self.assertRaises(ConnectionResetError):
                end.recv(1)
        self.connect()


if __name__ == "__main__":
    unittest.main()
