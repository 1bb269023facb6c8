#!/usr/bin/env python3
"""Records what a build computes and how fast it is, to compare later builds with it.

The sections, in any selection (default: all):

  digests  parameter digests of single, dp and ddp over shm and tcp
  bench    time of an all-reduce of 2 ranks
  compare  step times of the strategies, as `lockstep compare` measures them
  tests    time and CPU time of each ctest test
  build    time of the steps of the last build, from its .ninja_log

Writes JSON, and prints tables in Markdown. Exits with 1 if the strategies of a model
have different digests, or differ from those of --against. A test that fails is only
recorded. Times of different days are hardly comparable on a shared machine: --old-build
runs both builds in turns.

    bench/baseline.py --out build/before.json
    bench/baseline.py digests build --against build/before.json
    bench/baseline.py bench compare --old-build ../before/build/release
    bench/baseline.py tests --filter '^parallel' --jobs 1
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import baseline_tables  # noqa: E402
import slowest  # noqa: E402
import test_times  # noqa: E402

SECTIONS = ("digests", "bench", "compare", "tests", "build")
STRATEGIES = {"single": ["--strategy", "single", "--devices", "cpu"],
              "dp": ["--strategy", "dp", "--devices", "2xcpu"],
              "ddp shm": ["--strategy", "ddp", "--backend", "shm",
                          "--devices", "2xcpu"],
              "ddp tcp": ["--strategy", "ddp", "--backend", "tcp",
                          "--devices", "2xcpu"]}
PRECISIONS = ("fp32", "bf16")
# Samples of a step, and timed steps, of each model of `compare`.
COMPARED = {"mlp": (64, 30), "gpt-char": (16, 20), "resnet18": (32, 10)}
# Variables that change what the program computes, or how fast.
UNWANTED = ("LOCKSTEP_", "OMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "TORCH_")
DEADLINE_S = 900
SLOWEST_STEPS = 20


def say(text):
    """Prints a line of progress. The tables are on stdout."""
    print(f"[baseline] {text}", file=sys.stderr, flush=True)


def run_program(program, words):
    """Runs the program. Returns its output, or exits with an error."""
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(UNWANTED)}
    try:
        done = subprocess.run(
            [str(program), *map(str, words)], env=environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, errors="replace", timeout=DEADLINE_S,
            check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"[baseline] {program} {words[0]} did not end; expected exit code 0 "
                 f"within {DEADLINE_S} s; run it by hand: {' '.join(map(str, words))}")
    if done.returncode != 0:
        sys.exit(f"[baseline] {program} {words[0]} failed; expected exit code 0, got "
                 f"{done.returncode}; run it by hand: {' '.join(map(str, words))}\n"
                 f"{done.stdout[-4000:]}")
    return done.stdout


class Progress:
    """Prints how many of some equal pieces of work are done, and the time left."""

    def __init__(self, count):
        self.count, self.done = count, 0
        self.began = datetime.datetime.now()

    def step(self, what):
        self.done += 1
        passed = (datetime.datetime.now() - self.began).total_seconds()
        left = passed / self.done * (self.count - self.done)
        say(f"{self.done}/{self.count} {what}; {test_times.minutes(left)} left")


def made_text():
    """Returns a text for language models that is the same on every machine."""
    words = ("data parallel training sums the gradients of all shards in one order so "
             "that the bits are equal on any number of devices").split()
    state, lines = 1, []
    for _ in range(600):
        line = []
        for _ in range(8):
            state = (state * 1103515245 + 12345) % (1 << 31)
            line.append(words[(state >> 16) % len(words)])
        lines.append(" ".join(line).capitalize() + ".")
    return "\n".join(lines) + "\n"


def digest_words(model, precision, strategy, text, out_dir):
    """Returns the options of one training run of `digests`."""
    data = ["--data", "text", "--data-file", text] if model.startswith(
        ("gpt", "llama")) else ["--data", "synthetic"]
    return ["train", *STRATEGIES[strategy], "--model", model, "--precision", precision,
            *data, "--batch-size", 8, "--shards", 2, "--intra-op-threads", 1,
            "--max-steps", 5, "--seed", 0, "--no-eval", "--out-dir", out_dir]


def measure_digests(options, report, keep):
    """Trains each model with each strategy, and records the digests."""
    found = report.setdefault("digests", {})
    progress = Progress(len(options.models) * len(PRECISIONS) * len(STRATEGIES))
    for model in options.models:
        for precision in PRECISIONS:
            row = found.setdefault(f"{model} {precision}", {})
            for strategy in STRATEGIES:
                with tempfile.TemporaryDirectory(prefix="lockstep-digest-") as folder:
                    text = pathlib.Path(folder, "text.txt")
                    text.write_text(made_text(), encoding="utf-8")
                    out_dir = pathlib.Path(folder, "run")
                    run_program(options.program, digest_words(
                        model, precision, strategy, text, out_dir))
                    run = json.loads((out_dir / "run.json").read_text(encoding="utf-8"))
                row[strategy] = run["parameter_sha256"]
                keep()
                progress.step(f"{model} {precision} {strategy}: "
                              f"{row[strategy][:12]}")


def in_turns(options, work, report, name, keep):
    """Calls `work(program, rows)` in each round, for each build.

    `rows` has the measured values of a cell by its name. Builds begin in turns, because
    what runs first is often faster.
    """
    builds = {"new": options.program}
    if options.old_build:
        builds["old"] = options.old_build / "bin/lockstep"
    found = report.setdefault(name, {build: {} for build in builds})
    progress = Progress(options.rounds * len(builds))
    for number in range(options.rounds):
        for build in sorted(builds, reverse=number % 2 == 0):
            for cell, value in work(builds[build]).items():
                found[build].setdefault(cell, []).append(value)
            keep()
            progress.step(f"{name}, round {number + 1}, {build}")


def bench_round(options, program):
    """Returns the time of an all-reduce in microseconds, by backend and size."""
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        path = pathlib.Path(folder, "bench.json")
        run_program(program, ["bench", "allreduce", "--sizes", options.sizes,
                              "--nproc", 2, "--backend", "shm,tcp", "--json", path])
        found = json.loads(path.read_text(encoding="utf-8"))
    return {f"{backend['backend']} {size['bytes']}": backend["time_us"]
            for size in found["sizes"] for backend in size["backends"]}


def compare_round(program):
    """Returns the median step time in milliseconds, by model and strategy."""
    cells = {}
    for model, (batch, steps) in COMPARED.items():
        with tempfile.TemporaryDirectory(prefix="lockstep-compare-") as folder:
            path = pathlib.Path(folder, "compare.json")
            run_program(program, ["compare", "--model", model, "--batch-size", batch,
                                  "--devices", "2xcpu", "--rounds", 1, "--steps", steps,
                                  "--warmup", 3, "--report", path])
            found = json.loads(path.read_text(encoding="utf-8"))
        for run in found["runs"]:
            cells[f"{model} {run['strategy']}"] = 1e3 * statistics.median(
                run["round_medians_s"])
    return cells


def measure_tests(options, report, keep):
    """Runs the tests of the build, and records each one when it ends."""
    tests = [test for test in test_times.tests_of(options.build)
             if re.search(options.filter, test.name)
             and (not options.label or any(re.search(options.label, label)
                                           for label in test.labels))]
    found = report.setdefault("tests", {"jobs": options.jobs, "rows": {}})
    if found["jobs"] != options.jobs:
        sys.exit(f"[baseline] can't resume; expected --jobs {found['jobs']}, got "
                 f"{options.jobs}; resume with the same number, or leave out --resume")
    known = {**test_times.known_seconds(options.build), **{
        name: row["wall_s"] for name, row in
        options.earlier.get("tests", {}).get("rows", {}).items() if "wall_s" in row}}
    missing = [test for test in tests if test.name not in found["rows"]]
    if not tests:
        sys.exit("[baseline] no test is chosen; expected at least one, got none for "
                 f"--filter {options.filter!r} --label {options.label!r}; see ctest -N")

    def keep_row(name, row):
        found["rows"][name] = row
        keep()

    test_times.run_tests(missing, options.jobs, known, keep_row)


def build_times(build):
    """Returns the number of steps of a build, and the time they took.

    The log counts from the start of each build. `wall_s` is therefore the time of the
    longest one.
    """
    text = slowest.read(build / ".ninja_log")
    if not text:
        sys.exit(f"[baseline] there is no {build}/.ninja_log; expected a folder in "
                 "which ninja built; name it with --build")
    steps = slowest.read_ninja_log(text)
    return {"steps": len(steps),
            "compilations": sum(slowest.is_compilation(step[3]) for step in steps),
            "sum_s": sum(step[0] for step in steps),
            "wall_s": max(step[2] for step in steps) - min(step[1] for step in steps),
            "slowest": [{"seconds": step[0], "outputs": step[3]}
                        for step in slowest.slowest(steps, SLOWEST_STEPS)]}


def revision_of(build):
    """Returns the commit of a build's sources, with "+" if files were changed."""
    cache = slowest.read(build / "CMakeCache.txt")
    source = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.M)
    words = ["git", "-C", source[1] if source else str(build)]
    commit = subprocess.run([*words, "rev-parse", "HEAD"], capture_output=True,
                            text=True, check=False).stdout.strip()
    changed = subprocess.run([*words, "status", "--porcelain", "-uno"],
                             capture_output=True, text=True, check=False).stdout
    return (commit or "unknown") + ("+" if changed.strip() else "")


