#!/usr/bin/env python3
"""Every command works on the simulated accelerator, or refuses it clearly.

    sim_commands_test.py BIN [TEST ...]
"""

import json
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from sim_program import (DEADLINE_S, ROOT, FolderTest, Programs, digest, ended,
                         environment, read_json, run)

SHORT = ("--model", "cnn", "--data", "synthetic", "--batch-size", "16",
         "--max-steps", "3")


class Commands(FolderTest):

    def test_the_check_lists_the_devices(self):
        output = run("check", "--verbose", SIM_DEVICES="2", SIM_MEMORY="64Mi")
        self.assertIn("accelerator    2 devices; sim:0 64.0 MiB; "
                      "sim:1 64.0 MiB\n", output)
        self.assertNotIn("stand in for GPUs", output)

    def test_the_full_check_trains_on_devices(self):
        self.run_program("check", "--full", "--devices", "2xsim", "--report",
                         "check.json")
        findings = read_json(self.folder / "check.json")["findings"]
        self.assertEqual([finding for finding in findings
                          if finding["verdict"] == "fail"], [])

    def test_auto_means_the_devices(self):
        output = run("train", *SHORT, "--no-eval", "--strategy", "dp",
                     SIM_DEVICES="2")
        self.assertIn("[sim:0, sim:1] ", output)
        output = run("train", *SHORT, "--no-eval", "--strategy", "single")
        self.assertIn("[sim:0] ", output)

    def test_a_device_that_does_not_exist_is_refused(self):
        done = ended("train", *SHORT, "--devices", "sim:0,sim:2",
                     SIM_DEVICES="2")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no device sim:2", done.stderr)
        self.assertIn("sim:0..sim:1 (2 devices)", done.stderr)

    def test_topo_measures_links_that_no_library_knows(self):
        """It says what they reach, and not what they are made of."""
        output = run("topo", "--devices", "2xsim", "--json")
        topology = json.loads(output)
        self.assertEqual([device["name"] for device in topology["devices"]],
                         ["sim:0", "sim:1"])
        self.assertIn("sim:0", run("topo", "--devices", "2xsim",
                                   "--no-measure"))

    def test_plan(self):
        """Each device has its own parameters, in its own memory."""
        output = run("plan", "--model", "mlp", "--devices", "2xsim")
        self.assertNotIn("Once for all devices", output)
        each = output.split("Each of 2 devices")[1]
        self.assertRegex(each, "parameters +24.1 MiB\n")
        self.assertRegex(each, "available +4.0 GiB\n")

    def test_check_copies_between_devices(self):
        self.assertEqual(ended("check", "--devices", "2xsim").returncode, 0)

    def test_check_names_a_link_that_corrupts(self):
        done = ended("check", "--devices", "3xsim", SIM_FAULTS="corrupt:0>1")
        self.assertNotEqual(done.returncode, 0)
        text = done.stdout + done.stderr
        self.assertRegex(text, "sim:0 *(to|->|>) *sim:1")

    def test_step_time_and_compare(self):
        self.run_program("compare", "--model", "cnn", "--devices", "2xsim",
                         "--strategies", "single,dp,ddp", "--steps",
                         "3", "--warmup", "1", "--batch-size", "16", "--rounds",
                         "2", "--report", "compare.json", "--html",
                         "compare.html")
        runs = read_json(self.folder / "compare.json")["runs"]
        names = {device["name"] for measured in runs
                 for device in measured["devices"]}
        self.assertEqual(names, {"sim:0", "sim:1"})
        for measured in runs:
            self.assertIsNone(measured["limit"])
        page = (self.folder / "compare.html").read_text(encoding="utf-8")
        self.assertIn("sim:1", page)
        self.assertIn("The share of the limit was not measured", page)

    def test_bench(self):
        output = run("bench", "allreduce", "--sizes", "4K:8K", "--nproc", "2")
        self.assertIn("shm", output)

    def test_evaluates_and_reports_a_run(self):
        self.run_program("train", *SHORT, "--strategy", "dp", "--devices",
                         "2xsim", "--out-dir", "run", "--channels-last", "off")
        test = read_json(self.folder / "run/run.json")["test"]
        words = ("eval", "--checkpoint", "run", "--json")
        results = [json.loads(self.run_program(*words, "--devices", device,
                                               on_devices=device != "cpu"))
                   for device in ("sim:3", "cpu")]
        for result in results:
            self.assertAlmostEqual(result["test"]["loss"], test["loss"],
                                   places=4)
        self.run_program("compare", "--runs", "run", "--html", "run.html")
        page = (self.folder / "run.html").read_text(encoding="utf-8")
        self.assertIn("sim:1", page)
        self.assertIn("sim:1, 2.0 GiB", page)

    def test_top_shows_the_devices_of_a_run(self):
        # Jobs of other users, and of other tests, are not shown.
        jobs = {"XDG_RUNTIME_DIR": str(self.folder)}
        program = Programs.path(on_devices=True)
        with subprocess.Popen(
                [program, "train", "--model", "cnn", "--data", "synthetic",
                 "--devices", "2xsim", "--epochs", "100000", "--no-eval"],
                stdout=subprocess.PIPE, text=True, cwd=self.folder,
                env=environment(jobs)) as job:
            try:
                for line in job.stdout:
                    if "step 10/" in line:
                        break
                shown = self.run_program("top", "--once", **jobs)
                plain = self.run_program("top", "--once", on_devices=False,
                                         **jobs)
            finally:
                job.send_signal(signal.SIGINT)
                job.communicate(timeout=DEADLINE_S)
        for text in (shown, plain):
            for device in ("sim:0", "sim:1"):
                self.assertIn(device, text)

    def test_a_failing_kernel_ends_the_run_with_its_error(self):
        done = ended("train", *SHORT, "--devices", "sim:0",
                     SIM_FAULTS="kernel:400")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("a kernel failed", done.stderr)

    def test_a_full_device_ends_the_run_with_its_error(self):
        done = ended("train", "--model", "mlp", *SHORT[2:], "--devices",
                     "sim:0", SIM_MEMORY="40Mi")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("out of memory", done.stderr)


