#!/usr/bin/env python3
"""Predicts step time and time to train on a cluster that is described by numbers.

    bench/simulate.py --compute-ms 200 --bytes 2.5e9 --buckets 20 --overlap 0.6 \\
        --algorithm ring --host-bandwidth 400 --bandwidth 50 --variation 0.02 \\
        --ranks 8,64,512
    bench/simulate.py --run one-device/run.json --bandwidth 1 --ranks-per-host 1 \\
        --check two-devices/run.json

Every rank computes as much at any number of ranks. GB/s are 10^9 bytes per second.
--check compares predictions with finished runs, and with all-reduces that
`lockstep bench allreduce --json FILE` has measured. docs/speed.md has an example.
"""

import argparse
import bisect
import json
import math
import pathlib
import random
import statistics
import sys

DAY = 86_400
STEPS = 20_000  # that are drawn for the slowest rank
REPEATS = 100  # of a training, for its mean time
MAX_FAILURES = 100_000  # a training that fails so often makes no progress
# The constants of the code that reduces, in lockstep/shm and lockstep/tcp.
FLAT_SYNC_RANKS = 16
ONE_SHOT_BYTES = 64 * 1024
MAX_PIECE_BYTES = 256 * 1024
SLOT_BYTES = 1024 * 1024
ONE_STEP_BYTES = 64 * 1024


class Unusable(Exception):
    """An option or a file that can't be used."""


def require(is_good, what):
    if not is_good:
        raise Unusable(what)


# All-reduces: (waits in sequence, messages or words read, bytes moved) of a rank.

def shm_cost(ranks, size):
    has_teams = ranks > FLAT_SYNC_RANKS
    waits = 3 if has_teams else 1
    # The leader of a team reads the most.
    words = (FLAT_SYNC_RANKS - 2 + math.ceil(ranks / FLAT_SYNC_RANKS)
             if has_teams else ranks - 1)
    if size <= ONE_SHOT_BYTES / ranks:
        return waits, words, ranks * size
    syncs = 1 + math.ceil(size / min(MAX_PIECE_BYTES * ranks, SLOT_BYTES))
    return waits * syncs, words * syncs, (3 * (ranks - 1) + 1) / ranks * size


def tcp_cost(ranks, size):
    if (ranks - 1) * size <= ONE_STEP_BYTES:
        return 1, ranks - 1, (ranks - 1) * size
    return 2, 2 * (ranks - 1), 2 * (ranks - 1) / ranks * size


def ring_cost(ranks, size):
    steps = 2 * (ranks - 1)
    return steps, steps, steps / ranks * size


def bus_at(table, hosts):
    """Interpolates the logarithm of the measured bandwidth, by that of the hosts."""
    if hosts in table:
        return table[hosts]
    known = sorted(table)
    at = bisect.bisect(known, hosts)
    require(0 < at < len(known), f"the bus bandwidth of {hosts} hosts is not known; "
            f"add {hosts}:GB/s to --bus-bandwidth")
    low, high = known[at - 1], known[at]
    part = math.log(hosts / low) / math.log(high / low)
    return table[low] * (table[high] / table[low]) ** part


def between_hosts_s(net, ranks, sent):
    """Time in which what each rank sends passes the links of hosts and switches."""
    require(net.bandwidth, "the bandwidth between hosts is not known; add "
            "--bandwidth GB/s")
    rate = net.bandwidth * 1e9
    uplink = rate / net.oversubscription
    per_switch = net.ranks_per_host * net.hosts_per_switch
    has_switches = 0 < per_switch < ranks
    if net.algorithm == "ring":  # it leaves a host, and a switch, once
        return sent / (min(rate, uplink * net.hosts_per_switch) if has_switches
                       else rate)

    def leaving(inside):  # every rank sends the same to every other rank
        return net.ranks_per_host * sent * (ranks - inside) / (ranks - 1)

    host_s = leaving(net.ranks_per_host) / rate
    return max(host_s, leaving(per_switch) / uplink) if has_switches else host_s


