#!/usr/bin/env python3
"""Runs `lockstep train` with many ranks on one host, more than it has cores.

For each number of ranks, kills a rank with SIGKILL and measures every phase of
the job. The digest at the end must be the one of a single device with as many
shards. Prints a table in Markdown. Exits with 1 if a digest differs or a run
doesn't end.

    bench/many_ranks.py --ranks 8,16,32,64
"""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from fault_table.job import (Job, children_of, digest_in, steps_in,  # noqa: E402
                             wait_until)

DEADLINE_S = 280
KILL_AFTER = 4
COLUMNS = ("ranks", "first step (s)", "step (ms)", "kill to next step (s)",
           "last step to end (s)", "memory of a rank (MB)",
           "descriptors of a rank", "of the agent", "digest")


def training(options, ranks, folder, strategy):
    data = ["--data", "synthetic"]
    if options.data_dir:
        data = ["--data", "cifar10", "--data-dir", str(options.data_dir)]
    return [str(options.program), "train", "--strategy", strategy, "--model",
            "cnn", *data, "--shards", str(ranks), "--batch-size",
            str(2 * ranks), "--max-steps", str(options.steps), "--no-eval",
            "--log-every", "1", "--out-dir", folder]


def ranks_of(job):
    """Returns the processes of the ranks, in the order of their start."""
    ranks = []
    for pid in children_of(job.pid):
        try:
            is_guard = pathlib.Path(
                f"/proc/{pid}/comm").read_text().strip() == "lockstep-guard"
        except OSError:
            continue
        if not is_guard:
            ranks.append(pid)
    return ranks


def memory_mb(pid):
    """Returns the proportional set size of a process."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.M)[1]) / 1024


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def measure(options, ranks):
    """Returns a row of the table."""
    with tempfile.TemporaryDirectory(prefix="lockstep-ranks-") as folder:
        quiet = subprocess.run(
            training(options, ranks, f"{folder}/single", "single")
            + ["--devices", "1"], capture_output=True, text=True,
            timeout=DEADLINE_S)
        digest = digest_in([(0, line) for line in quiet.stdout.splitlines()])
        began = time.monotonic()
        deadline = began + DEADLINE_S
        job = Job([str(options.program), "run", "--nproc-per-node", str(ranks),
                   "--max-restarts", "1", "--",
                   *training(options, ranks, f"{folder}/run", "ddp")])
        try:
            wait_until(lambda: job.has_step(KILL_AFTER)
                       or job.process.poll() is not None, deadline)
            pids = ranks_of(job)
            used = [(memory_mb(pid), descriptors(pid)) for pid in pids]
            agent = descriptors(job.pid)
            killed = time.monotonic()
            done = steps_in(job.lines)[-1][1]
            os.kill(pids[-1], signal.SIGKILL)
            code = job.wait(deadline)
            ended = time.monotonic()
        finally:
            job.end()
    at = steps_in(job.lines)
    before = [time for time, _ in at if time < killed]
    resumed = [time for time, text in job.lines if "resumed from" in text]
    after = [time for time, step in at
             if resumed and time > resumed[0] and step > done]
    same = code == 0 and digest is not None and digest == digest_in(job.lines)
    if len(after) < 2:
        print("\n".join(text for _, text in job.lines[-20:]))
        return (str(ranks), *["-"] * (len(COLUMNS) - 2), "different")
    step_s = statistics.median(b - a for a, b in zip(after, after[1:]))
    return (str(ranks), f"{before[0] - began:.2f}", f"{1000 * step_s:.0f}",
            f"{after[0] - killed:.2f}", f"{ended - after[-1]:.2f}",
            f"{statistics.median(mb for mb, _ in used):.0f}",
            f"{max(count for _, count in used)}", str(agent),
            "same" if same else "different")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path,
                        default=ROOT / "build/release/bin/lockstep")
    parser.add_argument("--ranks", default="2,4,8,16,32,64",
                        type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--data-dir", type=pathlib.Path,
                        help="CIFAR-10 in its binary form; else synthetic")
    options = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + " --: |" * len(COLUMNS))
    is_good = True
    for ranks in options.ranks:
        row = measure(options, ranks)
        print("| " + " | ".join(row) + " |", flush=True)
        is_good = is_good and row[-1] == "same"
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