def machine():
    """Returns the processor and the number of cores."""
    text = slowest.read(pathlib.Path("/proc/cpuinfo"))
    name = re.search(r"^model name\s*: (.*)$", text, re.M)
    flags = re.search(r"^flags\s*: (.*)$", text, re.M)
    return {"processor": name[1] if name else os.uname().machine,
            "flags": sorted(flag for flag in (flags[1].split() if flags else [])
                            if flag.startswith(("amx", "avx512"))),
            "cores": len(os.sched_getaffinity(0)), "kernel": os.uname().release}


def torch_version(program):
    """Returns the version of LibTorch that a program uses."""
    if not program.exists():
        return "unknown"
    text = subprocess.run([str(program), "doctor"], capture_output=True, text=True,
                          check=False).stdout
    found = re.search(r"LibTorch +(\S+)", text)
    return found[1] if found else "unknown"


def write_aside(path, text):
    """Replaces a file, so that it is complete at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, path)


def read_baseline(path):
    """Returns a baseline that this script wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        sys.exit(f"[baseline] can't read {path}; expected a file that --out wrote, got "
                 f"{error}; name one that exists")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION",
                        help=f"what to record: {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release",
                        help="folder of the build [build/release]")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE",
                        default=ROOT / "build/baseline.json",
                        help="JSON to write [build/baseline.json]")
    parser.add_argument("--resume", action="store_true",
                        help="go on with --out: keep its other sections and its tests")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE",
                        help="also write the tables here")
    parser.add_argument("--against", type=pathlib.Path, metavar="FILE",
                        help="compare with this earlier baseline")
    parser.add_argument("--old-build", type=pathlib.Path, metavar="DIR",
                        help="bench, compare: run this build, too, in turns")
    parser.add_argument("--rounds", type=int, default=3, metavar="N",
                        help="bench, compare: rounds, of which the median counts [3]")
    parser.add_argument("--sizes", default="4K:64M", metavar="FIRST:LAST",
                        help="bench: bytes per message [4K:64M]")
    parser.add_argument("--models", default="mlp,cnn,resnet18,gpt-char",
                        type=lambda text: text.split(","), metavar="A,B",
                        help="digests: models [mlp,cnn,resnet18,gpt-char]")
    parser.add_argument("--jobs", type=int, default=2, metavar="N",
                        help="tests: how many run at the same time [2]")
    parser.add_argument("--filter", default="", metavar="REGEX",
                        help="tests: only tests with such a name")
    parser.add_argument("--label", default="", metavar="REGEX",
                        help="tests: only tests with such a label")
    options = parser.parse_args()
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"unknown section {', '.join(sorted(unknown))}; expected "
                     f"{', '.join(SECTIONS)}")
    options.sections = [each for each in SECTIONS
                        if each in (options.sections or SECTIONS)]
    if min(options.rounds, options.jobs) < 1:
        parser.error("--rounds and --jobs must be at least 1")
    if options.out.exists() and not options.resume:
        sys.exit(f"[baseline] {options.out} exists; expected a new file, got one that "
                 "later builds may be compared with; name another with --out, delete "
                 "it, or go on with --resume")
    # Tests run in folders of their own.
    options.build = options.build.resolve()
    options.program = options.build / "bin/lockstep"
    programs = [options.program]
    if options.old_build:
        options.old_build = options.old_build.resolve()
        programs.append(options.old_build / "bin/lockstep")
    for program in programs:
        if set(options.sections) & {"digests", "bench", "compare"} and (
                not program.exists()):
            sys.exit(f"[baseline] there is no {program}; expected a built program; run "
                     "make build, or name another folder with --build")
    options.earlier = read_baseline(options.against) if options.against else {}
    return options


