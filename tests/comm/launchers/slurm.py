#!/usr/bin/env python3
"""Runs a command beside a Slurm of its own: slurm.py [--nodes N] COMMAND...

munged, slurmctld and one slurmd for each node run as this user, in a temporary
folder, on free ports, and end with the command. The nodes are all this machine,
named lockstep[1-N]. Exit status 77: there is no Slurm here.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

DEADLINE_S = 60
NO_SLURM = 77
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun")
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)

# No cgroups: in a container they are often read-only, or of another version.
# A job that is queued again waits for cred_expire first: 5 s is the least.
CONF = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
ReturnToService=2
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
PropagateResourceLimits=NONE
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count):
    """Ports that nobody listens at, all different."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            listener = stack.enter_context(socket.socket())
            listener.bind(("127.0.0.1", 0))
            found.append(listener.getsockname()[1])
        return found


def die_with_parent():
    """Called in a daemon's process: it ends even if this one is killed."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Slurm:
    """The daemons, from with to with's end."""

    def __init__(self, nodes=1, cores=16):
        self.nodes = nodes
        self.cores = cores
        self.daemons = []
        self.stack = contextlib.ExitStack()

    def __enter__(self):
        try:
            self.folder = pathlib.Path(self.stack.enter_context(
                tempfile.TemporaryDirectory(prefix="lockstep-slurm-")))
            # munged wants others to reach its socket.
            self.folder.chmod(0o755)
            self.stack.callback(self.end)
            self.configure()
            self.start_munge()
            self.start("slurmctld", "-D", "-i")
            for node in self.names():
                self.start("slurmd", "-D", "-N", node)
            self.wait(self.is_idle, "sinfo to call all nodes idle")
            return self
        except BaseException:
            self.show_logs()
            self.stack.close()
            raise

    def __exit__(self, *_):
        self.stack.close()

    def names(self):
        """The nodes' names."""
        return [f"lockstep{k + 1}" for k in range(self.nodes)]

    def configure(self):
        """Writes slurm.conf and what it names."""
        (self.folder / "state").mkdir()
        ctld_port, *ports = free_ports(1 + self.nodes)
        host = socket.gethostname()
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        lines = [f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 "
                 f"Port={port} CPUs={self.cores} State=UNKNOWN"
                 for name, port in zip(self.names(), ports)]
        conf = self.folder / "slurm.conf"
        conf.write_text(CONF.format(folder=self.folder, host=host, user=user,
                                    ctld_port=ctld_port,
                                    nodes="\n".join(lines)))
        self.environment = dict(os.environ, SLURM_CONF=str(conf))

    def start_munge(self):
        """Starts munged with a key that nothing else has."""
        key = self.folder / "munge.key"
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(secrets.token_bytes(128))
        names = {"--socket": "munge.socket", "--pid-file": "munge.pid",
                 "--log-file": "munge.log", "--seed-file": "munge.seed"}
        self.start("munged", "--foreground", f"--key-file={key}",
                   *(f"{option}={self.folder / name}"
                     for option, name in names.items()))
        self.wait((self.folder / "munge.socket").exists, "munged's socket")

    def start(self, *command):
        """Starts a daemon in the foreground."""
        log = self.folder / f"{len(self.daemons)}-{command[0]}.out"
        with open(log, "w") as output:
            self.daemons.append(subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, preexec_fn=die_with_parent))

    def wait(self, is_done, what):
        """Until `is_done()`; raises if a daemon ends, or at the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not is_done():
            for daemon in self.daemons:
                if daemon.poll() is not None:
                    raise RuntimeError(f"[slurm] {daemon.args[0]} ended with "
                                       f"{daemon.returncode}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"[slurm] waited {DEADLINE_S} s in vain "
                                   f"for {what}")
            time.sleep(0.05)

    def is_idle(self):
        """Whether every node takes work."""
        states = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"],
                                env=self.environment, capture_output=True,
                                text=True, timeout=DEADLINE_S).stdout.split()
        return states == ["idle"] * self.nodes

    def show_logs(self):
        """What the daemons wrote, to stderr."""
        for log in sorted(self.folder.glob("*.log")) + sorted(
                self.folder.glob("*.out")):
            print(f"--- {log.name}", file=sys.stderr)
            print(log.read_text(errors="replace")[-3000:], file=sys.stderr)

    def end(self):
        """Ends the daemons, the last started first."""
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


def main():
    """Runs the command; its exit status is this program's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if not all(shutil.which(name) for name in PROGRAMS):
        print("[slurm] not here: install slurm-wlm and munge", file=sys.stderr)
        return NO_SLURM
    # So that the daemons end in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with Slurm(arguments.nodes) as slurm:
        return subprocess.run(arguments.command,
                              env=slurm.environment).returncode


if __name__ == "__main__":
    sys.exit(main())
