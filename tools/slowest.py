#!/usr/bin/env python3
"""Prints the slowest compilations and the slowest tests of a build.

Reads what ninja and tools/run_tests.sh left: BUILD/.ninja_log and BUILD/ctest.log.

    tools/slowest.py build/release --count 10
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# " 12/345 Test  #7: base.Log .......   Passed    1.23 sec". A test that did not pass
# has "***Failed", "Subprocess killed***Exception:" or such, and a regular expression
# after it may have several lines.
TEST = re.compile(r"^ *\d+/\d+ Test +#\d+: (\S+) \.+(.*?) ([0-9.]+) sec\b",
                  re.MULTILINE | re.DOTALL)


def read_ninja_log(text):
    """Returns the steps of a .ninja_log: (seconds, start, end, outputs).

    The log has a line for each output, also of earlier builds. The last line of an
    output counts. The outputs of one step have the same hash of the command.
    """
    header, _, rest = text.partition("\n")
    if not re.fullmatch(r"# ninja log v[567]", header):
        sys.exit("[slowest] can't read the .ninja_log; expected '# ninja log v5', got "
                 f"{header[:40]!r}; build again with the ninja of tools/setup")
    latest = {}
    for line in rest.splitlines():
        fields = line.split("\t")
        # A build that was interrupted may leave a part of a line.
        if len(fields) == 5 and fields[0].isdigit() and fields[1].isdigit():
            latest[fields[3]] = (int(fields[0]), int(fields[1]), fields[4])
    steps = {}
    for output, step in latest.items():
        steps.setdefault(step, []).append(output)
    return [((end - start) / 1000, start / 1000, end / 1000, outputs)
            for (start, end, _), outputs in steps.items()]


def is_compilation(outputs):
    return any(output.endswith((".o", ".pch")) for output in outputs)


def compilation_name(outputs):
    """Returns an output without the folders that CMake adds."""
    name = next(each for each in outputs if each.endswith((".o", ".pch")))
    return re.sub(r"CMakeFiles/|\.dir(?=/)|\.cxx(?=\.cxx\.)", "", name)


def read_ctest_log(text):
    """Returns the tests in the output of ctest: (seconds, name, result)."""
    return [(float(seconds), name, " ".join(result.replace("***", " ").split()))
            for name, result, seconds in TEST.findall(text)]


def slowest(rows, count):
    """Returns the rows with the largest first element, largest first."""
    return sorted(rows, key=lambda row: row[0], reverse=True)[:count]


def read(path):
    """Returns the text of a file, or "" if there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def slowest_compilations(build, count):
    """Returns rows of (seconds, name)."""
    text = read(build / ".ninja_log")
    steps = read_ninja_log(text) if text else []
    return [(step[0], compilation_name(step[3]))
            for step in slowest([s for s in steps if is_compilation(s[3])], count)]


def slowest_tests(build, count):
    """Returns rows of (seconds, name). A test that did not pass has its result."""
    return [(seconds, name if result == "Passed" else f"{name} ({result})")
            for seconds, name, result in
            slowest(read_ctest_log(read(build / "ctest.log")), count)]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?",
                        default=ROOT / "build/release", help="folder of the build")
    parser.add_argument("--count", type=int, default=10, metavar="N",
                        help="how many of each to print")
    options = parser.parse_args()
    if not options.build.is_dir():
        sys.exit(f"[slowest] there is no {options.build}; expected the folder of a "
                 "build; run make all")
    for what, rows in (("compilations", slowest_compilations),
                       ("tests", slowest_tests)):
        found = rows(options.build, options.count)
        print(f"the {len(found)} slowest {what}" if found else f"no {what} in the log")
        for seconds, name in found:
            print(f"  {seconds:7.1f} s  {name}")


if __name__ == "__main__":
    main()
