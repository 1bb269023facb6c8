"""Runs the commands of a page."""

import os
import pty
import re
import select
import signal
import subprocess
import time

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Failed(Exception):
    """A command did not end as its page says, or not in time."""


class Place:
    """A folder in which the commands of a page run one after another."""

    def __init__(self, folder, root, programs, examples, data_dir, scale=1):
        self.folder = folder
        self.outputs = {}
        self.background = {}
        self.scale = scale
        path = [str(programs.resolve()), str(examples.resolve()),
                os.environ["PATH"]]
        self.environment = {**os.environ, "PATH": ":".join(path),
                            "LANG": "C.UTF-8", "COLUMNS": "80"}
        for name in ("docs", "examples"):
            os.symlink(root / name, os.path.join(folder, name))
        if data_dir:
            os.symlink(data_dir.resolve(), os.path.join(folder, "cifar10"))

    def run(self, block):
        """Runs a block and returns the lines that it prints. Raises Failed."""
        if "background" in block.options:
            self.background[block.name] = block
            return []
        if re.search(r"--data cifar10|^resnet34_", block.command, re.M):
            self.need_cifar10()
        neighbour = self.start_neighbour(block)
        try:
            code, output = self.finish(block)
        finally:
            if neighbour:
                end(neighbour)
        output = output.replace(str(self.folder), "~/practicals")
        self.outputs[block.name] = output
        if (code != 0) != ("fails" in block.options):
            raise Failed(f"{block.name}: exit code {code}:\n{output[-2000:]}")
        return [line.rstrip() for line in output.splitlines()]

    def need_cifar10(self):
        """Downloads CIFAR-10 unless a folder was named. Raises Failed."""
        if os.path.exists(os.path.join(self.folder, "cifar10")):
            return
        done = subprocess.run(["lockstep", "data", "cifar10", "--dir",
                               "cifar10"], cwd=self.folder, text=True,
                              env=self.environment, capture_output=True,
                              check=False, timeout=600 * self.scale)
        if done.returncode != 0:
            raise Failed("no CIFAR-10: name a folder with --data-dir; "
                         f"{done.stderr.strip()[-500:]}")

    def start_neighbour(self, block):
        """Starts the command that runs alongside a block. Waits until it
        trains.
        """
        if not block.beside:
            return None
        process = subprocess.Popen(
            ["bash", "-c", self.background[block.beside].command],
            cwd=self.folder, env=self.environment, start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60 * self.scale
        while time.monotonic() < deadline:
            seen = subprocess.run(["lockstep", "top", "--once"],
                                  cwd=self.folder, env=self.environment,
                                  capture_output=True, text=True, check=False,
                                  timeout=30)
            if re.search(r"^step \d\d", seen.stdout, re.MULTILINE):
                return process
            time.sleep(0.2)
        end(process)
        raise Failed(f"{block.beside}: `lockstep top` does not show it")

    def finish(self, block):
        """Returns the exit code and the output of a block's command."""
        terminal, other_end = pty.openpty() if "terminal" in block.options \
            else os.pipe()
        process = subprocess.Popen(
            ["bash", "-c", "set -e\n" + block.command], cwd=self.folder,
            env=self.environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=other_end, stderr=other_end)
        os.close(other_end)
        timeout_s = block.timeout_s * self.scale
        deadline = time.monotonic() + timeout_s
        output = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([terminal], [], [], left)[0]:
                end(process)
                os.close(terminal)
                raise Failed(f"{block.name}: not done in {timeout_s:.0f} s")
            try:
                part = os.read(terminal, 1 << 16)
            except OSError:  # the other end of the terminal closed
                part = b""
            if not part:
                break
            output += part
        os.close(terminal)
        text = ESCAPE.sub("", output.decode("utf-8", "replace"))
        # Each time that a bar is redrawn becomes a line.
        text = re.sub(r"\r+\n", "\n", text).replace("\r", "\n")
        text = re.sub(r"\n(\s*\n)+", "\n", text) \
            if "terminal" in block.options else text
        return process.wait(timeout=30), text


def end(process):
    """Ends a process and the processes that it started."""
    for wanted in (signal.SIGINT, signal.SIGKILL):
        try:
            os.killpg(process.pid, wanted)
            process.wait(timeout=20)
            return
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
