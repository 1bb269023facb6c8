#!/usr/bin/env python3
"""Fits `lockstep simulate` to measured all-reduces, and prints its errors.

The all-reduce of this host is measured over shm and tcp, with every size and
number of ranks, in interleaved rounds. Half of the sizes and --fit-ranks are
fitted. All other points are predictions.

    bench/simulate_fit.py
    sudo bench/simulate_fit.py --hosts     # two hosts, with limited links

Ranks that have to share cores are another regime than ranks with a core each
(they sleep instead of reading in a loop), so each has its own fit. --hosts
fits the link between two network namespaces (bench/two_hosts.py) at half of
the sizes of each of its rates.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from two_hosts import Link

ROOT = pathlib.Path(__file__).resolve().parents[1]
CORES = len(os.sched_getaffinity(0))
FREE = {"--host-latency-us": 0, "--message-us": 0, "--host-bandwidth": 1e30,
        "--memory-bandwidth": 1e30, "--latency-us": 0, "--bandwidth": 1e30}
# Each changes one number of a free network, and multiplies the time by it.
ONE_HOST = ({"--host-latency-us": 1}, {"--message-us": 1},
            {"--host-bandwidth": 1}, {"--memory-bandwidth": 1})
CACHES = [1 << i for i in range(6, 14)]  # KiB
TWO_HOSTS = ({"--latency-us": 1}, {"--bandwidth": 1})


@functools.cache
def simulate(program, backend, ranks, size, per_host, numbers):
    """Returns the time of an all-reduce in us, as `lockstep simulate` has it."""
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "report.json")
        words = [program, "simulate", "--compute-ms", "1", "--bytes",
                 str(size), "--ranks", str(ranks), "--ranks-per-host",
                 str(per_host), "--cores-per-host", str(CORES), "--algorithm",
                 "auto" if backend == "shm" else "tcp", "--report", report]
        for option, value in numbers:
            words += [option, repr(value)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        with open(report, encoding="utf-8") as file:
            return json.load(file)["results"][0]["communication_s"] * 1e6


def solve(rows):
    """Returns x with the least sum of (row . x - 1)^2, by elimination."""
    count = len(rows[0])
    matrix = [[sum(row[i] * row[j] for row in rows) for j in range(count)] +
              [sum(row[i] for row in rows)] for i in range(count)]
    for i in range(count):
        pivot = matrix[i][i] or 1e-30
        matrix[i] = [value / pivot for value in matrix[i]]
        for j in range(count):
            if j != i:
                matrix[j] = [a - matrix[j][i] * b
                             for a, b in zip(matrix[j], matrix[i])]
    return [row[-1] for row in matrix]


def fit(program, points, per_host, bases, caches):
    """Returns the options that describe `points`, {(backend, ranks, size): us}.

    The sum of the squares of the relative errors is least. A number that
    would be below zero is left at zero.
    """
    best = None
    for cache in caches:
        shares = [[simulate(program, backend, ranks, size, per_host,
                            tuple({**FREE, **base,
                                   "--cache-kib": cache}.items())) / time
                   for base in bases]
                  for (backend, ranks, size), time in points.items()]
        used = [i for i in range(len(bases)) if any(row[i] for row in shares)]
        while True:
            rows = [[row[i] for i in used] for row in shares]
            numbers = solve(rows)
            if min(numbers) >= 0:
                break
            del used[numbers.index(min(numbers))]
        error = sum((sum(a * x for a, x in zip(row, numbers)) - 1) ** 2
                    for row in rows)
        if best is None or error < best[0]:
            options = {**FREE, "--cache-kib": cache}
            for i, number in zip(used, numbers):
                (option,) = bases[i]
                is_rate = option.endswith("bandwidth")
                options[option] = 1 / max(number, 1e-12) if is_rate else number
            best = error, options
    return best[1]


def measure(program, sizes, ranks, rounds, iters):
    """Returns {(backend, ranks, size): us}, the median of all rounds."""
    times = {}
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "bench.json")
        for turn in range(rounds):
            for count in ranks:
                print(f"[simulate_fit] {count} ranks, round {turn + 1} of "
                      f"{rounds}", file=sys.stderr)
                subprocess.run(
                    [program, "bench", "allreduce", "--sizes",
                     f"{sizes[0]}:{sizes[-1]}", "--factor", "2", "--nproc",
                     str(count), "--resident", "off", "--check", "off",
                     "--iters", str(iters), "--json", report],
                    check=True, stdout=subprocess.DEVNULL)
                with open(report, encoding="utf-8") as file:
                    add_times(times, count, json.load(file))
    return {key: statistics.median(all_) for key, all_ in times.items()}


def add_times(times, ranks, report):
    for size in report["sizes"]:
        for figure in size["backends"]:
            key = figure["backend"], ranks, size["bytes"]
            times.setdefault(key, []).append(figure["time_us"])


def measure_hosts(program, sizes, mbit, rounds, iters):
    """Returns the same for two hosts with a link of `mbit`."""
    times = {}
    with Link(mbit) as link, tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            report = os.path.join(folder, f"{turn}.json")
            command = [program, "bench", "allreduce", "--sizes",
                       f"{sizes[0]}:{sizes[-1]}", "--factor", "2", "--backend",
                       "tcp", "--check", "off", "--iters", str(iters)]
            print(f"[simulate_fit] {mbit} Mbit/s, round {turn + 1} of "
                  f"{rounds}", file=sys.stderr)
            workers = [link.start(rank, command + ["--json", report]
                                  if rank == 0 else command, 29800 + turn,
                                  subprocess.DEVNULL) for rank in (0, 1)]
            for worker in workers:
                _, errors = worker.communicate(timeout=300)
                if worker.returncode != 0:
                    sys.exit(f"a rank failed:\n{errors}")
            with open(report, encoding="utf-8") as file:
                add_times(times, 2, json.load(file))
    return {key: statistics.median(all_) for key, all_ in times.items()}


def show(program, title, times, fitted, per_host, options):
    """Prints each point with its error. Returns the errors of predictions."""
    shown = ", ".join(f"{option} {value:.4g}"
                      for option, value in options.items() if value != 1e30)
    print(f"\n{title}: {shown}")
    errors = []
    for (backend, ranks, size), time in times.items():
        predicted = simulate(program, backend, ranks, size, per_host,
                             tuple(options.items()))
        error = 100 * (predicted / time - 1)
        is_fitted = (backend, ranks, size) in fitted
        if not is_fitted:
            errors.append(error)
        print(f"  {ranks} ranks {size:10d} bytes  measured {time:10.1f} us  "
              f"predicted {predicted:10.1f} us  {error:+6.1f} %"
              f"{'  (fitted)' if is_fitted else ''}")
    within = sum(abs(error) <= 10 for error in errors)
    absolute = sorted(abs(error) for error in errors)
    print(f"  {within} of {len(errors)} predictions within 10 %, median error "
          f"{statistics.median(absolute):.1f} %, largest {absolute[-1]:.1f} %")


def fit_one_host(options, sizes):
    ranks = [int(n) for n in options.ranks.split(",")]
    fit_ranks = [int(n) for n in options.fit_ranks.split(",")]
    times = measure(options.bin, sizes, ranks, options.rounds, options.iters)
    for backend in ("shm", "tcp"):
        for shares in (False, True):
            here = {key: times[key] for key in sorted(times)
                    if key[0] == backend and (key[1] > CORES) == shares}
            # The benchmark rounds sizes down to whole elements for each rank.
            fitted = {key for i, key in enumerate(here)
                      if key[1] in fit_ranks and i % len(sizes) % 2 == 0}
            if not fitted:
                continue
            # With a core each, all points are of two ranks, so a message costs
            # the same as a wait.
            bases = ONE_HOST if shares else (ONE_HOST[0], *ONE_HOST[2:])
            numbers = fit(options.bin, {key: here[key] for key in fitted},
                          max(ranks), bases, CACHES)
            kind = "that share cores" if shares else "with a core each"
            show(options.bin, f"{backend}, ranks {kind}", here, fitted,
                 max(ranks), numbers)


def fit_two_hosts(options, sizes):
    for mbit in options.mbit.split(","):
        here = measure_hosts(options.bin, sizes, int(mbit), options.rounds,
                             options.iters)
        fitted = set(list(here)[::2])
        numbers = fit(options.bin, {key: here[key] for key in fitted}, 1,
                      TWO_HOSTS, [0])
        show(options.bin, f"two hosts, {mbit} Mbit/s", here, fitted, 1, numbers)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin/lockstep"))
    parser.add_argument("--smallest", type=int, default=1 << 10,
                        help="bytes [%(default)s]")
    parser.add_argument("--largest", type=int, default=1 << 24,
                        help="bytes [%(default)s]")
    parser.add_argument("--ranks", default="2,3,4,6,8", help="[%(default)s]")
    parser.add_argument("--fit-ranks", default="2,3,8", help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--iters", type=int, default=20, help="[%(default)s]")
    parser.add_argument("--hosts", action="store_true",
                        help="two hosts instead; needs root, `ip` and `tc`")
    parser.add_argument("--mbit", default="250,1000",
                        help="of the links of --hosts [%(default)s]")
    options = parser.parse_args()
    sizes = [options.smallest]
    while sizes[-1] * 2 <= options.largest:
        sizes.append(sizes[-1] * 2)
    if options.hosts:
        fit_two_hosts(options, [size for size in sizes if size >= 16384])
    else:
        fit_one_host(options, sizes)


if __name__ == "__main__":
    main()
