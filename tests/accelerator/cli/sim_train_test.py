#!/usr/bin/env python3
"""`train` on the simulated accelerator has the digests of slices.

    sim_train_test.py BIN [TEST ...]
"""

import os
import pathlib
import re
import signal
import subprocess
import sys
import time
import unittest

from sim_program import (DEADLINE_S, ONE_THREAD, PLAIN_LAYOUT, FolderTest,
                         Programs, digest, environment, read_json, run)

IMAGES = ("--model", "cnn", "--data", "synthetic", "--seed", "1", "--shards",
          "4", "--batch-size", "16", "--no-eval", *PLAIN_LAYOUT)
SHORT = (*IMAGES, "--max-steps", "4")
MLP = ("--model", "mlp", *SHORT[2:])
RESNET = ("--model", "resnet18", "--data", "synthetic", "--seed", "1",
          "--shards", "2", "--batch-size", "4", "--max-steps", "2", "--no-eval", *PLAIN_LAYOUT)
TEXT = ("--model", "gpt-nano", "--data", "text", "--data-file", "book.txt",
        "--context", "16", "--shards", "4", "--batch-size", "8", "--max-steps",
        "3", "--no-eval")


class DigestTest(FolderTest):

    def slices(self, *words):
        return digest(self.train(*words, "--strategy", "single", "--devices",
                                 "cpu"))

    def compare(self, words, strategies, counts, *more):
        """Each digest on `counts` of devices is that of one slice."""
        expected = self.slices(*words)
        for strategy in strategies:
            for count in counts:
                with self.subTest(strategy=strategy, devices=count):
                    output = self.train(*words, "--strategy", *strategy.split(),
                                        "--devices", f"{count}xsim", *more,
                                        SIM_SEED=str(count))
                    self.assertEqual(digest(output), expected)

    def compare_with_one_device(self, *words):
        """Where Lockstep has kernels of its own for the CPU (the norm of
        gradients, GELU), the digest is not that of slices."""
        expected = digest(self.train(*words, "--strategy", "single",
                                     "--devices", "sim:0"))
        for strategy in ("dp", "ddp"):
            with self.subTest(words=words, strategy=strategy):
                output = self.train(*words, "--strategy", strategy, "--devices",
                                    "2xsim")
                self.assertEqual(digest(output), expected)


class Digests(DigestTest):

    def test_single_and_data_parallel(self):
        self.compare(SHORT, ["single"], [1])
        self.compare(SHORT, ["dp"], [1, 2, 3, 4])

    def test_ddp(self):
        self.compare(SHORT, ["ddp --backend shm", "ddp --backend tcp"],
                     [2, 3, 4])

    def test_dp_classic(self):
        """Its bits depend on the number of devices."""
        words = (*SHORT, "--strategy", "dp-classic")
        for count in (2, 3, 4):
            with self.subTest(devices=count):
                self.assertEqual(
                    digest(self.train(*words, "--devices", f"{count}xsim")),
                    digest(self.train(*words, "--devices", f"{count}xcpu")))

    def test_large_layers(self):
        self.compare(MLP, ["dp", "ddp"], [2])

    def test_resnet(self):
        self.compare(RESNET, ["dp", "ddp"], [2])


    def test_ranks_that_see_one_device(self):
        """Each rank's only device has the index 0 (--virtual-local-rank)."""
        program = Programs.path(on_devices=True)
        output = run("run", "--nproc-per-node", "2", "--virtual-local-rank", "--",
                     program, "train", *SHORT, *ONE_THREAD, "--strategy", "ddp",
                     cwd=self.folder, SIM_DEVICES="1")
        self.assertEqual(digest(output), self.slices(*SHORT))


class Options(DigestTest):

    def test_zero(self):
        for stage in "12":
            self.compare(SHORT, ["ddp --backend tcp"], [2], "--zero", stage)

    def test_accumulation(self):
        """Each device has two shards, one after another."""
        at = SHORT.index("--shards")
        words = (*SHORT[:at], *SHORT[at + 2:])
        expected = self.slices(*SHORT)
        for strategy in ("dp", "ddp"):
            with self.subTest(strategy=strategy):
                output = self.train(*words, "--accumulate", "2", "--strategy",
                                    strategy, "--devices", "2xsim")
                self.assertEqual(digest(output), expected)

    def test_clipping(self):
        self.compare_with_one_device(*SHORT, "--clip-grad-norm", "0.1")

    def test_half_precision(self):
        for precision in ("bf16", "fp16"):
            self.compare_with_one_device(*SHORT, "--precision", precision)


class LanguageModels(DigestTest):

    def setUp(self):
        super().setUp()
        text = "the quick brown fox jumps over the lazy dog. " * 200
        (self.folder / "book.txt").write_text(text, encoding="utf-8")

    def test_text(self):
        self.compare_with_one_device(*TEXT)

    def test_dropout(self):
        self.compare_with_one_device(*TEXT, "--dropout", "0.2")

    def test_generates_from_a_checkpoint_of_a_device(self):
        self.train(*TEXT, "--strategy", "single", "--devices", "sim:0",
                   "--out-dir", "run")
        words = ("generate", "--checkpoint", "run", "--max-tokens", "8",
                 "--prompt", "the", "--seed", "3")
        self.assertEqual(
            self.run_program(*words, "--devices", "sim:1"),
            self.run_program(*words, "--devices", "cpu", on_devices=False))


