#!/usr/bin/env python3
"""Breaks runs of Lockstep in all known ways, and measures what happens.

Writes the tables of faults to docs/faults.md. With --torchrun-networks,
--restarts or --random-kills, it writes their part of the page instead, and with
--recoveries or --strangers nothing. Exits with 1 if a run of Lockstep hangs, ends with other
bits, or leaks. Faults that need a separate network or disk need root.
"""

import argparse
import fnmatch
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fault_table import cases, page, places  # noqa: E402
from fault_table.faults import (FAULTS, all_cases, slug,  # noqa: E402
                                tier)
from fault_table import torchrun_networks as networks  # noqa: E402
from fault_table.job import digest_in  # noqa: E402
from fault_table.node_restarts import run_restarts  # noqa: E402
from fault_table.random_kills import random_kills  # noqa: E402
from fault_table.recoveries import recoveries  # noqa: E402
from fault_table.strangers import strangers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[1]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path,
                        default=ROOT / "build/release/bin",
                        help="folder of lockstep and faulty_lockstep")
    parser.add_argument("--only", default="*", metavar="PATTERNS",
                        help="cases, as in 'kill*@*,SIGSTOP@backward'; only "
                             "the page of --page is written then")
    parser.add_argument("--list", action="store_true",
                        help="print the names of the cases, each after the "
                             "tier of tests that has it")
    parser.add_argument("--write-digest", type=pathlib.Path, metavar="FILE",
                        help="instead: run without a fault, and write the "
                             "digest of the parameters")
    parser.add_argument("--digest", type=pathlib.Path, metavar="FILE",
                        help="this digest; without it, there is a run without "
                             "a fault first")
    parser.add_argument("--page", type=pathlib.Path,
                        help="writes this page instead of docs/faults.md")
    parser.add_argument("--verbose", action="store_true",
                        help="print all lines of the runs")
    parser.add_argument("--torchrun", type=pathlib.Path,
                        default=ROOT / ".venv/bin/torchrun",
                        help="PyTorch's launcher, to compare with; skipped if "
                             "missing")
    nodes = parser.add_argument_group("two nodes")
    nodes.add_argument("--torchrun-networks", action="store_true",
                       help="instead: the faults of two nodes with torchrun")
    nodes.add_argument("--restarts", type=int, metavar="N",
                       help="instead: N times, node 0 is killed and started "
                            "again, and so is node 1 some time later")
    kills = parser.add_argument_group("random kills")
    kills.add_argument("--random-kills", type=int, metavar="N",
                       help="instead: N times kill -9 in one run")
    kills.add_argument("--steps", type=int, default=400)
    kills.add_argument("--seed", type=int, default=0)
    kills.add_argument("--data-dir", type=pathlib.Path,
                       help="CIFAR-10 in its binary form; else synthetic")
    losses = parser.add_argument_group("recoveries")
    losses.add_argument("--recoveries", type=int, metavar="N",
                        help="instead: N times kill -9 in one run, to check "
                             "that the survivors hold no more at its end")
    losses.add_argument("--descriptors", type=int, default=64,
                        help="file descriptors that a process may have open")
    others = parser.add_argument_group("strangers")
    others.add_argument("--strangers", type=int, metavar="N",
                        help="instead: N connections of strangers to a job, "
                             "over tcp and over shm")
    arguments = parser.parse_args()
    # Some cases run in namespaces, where the current folder is different.
    arguments.bin = arguments.bin.resolve()
    if arguments.page is None and arguments.only == "*":
        arguments.page = ROOT / "docs/faults.md"
    return arguments


def digest_for(arguments, programs):
    """Returns the digest of a run without a fault."""
    if arguments.digest:
        return arguments.digest.read_text().strip()
    return digest_in(cases.quiet_run(programs[0]))


