"""A running command, with the time of each line that it writes."""

import ctypes
import os
import pathlib
import re
import signal
import subprocess
import threading
import time

STEP = re.compile(r"\bstep (\d+)/\d+ \|")
DIGEST = re.compile(r"parameter_sha256 ([0-9a-f]{64})")
# Lines that a run without a fault may also write if the machine is busy.
USUAL = re.compile(r"step \d+/|parameter_sha256|Test Acc|socket\.cpp|"
                   r"Epoch \d|resumed from|\d parameters \||"
                   r"^(\[rank \d+\] )?(checkpoint|test|eval|training|steps|"
                   r"step time|cpu:\d+|shared|sent)\b|^\s*$")


def children_of(pid):
    """Returns the process ids of the children of a process."""
    found = []
    for path in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:
            pass
    return found


def is_alive(pid):
    """Returns whether a process is running, not just waiting to be reaped."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "XZ"


def connections_of(pid):
    """Returns the TCP connections of a process: the pair of ports of each, and
    its descriptor.
    """
    ports = {}
    for name in ("tcp", "tcp6"):
        table = pathlib.Path(f"/proc/{pid}/net/{name}").read_text()
        for line in table.splitlines()[1:]:
            words = line.split()
            if words[3] == "01":  # established
                ports[words[9]] = tuple(int(end.rpartition(":")[2], 16)
                                        for end in words[1:3])
    found = {}
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(path)
        except OSError:
            continue
        inode = re.fullmatch(r"socket:\[(\d+)\]", target)
        if inode and inode[1] in ports:
            found[ports[inode[1]]] = int(path.name)
    return found


def reset_connections(pid, other):
    """Resets the TCP connections between two processes."""
    pidfd_getfd = 438
    libc = ctypes.CDLL(None, use_errno=True)
    others = connections_of(other)
    process = os.pidfd_open(pid)
    count = 0
    for (local, remote), number in connections_of(pid).items():
        if (remote, local) not in others:
            continue
        connection = libc.syscall(pidfd_getfd, process, number, 0)
        if connection < 0:
            raise OSError(ctypes.get_errno(), "can't get a socket")
        # To connect to no address is to abort.
        libc.connect(connection, bytes(16), 16)
        os.close(connection)
        count += 1
    os.close(process)
    if not count:
        raise OSError(f"no connections between {pid} and {other}")


def wait_until(is_done, deadline):
    """Waits for `is_done()`. Returns False if the deadline comes first."""
    while not is_done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


class Job:
    """One command. Its lines are pairs of a monotonic time and a text."""

    def __init__(self, command, environment=None):
        self.lines = []
        self.ended_at = None
        self.process = subprocess.Popen(
            command, env={**os.environ, **(environment or {})}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, errors="replace",
            start_new_session=True)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.append((time.monotonic(), line.rstrip("\n")))

    @property
    def pid(self):
        return self.process.pid

    def workers(self):
        """Returns the process ids of an agent's ranks, by rank."""
        found = {}
        for pid in children_of(self.pid):
            try:
                variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            rank = re.search(rb"(?:^|\0)RANK=(\d+)\0", variables)
            if rank:
                found[int(rank[1])] = pid
        return found

    def wait(self, deadline):
        """Returns the exit code (minus a signal), or None after killing it."""
        try:
            code = self.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = None
            self.end()
        self.ended_at = self.ended_at or time.monotonic()
        self.reader.join(5)
        return code

    def end(self):
        """Kills the command and its children, if they are still running."""
        if self.process.poll() is not None:
            return
        for pid in [*children_of(self.pid), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def is_over(self):
        return self.process.poll() is not None

    def has(self, part):
        """Returns whether a line has this part."""
        return any(part in text for _, text in self.lines)

    def has_step(self, number, since=0):
        """Returns whether it has printed since then that `number` steps are
        done.
        """
        return any(at > since and step >= number
                   for at, step in steps_in(self.lines))


def steps_in(lines):
    """Returns pairs of a time and the number of the step that was done."""
    found = ((at, STEP.search(text)) for at, text in lines)
    return [(at, int(match[1])) for at, match in found if match]


def digest_in(lines):
    """Returns the last digest that was printed, or None."""
    found = [match[1] for _, text in lines for match in DIGEST.finditer(text)]
    return found[-1] if found else None


def first_news(lines, since):
    """Returns the first line since then that a good run would not have."""
    for at, text in lines:
        if at >= since and not USUAL.search(text):
            return at, text
    return None
