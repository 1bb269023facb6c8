#!/usr/bin/env python3
"""Checks columns, #ifdef and the shape of the tree, and lists long files."""

import re
import statistics

from sources import LAYERS, cpp_files, lines_of, run, text_files

# A longer file is only listed: it may have more than one responsibility, but the
# number of lines alone is no reason to split it.
LONG_FILE = 700
MAX_COLUMNS = 80
# Predefined macros of the compiler (__x86_64__) are not features of ours.
CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b(?!.*\b__\w+)")
COMMENT = re.compile(r"^\s*//")
# Differences between versions of LibTorch are allowed here.
VERSIONS = {"lockstep/comm/torch_backend.h", "lockstep/device/torch_compat.h"}
NOT_LAYERS = {"accelerator", "api", "consumers", "differential", "faults", "fuzz",
              "parity", "recipes"}
TOP_LAYERS = {layer.split("/")[0] for layer in LAYERS}


def check_file(root, path):
    """Yields the findings of one C++ file."""
    lines = lines_of(root, path)
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, over {MAX_COLUMNS}"
        if CONDITION.match(line) and path.as_posix() not in VERSIONS:
            yield (f"{path}:{number}: conditional code; put the other case "
                   "into a no_x file that CMake picks")
    if path.suffix == ".h" and "#pragma once" not in lines:
        yield f"{path}:1: no #pragma once"


def check_tests(root):
    """Checks that tests/ mirrors lockstep/."""
    for path in sorted((root / "tests").glob("*/")):
        if path.is_dir() and path.name not in NOT_LAYERS | TOP_LAYERS:
            yield f"tests/{path.name}: mirrors no layer of lockstep/"


def warn_of_long_files(root):
    """Prints the files that are long. None of them is a finding."""
    for path in text_files(root, ["lockstep", "tests"]):
        count = len(lines_of(root, path))
        if count > LONG_FILE:
            print(f"[layout] warning: {path}: {count} lines, over {LONG_FILE}")


def report(root):
    """Prints statistics. None of them is a finding."""
    lengths = {}
    for folder in ("lockstep", "tests"):
        files = [lines_of(root, f) for f in cpp_files(root, [folder])]
        lengths[folder] = [len(lines) for lines in files]
        if not files:
            continue
        total = sum(lengths[folder])
        comments = sum(bool(COMMENT.match(l)) for f in files for l in f)
        print(f"[layout] {folder}: {len(files)} files, {total} lines, "
              f"median {statistics.median(lengths[folder]):.0f}, longest "
              f"{max(lengths[folder])}, comments {comments / total:.0%}")
    if sum(lengths["lockstep"]):
        ratio = sum(lengths["tests"]) / sum(lengths["lockstep"])
        print(f"[layout] tests/lockstep: {ratio:.2f}")


def check(root):
    """Checks columns, #ifdef and the shape of the tree, and lists long files."""
    report(root)
    warn_of_long_files(root)
    findings = list(check_tests(root))
    for path in cpp_files(root):
        findings.extend(check_file(root, path))
    return findings


if __name__ == "__main__":
    run(check, "layout")
