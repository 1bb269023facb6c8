"""The faults of two nodes and their network, with PyTorch's torchrun."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time

from fault_table import cases, places
from fault_table.faults import FAULTS
from fault_table.job import Job, digest_in
from fault_table.random_kills import SCRIPT, TORCHRUN_ENVIRONMENT

PHASE = "all-reduce"
# At its end, an agent of torchrun waits up to 300 s for the others.
DEADLINE_S = 400
BATCH_SIZE = 8
# Agents that one command starts: those of two nodes, and some again.
MOST_AGENTS = 6
# As for the ranks of Lockstep: longer than a hole.
RANK_TIMEOUT_S = 60
FOLDER_VARIABLE = "LOCKSTEP_FAULT_FOLDER"


def training(folder):
    """Returns the script with its arguments."""
    return [str(SCRIPT), "--batch-size", str(BATCH_SIZE), "--max-steps",
            str(cases.STEPS), "--checkpoint-every",
            str(cases.CHECKPOINT_EVERY), "--timeout", str(RANK_TIMEOUT_S),
            "--out-dir", str(folder)]


def end_processes_of(folder):
    """Ends the processes of a case that outlived their agents."""
    word = f"{FOLDER_VARIABLE}={folder}".encode()
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if word in path.read_bytes().split(b"\0"):
                os.kill(int(path.parent.name), signal.SIGKILL)


class TorchrunCase(cases.Case):
    """A fault of two nodes whose agents are torchrun."""

    deadline_s = DEADLINE_S

    def __init__(self, programs, *place):
        super().__init__((None, None), *place)
        self.launcher, = programs

    def environment(self):
        name, _, value = TORCHRUN_ENVIRONMENT.partition("=")
        return {FOLDER_VARIABLE: str(self.folder), name: value,
                "GLOO_SOCKET_IFNAME": "wire" if self.place else "lo"}

    def node_command(self, node):
        """Returns the command of one of two agents, each with one rank."""
        local = f"10.213.0.{node + 1}" if self.place else "127.0.0.1"
        return [*self.prefix(node), str(self.launcher), *self.meeting(node),
                "--local-addr", local, *training(self.run_folder),
                "--fault-folder", str(self.folder), "--fault-after",
                str(cases.FAULT_AFTER_STEPS)]

    def disturb(self, jobs):
        super().disturb(jobs)
        self.start_again(jobs)

    def restart_nodes(self, jobs):
        """Kills the agent of node 0 with its rank, as the end of a container
        does.
        """
        ranks = jobs[0].workers().values()
        for pid in [jobs[0].pid, *ranks]:
            os.kill(pid, signal.SIGKILL)
        jobs[0].process.wait()
        self.gone_at = time.monotonic()

    def start_again(self, jobs):
        """Starts agents again that fail while the other one is running. Node 1
        takes the time of the fault.
        """
        while time.monotonic() < self.deadline and len(jobs) < MOST_AGENTS:
            over = [node for node, job in self.agents.items() if job.is_over()]
            if len(over) == 2:
                return
            if over and self.agents[over[0]].process.returncode != 0:
                if over[0] == 1:
                    time.sleep(self.fault.node_1_after_s or 0)
                self.outcome.commands += 1
                jobs.append(self.start_node(over[0]))
            time.sleep(0.05)

    def run(self):
        try:
            return super().run()
        finally:
            end_processes_of(self.folder)

    @staticmethod
    def is_restart(text):
        return "resumed from" in text

    def difference(self):
        """Returns how the run ends if it doesn't end well."""
        codes = [job.process.returncode for job in self.agents.values()]
        bad = [code for code in codes if code != 0]
        return f"ends with {bad[0]}" if bad else ""

    def run_once(self):
        is_last = super().run_once()
        if self.outcome.problem == "hangs":
            self.outcome.problem = f"not done after {DEADLINE_S} s"
        return is_last


def quiet_digest(torchrun):
    """Returns the digest of a run without a fault."""
    with tempfile.TemporaryDirectory(prefix="lockstep-fault-") as folder:
        job = Job([str(torchrun), "--standalone", "--nproc-per-node", "2",
                   *training(folder)])
        if job.wait(time.monotonic() + DEADLINE_S) != 0:
            raise RuntimeError("\n".join(text for _, text in job.lines))
    return digest_in(job.lines)


def version(torchrun):
    """Returns the version of the PyTorch that has this torchrun."""
    return subprocess.run(
        [str(torchrun.with_name("python")), "-c",
         "import torch; print(torch.__version__)"],
        capture_output=True, text=True, check=True).stdout.strip()


def network_faults():
    """Returns the faults of the table of two nodes that can be tried here."""
    return [fault for fault in FAULTS.values() if fault.is_of_network
            and (not fault.needs_root or places.can_make())]


def run_fault(torchrun, fault, digest):
    """Runs a fault. Returns the outcome and the lines."""
    return cases.run_case([torchrun], fault, PHASE, digest, TorchrunCase)
