"""Runs the cases of the table, and measures them."""

import os
import pathlib
import random
import re
import resource
import secrets
import signal
import socket
import tempfile
import time

from fault_table import places
from fault_table.forwarder import TO_CLIENT, TO_SERVER, Forwarder
from fault_table.job import (Job, digest_in, first_news, is_alive,
                             reset_connections, steps_in, wait_until)
from fault_table.outcome import Outcome

STEPS = 16
CHECKPOINT_EVERY = 4
FAULT_AFTER_STEPS = 6
DEADLINE_S = 120
MOST_COMMANDS = 3
RANK_TIMEOUT_S = 5
HANG_TIMEOUT_S = 2


def training(program, out_dir, *more):
    """Returns the command of the run that all cases disturb."""
    timeout = () if "--timeout" in more else ("--timeout", str(RANK_TIMEOUT_S))
    return [str(program), "train", "--strategy", "ddp", "--model", "mlp",
            "--data", "synthetic", "--shards", "2", "--intra-op-threads", "1",
            "--batch-size", "8", "--max-steps", str(STEPS), "--log-every", "1",
            "--checkpoint-every", str(CHECKPOINT_EVERY), "--keep", "2",
            "--resume", "auto", "--out-dir", str(out_dir), *timeout, *more]


def free_port():
    """Returns a port that no process takes by chance. Those that the system
    gives out are above the lower end of its range.
    """
    limits = pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range")
    lowest = int(limits.read_text().split()[0])
    for _ in range(100):
        port = random.randrange(lowest // 2, lowest)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port below {lowest}")


class Case:
    """One fault in one phase, in a separate folder."""

    deadline_s = DEADLINE_S

    def __init__(self, programs, fault, phase, folder):
        self.lockstep, self.faulty = programs
        self.fault = fault
        self.outcome = Outcome(fault.name, phase)
        self.folder = pathlib.Path(folder)
        self.run_folder = self.folder / "run"
        self.run_folder.mkdir()
        self.deadline = time.monotonic() + self.deadline_s
        self.place = None
        self.forwarder = None
        self.lines = []
        self.agents = {}  # the newest agent of each node
        self.port = free_port()
        self.gone_at = None
        self.ended_at = None

    @property
    def name(self):
        return self.fault.name

    def fault_step(self):
        """Returns the number of steps before the fault."""
        if self.name == "torn checkpoint":
            return 2 * CHECKPOINT_EVERY + 1
        # The evaluation comes after the last step.
        return {"start": 0, "evaluate": STEPS}.get(self.outcome.phase,
                                                   FAULT_AFTER_STEPS)

    def environment(self):
        return {"LOCKSTEP_FAULT": f"{self.fault.kind}@{self.outcome.phase}:"
                                  f"step={self.fault_step()}:"
                                  f"rank={self.fault.rank}",
                "LOCKSTEP_FAULT_FOLDER": str(self.folder)}

    def start(self):
        """Starts one agent, or one per node."""
        run = [str(self.lockstep), "run", "--max-restarts", "3"]
        train = ["--", *training(self.faulty, self.run_folder,
                                  *self.fault.options)]
        if not self.fault.two_nodes:
            words = [*run, "--nproc-per-node", "2", "--hang-timeout",
                     str(HANG_TIMEOUT_S), *train]
            if self.place:
                words = [*self.place.prefix(), *words]
            self.agents[0] = Job(words, self.environment())
            return [self.agents[0]]
        return [self.start_node(node) for node in (0, 1)]

    def start_node(self, node):
        """Starts one of two agents, each with one rank."""
        self.agents[node] = Job(self.node_command(node), self.environment())
        return self.agents[node]

    def node_command(self, node):
        """Returns the command of one of two agents."""
        return [*self.prefix(node), str(self.lockstep), "run",
                *self.meeting(node), "--pin-cores", "off",
                "--secret-file", self.secret_file(),
                "--", *training(self.faulty, self.run_folder,
                                *self.fault.options)]

    def prefix(self, node):
        """Returns the words that run a command on the host of a node."""
        return self.place.hosts[node].prefix() if self.place else []

    def meeting(self, node):
        """Returns the options with which the agents of two nodes meet."""
        address = places.ADDRESS if self.place else "127.0.0.1"
        port = (self.forwarder.port if self.forwarder and node == 1
                else self.port)
        conf = self.fault.conf
        where = ["--master-addr", address, "--master-port", str(port)]
        if self.fault.rendezvous == "c10d":
            conf += ",is_host=" + ("true" if node == 0 else "false")
            where = ["--rdzv-backend", "c10d", "--rdzv-endpoint",
                     f"{address}:{port}", "--rdzv-id", "faults"]
        return ["--max-restarts", "3", "--nnodes", "2", "--node-rank",
                str(node), "--nproc-per-node", "1", *where,
                "--rdzv-conf", conf]

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
            if self.fault.two_nodes and self.fault.needs_root:
                self.place = places.TwoHosts()
            elif self.fault.delay_s is not None:
                self.forwarder = Forwarder(("127.0.0.1", self.port),
                                           self.fault.delay_s)
            elif self.name == "full disk":
                self.place = places.SmallDisk(self.run_folder, 300)
            for _ in range(MOST_COMMANDS):
                if self.run_once():
                    break
        finally:
            if self.place:
                self.place.close()
            if self.forwarder:
                self.forwarder.close()
        return self.measure()

    def run_once(self):
        """Runs one command. Returns whether it was the last."""
        first = self.outcome.commands == 0
        self.outcome.commands += 1
        jobs = self.start()
        try:
            if first:
                self.disturb(jobs)
            codes = tuple(job.wait(self.deadline) for job in jobs)
        finally:
            for job in jobs:
                job.end()
        self.outcome.codes += codes
        self.ended_at = max(job.ended_at for job in jobs)
        self.lines += sorted(line for job in jobs for line in job.lines)
        if None in codes:
            self.outcome.problem = "hangs"
        return None in codes or all(job.process.returncode == 0
                                    for job in self.agents.values())

    def has_fired(self):
        return wait_until(lambda: self.fired_at() is not None, self.deadline)

    def disturb(self, jobs):
        """Does what a fault needs from outside while the command runs."""
        if self.fault.kind == "ask":
            if self.has_fired():
                self.act(jobs)
            else:
                self.outcome.problem = "the program never came to that place"
        elif self.fault.times > 1:
            for _ in range(self.fault.times - 1):
                # The new process has the same fault, once more.
                if self.has_fired():
                    os.remove(self.folder / "fired")
            if not self.has_fired():
                self.outcome.problem = f"not {self.fault.times} faults"
        elif self.fault.ends[0] == "rank" and self.outcome.phase != "start":
            self.watch_survivor(jobs[0])

    def watch_survivor(self, job):
        """Checks that the process of the other rank goes on."""
        other = 1 - self.fault.rank
        wait_until(lambda: len(job.workers()) == 2 or job.is_over(),
                   self.deadline)
        before = job.workers().get(other)
        wait_until(lambda: job.has("resumed from memory") or job.is_over(),
                   self.deadline)
        if job.workers().get(other, before) != before:
            self.outcome.problem = f"rank {other} did not wait"

    def act(self, jobs):
        """Injects the fault when the program has reached its place."""
        agent = jobs[0]
        workers = agent.workers()
        if self.name == "torn checkpoint":
            # Checkpoints are written in the background, and one must stay
            # complete.
            wait_until(lambda: len(self.checkpoints()) >= 2, self.deadline)
        if self.fault.node_1_after_s is not None:
            self.restart_nodes(jobs)
        elif self.fault.lasts_s:
            self.disturb_network(jobs)
        elif self.forwarder:
            if self.fault.is_reset:
                self.forwarder.reset()
        elif self.name == "ranks' link reset":
            reset_connections(jobs[0].workers()[0], jobs[1].workers()[1])
        elif self.name == "full disk":
            self.place.fill()
        elif self.name == "cut link":
            self.place.set_link("down")
        elif self.name == "both ranks killed":
            # The agent sees both at the same time.
            os.kill(agent.pid, signal.SIGSTOP)
            for pid in workers.values():
                os.kill(pid, signal.SIGKILL)
            os.kill(agent.pid, signal.SIGCONT)
        elif self.name == "kill -9, no descriptors":
            # Only the standard files stay.
            resource.prlimit(workers[0], resource.RLIMIT_NOFILE, (3, 3))
            os.kill(workers[1], signal.SIGKILL)
        elif self.name.endswith(" to the agent"):
            os.kill(agent.pid, getattr(signal, self.name.split()[0]))
        else:
            os.kill(agent.pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_alive, workers.values())),
                       self.deadline)
            self.gone_at = time.monotonic()
        (self.folder / "done").touch()
        if self.name == "full disk":
            wait_until(lambda: first_news(agent.lines, self.fired_at()),
                       self.deadline)
            self.place.empty()
        elif self.name == "cut link":
            for job in jobs:
                job.wait(self.deadline)
            self.place.set_link("up")
        elif self.name == "torn checkpoint":
            self.tear()

    def restart_nodes(self, jobs):
        """Kills the agent of node 0, and starts both at their addresses."""
        jobs[0].process.kill()
        jobs[0].process.wait()
        self.gone_at = time.monotonic()
        (self.folder / "done").touch()
        self.outcome.commands += 1
        jobs.append(self.start_node(0))
        if self.fault.node_1_before == "killed":
            jobs[1].process.kill()
        elif self.fault.node_1_before == "ends":
            wait_until(jobs[1].is_over, self.deadline)
        time.sleep(self.fault.node_1_after_s)
        jobs.append(self.start_node(1))

    def disturb_network(self, jobs):
        """Breaks the network for a time, while the ranks go on."""
        fault = self.fault
        if self.forwarder:
            directions = (TO_CLIENT, TO_SERVER)
            self.forwarder.hold(*(directions[node] for node in fault.silent))
        elif self.place:
            self.place.lose_packets(*fault.silent)
        else:
            jobs[0].process.send_signal(signal.SIGSTOP)
        ends_at = time.monotonic() + fault.lasts_s
        if self.name.startswith("kill -9"):
            os.kill(jobs[1].workers()[1], signal.SIGKILL)
        (self.folder / "done").touch()
        time.sleep(max(0, ends_at - time.monotonic()))
        if self.forwarder:
            self.forwarder.release()
        elif self.place:
            self.place.lose_packets()
        else:
            jobs[0].process.send_signal(signal.SIGCONT)

    def checkpoints(self):
        return sorted(self.run_folder.glob("step-*"))

    def tear(self):
        """Cuts the newest checkpoint's parameters in half."""
        path = self.checkpoints()[-1] / "model.safetensors"
        os.truncate(path, path.stat().st_size // 2)

    def fired_at(self):
        """Returns the time of the fault, or None before it."""
        try:
            words = (self.folder / "fired").read_text().split()
        except FileNotFoundError:
            return None
        return int(words[0]) / 1e9 if words else None

    @staticmethod
    def is_restart(text):
        """Returns whether an agent says in this line that it restarts ranks."""
        return "(restart " in text

    def measure(self):
        """Computes the outcome from the lines."""
        outcome = self.outcome
        at = self.fired_at()
        if at is None:
            outcome.problem = outcome.problem or "the fault never came"
            return outcome
        told = [text for _, text in self.lines if self.is_restart(text)]
        outcome.restarts = len(told)
        outcome.waited = any(" for it" in text or " for them" in text
                             for text in told)
        news = first_news(self.lines, at)
        if self.gone_at and (not news or self.gone_at < news[0]):
            news = (self.gone_at, "all workers are gone")
        if None not in outcome.codes:
            outcome.done_s = self.ended_at - at
        since, done = (news[0] if news else at), 0
        if outcome.gone_on_by() == "itself":
            # It has never stopped. The line of the step before may come late.
            since, done = at, self.fault_step()
        outcome.detected_s = news[0] - at if news else None
        outcome.said = news[1] if news else ""
        steps = steps_in(self.lines)
        after = [pair for pair in steps if pair[0] > since and pair[1] > done]
        before = max((n for when, n in steps if when <= since), default=0)
        ends = [when for when, text in self.lines
                if when > since and "parameter_sha256" in text]
        if after:
            outcome.recovered_s = after[0][0] - at
            outcome.steps_again = max(0, before - after[0][1] + 1)
        elif ends:
            outcome.recovered_s = ends[-1] - at
            outcome.steps_again = 0
        outcome.problem = outcome.problem or self.difference()
        return outcome

    def difference(self):
        """Returns how the outcome differs from what the fault promises, or "".
        """
        outcome = self.outcome
        if outcome.codes[-1] != 0:
            return f"ends with {outcome.codes[-1]}"
        by, codes = self.fault.expected(outcome.phase)
        if outcome.gone_on_by() != by:
            return f"continued by {outcome.gone_on_by()} instead of {by}"
        if outcome.codes != codes:
            return f"exit codes {outcome.codes} instead of {codes}"
        if by == "rank" and not any("resumed from memory" in text
                                    for _, text in self.lines):
            return "not continued from memory"
        if outcome.phase != "start" and not any(
                re.search(self.fault.says, text) for _, text in self.lines):
            return f"no line has '{self.fault.says}'"
        return ""


def run_case(programs, fault, phase, quiet_digest, kind=Case):
    """Runs a case. Returns the outcome, with any problem, and the lines."""
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        case = kind(programs, fault, phase, folder)
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
