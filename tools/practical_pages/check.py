"""Checks a page without running its commands."""

import re
import shlex

from practical_pages import pages

# A number with a unit of measurement.
MEASURED = re.compile(r"\b\d[\d.,]*\s?(?:us|ms|s|sec|seconds|%|KiB|MiB|GiB|x|"
                      r"times as|samples/s)(?![\w/])")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
MAX_COLUMNS = 100


def findings(page, root):
    """Returns what is wrong with a page, one sentence each."""
    text = page.read_text(encoding="utf-8")
    found = []
    blocks = list(pages.BLOCK.finditer(text))
    if len(blocks) != text.count("<!-- run "):
        found.append("a `run` comment is not followed by a block")
    for match in blocks:
        found += of_block(match, root)
    if len(pages.VALUE.findall(text)) != text.count("<!-- value "):
        found.append("a `value` comment has no end")
    for match in pages.VALUE.finditer(text):
        if not match["shown"].strip(" .…"):
            found.append(f"value '{match['call']}' is not filled in")
    return found + of_prose(text)


def of_block(match, root):
    """Returns what is wrong with a block."""
    try:
        block = pages.block_of(match)
    except ValueError as error:
        return [str(error)]
    found = []
    shown = match["shown"].splitlines()
    command = pages.command_lines(block.command)
    if shown[:len(command)] != command:
        found.append(f"block {block.name} shows another command")
    elif len(shown) == len(command) and "background" not in block.options \
            and ">" not in block.command:
        found.append(f"block {block.name} has no output")
    return found + of_command(block, root)


def of_command(block, root):
    """Returns the examples in a block that do not exist. tools/check/pages.py
    checks the options of `lockstep`.
    """
    found = []
    for words in simple_commands(block.command):
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words and \
                re.match(r"practical|resnet34_|language_model", words[0]) and \
                not (root / "examples" / words[0] / "main.cc").exists():
            found.append(f"block {block.name}: no example {words[0]}")
    return found


def simple_commands(command):
    """Yields the words of each command between pipes, semicolons and newlines."""
    lexer = shlex.shlex(command.replace("\\\n", " ").replace("\n", " ; "),
                        posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if re.fullmatch(r"[|;&()]+", word):
            yield words
            words = []
        else:
            words.append(word)
    yield words


def of_prose(text):
    """Returns numbers that look measured, outside of values and blocks."""
    plain = FENCE.sub("", text)
    plain = pages.VALUE.sub("", plain)
    plain = CODE.sub("", COMMENT.sub("", plain))
    return [f"'{match[0]}' looks measured and is not in a value"
            for match in MEASURED.finditer(plain)]
