#!/usr/bin/env python3
"""Compiles, without making code of it, what users may and may not write.

    compile_test.py headers BUILD      each public header alone, and all of them
                                       in other orders
    compile_test.py wrong-uses BUILD   wrong_uses/*.cc must fail as they say
    compile_test.py documents BUILD    the pieces of C++ in the pages: what they
                                       are about is in a header in pieces/
    compile_test.py messages BUILD     the code that messages recommend, which
                                       recommended.cc has

The compiler and its options are those of the build in BUILD. Headers that need
torch are compiled with its headers precompiled, which takes a second each;
tools/check/public_headers.py sees that they include torch themselves.
"""

import concurrent.futures
import json
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools/check"))
sys.path.insert(0, str(ROOT / "tests/api"))
# pylint: disable=wrong-import-position
import message_code
import public_headers

EXPECTS = re.compile(r"^// expects: (.*)$", re.MULTILINE)


class Compiler:
    """Compiles as the build does its layers."""

    def __init__(self, build):
        commands = json.loads((build / "compile_commands.json").read_text())
        self.with_torch = self.find(commands, "train")
        self.without_torch = self.find(commands, "base")

    @staticmethod
    def find(commands, layer):
        """The command of one file of a layer, without the file."""
        for entry in commands:
            words = shlex.split(entry["command"])
            output = words.index("-o")
            if f"lockstep_{layer}.dir/" in words[output + 1]:
                del words[output:output + 2]
                source = words.index("-c")
                del words[source:source + 2]
                return words, entry["directory"]
        raise SystemExit(f"[api] no file of the layer {layer} in "
                         "compile_commands.json")

    def compile(self, source, needs_torch):
        """What the compiler says of the file, and whether it took it."""
        words, folder = self.with_torch if needs_torch else self.without_torch
        done = subprocess.run(
            [*words, "-Werror=unused-result", "-fsyntax-only", str(source)],
            cwd=folder, capture_output=True, text=True, check=False,
            timeout=300)
        return done.returncode == 0, done.stderr

    def compile_text(self, folder, name, text, needs_torch):
        source = pathlib.Path(folder, name)
        source.write_text(text, encoding="utf-8")
        return self.compile(source, needs_torch)


def needs_torch(header):
    return any(public_headers.TORCH_INCLUDE.match(line)
               for path in public_headers.closure(ROOT, [header])
               for line in (ROOT / path).read_text().splitlines())


def in_parallel(act, items):
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return [finding for finding in pool.map(act, items) if finding]


def check_headers(compiler):
    """Each public header alone, then all in random orders."""
    public, _ = public_headers.read_lists(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        def check_one(header):
            # The second one does nothing.
            text = f'#include "{header}"\n' * 2
            name = header.replace("/", "_").replace(".h", ".cc")
            good, output = compiler.compile_text(folder, name, text,
                                                 needs_torch(header))
            return None if good else f"{header} does not compile alone\n{output}"

        def check_order(seed):
            order = random.Random(seed).sample(public, len(public))
            text = "".join(f'#include "{header}"\n' for header in order)
            good, output = compiler.compile_text(folder, f"order{seed}.cc",
                                                 text, True)
            return None if good else (f"the headers in the order of seed {seed}"
                                      f" do not compile\n{output}")

        return (in_parallel(check_one, public) +
                in_parallel(check_order, range(4)))


def check_wrong_uses(compiler):
    """Each wrong use fails with the diagnostic that it names."""
    def check_one(source):
        good, output = compiler.compile(source, True)
        expected = EXPECTS.search(source.read_text(encoding="utf-8"))
        if expected is None:
            return None if good else f"{source.name}: does not compile\n{output}"
        if good:
            return f"{source.name}: compiles, but must not"
        if not re.search(expected.group(1), output):
            return (f"{source.name}: expected a diagnostic with "
                    f"'{expected.group(1)}', got\n{output}")
        return None

    sources = sorted((ROOT / "tests/api/wrong_uses").glob("*.cc"))
    return in_parallel(check_one, sources)


def sources_of(header, pieces):
    """The pieces of a page as files: those with functions or classes of their
    own, and one of all others, each in a function."""
    together = []
    for number, piece in enumerate(pieces, 1):
        lines = piece.splitlines()
        includes = [line for line in lines if line.startswith("#include")]
        body = "\n".join(line for line in lines if line not in includes)
        if re.search(r"^(int main|struct|class) ?", body, re.MULTILINE):
            yield "\n".join([f'#include "{header}"', *includes, body, ""])
        else:
            together.append(f"void piece{number}() {{\n{body}\n}}\n")
    if together:
        yield f'#include "{header}"\n' + "".join(together)


def pieces_of(page):
    return re.findall(r"^```cpp\n(.*?)^```$", page.read_text(encoding="utf-8"),
                      re.MULTILINE | re.DOTALL)


def check_documents(compiler):
    """Each piece of C++ in the pages."""
    headers = {header.stem: header
               for header in (ROOT / "tests/api/pieces").glob("*.h")}
    sources = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        found = pieces_of(page)
        if found and page.stem not in headers:
            return [f"{page.name} has C++: expected tests/api/pieces/{page.stem}.h, "
                    "which has what the pieces are about"]
        sources += [(f"{page.stem}{number}.cc", text) for number, text in
                    enumerate(sources_of(headers.get(page.stem), found))]
    if not sources:
        return ["no piece of C++ was found"]
    with tempfile.TemporaryDirectory() as folder:
        def check_one(source):
            name, text = source
            good, output = compiler.compile_text(folder, name, text, True)
            return None if good else f"{name}:\n{text}\n{output}"

        return in_parallel(check_one, sources)


def check_messages(compiler):
    """The code that messages recommend compiles, and none is left out."""
    source = ROOT / "tests/api/recommended.cc"
    good, output = compiler.compile(source, True)
    return ([] if good else [f"{source.name} does not compile\n{output}"]) + (
        message_code.findings(ROOT, source.read_text(encoding="utf-8")))


def main():
    checks = {"headers": check_headers, "wrong-uses": check_wrong_uses,
              "documents": check_documents, "messages": check_messages}
    if len(sys.argv) != 3 or sys.argv[1] not in checks:
        raise SystemExit(__doc__)
    findings = checks[sys.argv[1]](Compiler(pathlib.Path(sys.argv[2])))
    for finding in findings:
        print(finding)
    print(f"[api] {len(findings)} findings" if findings else "[api] ok")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