def measure(options):
    """Records the sections. Returns the baseline."""
    report = {"machine": {}, "loads": {}}
    if options.resume and options.out.exists():
        report = read_baseline(options.out)
    report["machine"].update(machine(), torch=torch_version(options.program))
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    report.setdefault("began", now)
    revision = revision_of(options.build)
    if report.setdefault("revision", revision) != revision:
        sys.exit("[baseline] can't resume; expected the build of "
                 f"{report['revision']}, got {revision}; build that commit, "
                 "or leave out --resume")
    if options.old_build:
        report["old_revision"] = revision_of(options.old_build)

    def keep():
        # Without indentation, it is written in a few milliseconds after each test.
        write_aside(options.out, json.dumps(report) + "\n")

    for section in options.sections:
        say(f"{section}: load {os.getloadavg()[0]:.1f}")
        report["loads"][section] = os.getloadavg()
        if section != "tests":
            report.pop(section, None)
        if section == "digests":
            measure_digests(options, report, keep)
        elif section == "bench":
            in_turns(options, lambda program: bench_round(options, program), report,
                     "bench", keep)
        elif section == "compare":
            in_turns(options, compare_round, report, "compare", keep)
        elif section == "tests":
            measure_tests(options, report, keep)
        else:
            report["build"] = build_times(options.build)
        keep()
    return report


def main():
    options = parse_arguments()
    # Leave no test behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        report = measure(options)
    except KeyboardInterrupt:
        say(f"interrupted; {options.out} has what was measured: go on with --resume")
        return 130
    tables = baseline_tables.tables(report)
    if options.earlier:
        tables += baseline_tables.comparison(options.earlier, report)
    problems = baseline_tables.problems(options.earlier, report)
    print("\n".join(tables), flush=True)
    if options.markdown:
        write_aside(options.markdown, "\n".join(tables) + "\n")
    for problem in problems:
        say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
