#!/usr/bin/env python3
"""Checks that clang-format would leave every file as it is."""

import re
import shutil
import subprocess

from sources import cpp_files, run

FINDING = re.compile(r"^(.*?):(\d+):\d+: error: ")


def check(root):
    """Checks that clang-format would leave every file as it is."""
    files = [str(path) for path in cpp_files(root)]
    if not files:
        return []
    # Versions lay out code differently. Use 14 if there is one.
    program = shutil.which("clang-format-14") or "clang-format"
    try:
        result = subprocess.run(
            [program, "--dry-run", "-Werror", *files], cwd=root,
            capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ["clang-format is missing: run `make setup`"]
    first = {}
    for line in result.stderr.splitlines():
        match = FINDING.match(line)
        if match:
            first.setdefault(match.group(1), match.group(2))
    if result.returncode and not first:
        return [result.stderr.strip()]
    return [f"{path}:{number}: not laid out by clang-format: `make format`"
            for path, number in first.items()]


if __name__ == "__main__":
    run(check, "format")
