"""The cases of the table, and how they are run and measured."""

import os
import pathlib
import secrets
import signal
import socket
import tempfile
import time

from fault_table import places
from fault_table.job import (Job, digest_in, first_news, is_alive, steps_in,
                             wait_until)
from fault_table.outcome import Outcome

STEPS = 16
CHECKPOINT_EVERY = 4
FAULT_AFTER_STEPS = 6
DEADLINE_S = 120
MOST_COMMANDS = 3
RANK_TIMEOUT_S = 5
HANG_TIMEOUT_S = 2
KEEP_ALIVE = "keep_alive_interval=1,keep_alive_max_attempt=3"

PHASES = ("start", "forward", "backward", "all-reduce", "checkpoint",
          "evaluate")
# Faults that the program causes itself, and faults that come from outside.
INSIDE = {"kill -9": "kill", "SIGSTOP": "stop", "SIGTERM": "term",
          "exit 1": "exit", "exception": "throw", "out of memory": "oom",
          "slow rank": "slow"}
OUTSIDE = ("agent killed", "rendezvous host killed", "cut link", "full disk",
           "torn checkpoint")
FAULTS = (*INSIDE, *OUTSIDE)
ONLY_AT_CHECKPOINTS = ("full disk", "torn checkpoint")


def all_cases():
    """Yields pairs of a fault and a phase."""
    for fault in FAULTS:
        for phase in PHASES:
            if phase == "checkpoint" or fault not in ONLY_AT_CHECKPOINTS:
                yield fault, phase


