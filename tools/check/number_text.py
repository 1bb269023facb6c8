#!/usr/bin/env python3
"""Checks that numbers are read and written independently of the locale."""

import re

from sources import cpp_files, lines_of, run

# What follows setlocale(), and what to use instead.
RULES = (
    (re.compile(r"\b(?:std::)?(?:strto(?:f|d|ld)|sto(?:f|d|ld)|atof|sscanf)\("),
     "parse_number() of base/numbers.h"),
    (re.compile(r"\bjson::(?:sax_)?parse\("),
     "parse_json() or try_parse_json() of base/parse_json.h"),
    (re.compile(r"printf\(.*%[-+ #0-9.*]*[aefgAEFG]"), "fmt::format()"),
    (re.compile(r"\{[^{}]*:[^{}]*L\}"), "a format without L"),
)
EXEMPT = {"lockstep/base/parse_json.h", "lockstep/base/strict_json.cc"}


def check(root):
    """Checks that numbers are read and written independently of the locale."""
    findings = []
    for path in cpp_files(root, ["lockstep"]):
        if path.as_posix() in EXEMPT:
            continue
        for number, line in enumerate(lines_of(root, path), 1):
            code = line.split("//")[0]
            for pattern, instead in RULES:
                if pattern.search(code):
                    findings.append(f"{path}:{number}: follows the locale of "
                                    f"the program; use {instead}")
    return findings


if __name__ == "__main__":
    run(check, "number_text")
