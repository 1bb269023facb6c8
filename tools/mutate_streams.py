#!/usr/bin/env python3
"""Removes each statement that orders streams, and checks that a test notices.

A site is an event, a wait for one, a fence, a guard of a device or stream, a
record_stream(), a synchronization or a binding of a thread to a device, in
lockstep/device, lockstep/parallel and lockstep/comm. Each site is removed in
turn, and the tests on the simulated accelerator (test_accelerator) run with
several seeds of its delays until one fails. A mutant that all of them pass
survives: a test is missing, or the statement is unnecessary.

All mutants are in one program, which is built from a copy of the sources in
build/mutate. A mutant only runs the tests that reach its site. Results are kept
there until the sources change, so an interrupted run goes on where it was.
Writes build/mutate/table.md.

Exits with 1 if a mutant survives that is not listed in EXCEPTIONS, and with 2
if the tests fail without a mutant.
"""

import argparse
import collections
import itertools
import os
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from mutants import test_run  # noqa: E402
from mutants.results import Results  # noqa: E402
from mutants.source_copy import Failure  # noqa: E402
from mutants.stream_program import Program, find_all_sites  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/mutate"

# Tests that a mutant runs at first, before all others that reach its site.
FIRST_TESTS = 20

# Sites that no test has to notice: file, text of the statement, reason.
EXCEPTIONS = []


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true",
                        help="print the sites, and build nothing")
    parser.add_argument("--only", action="append", metavar="FILE[:LINE]",
                        help="only sites there; FILE may be the end of a path")
    parser.add_argument("--seeds", type=int, default=20, metavar="N",
                        help="seeds that a mutant has to survive [20]")
    parser.add_argument("--jobs", type=int, metavar="N",
                        default=max(1, (os.cpu_count() or 1) // 2),
                        help="mutants that run at once [half of the cores]")
    parser.add_argument("--tests", default="*", metavar="FILTER",
                        help="tests that judge, as in --gtest_filter")
    parser.add_argument("--again", action="store_true",
                        help="forget the results of earlier runs")
    return parser.parse_args()


def say(text):
    print(f"[mutate] {text}", flush=True)


def is_chosen(site, only):
    if not only:
        return True
    for place in only:
        name, _, line = place.partition(":")
        if ("/" + site.file).endswith("/" + name) and (
                not line or site.line == int(line)):
            return True
    return False


def exception_for(site):
    """Returns why no test has to notice that the site is removed."""
    for name, text, reason in EXCEPTIONS:
        if site.file == name and re.search(text, site.text):
            return reason
    return None


class Run:
    def __init__(self, arguments, program, sites, state):
        self.arguments = arguments
        self.program = program
        self.sites = sites
        self.state = state
        self.tests = program.tests(arguments.tests)
        self.seeds = range(1, arguments.seeds + 1)

    def deadline_s(self, tests):
        return 60 + 10 * sum(self.state["tests"][test]["seconds"]
                             for test in tests)

    def reach(self):
        """Finds out which sites each test reaches, and how long it takes."""
        unknown = [test for test in self.tests if test not in self.state.tests]
        for count, test in enumerate(unknown, 1):
            begin = time.monotonic()
            reached = set()
            seed = self.seeds[0]
            outcome = self.program.run([test], seed, 600, reached=reached)
            if outcome.how != "passed":
                raise Failure(f"{test} {outcome.how} without a mutant:\n"
                              f"{test_run.report_of(outcome.output)}")
            seconds = time.monotonic() - begin
            self.state["tests"][test] = {"seconds": seconds,
                                         "sites": sorted(reached)}
            self.state["passed"].setdefault(str(seed), []).append(test)
            self.state.save()
            say(f"test {count} of {len(unknown)}: {test} reaches "
                f"{len(reached)} sites in {seconds:.1f} s")

    def tests_of(self, site):
        """Returns the tests that reach a site. Those that reach the fewest
        other sites come first: they are short, and kill most mutants."""
        known = self.state["tests"]
        return sorted((test for test in self.tests
                       if site.number in known[test]["sites"]),
                      key=lambda test: len(known[test]["sites"]))

    def pass_without_mutants(self):
        """Checks that the tests pass with all seeds."""
        needed = sorted({test for site in self.sites
                         for test in self.tests_of(site)})

        def check(seed):
            known = self.state["passed"].setdefault(str(seed), [])
            tests = [test for test in needed if test not in known]
            if not tests:
                return
            outcome = self.program.run(tests, seed, self.deadline_s(tests))
            if outcome.how != "passed":
                raise Failure(f"{outcome.test} {outcome.how} with seed {seed} "
                              f"and without a mutant:\n"
                              f"{test_run.report_of(outcome.output)}")
            known += tests
            self.state.save()
            say(f"without a mutant, {len(tests)} tests pass with seed {seed}")

        test_run.in_parallel(check, self.seeds, self.arguments.jobs)

    def judge(self, site):
        """Runs the mutant without the site until a test fails."""
        known = self.state["results"].get(str(site.number))
        if known and (known["result"] == "killed" or
                      (known["result"] == "survived" and
                       known["seeds"] >= self.arguments.seeds)):
            return known
        tests = self.tests_of(site)
        if not tests:
            return {"result": "not reached"}
        batches = [tests[:FIRST_TESTS], tests[FIRST_TESTS:]]
        for seed, batch in itertools.product(self.seeds, filter(None, batches)):
            outcome = self.program.run(batch, seed, self.deadline_s(batch),
                                       site=site.number)
            if outcome.how != "passed":
                return {"result": "killed", "test": outcome.test, "seed": seed,
                        "how": outcome.how}
        return {"result": "survived", "seeds": self.arguments.seeds}

    def judge_all(self):
        begin = time.monotonic()
        done = 0

        def task(site):
            nonlocal done
            start = time.monotonic()
            result = self.judge(site)
            self.state["results"][str(site.number)] = result
            self.state.save()
            write_table(self.sites, self.state["results"])
            done += 1
            left = (time.monotonic() - begin) / done * (len(self.sites) - done)
            say(f"{done} of {len(self.sites)}, about {left / 60:.0f} min left: "
                f"{site.place} {describe(site, result)} "
                f"({time.monotonic() - start:.0f} s)")

        test_run.in_parallel(task, self.sites, self.arguments.jobs)


def describe(site, result):
    """Returns the result of a site in words."""
    if site.needs_gpu:
        return "needs a GPU"
    if result is None:
        return "not judged yet"
    if result["result"] == "killed":
        return (f"killed by {result['test']} with seed {result['seed']} "
                f"({result['how']})")
    words = (f"survived {result['seeds']} seeds"
             if result["result"] == "survived" else "not reached by any test")
    reason = exception_for(site)
    return f"{words}; exception: {reason}" if reason else words


def write_table(sites, results):
    """Writes table.md."""
    counts = collections.Counter()
    rows = []
    for site in sites:
        result = results.get(str(site.number))
        words = describe(site, result)
        counts["needs a GPU" if site.needs_gpu else
               result["result"] if result else "not judged yet"] += 1
        text = site.text.replace("|", "\\|")
        rows.append(f"| `{site.place}` | {site.kind} | `{text}` | {words} |")
    totals = ", ".join(f"{number} {name}" for name, number in counts.items())
    page = ["# Mutants of stream order", "",
            f"{len(sites)} sites: {totals}.", "",
            "| site | kind | statement | without it |", "|---|---|---|---|"]
    (FOLDER / "table.md").write_text("\n".join(page + rows) + "\n",
                                     encoding="utf-8")


def main():
    arguments = parse_arguments()
    sites = find_all_sites(ROOT)
    chosen = [site for site in sites if is_chosen(site, arguments.only)]
    if not chosen:
        say(f"no site is in {', '.join(arguments.only)}; see --list")
        return 2
    if arguments.list:
        for site in chosen:
            note = " (needs a GPU)" if site.needs_gpu else ""
            print(f"{site.place}: {site.kind}{note}: {site.text}")
        print(f"{len(chosen)} sites")
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    program = Program(ROOT, FOLDER)
    try:
        program.copy_sources(sites)
        say(f"building {len(sites)} mutants in one program "
            f"(minutes at first; log: {FOLDER / 'build.log'})")
        program.build(os.cpu_count() or 1)
        state = Results(FOLDER / "state.json", program.digest(),
                        ("tests", "passed", "results"), arguments.again)
        on_host = [site for site in chosen if not site.needs_gpu]
        run = Run(arguments, program, on_host, state)
        run.reach()
        run.pass_without_mutants()
        run.judge_all()
    except Failure as failure:
        say(str(failure))
        return 2
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    results = state["results"]
    write_table(chosen, results)
    left = [site for site in on_host
            if results[str(site.number)]["result"] != "killed"
            and not exception_for(site)]
    for site in left:
        say(f"{site.place} {describe(site, results[str(site.number)])}: "
            f"{site.text}")
    say(f"{len(on_host) - len(left)} of {len(on_host)} sites are killed or "
        f"excepted; table: {FOLDER / 'table.md'}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