def within_host_s(net, here, size, moved):
    require(net.host_bandwidth, "the bandwidth within a host is not known; add "
            "--host-bandwidth GB/s")
    near_s = moved / (net.host_bandwidth * 1e9)
    per_core = max(1, here / net.cores_per_host) if net.cores_per_host else 1
    cached = net.cache_kib * 1024 / per_core / size
    if net.cache_kib == 0 or cached >= 1:
        return near_s
    require(net.memory_bandwidth, "the bandwidth beyond the caches is not known; add "
            "--memory-bandwidth GB/s")
    return cached * near_s + (1 - cached) * moved / (net.memory_bandwidth * 1e9)


def hosts_of(net, ranks):
    return math.ceil(ranks / net.ranks_per_host)


def all_reduce_s(net, ranks, size):
    if ranks == 1 or size <= 0:
        return 0.0
    hosts = hosts_of(net, ranks)
    cost = (ring_cost if net.algorithm == "ring" else
            shm_cost if net.algorithm == "auto" and hosts == 1 else tcp_cost)
    waits, messages, moved = cost(ranks, size)
    here = min(ranks, net.ranks_per_host)
    turns = (max(1, math.ceil(here / net.cores_per_host))
             if net.cores_per_host else 1)
    latency_us = (net.host_latency_us if hosts == 1 else
                  max(net.host_latency_us, net.latency_us))
    wait_s = (waits * latency_us + turns * messages * net.message_us) / 1e6
    if net.bus_bandwidth:
        return wait_s + (2 * (ranks - 1) / ranks * size /
                         (bus_at(net.bus_bandwidth, hosts) * 1e9))
    link_s = between_hosts_s(net, ranks, moved) if hosts > 1 else 0
    if here == 1:
        return wait_s + link_s
    return wait_s + max(link_s, turns * within_host_s(net, here, size, moved))


# Steps. The slowest of n ranks is below t with the probability of one, to the n.

def time_above(rank, above):
    """The time, divided by the mean, that a rank exceeds with probability `above`."""
    if rank.times:
        place = (1 - above) * (len(rank.times) - 1)
        low = int(place)
        high = min(low + 1, len(rank.times) - 1)
        return rank.times[low] + (place - low) * (rank.times[high] - rank.times[low])
    if rank.variation == 0:
        return 1.0
    variance = math.log1p(rank.variation ** 2)
    quantile = statistics.NormalDist().inv_cdf(max(above, 1e-300))
    return math.exp(-math.sqrt(variance) * quantile - variance / 2)


def slowest_of(rank, ranks, seed):
    """Mean time of the slowest of `ranks` divided by the mean time of one."""
    draws = random.Random(seed)

    def draw(count):
        if count == 0:
            return 0.0
        all_below = math.log(1 - draws.random())
        return time_above(rank, max(-math.expm1(all_below / count), 2.0 ** -60))

    total = 0.0
    for _ in range(STEPS):
        slow = binomial(draws, ranks, rank.slow_share)
        total += max(draw(ranks - slow), rank.slow_factor * draw(slow))
    return total / STEPS / (1 + rank.slow_share * (rank.slow_factor - 1))


def binomial(draws, count, share):
    """How many of `count` ranks are slow, from the gaps between two of them."""
    if share <= 0:
        return 0
    if share >= 1:
        return count
    found, at = 0, 0
    while True:
        at += 1 + int(math.log(1 - draws.random()) / math.log1p(-share))
        if at > count:
            return found
        found += 1


def simulate_step(rank, net, ranks, seed=1):
    exchange_s = rank.buckets * all_reduce_s(net, ranks, rank.bytes / rank.buckets)
    # The last bucket is ready only when the computation is over.
    exposed_s = max(exchange_s / rank.buckets,
                    exchange_s - rank.overlap * rank.compute_s)
    waiting_s = (rank.compute_s * (slowest_of(rank, ranks, seed) - 1)
                 if ranks > 1 else 0.0)
    step_s = rank.compute_s + exposed_s + waiting_s
    return {"ranks": ranks, "hosts": hosts_of(net, ranks),
            "compute_s": rank.compute_s, "communication_s": exchange_s,
            "exposed_communication_s": exposed_s, "waiting_s": waiting_s,
            "step_s": step_s, "efficiency": rank.compute_s / step_s,
            "samples_per_s_of_rank": rank.samples / step_s}