def commands_of(page):
    """The commands of a practical that train on slices."""
    text = (ROOT / "docs/practicals" / page).read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- run [^\n]*\n(lockstep train .*?)\n-->", text,
                        re.DOTALL)
    for block in blocks:
        command = block.replace("\\\n", " ").split("|")[0].split()
        steps = command.index("--max-steps") + 1
        # Some only run until the page has seen enough.
        command[steps] = str(min(int(command[steps]), 3))
        if re.fullmatch(r"(\d+x)?cpu", command[command.index("--devices") + 1]):
            yield command[1:]


def on_sim(command):
    """The same command on as many simulated devices."""
    devices = command.index("--devices") + 1
    count = command[devices].removesuffix("cpu").removesuffix("x")
    changed = list(command)
    changed[devices] = f"{count}xsim" if count else "sim:0"
    return changed


class Practicals(FolderTest):

    def check(self, page, at_least=2, instead=()):
        """Runs the commands of a page on slices and on devices. `instead` has
        options and values that replace those on the page; None removes the
        option."""
        commands = list(commands_of(page))
        self.assertGreaterEqual(len(commands), at_least)
        for command in commands:
            with self.subTest(page=page, command=" ".join(command)):
                for option, value in instead:
                    at = command.index(option)
                    command[at:at + 2] = [option, value] if value else []
                more = ["--intra-op-threads", "1", "--channels-last", "off"]
                expected = run(*command, *more, "--oversubscribe",
                               on_devices=False, cwd=self.folder)
                output = run(*on_sim(command), *more, cwd=self.folder,
                             SIM_DEVICES="5")
                self.assertEqual(digest(output), digest(expected))
                self.assertEqual(
                    sorted(self.shapes(output)),
                    sorted(line.replace("cpu:", "sim:")
                           for line in self.shapes(expected)))

    def shapes(self, output):
        return re.findall("^(?:Inside|Rank).*", output, re.MULTILINE)

    def test_single_device(self):
        self.check("1-single-device.md", at_least=1)

    def test_resnet34(self):
        # The test has no copy of CIFAR-10.
        self.check("4-resnet34-cifar10.md",
                   instead=[("--data", "synthetic"), ("--data-dir", None),
                            ("--batch-size", "4"), ("--max-steps", "2")])

    def test_language_model(self):
        """The page's point: accumulated batches and devices have the same
        digest. Slices have others, because of Lockstep's kernels for the CPU."""
        commands = list(commands_of("5-language-model.md"))
        self.assertEqual(len(commands), 2)
        digests = set()
        for command in commands:
            file = command.index("--data-file") + 1
            command[file] = str(ROOT / command[file])
            digests.add(digest(run(*on_sim(command))))
        self.assertEqual(len(digests), 1)

    def test_data_parallel(self):
        self.check("2-data-parallel.md")

    def test_distributed_data_parallel(self):
        self.check("3-distributed-data-parallel.md")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    Programs.bin = pathlib.Path(sys.argv.pop(1)).resolve()
    unittest.main()