class Checkpoints(DigestTest):

    def test_resumes_on_other_devices(self):
        words = (*IMAGES, "--max-steps", "6")
        expected = {self.slices(*words)}
        for first in ("2xsim", "2xcpu"):
            output = self.train(*words, "--strategy", "dp", "--devices", first,
                                "--out-dir", first, "--checkpoint-every", "3")
            expected.add(digest(output))
        self.assertEqual(len(expected), 1)
        for first, strategy, second in (
                ("2xsim", "dp", "2xsim"), ("2xsim", "single", "sim:2"),
                ("2xsim", "ddp", "2xsim"), ("2xsim", "dp", "4xsim"),
                ("2xsim", "dp", "2xcpu"), ("2xcpu", "dp", "3xsim"),
                ("2xcpu", "ddp", "4xsim")):
            with self.subTest(first=first, strategy=strategy, second=second):
                output = self.train(*words, "--strategy", strategy, "--devices",
                                    second, "--resume",
                                    f"{first}/step-00000003")
                self.assertIn(digest(output), expected)

    def test_ranks_resume_on_fewer_devices(self):
        words = (*IMAGES, "--max-steps", "6", "--strategy", "ddp")
        whole = self.train(*words, "--devices", "4xsim", "--out-dir", "run",
                           "--checkpoint-every", "3")
        for count in (2, 3):
            with self.subTest(devices=count):
                resumed = self.train(*words, "--devices", f"{count}xsim",
                                     "--resume", "run/step-00000003")
                self.assertEqual(digest(resumed), digest(whole))

    def test_a_checkpoint_names_its_type_of_device(self):
        self.train(*SHORT, "--strategy", "single", "--devices", "sim:0",
                   "--out-dir", "run")
        versions = read_json(
            self.folder / "run/step-00000004/manifest.json")["run"]["versions"]
        self.assertEqual(versions["device"], "sim")


class Reports(DigestTest):

    def peaks(self, *words):
        self.train(*MLP, *words, "--devices", "4xsim", "--report", "run.json")
        devices = read_json(self.folder / "run.json")["devices"]
        self.assertEqual([device["name"] for device in devices],
                         [f"sim:{i}" for i in range(4)])
        return [device["memory_peak_bytes"] for device in devices]

    def test_devices_hold_the_same_memory(self):
        """Also with an optimizer that has state. Each device has a copy of the
        parameters and their gradients."""
        for words in (["--strategy", "ddp"], ["--strategy", "dp"],
                      ["--strategy", "dp", "--optimizer", "adamw"]):
            with self.subTest(words=words):
                peaks = self.peaks(*words)
                self.assertLessEqual(max(peaks) / min(peaks), 1.05, peaks)
                self.assertGreater(min(peaks), 2 * 8_405_002 * 4)

    def test_the_environment_lists_the_devices(self):
        self.train(*SHORT, "--strategy", "single", "--devices", "sim:0",
                   "--report", "run.json", SIM_DEVICES="2")
        self.assertEqual(read_json(self.folder / "run.json")["environment"]
                         ["gpus"], ["sim:0, 2.0 GiB", "sim:1, 2.0 GiB"])


class Recovery(DigestTest):

    def children(self, pid):
        path = pathlib.Path(f"/proc/{pid}/task/{pid}/children")
        return [int(child) for child in path.read_text(encoding="ascii").split()]

    def worker_of(self, launcher, rank):
        for child in self.children(launcher):
            words = pathlib.Path(f"/proc/{child}/environ").read_bytes()
            if f"RANK={rank}".encode() in words.split(b"\0"):
                return child
        raise AssertionError(f"no worker is rank {rank}")

    def test_a_killed_rank_leaves_no_trace_in_the_bits(self):
        words = (*IMAGES, "--max-steps", "30", "--log-every", "1")
        expected = self.slices(*words)
        program = Programs.path(on_devices=True)
        with subprocess.Popen(
                [program, "run", "--nproc-per-node", "2", "--max-restarts", "3",
                 "--", program, "train", *words, *ONE_THREAD, "--strategy", "ddp",
                 "--devices", "2xsim", "--verify-every", "1"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                cwd=self.folder, env=environment({})) as job:
            deadline = time.monotonic() + DEADLINE_S
            output = ""
            for line in job.stdout:
                is_first = "step 6/30" in line and "step 6/30" not in output
                output += line
                if is_first:
                    os.kill(self.worker_of(job.pid, 1), signal.SIGKILL)
                self.assertLess(time.monotonic(), deadline, output)
            errors = job.stderr.read()
        self.assertEqual(job.returncode, 0, output + errors)
        self.assertIn("resumed from memory", output)
        self.assertTrue(re.search("1 failure survived", errors), errors)
        self.assertEqual(digest(output), expected)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    Programs.bin = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