# Failures: a Poisson process. Work since the last checkpoint is done again.

def mean_between_s(fail, nodes):
    return DAY / (fail.failures_per_node_day * nodes)


def best_interval_s(fail, nodes):
    """The interval of Young and Daly."""
    return math.sqrt(2 * fail.checkpoint_s * mean_between_s(fail, nodes))


def expected_ratio(fail, nodes, interval_s):
    """The formula of Meta's study, which assumes few failures."""
    lost_s = fail.detection_s + fail.recovery_s + interval_s / 2
    return max(0.0, (1 - lost_s / mean_between_s(fail, nodes)) /
               (1 + fail.checkpoint_s / interval_s))


def train_once(fail, nodes, interval_s, work_s, draws):
    """Returns the time and the failures of one training."""
    rate = 1 / mean_between_s(fail, nodes)
    restart_s = fail.detection_s + fail.recovery_s
    time_s, failures, saved_s = 0.0, 0, 0.0
    while failures < MAX_FAILURES:
        rest_s = work_s - saved_s
        rest_s += max(0, math.ceil(rest_s / interval_s) - 1) * fail.checkpoint_s
        trained_s = draws.expovariate(rate)
        if trained_s >= rest_s:
            return time_s + rest_s, failures
        saved_s += trained_s // (interval_s + fail.checkpoint_s) * interval_s
        time_s += trained_s
        failures += 1
        while (lasted_s := draws.expovariate(rate)) < restart_s:
            time_s += lasted_s
            failures += 1
            if failures >= MAX_FAILURES:
                break
        time_s += restart_s
    return math.inf, failures


def simulate_training(fail, nodes, interval_s, work_s, repeats=1, seed=1):
    draws = random.Random(seed)
    runs = [train_once(fail, nodes, interval_s, work_s, draws)
            for _ in range(repeats)]
    time_s = sum(time for time, _ in runs) / repeats
    return {"time_s": time_s, "ratio": work_s / time_s,
            "failures": sum(count for _, count in runs) / repeats}


# Input and output.

def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unusable(f"can't read {path}: {error}") from None


