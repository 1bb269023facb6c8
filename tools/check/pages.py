#!/usr/bin/env python3
"""Checks all pages without running anything.

    pages.py [ROOT] [--program FILE]

- Links to files of this repository lead to files, and to headings that exist.
- A block of code after <!-- quotes FILE --> is that file. With <!-- quotes FILE
  from START -->, it is the file from the line that starts with START.
- The subcommands and options of `lockstep` in commands exist in the help of the
  program. Without the program, they are not checked.

tests/cli/page_commands.py runs the commands.
"""

import argparse
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests/cli"), str(HERE.parent)]
# pylint: disable=wrong-import-position
from page_commands import commands_of
from practical_pages.check import simple_commands

LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
QUOTE = re.compile(r"^<!-- quotes (?P<file>\S+)(?: from (?P<start>.+?))? -->\n"
                   r"```\w*\n(?P<shown>.*?)^```$", re.DOTALL | re.MULTILINE)
# The other programs have the same commands.
PROGRAMS = ("lockstep", "faulty_lockstep", "sim_lockstep")
# Decisions describe what was so at their time.
OF_THEIR_TIME = "docs/decisions"


def pages_of(root):
    """Returns the paths of all pages, relative to the root."""
    found = [*root.glob("*.md"), *sorted((root / "docs").rglob("*.md"))]
    return [path.relative_to(root) for path in found]


def anchors_of(text):
    """Returns the names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in headings}


def check_links(root, page, text):
    for match in LINK.finditer(FENCE.sub("", text)):
        name, anchor = match.groups()
        target = (root / page).parent / name if name else root / page
        if not target.exists():
            yield f"{page}: links to {name}, which does not exist"
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(
                target.read_text(encoding="utf-8")):
            yield f"{page}: links to #{anchor}, but {target.name} has no such heading"


def check_quotes(root, page, text):
    quotes = list(QUOTE.finditer(text))
    if len(quotes) != text.count("<!-- quotes "):
        yield f"{page}: a `quotes` comment is not followed by a block of code"
    for quote in quotes:
        path = root / quote["file"]
        content = path.read_text(encoding="utf-8") if path.exists() else None
        start = quote["start"]
        if content is not None and start:
            at = f"\n{content}".find(f"\n{start}")
            content = content[at:] if at >= 0 else None
        if quote["shown"] != content:
            yield f"{page}: does not quote {quote['file']} as it is"


def options_of(program):
    """Returns the options of each subcommand in the program's help."""
    text = subprocess.run([program, "--help-all"], check=True, capture_output=True,
                          encoding="utf-8").stdout
    found = {}
    for line in text[text.index("\nCommands:"):].splitlines():
        if re.fullmatch(r"[a-z][a-z-]*", line):
            options = found[line] = set()
        elif match := re.match(r" {4}(?:-\w,)?((?:--[\w-]+,?)+)", line):
            options.update(match[1].rstrip(",").split(","))
    return found


def parts_of(command):
    """Yields the arguments of each lockstep in a command, one after another."""
    try:
        parts = list(simple_commands(command))
    except ValueError:  # a quote without an end, as in a line of a script
        return
    for words in parts:
        while words:
            end = words.index("--") if "--" in words else len(words)
            names = [pathlib.Path(word).name for word in words[:end]]
            at = next((i for i, name in enumerate(names) if name in PROGRAMS), end)
            if words[at + 1:end]:
                yield words[at + 1:end]
            words = words[end + 1:]


def check_options(page, text, options):
    for command in commands_of(text):
        for name, *words in parts_of(command):
            if name not in options:
                if re.fullmatch(r"[a-z][a-z-]*", name):
                    yield f"{page}: no command lockstep {name}: {command}"
                continue
            for word in words:
                # The rest belongs to a program that `run` starts.
                if name == "run" and (word == "-m" or word.endswith(".py")):
                    break
                option = word.split("=")[0]
                if option.startswith("--") and option not in options[name]:
                    yield f"{page}: lockstep {name} has no option {option}"


def check(root, program=None):
    """Returns what is wrong with the pages, one sentence each."""
    options = options_of(program) if program else None
    findings = []
    for page in pages_of(root):
        text = (root / page).read_text(encoding="utf-8")
        findings += check_links(root, page, text)
        findings += check_quotes(root, page, text)
        if options and not page.as_posix().startswith(OF_THEIR_TIME):
            findings += check_options(page, text, options)
    return findings


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("root", nargs="?", type=pathlib.Path,
                        default=HERE.parents[1])
    parser.add_argument("--program", type=pathlib.Path,
                        help="bin/lockstep of the build")
    arguments = parser.parse_args()
    findings = check(arguments.root.resolve(), arguments.program)
    for finding in findings:
        print(finding)
    print(f"[pages] {len(findings)} findings" if findings else "[pages] ok")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
