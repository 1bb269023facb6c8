#!/usr/bin/env python3
"""dockerfile_test.py DOCKERFILE: what of an image can be checked without Docker.

Every instruction is one that Docker has; what is copied is in the sources and not
left out by .dockerignore; a stage that is named exists; Debian has the packages;
make has the targets; the image does not run as root.
"""

import fnmatch
import pathlib
import re
import subprocess
import sys

INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "USER", "CMD", "ENTRYPOINT",
                "ENV", "LABEL", "ARG", "EXPOSE"}


def instructions(text):
    """(instruction, rest) for each, with continued lines joined."""
    lines = [line for line in text.splitlines()
             if line.strip() and not line.lstrip().startswith("#")]
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        word, _, rest = line.strip().partition(" ")
        yield word, rest.strip()


def has_package(name):
    shown = subprocess.run(["apt-cache", "show", "--no-all-versions", name],
                           capture_output=True, check=False, timeout=60)
    return shown.returncode == 0


def problems(path):
    root = path.resolve().parent
    ignored = [line for line in
               (root / ".dockerignore").read_text().splitlines()
               if line and not line.startswith("#")]
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(),
                             re.MULTILINE))
    stages, user = [], "root"
    for word, rest in instructions(path.read_text()):
        if word not in INSTRUCTIONS:
            yield f"{word} is no instruction that this image needs"
        if word == "FROM":
            user = "root"
            if " AS " in rest:
                stages.append(rest.split(" AS ")[1])
            if not re.match(r"[a-z]+:[0-9]", rest):
                yield f"FROM {rest}: expected an image with a version"
        elif word == "COPY":
            *sources, _ = [w for w in rest.split() if not w.startswith("--")]
            stage = re.search(r"--from=(\S+)", rest)
            if stage and stage.group(1) not in stages:
                yield f"COPY {rest}: there is no stage {stage.group(1)}"
            for source in [] if stage else sources:
                if not (root / source).exists() or any(
                        fnmatch.fnmatch(source, pattern)
                        for pattern in ignored):
                    yield f"COPY {rest}: {source} is not there"
        elif word == "USER":
            user = rest
        elif word == "RUN":
            for packages in re.findall(
                    r"apt-get install -y --no-install-recommends ([^&]*)", rest):
                for package in packages.split():
                    if "/" not in package and not has_package(package):
                        yield f"RUN: Debian has no package {package}"
            for target in re.findall(r"\bmake ([a-z-]+)", rest):
                if target not in targets and "apt-get" not in rest:
                    yield f"RUN: make has no target {target}"
            shell = subprocess.run(["sh", "-n", "-c", rest], check=False,
                                   capture_output=True, text=True, timeout=20)
            if shell.returncode != 0:
                yield f"RUN {rest}: {shell.stderr}"
    if user in ("root", "0"):
        yield "the image runs as root"


if __name__ == "__main__":
    found = list(problems(pathlib.Path(sys.argv[1])))
    sys.exit("\n".join(f"[recipes] {line}" for line in found) if found else 0)
