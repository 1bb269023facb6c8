"""Many kills in one run, with Lockstep and with torchrun."""

import dataclasses
import os
import pathlib
import random
import signal
import statistics
import tempfile
import time

from fault_table.job import Job, digest_in, steps_in, wait_until

CHECKPOINT_EVERY = 20
BATCH_SIZE = 64
DEADLINE_S = 900
MOST_RESTARTS = 40
# With the agent's store, which is the default, restarted ranks may read the
# addresses of the previous attempt's ranks, and wait for those:
# https://github.com/pytorch/pytorch/issues/135712
TORCHRUN_ENVIRONMENT = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
SCRIPT = pathlib.Path(__file__).with_name("torch_train.py")


@dataclasses.dataclass
class Result:
    """Compares a run without kills with a run that has kills."""

    name: str
    kills: int
    problem: str
    step_ms: float
    quiet_s: float
    wall_s: float
    steps: int
    steps_again: int

    @property
    def useful_s(self):
        return self.steps * self.step_ms / 1000

    def cells(self):
        """Returns a row of the table."""
        each_s = (self.wall_s - self.quiet_s) / max(self.kills, 1)
        with_kills = (f"{self.wall_s:.1f}",
                      f"{self.useful_s / self.wall_s:.0%}", f"{each_s:.2f}",
                      str(self.steps_again))
        # The figures of a run that did not finish mean nothing.
        wall, efficiency, each, again = (4 * "–" if self.problem
                                         else with_kills)
        return (self.name, str(self.kills), f"{self.step_ms:.1f}",
                f"{self.quiet_s:.1f}", wall,
                f"{self.useful_s / self.quiet_s:.0%}", efficiency, each,
                again, self.problem or "same")


COLUMNS = ("launcher", "kills", "step (ms)", "without kills (s)",
           "with kills (s)", "efficiency without kills",
           "efficiency with kills", "s per kill", "steps again", "end")


def kills_of(count, steps, seed):
    """Returns sorted triples: step, rank, and fraction of the next step."""
    rng = random.Random(seed)
    chosen = sorted(rng.sample(range(2, steps - 1), count))
    return [(step, rng.randrange(2), rng.random()) for step in chosen]


def lockstep_command(program, options, folder):
    data = ["--data", "synthetic"]
    if options.data_dir:
        data = ["--data", "cifar10", "--data-dir", str(options.data_dir)]
    return [str(program), "run", "--nproc-per-node", "2", "--max-restarts",
            str(MOST_RESTARTS), "--", str(program), "train", "--strategy",
            "ddp", "--model", "mlp", *data, "--no-augment", "--shards", "2",
            "--batch-size", str(BATCH_SIZE), "--max-steps", str(options.steps),
            "--no-eval", "--log-every", "1", "--checkpoint-every",
            str(CHECKPOINT_EVERY), "--resume", "auto", "--out-dir", folder]


def torchrun_command(options, folder):
    data = ["--data-dir", str(options.data_dir)] if options.data_dir else []
    return ["env", TORCHRUN_ENVIRONMENT, str(options.torchrun),
            "--standalone", "--nproc-per-node", "2", "--max-restarts",
            str(MOST_RESTARTS), str(SCRIPT), *data,
            "--batch-size", str(BATCH_SIZE), "--max-steps",
            str(options.steps), "--checkpoint-every", str(CHECKPOINT_EVERY),
            "--out-dir", folder]


def run(command, kills, step_s):
    """Runs `command`. Returns its lines, wall time, kills and exit code."""
    began = time.monotonic()
    deadline = began + DEADLINE_S
    job = Job(command)
    done = 0
    since = 0

    def is_over():
        return job.process.poll() is not None

    try:
        for step, rank, part in kills:
            # A repeated step counts only when it is done again. Otherwise, a
            # run that goes back further would be killed while it starts.
            wait_until(lambda: job.has_step(step, since) or is_over(),
                       deadline)
            time.sleep(part * step_s)
            # While a rank is being replaced, it can't be killed.
            wait_until(lambda: rank in job.workers() or is_over(), deadline)
            pid = job.workers().get(rank)
            if pid is None:
                break
            since = time.monotonic()
            os.kill(pid, signal.SIGKILL)
            done += 1
        code = job.wait(deadline)
    finally:
        job.end()
    return job.lines, time.monotonic() - began, done, code


def median_step_s(lines):
    """Returns the median time between the lines of two consecutive steps."""
    times = [at for at, _ in steps_in(lines)]
    return statistics.median(b - a for a, b in zip(times[5:], times[6:]))


def compare(name, command_in, kills, steps):
    """Runs without kills, then with the kills."""
    with tempfile.TemporaryDirectory(prefix="lockstep-kills-") as folder:
        quiet, quiet_s, _, code = run(command_in(f"{folder}/quiet"), [], 0)
        if code != 0:
            raise RuntimeError("\n".join(text for _, text in quiet[-30:]))
        step_s = median_step_s(quiet)
        lines, wall_s, done, code = run(command_in(f"{folder}/run"), kills,
                                        step_s)
    problem = ""
    if code != 0:
        problem = (f"not done after {DEADLINE_S} s" if code is None
                   else f"ends with {code}")
        print("\n".join(text for _, text in lines[-30:]))
    elif done != len(kills):
        problem = f"ended before {len(kills)} kills"
    elif digest_in(lines) != digest_in(quiet):
        problem = "different digest"
    return Result(name, done, problem, 1000 * step_s, quiet_s, wall_s, steps,
                  len(steps_in(lines)) - steps)


def random_kills(program, options):
    """Returns the results of Lockstep, and of torchrun if it is installed."""
    kills = kills_of(options.random_kills, options.steps, options.seed)
    commands = {"lockstep": lambda folder: lockstep_command(
        program, options, folder)}
    if options.torchrun.exists():
        commands["torchrun"] = lambda folder: torchrun_command(options, folder)
    results = []
    for name, command_in in commands.items():
        results.append(compare(name, command_in, kills, options.steps))
        pairs = zip(COLUMNS, results[-1].cells())
        print("[faults]", ", ".join(f"{k} {v}" for k, v in pairs), flush=True)
    return results