def training(program, out_dir, *more):
    """Returns the command of the run that all cases disturb."""
    return [str(program), "train", "--strategy", "ddp", "--model", "mlp",
            "--data", "synthetic", "--shards", "2", "--intra-op-threads", "1",
            "--batch-size", "8", "--max-steps", str(STEPS), "--log-every", "1",
            "--checkpoint-every", str(CHECKPOINT_EVERY), "--keep", "2",
            "--timeout", str(RANK_TIMEOUT_S), "--resume", "auto",
            "--out-dir", str(out_dir), *more]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Case:
    """One fault in one phase, in a separate folder."""

    def __init__(self, programs, fault, phase, folder):
        self.lockstep, self.faulty = programs
        self.outcome = Outcome(fault, phase)
        self.folder = pathlib.Path(folder)
        self.run_folder = self.folder / "run"
        self.run_folder.mkdir()
        self.deadline = time.monotonic() + DEADLINE_S
        self.place = None
        self.lines = []
        self.port = free_port()
        self.gone_at = None

    @property
    def fault(self):
        return self.outcome.fault

    def is_on_two_nodes(self):
        return self.fault in ("cut link", "rendezvous host killed")

    def environment(self):
        # The evaluation comes after the last step.
        step = {"start": 0, "evaluate": STEPS}.get(
            self.outcome.phase, FAULT_AFTER_STEPS)
        if self.fault == "torn checkpoint":
            step = 2 * CHECKPOINT_EVERY + 1
        kind = INSIDE.get(self.fault, "ask")
        return {"LOCKSTEP_FAULT": f"{kind}@{self.outcome.phase}:step={step}"
                                  ":rank=1",
                "LOCKSTEP_FAULT_FOLDER": str(self.folder)}

    def start(self):
        """Starts one agent, or one per node."""
        run = [str(self.lockstep), "run", "--max-restarts", "3"]
        train = ["--", *training(self.faulty, self.run_folder)]
        if not self.is_on_two_nodes():
            words = [*run, "--nproc-per-node", "2", "--hang-timeout",
                     str(HANG_TIMEOUT_S), *train]
            if self.place:
                words = [*self.place.prefix(), *words]
            return [Job(words, self.environment())]
        address = places.ADDRESS if self.place else "127.0.0.1"
        prefixes = ([host.prefix() for host in self.place.hosts]
                    if self.place else [[], []])
        return [Job([*prefixes[node], *run, "--nnodes", "2", "--node-rank",
                     str(node), "--nproc-per-node", "1", "--master-addr",
                     address, "--master-port", str(self.port), "--rdzv-conf",
                     KEEP_ALIVE, "--pin-cores", "off", "--secret-file",
                     self.secret_file(), *train],
                    self.environment()) for node in (0, 1)]

    def secret_file(self):
        """Returns the job's secret file, which only this user can read."""
        path = self.folder / "secret"
        if not path.exists():
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600),
                      "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
        return str(path)

    def run(self):
        """Runs the case to its end. Returns the outcome, without the digest."""
        try:
            if self.fault == "cut link":
                self.place = places.TwoHosts()
            elif self.fault == "full disk":
                self.place = places.SmallDisk(self.run_folder, 300)
            for _ in range(MOST_COMMANDS):
                if self.run_once():
                    break
        finally:
            if self.place:
                self.place.close()
        return self.measure()

    def run_once(self):
        """Runs one command. Returns whether it was the last."""
        first = self.outcome.commands == 0
        self.outcome.commands += 1
        jobs = self.start()
        try:
            if first and self.fault in OUTSIDE:
                self.act(jobs)
            codes = tuple(job.wait(self.deadline) for job in jobs)
        finally:
            for job in jobs:
                job.end()
        self.outcome.codes += codes
        self.lines += sorted(line for job in jobs for line in job.lines)
        if None in codes:
            self.outcome.problem = "hangs"
        return None in codes or all(code == 0 for code in codes)

    def act(self, jobs):
        """Injects the fault when the program has reached its place."""
        fired = self.folder / "fired"
        if not wait_until(lambda: fired.exists() and fired.read_text(),
                          self.deadline):
            self.outcome.problem = "the program never came to that place"
            return
        if self.fault == "torn checkpoint":
            # Checkpoints are written in the background, and one must stay
            # complete.
            wait_until(lambda: len(self.checkpoints()) >= 2, self.deadline)
        if self.fault == "full disk":
            self.place.fill()
        elif self.fault == "cut link":
            self.place.set_link("down")
        else:
            workers = list(jobs[0].workers().values())
            os.kill(jobs[0].pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, workers)), self.deadline)
            self.gone_at = time.monotonic()
        (self.folder / "done").touch()
        if self.fault == "full disk":
            wait_until(lambda: first_news(jobs[0].lines, self.fired_at()),
                       self.deadline)
            self.place.empty()
        elif self.fault == "cut link":
            for job in jobs:
                job.wait(self.deadline)
            self.place.set_link("up")
        elif self.fault == "torn checkpoint":
            self.tear()

    def checkpoints(self):
        return sorted(self.run_folder.glob("step-*"))

    def tear(self):
        """Cuts the newest checkpoint's parameters in half."""
        path = self.checkpoints()[-1] / "model.safetensors"
        os.truncate(path, path.stat().st_size // 2)

    def fired_at(self):
        fired = self.folder / "fired"
        if not fired.exists():
            return None
        return int(fired.read_text().split()[0]) / 1e9

    def measure(self):
        """Computes the outcome from the lines."""
        outcome = self.outcome
        at = self.fired_at()
        if at is None:
            outcome.problem = outcome.problem or "the fault never came"
            return outcome
        told = [text for _, text in self.lines if "(restart " in text]
        outcome.restarts = len(told)
        outcome.waited = any(" for it" in text or " for them" in text
                             for text in told)
        news = first_news(self.lines, at)
        if self.gone_at and (not news or self.gone_at < news[0]):
            news = (self.gone_at, "all workers are gone")
        since = news[0] if news else at
        outcome.detected_s = news[0] - at if news else None
        outcome.said = news[1] if news else ""
        steps = steps_in(self.lines)
        after = [pair for pair in steps if pair[0] > since]
        before = max((n for when, n in steps if when <= since), default=0)
        ends = [when for when, text in self.lines
                if when > since and "parameter_sha256" in text]
        if after:
            outcome.recovered_s = after[0][0] - at
            outcome.steps_again = max(0, before - after[0][1] + 1)
        elif ends:
            outcome.recovered_s = ends[-1] - at
            outcome.steps_again = 0
        if not outcome.problem and outcome.codes[-1] != 0:
            outcome.problem = f"ends with {outcome.codes[-1]}"
        return outcome


def run_case(programs, fault, phase, quiet_digest):
    """Runs a case. Returns the outcome, with any problem, and the lines."""
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        case = Case(programs, fault, phase, folder)
        outcome = case.run()
    if not outcome.problem and digest_in(case.lines) != quiet_digest:
        outcome.problem = "different digest"
    return outcome, case.lines


def quiet_run(program):
    """Returns the lines of a run without a fault, one process per rank."""
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        job = Job([str(program), "run", "--nproc-per-node", "2", "--",
                   *training(program, folder)])
        if job.wait(time.monotonic() + DEADLINE_S) != 0:
            raise RuntimeError("\n".join(text for _, text in job.lines))
    return job.lines
