#!/usr/bin/env python3
"""Runs the programs of the practicals as their pages do.

    practical_programs.py PROGRAMS BIN [PYTHON]

PROGRAMS is the folder of the built examples, and BIN is that of lockstep.
PYTHON is one that has torch, for torchrun. Without it, those tests are skipped.
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest

PROGRAMS, BIN, PYTHON = "", "", ""
DEADLINE_S = 180


def ended(*command):
    """Runs a program in a temporary folder. Returns how it ended."""
    path = f"{PROGRAMS}:{BIN}:{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run(command, cwd=folder, capture_output=True,
                              text=True, check=False, timeout=DEADLINE_S,
                              env={**os.environ, "PATH": path})


def run(*command, check=True):
    """Returns the output of a program."""
    done = ended(*command)
    if check and done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout}"
                             f"{done.stderr}")
    return done.stdout


def digest(output):
    return re.search(r"parameter_sha256 ([0-9a-f]{64})", output)[1]


def shards(output):
    """Returns the samples of each device, as the model saw them."""
    return dict(re.findall(r"^Inside model on device (\S+), shape \[(\d+), 3, "
                           r"32, 32\]$", output, re.MULTILINE))


class Programs(unittest.TestCase):

    def test_wrong_arguments_end_with_a_line_and_2(self):
        for program, *wrong in (
                ("practical5_dp", "cuda:99", "cpu:x", "cpu 64x", "cpu 0",
                 "cpu 64 1 shown", "cpu 64 1 show more", "--steps 3"),
                ("practical5_single", "cuda:99", "cpu -1"),
                ("practical6_ddp", "many", "64 0"),
                ("practical_faults", "run 1.5", "run 40 -2"),
                ("language_model", "cuda:99", "cpu ten", "cpu 1 no_such_file"),
                ("distributed", "2"), ("minimal", "cuda:99"),
                ("padded_text", "sp", "dp 0", "dp two")):
            for words in wrong:
                with self.subTest(program=program, words=words):
                    done = ended(program, *words.split())
                    self.assertEqual(done.returncode, 2, done.stderr)
                    self.assertEqual(done.stdout, "")
                    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            with self.subTest(program=program):
                done = ended(program, "--help")
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertRegex(done.stdout, rf"\Ausage: {program}[^\n]*\n\Z")

    def test_practical5_splits_as_the_page_says(self):
        for devices, samples in ((1, ["64"]), (2, ["32", "32"]),
                                 (3, ["22", "22", "20"]),
                                 (5, ["13", "13", "13", "13", "12"])):
            output = run("practical5_dp", f"{devices}xcpu", "64", "1", "show")
            self.assertEqual([s for _, s in sorted(shards(output).items())],
                             samples)
            self.assertEqual(output.count(" memory peak: "), devices)

    def test_practical5_single_sees_the_whole_batch(self):
        output = run("practical5_single", "cpu", "64", "1", "show")
        self.assertEqual(shards(output), {"cpu:0": "64"})

    def test_ranks_have_the_bits_of_data_parallel(self):
        expected = digest(run("practical5_dp", "2xcpu", "64", "5"))
        output = run("lockstep", "run", "--nproc-per-node", "2", "--",
                     "practical6_ddp", "64", "5")
        self.assertEqual(digest(output), expected)
        for rank in range(2):
            self.assertIn(f"Rank: {rank} | Local Rank: {rank}\n", output)

    def test_more_ranks_than_cores_take_turns(self):
        for ranks in (1, 3, 5):
            output = run("lockstep", "run", "--nproc-per-node", str(ranks),
                         "--", "practical6_ddp", "64", "2")
            self.assertEqual(output.count("| Local Rank: "), ranks)
            self.assertIn(f"Batch of each: {64 // ranks} ", output)

    def test_torchrun_starts_the_same_ranks(self):
        if not PYTHON:
            self.skipTest("no Python with torch was named")
        torchrun = (PYTHON, "-m", "torch.distributed.run", "--standalone",
                    "--nproc-per-node", "2", "--no-python")
        output = run(*torchrun, f"{PROGRAMS}/practical6_ddp", "64", "5")
        self.assertIn("Rank: 0 | Local Rank: 0\n", output)
        self.assertIn("Rank: 1 | Local Rank: 1\n", output)
        # The same number of threads as under lockstep run gives the same bits.
        self.assertEqual(digest(output),
                         digest(run("practical5_dp", "2xcpu", "64", "5")))

    def test_resnet34_has_one_digest_in_every_strategy(self):
        found = {digest(run("resnet34_cifar10", "--shards", "2",
                            "--max-steps", "1", "--strategy", *strategy))
                 for strategy in (("single", "--devices", "cpu"),
                                  ("dp", "--devices", "2xcpu"),
                                  ("ddp", "--devices", "2xcpu"))}
        self.assertEqual(len(found), 1)

    def test_resnet34_has_the_learning_rates_of_the_article(self):
        make = ("mkdir cifar10; for file in data_batch_1 test_batch; do "
                "head -c 12292 /dev/zero > cifar10/$file.bin; done; "
                'exec "$@"')
        output = run("sh", "-c", make, "sh", "resnet34_cifar10", "--devices",
                     "cpu", "--batch-size", "4", "--no-eval")
        rates = re.findall(r"Epoch \d+ .* LR: (\S+)", output)
        self.assertEqual(rates, 4 * ["0.1000"] + 5 * ["0.0100"] +
                         5 * ["0.0010"] + ["0.0001"])

    def test_language_model_is_the_same_wrapped_again(self):
        for devices in (1, 2, 3, 5):
            output = run("language_model", f"{devices}xcpu", "2")
            self.assertIn("its output is the same\n", output)

    def test_a_killed_run_ends_as_a_quiet_one(self):
        launch = ("lockstep", "run", "--nproc-per-node", "2",
                  "--max-restarts", "2", "--", "practical_faults", "run", "30")
        quiet, killed = run(*launch), run(*launch, "15")
        self.assertIn("| from step 10\n", killed)
        self.assertEqual(digest(killed), digest(quiet))

    def test_a_run_killed_before_its_first_checkpoint_starts_again(self):
        launch = ("lockstep", "run", "--nproc-per-node", "2",
                  "--max-restarts", "1", "--", "practical_faults", "run", "15")
        quiet, killed = run(*launch), run(*launch, "5")
        self.assertIn("| from step 0\n", killed)
        self.assertEqual(digest(killed), digest(quiet))
        with self.assertRaises(AssertionError):  # without a restart
            run("lockstep", "run", "--nproc-per-node", "2", "--",
                "practical_faults", "run", "15", "5")
        # Killed while it wrote its first checkpoint. It left the folder with an
        # unfinished folder inside.
        found = run("sh", "-c", 'mkdir -p run/.step-00000010.unfinished-1-0 && exec "$@"',
                    "sh", *launch)
        self.assertEqual(digest(found), digest(quiet))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAMS, BIN = (os.path.realpath(folder) for folder in sys.argv[1:3])
    PYTHON = sys.argv[3] if len(sys.argv) > 3 else ""
    unittest.main(argv=sys.argv[:1])
