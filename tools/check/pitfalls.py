#!/usr/bin/env python3
"""Finds calls that do something other than they seem to."""

import re

from sources import cpp_files, lines_of, run

WHOLE_MESSAGE = "text_of() of base/error.h, unless the message is printed"
LOCALE = "follows the locale of the program"
# A call, what is wrong with it, and the replacement.
RULES = (
    (re.compile(r"\b(?:std::)?(?:strto(?:f|d|ld)|sto(?:f|d|ld)|atof|sscanf)\("),
     LOCALE, "parse_number() of base/numbers.h"),
    (re.compile(r"\bjson::(?:sax_)?parse\("),
     LOCALE, "parse_json() or try_parse_json() of base/parse_json.h"),
    (re.compile(r"printf\(.*%[-+ #0-9.*]*[aefgAEFG]"), LOCALE, "fmt::format()"),
    (re.compile(r"\{[^{}]*:[^{}]*L\}"), LOCALE, "a format without L"),
    (re.compile(r"\bifstream\b|\b(?:fopen|gzopen|archive_read_open_filename)\("
                r"|^(?!.*(?:O_DIRECTORY|/dev/null)).*\bO_RDONLY\b"),
     "waits for a pipe, and may read a device for ever",
     "read_file() of base/atomic_file.h or open_regular_file() of "
     "base/input_file.h"),
    (re.compile(r"\bat::parallel_for\("),
     "runs in one thread, as these files are compiled without OpenMP",
     "intra_op_for() of device/intra_op.h"),
    (re.compile(r"\.wait\((?:lock\b|$)"),
     "needs the C++ library of gcc 12, which the wheel does without",
     "wait_until() of base/wait_until.h"),
    (re.compile(r"(?:\.|->)what\(\)"),
     "has a component and a code, of which a message needs one each",
     WHOLE_MESSAGE),
)
EXEMPT = {
    "lockstep/base/parse_json.h", "lockstep/base/strict_json.cc",
    "lockstep/base/input_file.cc",
    # They read files of /proc and /sys.
    "lockstep/base/cores.cc", "lockstep/base/host_identity.cc",
    "lockstep/base/process.cc", "lockstep/device/memory.cc",
    "lockstep/device/links/link_advice.cc", "lockstep/inspect/nvml.cc",
    "lockstep/launch/workers/hang.cc",
    "lockstep/tools/comparison/machine_load.cc",
    "lockstep/tools/check/host_facts.cc", "lockstep/train/report/run_environment.cc",
}
# They print or record the whole message of an error.
PRINT_ERRORS = {
    "lockstep/base/error.cc", "lockstep/cli/start/program.cc",
    "lockstep/tools/commands/compare.cc", "lockstep/cli/data/data.cc",
    "lockstep/cli/embed/device_options.cc",
    "lockstep/launch/failure/error_file.cc",
}


def check(root):
    """Finds calls that do something other than they seem to."""
    findings = []
    for path in cpp_files(root, ["lockstep"]):
        if path.as_posix() in EXEMPT:
            continue
        for number, line in enumerate(lines_of(root, path), 1):
            code = line.split("//")[0]
            for pattern, problem, instead in RULES:
                if instead == WHOLE_MESSAGE and path.as_posix() in PRINT_ERRORS:
                    continue
                if pattern.search(code):
                    findings.append(f"{path}:{number}: {problem}; use {instead}")
    return findings


if __name__ == "__main__":
    run(check, "pitfalls")
