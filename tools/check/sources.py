"""Helpers of the checks: lists of files, and how findings are printed."""

import argparse
import pathlib
import sys

CPP = {".h", ".cc", ".cu"}
FOLDERS = ("lockstep", "tests", "bench", "examples")

# In the order of the docs. A folder may include only folders above it. A
# subfolder without its own entry belongs to its parent folder.
LAYERS = (
    "base", "store", "transport", "shm", "tcp", "control", "monitor",
    "device/cuda", "device", "device/links",
    "comm",
    "losses", "models", "data/images", "data",
    "optim", "parallel/reduction", "parallel/module", "parallel/exchange",
    "parallel/group", "parallel/step", "parallel/trial", "parallel/check",
    "parallel/bf16", "parallel/ddp", "parallel", "checkpoint", "inspect",
    "train", "train/report", "train/state", "train/step", "train/record",
    "train/run",
    "tasks", "tasks/images",
    "launch/options", "launch/output", "launch/failure", "launch/rendezvous",
    "launch/workers", "launch/agent", "launch",
    "cli",
    "lm/models", "lm/text", "lm/task", "lm/commands",
    "tools/comparison", "tools/tables", "tools/charts", "tools/page",
    "tools/measurement", "tools/collectives", "tools/check", "tools/top",
    "tools/commands",
)

# Parts that a build can leave out. No other part includes them.
COMPONENTS = ("lm", "tools")


def layer_of(parts):
    """Returns the layer of a file by the parts of its path in lockstep/."""
    for depth in (2, 1):
        name = "/".join(parts[:depth])
        if len(parts) > depth and name in LAYERS:
            return name
    return None


def cpp_files(root, folders=FOLDERS):
    """Returns every C++ file below `folders`, sorted, relative to `root`."""
    found = []
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in CPP:
                found.append(path.relative_to(root))
    return found


def text_files(root, folders):
    """Returns every text file of the sources below `folders`."""
    suffixes = CPP | {".py", ".sh", ".txt", ".cmake", ".in"}
    return [
        path.relative_to(root)
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.is_file() and path.suffix in suffixes
    ]


def lines_of(root, path):
    return (root / path).read_text(encoding="utf-8").splitlines()


def run(check, name):
    """Runs `check(root)`, which returns findings, and prints them."""
    parser = argparse.ArgumentParser(description=check.__doc__)
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[2])
    findings = check(parser.parse_args().root.resolve())
    for finding in findings:
        print(finding)
    print(f"[{name}] {len(findings)} findings" if findings
          else f"[{name}] ok")
    sys.exit(1 if findings else 0)
