#!/usr/bin/env python3
"""Runs a command, and measures it with all the processes that it starts.

Writes JSON to --result: the exit code, the time that passed, and the CPU time of the
command and its descendants. A process is counted when it is waited for, so this one
becomes the parent of the command's orphans (PR_SET_CHILD_SUBREAPER) and waits for them.
Processes that outlive the command by more than --grace are killed, and their number is
`left_behind`. All processes are killed when the time is up, or on SIGTERM.

    bench/measure_process.py --timeout 600 --output log --result result.json -- COMMAND
"""

import argparse
import contextlib
import ctypes
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tools"))

from fault_table.job import children_of, is_alive  # noqa: E402

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
WAKING = {signal.SIGCHLD, signal.SIGTERM}


def descendants(pid):
    """Returns the processes below a process that still run."""
    found = []
    for child in children_of(pid):
        found += [child] if is_alive(child) else []
        found += descendants(child)
    return found


class Processes:
    """A command and its descendants. The signals of WAKING must be blocked."""

    def __init__(self, command, output, unblocked):
        self.stopped = False
        self.command = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT,
            preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, unblocked))

    def reap(self):
        """Reaps the processes that ended. Returns False if none is left."""
        while True:
            try:
                pid, status, _ = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.command.pid:
                self.command.returncode = os.waitstatus_to_exitcode(status)

    def wait_until(self, is_done, deadline):
        """Waits until `is_done()`, and returns False after the deadline or SIGTERM."""
        while not is_done():
            left = deadline - time.monotonic()
            if left <= 0 or self.stopped:
                return False
            got = signal.sigtimedwait(WAKING, left)
            self.stopped = got is not None and got.si_signo == signal.SIGTERM
        return True

    def kill(self):
        """Kills all that still run, and what these start meanwhile."""
        while self.reap():
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            signal.sigtimedwait({signal.SIGCHLD}, 0.1)


def measure(command, options, output, unblocked):
    """Runs a command. Returns what was measured."""
    began = time.monotonic()
    processes = Processes(command, output, unblocked)

    def has_ended():
        processes.reap()
        return processes.command.returncode is not None

    in_time = processes.wait_until(has_ended, began + options.timeout)
    wall = time.monotonic() - began
    left_behind = 0
    if in_time:
        processes.wait_until(lambda: not processes.reap(),
                             time.monotonic() + options.grace)
        left_behind = len(descendants(os.getpid()))
    processes.kill()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"exit_code": processes.command.returncode,
            "timed_out": not in_time and not processes.stopped,
            "stopped": processes.stopped, "wall_s": wall,
            "cpu_s": used.ru_utime + used.ru_stime, "system_s": used.ru_stime,
            # Memory of the largest process.
            "peak_bytes": used.ru_maxrss * 1024, "left_behind": left_behind}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--timeout", type=float, default=1500, metavar="SECONDS",
                        help="longest time that the command may take")
    parser.add_argument("--grace", type=float, default=2, metavar="SECONDS",
                        help="time that other processes have to end after it")
    parser.add_argument("--output", type=pathlib.Path, required=True,
                        help="file for what the command prints")
    parser.add_argument("--result", type=pathlib.Path, required=True,
                        help="JSON file to write")
    parser.add_argument("command", nargs=argparse.REMAINDER,
                        help="the command, after --")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, WAKING)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((PR_SET_CHILD_SUBREAPER, 1),
                          (PR_SET_PDEATHSIG, signal.SIGTERM)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            sys.exit("[measure_process] prctl failed; expected Linux, got "
                     f"{os.strerror(ctypes.get_errno())}; run it on Linux")
    with open(options.output, "wb") as output:
        try:
            result = measure(command, options, output, unblocked)
        except OSError as error:
            result = {"error": f"can't start: {error}"}
    options.result.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
