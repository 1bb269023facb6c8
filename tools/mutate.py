#!/usr/bin/env python3
"""Puts errors into the product, and checks that a test notices each.

tools/mutants/table.py lists the mutants: a sign, a missing barrier, the last
shard dropped, a deadline ignored. Each runs the tests of the tier `quick`, those
of its room first, and then those of `full`, until one fails. A mutant that all
of them pass survives: a test is missing.

All mutants are in one build of a copy of the sources, in build/mutate/product.
LOCKSTEP_MUTANT chooses one by its name, also for the programs that a test
starts. A test judges only if it passes without a mutant. Results are kept until
the mutant or its tests change, so an interrupted run goes on where it was.
Writes build/mutate/mutants.md.

Exits with 1 if a mutant survives, or if the tier `quick` kills less than three
quarters of them, and with 2 if a test fails without a mutant.
"""

import argparse
import hashlib
import os
import pathlib
import re
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from mutants import ctest, instrument, table, test_run  # noqa: E402
from mutants.results import Results  # noqa: E402
from mutants.source_copy import Failure, SourceCopy  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build/mutate"

# Part of the mutants that the tier `quick` has to kill.
QUICK_PART = 3 / 4
# Runs of a test without a mutant, of which one has to pass.
TRIES = 2


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true",
                        help="print the mutants, and build nothing")
    parser.add_argument("--only", action="append", metavar="NAME|ROOM",
                        help="only this mutant, or those of a room")
    parser.add_argument("--tier", choices=list(ctest.TIERS), default="full",
                        help="last tier that judges [full]")
    parser.add_argument("--jobs", type=int, metavar="N",
                        default=max(1, (os.cpu_count() or 1) // 2),
                        help="mutants that run at once [half of the cores]")
    parser.add_argument("--again", action="store_true",
                        help="forget the results of earlier runs")
    return parser.parse_args()


def say(text):
    print(f"[mutate] {text}", flush=True)


def digest_of(*texts):
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


class Run:
    def __init__(self, mutants, tests, tiers, jobs, state):
        self.mutants = mutants
        self.tests = tests
        self.tiers = tiers
        self.jobs = jobs
        self.state = state
        digests = ctest.Digests()
        self.digests = {test.name: digests.of(test) for test in tests}
        self.digest_of_tier = {
            tier: digest_of(*(self.digests[test.name] for test in tests
                              if test.tier == tier)) for tier in tiers}
        self.lock = threading.Lock()
        self.locks = {}

    def prepare(self, test):
        """Runs a test without a mutant once, and notes how long it takes."""
        with self.lock:
            lock = self.locks.setdefault(test.name, threading.Lock())
        with lock:
            known = self.state["tests"].get(test.name)
            if known and known["digest"] == self.digests[test.name]:
                return known["seconds"]
            for _ in range(TRIES):
                begin = time.monotonic()
                outcome = ctest.run(test, {}, test.timeout_s)
                if outcome.how == "passed":
                    break
            else:
                raise Failure(f"{test.name} {outcome.how} without a mutant:\n"
                              f"{test_run.report_of(outcome.output)}")
            seconds = time.monotonic() - begin
            self.state["tests"][test.name] = {
                "digest": self.digests[test.name], "seconds": seconds}
            self.state.save()
            return seconds

    def known_seconds(self, test):
        """Returns how long a test takes, or 0 for a new one."""
        known = self.state["tests"].get(test.name)
        return known["seconds"] if known else 0

    def groups_of(self, mutant, tier):
        """Returns the tests of a tier in the order in which they judge a
        mutant: those of its room before all others."""
        patterns = [re.compile(text) for text in table.ROOMS[mutant.room]]
        groups = [[] for _ in range(len(patterns) + 1)]
        for test in self.tests:
            if test.tier != tier:
                continue
            place = next((i for i, pattern in enumerate(patterns)
                          if pattern.search(test.name)), len(patterns))
            groups[place].append(test)
        return groups

    def kill(self, mutant, tier):
        """Returns how a test of a tier kills a mutant, or None."""
        for group in self.groups_of(mutant, tier):
            for test in sorted(group, key=self.known_seconds):
                seconds = self.prepare(test)
                deadline_s = min(test.timeout_s, 30 + 5 * seconds)
                outcome = ctest.run(
                    test, {instrument.VARIABLE: mutant.name}, deadline_s)
                if outcome.how == "passed":
                    continue
                # A test that fails now and then proves nothing.
                case = test.of_case(outcome.test)
                again = ctest.run(case, {}, deadline_s)
                if again.how == "passed":
                    return {"result": "killed", "tier": tier,
                            "test": test.name, "case": outcome.test,
                            "how": outcome.how,
                            "digest": self.digests[test.name]}
                say(f"{test.name} {again.how} without a mutant now; it does "
                    f"not judge {mutant.name}")
        return None

    def is_known(self, mutant):
        """Returns whether the result of an earlier run still counts."""
        known = self.state["results"].get(mutant.name)
        if not known or known["mutant"] != digest_of(mutant.path,
                                                     mutant.before,
                                                     mutant.after):
            return False
        if any(self.digest_of_tier.get(tier) != digest
               for tier, digest in known["survived"].items()):
            return False
        if known["result"] == "survived":
            return set(known["survived"]) == set(self.tiers)
        return (known["tier"] in self.tiers and
                self.digests.get(known["test"]) == known["digest"])

    def judge(self, mutant):
        survived = {}
        for tier in self.tiers:
            result = self.kill(mutant, tier)
            if result:
                break
            survived[tier] = self.digest_of_tier[tier]
        else:
            result = {"result": "survived"}
        return result | {
            "survived": survived,
            "mutant": digest_of(mutant.path, mutant.before, mutant.after)}

    def judge_all(self):
        unknown = [mutant for mutant in self.mutants
                   if not self.is_known(mutant)]
        for mutant in unknown:
            self.state["results"].pop(mutant.name, None)
        say(f"{len(self.mutants) - len(unknown)} results are known, "
            f"{len(unknown)} mutants are judged")
        begin = time.monotonic()
        done = 0

        def task(mutant):
            nonlocal done
            start = time.monotonic()
            result = self.judge(mutant)
            self.state["results"][mutant.name] = result
            self.state.save()
            write_table(self.mutants, self.state["results"])
            done += 1
            left = (time.monotonic() - begin) / done * (len(unknown) - done)
            say(f"{done} of {len(unknown)}, about {left / 60:.0f} min left: "
                f"{mutant.name} {describe(result)} "
                f"({time.monotonic() - start:.0f} s)")

        test_run.in_parallel(task, unknown, self.jobs)


def full_name(test, case):
    """Returns the name of a test of ctest with the case that failed. ctest puts
    the program before a suite: parallel.Scatter."""
    if " " in case:
        return f"{test}, {case}"
    return test if case in test else f"{test.partition('.')[0]}.{case}"


def describe(result):
    """Returns the result of a mutant in words."""
    if result is None:
        return "not judged yet"
    if result["result"] == "killed":
        return (f"killed by {full_name(result['test'], result['case'])} "
                f"({result['tier']}, {result['how']})")
    return f"survived {' and '.join(result['survived'])}"


def write_table(mutants, results):
    """Writes mutants.md."""
    rows = []
    for mutant in mutants:
        words = describe(results.get(mutant.name))
        rows.append(f"| {mutant.room} | `{mutant.name}` | {mutant.breaks} | "
                    f"{words} |")
    counts = count(mutants, results)
    page = ["# Mutants of the product", "",
            ", ".join(f"{number} {name}" for name, number in counts.items()
                      if number) + ".", "",
            "| room | mutant | what it breaks | test |", "|---|---|---|---|"]
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "mutants.md").write_text("\n".join(page + rows) + "\n",
                                       encoding="utf-8")


