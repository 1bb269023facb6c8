#!/usr/bin/env python3
"""Measures how long `lockstep train` and `lockstep run` take to a first step.

A time is that from the start of the command to the line about its first step.
The commands take turns, so that all of them see the same machine. The first
row is the floor: a command that loads LibTorch and prints its help. Prints a
table in Markdown. Exits with 1 if a command fails.

    bench/start_time.py --rounds 10 --models mlp,cnn
"""

import argparse
import pathlib
import re
import statistics
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from fault_table.job import Job  # noqa: E402

DEADLINE_S = 120
FIRST_STEP = re.compile(r"\bstep 1/\d+ \|")
ANY_LINE = re.compile("")
COLUMNS = ("command", "median (s)", "min (s)", "above the floor (s)")
STARTS = ("single", "dp", "ddp", "run")


class Command:
    """A command, and the times until it printed a line like `line`."""

    def __init__(self, name, words, line):
        self.name = name
        self.words = words
        self.line = line
        self.times_s = []

    def measure(self):
        """Runs the command. Returns whether it succeeded."""
        began = time.monotonic()
        job = Job(self.words)
        code = job.wait(began + DEADLINE_S)
        times = [at for at, text in job.lines if self.line.search(text)]
        if code != 0 or not times:
            print("\n".join(text for _, text in job.lines[-20:]),
                  file=sys.stderr)
            return False
        self.times_s.append(times[0] - began)
        return True

    def row(self, floor_s):
        median_s = statistics.median(self.times_s)
        return (f"`{self.name}`", f"{median_s:.2f}", f"{min(self.times_s):.2f}",
                f"{median_s - floor_s:.2f}")


def python_with_torch(program):
    """Returns the Python whose torch the program is linked to, or None."""
    path = program.parents[1] / "share/lockstep/torch_python"
    return path.read_text().strip() if path.is_file() else None


def training(options, start, model):
    """Returns a command that trains, started in one of the ways of STARTS."""
    strategy = "ddp" if start == "run" else start
    words = ["train", "--strategy", strategy, "--model", model]
    if start in ("dp", "ddp"):
        words += ["--devices", "2xcpu"]
    launcher = ["run", "--nproc-per-node", "2", "--", "lockstep"]
    shown = [*(launcher if start == "run" else []), *words]
    program = str(options.program)
    words = [program if word == "lockstep" else word for word in shown]
    if model.startswith(("gpt", "llama")):
        words += ["--data-file", str(options.text)]
    return Command(" ".join(["lockstep", *shown]),
                   [program, *words, "--max-steps", "2", "--no-eval",
                    "--log-every", "1", *options.more], FIRST_STEP)


def commands_of(options):
    found = [Command("lockstep help", [str(options.program), "help"],
                     ANY_LINE)]
    python = python_with_torch(options.program)
    if python:
        found.append(Command("python -c 'import torch; print()'",
                             [python, "-c", "import torch; print()"],
                             ANY_LINE))
    return found + [training(options, start, model)
                    for start in options.starts for model in options.models]


def main():
    def names(text):
        return text.split(",")

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=pathlib.Path,
                        default=ROOT / "build/release/bin/lockstep")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--models", type=names,
                        default=["mlp", "cnn", "gpt-char", "resnet18"])
    parser.add_argument("--starts", type=names, default=STARTS,
                        help="some of " + ",".join(STARTS))
    parser.add_argument("--text", type=pathlib.Path,
                        default=ROOT / "docs/launcher.md",
                        help="what language models are trained on")
    parser.add_argument("more", nargs="*", metavar="OPTION",
                        help="more options of lockstep train, after --")
    options = parser.parse_args()
    commands = commands_of(options)
    for _ in range(options.rounds):
        for command in commands:
            if not command.measure():
                return 1
    floor_s = statistics.median(commands[0].times_s)
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" + "| --: " * (len(COLUMNS) - 1) + "|")
    for command in commands:
        print("| " + " | ".join(command.row(floor_s)) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