def step_times(path, run):
    """The times of a run's steps, without the first tenth, which warms up."""
    try:
        seconds = [float(time) for time in run["step_times"]["seconds"]]
    except (KeyError, TypeError, ValueError):
        raise Unusable(f"{path} is no run.json of lockstep train") from None
    require(len(seconds) >= 20 and min(seconds) > 0,
            f"{path} has too few times of steps; expected 20, got {len(seconds)}")
    return seconds[len(seconds) // 10:]


def read_profile(options):
    """Adds what the run on one device knows to `options`."""
    options.times, options.is_tokens = [], False
    if options.run:
        run = read_json(options.run)
        times = step_times(options.run, run)
        try:
            require(run["world_size"] == 1, f"{options.run} is of "
                    f"{run['world_size']} devices; expected a run on one device")
            known = {"compute_ms": statistics.mean(times) * 1e3,
                     "bytes": 4.0 * run["parameters"],
                     "samples_per_rank":
                     float(run["batch_size"] * max(1, run["tokens_of_sample"]))}
            saves = run.get("checkpoints") or {}
            if saves.get("saved"):
                known["checkpoint_s"] = saves["stall_s"] / saves["saved"]
        except (KeyError, TypeError) as error:
            raise Unusable(f"{options.run} has no usable {error}") from None
        options.is_tokens = run["tokens_of_sample"] > 0
        if options.variation is None:
            mean = statistics.mean(times)
            options.times = sorted(time / mean for time in times)
        for name, value in known.items():
            if getattr(options, name) is None:
                setattr(options, name, value)
    require(options.compute_ms and options.bytes is not None,
            "the time of the computation and the size of the gradients are not "
            "known; add --compute-ms and --bytes, or --run with a run.json")
    options.compute_s = options.compute_ms / 1e3
    options.samples = options.samples_per_rank or 1.0
    options.variation = options.variation or 0.0
    options.checkpoint_s = options.checkpoint_s or 0.0


def predict(options, ranks):
    row = simulate_step(options, options, ranks, options.seed)
    work_s = options.total / (row["samples_per_s_of_rank"] * ranks)
    if options.total:
        row["time_to_train_s"] = work_s
    if not options.failures_per_node_day:
        return row
    nodes = row["hosts"]
    best_s = best_interval_s(options, nodes)
    interval_s = options.checkpoint_interval or best_s
    require(interval_s, "there is no best interval between checkpoints that take no "
            "time; add --checkpoint-s or --checkpoint-interval")
    training = simulate_training(
        options, nodes, interval_s, work_s or 1000 * mean_between_s(options, nodes),
        REPEATS if work_s else 1, options.seed)
    row |= {"checkpoint_interval_s": interval_s, "young_daly_s": best_s,
            "training_time_ratio": training["ratio"],
            "expected_training_time_ratio":
            expected_ratio(options, nodes, interval_s)}
    if work_s:
        row |= {"failures": training["failures"],
                "time_to_train_s": training["time_s"]}
    return row


def show(rows, unit):
    print(f"{'ranks':>6} {'compute':>9} {'exposed':>9} {'waiting':>9} "
          f"{'step ms':>9} {'efficiency':>10}  {unit}/s/rank")
    for row in rows:
        ms = [1e3 * row[key] for key in ("compute_s", "exposed_communication_s",
                                         "waiting_s", "step_s")]
        print(f"{row['ranks']:6} " + " ".join(f"{value:9.2f}" for value in ms) +
              f" {row['efficiency']:10.1%}  {row['samples_per_s_of_rank']:.1f}")
    for row in rows:
        text = ""
        if "young_daly_s" in row:
            text = (f"; a checkpoint every {row['checkpoint_interval_s']:.0f} s "
                    f"(Young/Daly {row['young_daly_s']:.0f}), "
                    f"{row['training_time_ratio']:.1%} of the time is training "
                    f"(formula {row['expected_training_time_ratio']:.1%})")
        if "time_to_train_s" in row:
            text += f"; {row['time_to_train_s'] / DAY:.2f} days"
        if text:
            print(f"{row['ranks']:6} ranks{text}")


def check(options):
    """Prints how far predictions are off from runs and from measured all-reduces."""
    for path in options.check:
        report = read_json(path)
        if "step_times" in report:
            pairs = [("step", report["world_size"],
                      statistics.mean(step_times(path, report)),
                      lambda ranks: simulate_step(options, options, ranks,
                                                  options.seed)["step_s"])]
        else:
            require("sizes" in report, f"{path} is neither a run.json nor a file of "
                    "lockstep bench allreduce --json")
            # A bench over shm and tcp has both. The prediction is of one of them.
            backend = "tcp" if options.algorithm == "tcp" else "shm"
            pairs = [(f"{size['bytes']} bytes", report["ranks"],
                      figure["time_us"] / 1e6,
                      lambda ranks, size=size: all_reduce_s(options, ranks,
                                                            size["bytes"]))
                     for size in report["sizes"] for figure in size["backends"]
                     if figure["backend"] == backend]
        errors = []
        for what, ranks, measured_s, predict_s in pairs:
            errors.append(predict_s(ranks) / measured_s - 1)
            print(f"{path}: {ranks} ranks, {what}: measured {measured_s * 1e3:.3f} ms, "
                  f"predicted {predict_s(ranks) * 1e3:.3f} ms, {errors[-1]:+.1%}")
        if len(errors) > 1:
            sizes = sorted(map(abs, errors))
            near = sum(error <= 0.1 for error in sizes)
            print(f"{near} of {len(sizes)} within 10 %, median error "
                  f"{statistics.median(sizes):.1%}, largest {sizes[-1]:.1%}")


def bus_table(text):
    """Returns {1: 436.0} for "1:436"."""
    table = {int(hosts): float(rate)
             for hosts, rate in (word.split(":") for word in text.split(","))}
    if min(*table, *table.values()) <= 0:
        raise ValueError(text)
    return table


def interval(text):
    return 0.0 if text == "optimum" else float(text)


def parser():
    result = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--ranks", metavar="N,N", default=[8, 16, 32, 64, 128, 256],
                        type=lambda text: [int(word) for word in text.split(",")],
                        help="[8,16,32,64,128,256]")

    def numbers(title, *rows):
        group = result.add_argument_group(title)
        for name, default, text in rows:
            kind = int if isinstance(default, int) else float
            shown = "" if default is None else f" [{default}]"
            group.add_argument(f"--{name}", type=kind, default=default,
                               help=text + shown)
        return group

    profile = numbers(
        "a rank", ("compute-ms", None, "mean time of its computation in a step"),
        ("bytes", None, "bytes of the gradients"),
        ("buckets", 1, "all-reduces that they are divided into"),
        ("overlap", 0.0, "share of the computation during which they are exchanged"),
        ("samples-per-rank", None, "samples or tokens of a step"),
        ("variation", None, "standard deviation of its time divided by the mean"),
        ("slow-share", 0.0, "share of the ranks that are slow in a step"),
        ("slow-factor", 1.0, "how many times as long they take"))
    profile.add_argument("--run", metavar="FILE", help="take what isn't given from "
                         "this run.json of `lockstep train` on one device")
    network = numbers(
        "the network", ("ranks-per-host", 8, "ranks of a host"),
        ("cores-per-host", 0, "cores that they share; 0: one or a GPU for each"),
        ("message-us", 0.0, "work of a rank for each message"),
        ("host-latency-us", 0.0, "latency within a host"),
        ("host-bandwidth", 0.0, "of a rank within a host, GB/s"),
        ("cache-kib", 0.0, "KiB of a message in a core's caches; 0: all of it"),
        ("memory-bandwidth", 0.0, "of a rank beyond the caches, GB/s"),
        ("latency-us", 0.0, "latency between hosts"),
        ("bandwidth", 0.0, "of a host to others, GB/s in one direction"),
        ("hosts-per-switch", 0, "0: all"),
        ("oversubscription", 1.0, "of a switch's uplinks"))
    network.add_argument("--algorithm", choices=("auto", "tcp", "ring"),
                         default="auto", help="auto: shm on one host, tcp between "
                         "hosts; ring: that of NCCL [auto]")
    network.add_argument("--bus-bandwidth", type=bus_table, metavar="HOSTS:GB/s,...",
                         help="measured, instead of both bandwidths")
    failures = numbers(
        "failures", ("failures-per-node-day", 0.0, "of a host in a day"),
        ("detection-s", 0.0, "until a failure is noticed"),
        ("recovery-s", 0.0, "from there to the next step"),
        ("checkpoint-s", None, "that steps wait for a checkpoint"),
        ("total", 0.0, "samples or tokens of the whole training"))
    failures.add_argument("--checkpoint-interval", type=interval, default=0.0,
                          metavar="S", help="training between two [optimum]")
    result.add_argument("--seed", type=int, default=1)
    result.add_argument("--report", metavar="FILE", help="write the figures, as JSON")
    result.add_argument("--check", nargs="+", default=[], metavar="FILE",
                        help="run.json files, or files of `lockstep bench allreduce "
                        "--json`, to compare predictions with")
    return result


def main(words=None):
    options = parser().parse_args(words)
    try:
        read_profile(options)
        require(0 <= options.overlap <= 1 and 0 <= options.slow_share <= 1,
                "--overlap and --slow-share are shares; expected 0 to 1")
        require(min(options.ranks) > 0 and options.ranks_per_host > 0 and
                options.buckets > 0, "expected at least 1 rank, host and bucket")
        if options.check:
            return check(options)
        rows = [predict(options, ranks) for ranks in options.ranks]
    except Unusable as error:
        sys.exit(f"[simulate] {error}")
    show(rows, "tokens" if options.is_tokens else "samples")
    if options.report:
        pathlib.Path(options.report).write_text(
            json.dumps({"results": rows}, indent=2) + "\n",
            encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