def count(mutants, results):
    """Returns the number of mutants for each kind of result."""
    counts = {f"killed by {tier}": 0 for tier in ctest.TIERS}
    counts |= {"survived": 0, "not judged yet": 0}
    for mutant in mutants:
        result = results.get(mutant.name)
        kind = ("not judged yet" if result is None else
                f"killed by {result['tier']}" if result["result"] == "killed"
                else "survived")
        counts[kind] += 1
    return counts


def chosen_mutants(only):
    return [mutant for mutant in table.MUTANTS
            if not only or mutant.name in only or mutant.room in only]


def judge(mutants, copy, tiers, jobs, forget):
    """Judges the mutants of a build. Returns whether the tests are enough."""
    state = Results(copy.folder / "state.json", "", ("tests", "results"),
                    forget)
    tests = ctest.tests_of(copy.build_folder, tiers)
    say(f"{len(tests)} tests judge {len(mutants)} mutants")
    Run(mutants, tests, tiers, jobs, state).judge_all()
    write_table(mutants, state["results"])
    counts = count(mutants, state["results"])
    for mutant in mutants:
        if state["results"][mutant.name]["result"] == "survived":
            say(f"{mutant.path}: {mutant.name} survives: {mutant.breaks}")
    say(", ".join(f"{number} {name}" for name, number in counts.items()) +
        f"; table: {FOLDER / 'mutants.md'}")
    is_enough = counts["killed by quick"] >= QUICK_PART * len(mutants)
    if not is_enough:
        say(f"the tier quick has to kill {QUICK_PART:.0%} of them")
    return is_enough and (tiers == ["quick"] or counts["survived"] == 0)


def main():
    arguments = parse_arguments()
    mutants = chosen_mutants(arguments.only)
    if not mutants:
        say(f"there is no {', '.join(arguments.only)}; see --list")
        return 2
    if arguments.list:
        for mutant in mutants:
            print(f"{mutant.room}: {mutant.name} ({mutant.path}): "
                  f"{mutant.breaks}")
        print(f"{len(mutants)} mutants")
        return 0
    folder = FOLDER / "product"
    folder.mkdir(parents=True, exist_ok=True)
    copy = SourceCopy(ROOT, folder)
    tiers = list(ctest.TIERS)
    tiers = tiers[:tiers.index(arguments.tier) + 1]
    try:
        copy.write(instrument.changed_files(ROOT, table.MUTANTS))
        say(f"building {len(table.MUTANTS)} mutants in one build "
            f"(minutes at first; log: {copy.log})")
        copy.build([], ["all"], os.cpu_count() or 1)
        is_enough = judge(mutants, copy, tiers, arguments.jobs,
                          arguments.again)
    except Failure as failure:
        say(str(failure))
        return 2
    except KeyboardInterrupt:
        say("interrupted; run it again to go on")
        return 130
    return 0 if is_enough else 1


if __name__ == "__main__":
    sys.exit(main())
