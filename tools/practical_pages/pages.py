"""The format of a page: its blocks and its values."""

import re
from dataclasses import dataclass, field

BLOCK = re.compile(r"<!-- run (?P<head>[^\n]+)\n(?P<command>.*?)\n-->\n"
                   r"```\w*\n(?P<shown>.*?)^```$", re.DOTALL | re.MULTILINE)
VALUE = re.compile(r"<!-- value (?P<call>[^>]+?) -->(?P<shown>.*?)"
                   r"<!-- /value -->", re.DOTALL)
FIRST, LAST = 24, 12  # lines of an output that are kept


@dataclass
class Block:
    """A command of a page, and the options for running it."""
    name: str
    command: str
    first: int = FIRST
    last: int = LAST
    timeout_s: float = 120
    options: set = field(default_factory=set)
    beside: str = ""


def block_of(match):
    """Returns the block of a match of BLOCK."""
    name, *words = match["head"].split()
    block = Block(name, match["command"])
    for word in words:
        key, _, value = word.partition("=")
        if key == "keep":
            block.first, block.last = (int(n) for n in value.split(","))
        elif key == "timeout":
            block.timeout_s = float(value)
        elif key == "beside":
            block.beside = value
        elif word in ("terminal", "fails", "background"):
            block.options.add(word)
        else:
            raise ValueError(f"block {name}: unknown word '{word}'")
    return block


def command_lines(command):
    """Returns the lines of a command as a terminal shows them."""
    lines = command.splitlines()
    shown = ["$ " + lines[0]]
    for before, line in zip(lines, lines[1:]):
        shown.append(("> " if before.endswith("\\") else "$ ") + line)
    return shown


def elided(lines, first, last):
    """Returns the first and last lines, and how many are left out."""
    left_out = len(lines) - first - last
    if left_out <= 1:
        return lines
    return [*lines[:first], f"... ({left_out} lines left out)",
            *lines[len(lines) - last:]]


def fill_blocks(text, run):
    """Returns the page with new outputs. `run(block)` returns their lines."""
    def replace(match):
        block = block_of(match)
        lines = elided(run(block), block.first, block.last)
        head = match[0][:match.start("shown") - match.start()]
        return head + "\n".join([*command_lines(block.command), *lines]) + \
            "\n```"
    return BLOCK.sub(replace, text)


def fill_values(text, value):
    """Returns the page with new values, made by `value(name, *arguments)`."""
    def replace(match):
        text = value(*match["call"].split())
        is_table = "\n" in text
        shown = f"\n\n{text}\n\n" if is_table else text
        return f"<!-- value {match['call']} -->{shown}<!-- /value -->"
    return VALUE.sub(replace, text)
