#!/usr/bin/env python3
"""Checks cmake/public_headers.txt against the headers and docs/api.md."""

import re

from sources import lines_of, run

LISTS = "cmake/public_headers.txt"
DOCS = "docs/api.md"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"](lockstep/[^">]+)[">]')
ROW = re.compile(r"^\| `([^`]+\.h)`")
TORCH_INCLUDE = re.compile(r"^\s*#\s*include\s*<(torch|ATen|c10)/")
TORCH_NAME = re.compile(r"\b(torch|at|c10|c10d)::")
COMMENT = re.compile(r"^\s*//")
MOST_PUBLIC = 30
# CMake writes it.
GENERATED = {"lockstep/base/version.h"}


def read_lists(root):
    """Returns the public headers, and the other ones that are installed."""
    public, detail = [], []
    current = public
    for line in lines_of(root, LISTS):
        if line.startswith("# ["):
            current = detail
        elif line and not line.startswith("#"):
            current.append(line)
    return public, detail


def included_by(root, header):
    found = [m.group(1) for m in map(INCLUDE.match, lines_of(root, header))
             if m]
    return [name for name in found if name not in GENERATED]


def closure(root, headers):
    """`headers` and what they include, directly or not."""
    seen = set()
    waiting = list(headers)
    while waiting:
        header = waiting.pop()
        if header not in seen and (root / header).exists():
            seen.add(header)
            waiting.extend(included_by(root, header))
    return seen


def check_torch(root, header):
    """A header that names torch's types includes one of torch's headers."""
    def has(pattern, path):
        return any(pattern.search(line) for line in lines_of(root, path)
                   if not COMMENT.match(line))

    if has(TORCH_NAME, header) and not any(
            has(TORCH_INCLUDE, path) for path in closure(root, [header])):
        yield f"{header}: names torch's types, but includes no header of torch"


def check(root):
    """Checks cmake/public_headers.txt against the headers and docs/api.md."""
    public, detail = read_lists(root)
    findings = []
    # version.h is public, too.
    if len(public) + len(GENERATED) > MOST_PUBLIC:
        findings.append(f"{LISTS}: {len(public) + len(GENERATED)} public "
                        f"headers; expected at most {MOST_PUBLIC}: reach it "
                        "through a header that is public")
    for header in public + detail:
        if not (root / header).exists():
            findings.append(f"{LISTS}: there is no {header}")
    needed = closure(root, public)
    for header in sorted(needed - set(public) - set(detail)):
        findings.append(f"{LISTS}: {header} is included by a listed header, "
                        "but is not listed; list it as [included] or "
                        "[internal], or include less")
    for header in sorted(set(detail) - needed):
        findings.append(f"{LISTS}: no public header includes {header}; take it "
                        "off the list")
    for header in sorted(needed):
        findings.extend(check_torch(root, header))
    documented = {m.group(1) for m in map(ROW.match, lines_of(root, DOCS)) if m}
    for header in sorted(set(public) | GENERATED):
        if header not in documented:
            findings.append(f"{DOCS}: no row for {header}")
    for header in sorted(documented - set(public) - GENERATED):
        findings.append(f"{DOCS}: {header} is not public")
    return findings


if __name__ == "__main__":
    run(check, "public_headers")
