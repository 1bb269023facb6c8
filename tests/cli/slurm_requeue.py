#!/usr/bin/env python3
"""slurm_requeue.py LOCKSTEP RECIPE COMMAND...: a job that Slurm interrupts.

Submits examples/slurm/RECIPE.sbatch. When the job trains, runs COMMAND in the
shell with the number of the job, and prints the outcome. If the job is then
cancelled, submits it again. Runs next to tests/comm/launchers/slurm.py.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 100
ROOT = pathlib.Path(__file__).parents[2]
TRAIN = ("--model mlp --data synthetic --devices 2xcpu --shards 2 "
         "--batch-size 32 --max-steps 120 --no-eval --log-every 1 "
         "--checkpoint-every 10").split()
INTERRUPT_AT = "step 40/120 "
INTERESTING = ("job was preempted", "resumed from", "start again")


def output_of(*command):
    """Returns the output of a command, which has to succeed."""
    return subprocess.run(command, check=True, text=True, timeout=DEADLINE_S,
                          stdout=subprocess.PIPE).stdout


def digest_in(text):
    """Returns the last digest that a run printed."""
    found = re.findall("parameter_sha256 ([0-9a-f]{64})", text)
    return found[-1] if found else None


def wait(what, is_done):
    """Waits until `is_done()`. Exits at the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_done():
        if time.monotonic() > deadline:
            sys.exit(f"[requeue] waited {DEADLINE_S} s in vain for {what}")
        time.sleep(0.1)


class Job:
    """A job of a recipe."""

    def __init__(self, recipe, folder):
        self.output = folder / "output.txt"
        self.id = output_of(
            "sbatch", "--parsable", "-n",
            "2" if recipe == "ranks" else "1", "-o", str(self.output),
            str(ROOT / f"examples/slurm/{recipe}.sbatch"), *TRAIN,
            "--out-dir", str(folder / "run")).strip()

    def text(self):
        """Returns the output of all its runs so far."""
        return self.output.read_text() if self.output.exists() else ""

    def field(self, name):
        """Returns a field of Slurm's record of the job."""
        shown = output_of("scontrol", "show", "job", self.id)
        return re.search(rf"\b{name}=(\S+)", shown)[1]

    def wait_for_end(self):
        """Waits until the job neither runs nor waits. Returns its state."""
        active = ("PENDING", "RUNNING", "COMPLETING", "REQUEUED")
        wait("the job's end", lambda: self.field("JobState") not in active)
        return self.field("JobState")


def main():
    """Prints the facts, one per line."""
    program, recipe, *command = sys.argv[1:]
    os.environ["PATH"] = f"{pathlib.Path(program).parent}:{os.environ['PATH']}"
    os.environ["WORKERS"] = "2"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        job = Job(recipe, folder)
        wait(INTERRUPT_AT, lambda: INTERRUPT_AT in job.text())
        output_of(*command, job.id)
        state = job.wait_for_end()
        print("state", state, "restarts", job.field("Restarts"))
        if state == "CANCELLED":
            wait("a checkpoint", lambda: "continue from" in job.text())
            job = Job(recipe, folder)
            print("again", job.wait_for_end())
        text = job.text()
        print(text, file=sys.stderr)  # shown if the facts are not as expected
        for part in INTERESTING:
            if part in text:
                print(part)
        quiet = output_of(program, "train", "--strategy", "ddp", *TRAIN)
        same = digest_in(text) == digest_in(quiet) is not None
        print("digest of a quiet run" if same else text)


if __name__ == "__main__":
    main()
