#!/usr/bin/env python3
"""Runs every command of a page as it is written.

    page_commands.py PAGE [BIN]     BIN: the folder of lockstep; without it the
                                    commands are only listed
    page_commands.py --pages        lists the pages that have commands to run

A command is a line in a code block that begins with a program or with "$ ". The
commands of a page run one after another in a temporary folder with the files
that the page assumes. SUBSTITUTIONS and ON_EVERY_PAGE list the commands that
are run differently or not at all, and the reasons. tools/check/pages.py checks
the options in all pages without running anything.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
from page_exceptions import EXIT_CODES, FILES, ON_EVERY_PAGE, SUBSTITUTIONS  # pylint: disable=wrong-import-position

DEADLINE_S = 300
PROGRAMS = ("lockstep", "faulty_lockstep", "build/release/bin/lockstep", "make",
            "docker", "kubectl", "openssl", "sbatch", "mpirun", "python3",
            "torchrun", "export", "padded_text", "own_model", "practical_faults")
# These are not on every machine that has the packages of `make test`.
OPTIONAL = ("mpirun", "openssl")
COMMAND = re.compile(
    r"^(?:[a-z0-9]*\$ +(?=\S)|(?=(?:\./|\(umask )|(?:" +
    "|".join(map(re.escape, PROGRAMS)) + r") ))(.*)$")


def code_lines(text):
    """Yields the lines of code blocks: between fences, or indented by four."""
    fence = None
    for line in text.splitlines():
        if line.startswith("```"):
            fence = line[3:] if fence is None else None
        elif fence in ("", "sh", "console"):
            yield line
        elif fence is None and line.startswith("    "):
            yield line[4:]


def commands_of(text):
    found, goes_on = [], False
    for line in code_lines(text):
        if goes_on:
            found[-1] += " " + line.removeprefix("> ").strip().rstrip("\\")
        elif match := COMMAND.match(line):
            found.append(match.group(1).rstrip("\\"))
        else:
            continue
        goes_on = line.endswith("\\")
    return [re.sub(" +", " ", command).strip() for command in found]


def substituted(command, rules, used):
    """Returns the replacement of a command, or None if it is not run."""
    for number, (part, instead, _) in enumerate(rules):
        if part not in command + "\n":
            continue
        used.add(number)
        if instead is None:
            return None
        command = command.replace(part, instead)
    return command


def run(command, folder, environment):
    """Returns how a command ended, and what it printed."""
    with subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", command], cwd=folder,
            env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True) as shell:
        try:
            output, _ = shell.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(shell.pid, signal.SIGKILL)
            output = f"it took more than {DEADLINE_S} s\n" + shell.communicate()[0]
    return shell.returncode, output


def problems_of(page, folder_of_programs):
    text = (ROOT / page).read_text(encoding="utf-8")
    page_substitutions, used = SUBSTITUTIONS.get(page, []), set()
    environment = {**os.environ, "NO_COLOR": "1",
                   # Otherwise, Open MPI refuses to run as root.
                   "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "PATH": f"{folder_of_programs}:{os.environ['PATH']}"}
    commands = commands_of(text)
    with tempfile.TemporaryDirectory() as folder:
        for name, content in FILES.get(page, {}).items():
            path = pathlib.Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            if callable(content):
                content(path, folder_of_programs)
                continue
            path.write_text(content, encoding="utf-8")
            path.chmod(0o755)
        for command in commands:
            instead = substituted(command, page_substitutions + ON_EVERY_PAGE, used)
            is_missing = command.split()[0] in OPTIONAL and not shutil.which(
                command.split()[0])
            if instead is None or is_missing:
                print(f"not run  {command}", flush=True)
                continue
            if export := re.match(r"export (\w+)='?([^']*)'?$", instead):
                environment[export.group(1)] = export.group(2).replace(
                    "$PWD", folder)
                continue
            code, output = run(instead, folder, environment)
            print(f"{code:<3}      {instead}", flush=True)
            expected = next((code for part, code in
                             EXIT_CODES.get(page, {}).items() if part in command),
                            0)
            if code != expected:
                yield (f"{page}: {instead}\nended with {code}, expected "
                       f"{expected}:\n{output}")
    for number, (part, _, _) in enumerate(page_substitutions):
        if number not in used:
            yield f"{page}: no command has '{part}': take out its substitution"


def pages_with_commands():
    for path in [ROOT / "README.md", ROOT / "docs/practicals/README.md",
                 *sorted((ROOT / "docs").glob("*.md"))]:
        page = path.relative_to(ROOT).as_posix()
        rules = SUBSTITUTIONS.get(page, []) + ON_EVERY_PAGE
        if any(substituted(command, rules, set())
               for command in commands_of(path.read_text(encoding="utf-8"))):
            yield page


def main():
    if sys.argv[1:] == ["--pages"]:
        print("\n".join(pages_with_commands()))
        return
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    if len(sys.argv) == 2:
        print("\n".join(commands_of((ROOT / sys.argv[1]).read_text())))
        return
    found = list(problems_of(sys.argv[1], os.path.realpath(sys.argv[2])))
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