def table(arguments, programs):
    """Runs the cases. Returns the number of cases that failed."""
    patterns = arguments.only.split(",")
    chosen = [case for case in all_cases()
              if any(fnmatch.fnmatch(slug(*case), p) for p in patterns)]
    if not chosen:
        sys.exit(f"[faults] no case is named {arguments.only}")
    digest = digest_for(arguments, programs)
    outcomes = []
    for number, (fault, phase) in enumerate(chosen, 1):
        if FAULTS[fault].needs_root and not places.can_make():
            print(f"[faults] {slug(fault, phase)}: left out, needs root")
            continue
        outcome, lines = cases.run_case(programs, FAULTS[fault], phase, digest)
        outcomes.append(outcome)
        print(f"[faults] {number}/{len(chosen)} {fault}:",
              " | ".join(outcome.cells()), "|", outcome.said[:90],
              flush=True)
        if outcome.problem or arguments.verbose:
            print("\n".join(f"    {at:.3f} {text}" for at, text in lines))
    if arguments.page:
        page.write_faults(arguments.page, outcomes, programs[0])
    return sum(bool(outcome.problem) for outcome in outcomes)


def torchrun_table(arguments):
    """Runs the faults of two nodes with torchrun. What it does is no failure of
    ours.
    """
    patterns = arguments.only.split(",")
    chosen = [fault for fault in networks.network_faults()
              if any(fnmatch.fnmatch(slug(fault.name, networks.PHASE), p)
                     for p in patterns)]
    if not chosen:
        sys.exit(f"[faults] no case of two nodes is named {arguments.only}")
    digest = networks.quiet_digest(arguments.torchrun)
    version = networks.version(arguments.torchrun)
    for number, fault in enumerate(chosen, 1):
        outcome, lines = networks.run_fault(arguments.torchrun, fault, digest)
        print(f"[faults] {number}/{len(chosen)} torchrun, {fault.name}:",
              " | ".join(outcome.network_cells()), flush=True)
        if arguments.verbose:
            print("\n".join(f"    {at:.3f} {text}" for at, text in lines))
        # Some rows take minutes, so each is written at once.
        if arguments.page:
            page.write_torchrun(arguments.page, [outcome], version)


def main():
    arguments = parse_arguments()
    if arguments.list:
        for case in all_cases():
            print(tier(*case), slug(*case))
        return 0
    # Leave no run behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    programs = [arguments.bin / name for name in ("lockstep",
                                                  "faulty_lockstep")]
    if arguments.torchrun_networks:
        if arguments.torchrun.exists():
            torchrun_table(arguments)
        else:
            print(f"[faults] left out: there is no {arguments.torchrun}")
        return 0
    needs_one = (arguments.random_kills or arguments.recoveries
                 or arguments.strangers)
    for program in programs[:1 if needs_one else 2]:
        if not program.exists():
            sys.exit(f"[faults] there is no {program}; expected a built "
                     "program; run make faults")
    if arguments.write_digest:
        arguments.write_digest.write_text(
            digest_in(cases.quiet_run(programs[0])) + "\n")
        failed = 0
    elif arguments.recoveries or arguments.strangers:
        problems = (recoveries if arguments.recoveries else strangers)(
            programs[0], arguments)
        for problem in problems:
            print("[faults]", problem)
        failed = len(problems)
    elif arguments.restarts:
        results = run_restarts(programs, arguments.restarts,
                               digest_for(arguments, programs),
                               arguments.verbose)
        if arguments.page:
            page.write_restarts(arguments.page, results, programs[0])
        failed = sum(bool(outcome.problem) for _, outcomes in results
                     for outcome in outcomes.values())
    elif arguments.random_kills:
        results = random_kills(programs[0], arguments)
        page.write_kills(arguments.page, results, arguments)
        failed = sum(bool(result.problem) for result in results
                     if result.name == "lockstep")
    else:
        failed = table(arguments, programs)
    print(f"[faults] {failed} failed" if failed else "[faults] ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
