"""Runs a test program, and reads what googletest prints."""

import concurrent.futures
import dataclasses
import os
import re
import signal
import subprocess
import tempfile
import threading


class Stopped(Exception):
    """Ends a thread that runs tests after stop()."""


@dataclasses.dataclass
class Outcome:
    """What a run of tests showed."""
    test: str | None  # the first test that failed
    how: str  # "passed", "failed", "hung" or the name of a signal
    output: str


children = set()
is_stopped = threading.Event()


def kill(child):
    """Ends a child with its own children, which are in its group."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def stop():
    """Ends all tests that run. The threads that run them get Stopped."""
    is_stopped.set()
    for child in list(children):
        kill(child)


def in_parallel(task, items, jobs):
    """Calls `task` for each item, in `jobs` threads. If one raises, all tests that
    run are ended, and the exception is raised here."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        try:
            list(pool.map(task, items))
        except BaseException:
            stop()
            pool.shutdown(cancel_futures=True)
            raise


def run(command, environment, timeout_s, folder=None):
    """Runs a program, and ends it with its children after `timeout_s`."""
    # A file and not a pipe, which a child that is left could keep open.
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, env=environment, cwd=folder,
            start_new_session=True)
        children.add(child)
        try:
            if is_stopped.is_set():
                kill(child)
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            kill(child)
            child.wait()
            how = "hung"
        else:
            how = ("passed" if code == 0 else
                   "failed" if code > 0 else signal.Signals(-code).name)
        finally:
            children.discard(child)
        if is_stopped.is_set():
            raise Stopped()
        output.seek(0)
        text = output.read().decode("utf-8", "replace")
    return Outcome(None if how == "passed" else failed_test(text), how, text)


def report_of(output):
    """Returns what the first test that failed printed, or the end."""
    found = re.search(r"^\[ RUN      \] (\S+)\n(?:(?!^\[ RUN ).*\n)*?"
                      r"\[  FAILED  \] \1.*", output, re.M)
    return found.group() if found else output[-3000:]


def failed_test(output):
    """Returns the test that failed first, or that did not end."""
    failed = re.search(r"^\[  FAILED  \] (\S+?)(?:,| \()", output, re.M)
    if failed:
        return failed.group(1)
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    return begun[-1] if begun else "the start or the end of the program"
