#!/usr/bin/env python3
"""Step times of Lockstep and of PyTorch's DDP (with Gloo) over a slow link.

Two network namespaces stand for two hosts with one core each. The link between
them is limited to --mbit (tc's token bucket). Every round runs each set-up
once, one after another. The table has the medians of all rounds.

    sudo bench/two_hosts.py --models mlp,resnet18 --mbit 1000

Needs root, `ip` and `tc` (Debian: iproute2), and two cores. At the end, it
removes what it set up (two namespaces and a pair of interfaces). It exits with
1 if a set-up fails.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BATCH = {"mlp": 64, "resnet18": 32, "resnet34": 32, "cnn": 64}
OURS = ("ddp", "ddp-loop")
PYTORCH = "PyTorch DDP"


def run(*words):
    subprocess.run(words, check=True)


class Link:
    """Two namespaces with an interface in each, limited to `mbit`."""

    def __init__(self, mbit):
        tag = f"{os.getpid()}"
        self.spaces = [f"lockstep-{tag}-{side}" for side in "ab"]
        self.interfaces = [f"ls{tag}{side}" for side in "ab"]
        self.addresses = ["10.231.7.1", "10.231.7.2"]
        self.mbit = mbit

    def __enter__(self):
        for space in self.spaces:
            run("ip", "netns", "add", space)
        run("ip", "link", "add", self.interfaces[0], "type", "veth", "peer",
            "name", self.interfaces[1])
        for space, interface, address in zip(self.spaces, self.interfaces,
                                             self.addresses):
            run("ip", "link", "set", interface, "netns", space)
            within = ("ip", "-n", space)
            run(*within, "addr", "add", f"{address}/24", "dev", interface)
            run(*within, "link", "set", interface, "up")
            run(*within, "link", "set", "lo", "up")
            run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev",
                interface, "root", "tbf", "rate", f"{self.mbit}mbit", "burst",
                "256kb", "latency", "50ms")
        return self

    def __exit__(self, *_):
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False)

    def start(self, rank, command, port, out):
        """Starts `command` as `rank` of two, on a separate core."""
        environment = dict(
            os.environ, RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="1", MASTER_ADDR=self.addresses[0],
            MASTER_PORT=str(port), GLOO_SOCKET_IFNAME=self.interfaces[rank],
            # Nobody else is in these namespaces, so the job needs no secret.
            LOCKSTEP_NO_SECRET="1", OMP_NUM_THREADS="1")
        return subprocess.Popen(
            ["ip", "netns", "exec", self.spaces[rank], "taskset", "-c",
             str(rank), *command], env=environment, stdout=out,
            stderr=subprocess.PIPE, text=True)


def command_of(name, model, options, trace):
    """Returns the command of one rank."""
    batch = str(BATCH[model])
    if name == PYTORCH:
        command = [options.python, str(ROOT / "bench/pytorch_step_time.py"),
                   "--mode", "ddp", "--model", model, "--batch", batch,
                   "--steps", str(options.steps), "--threads", "1", "--fused"]
        return command + (["--channels-last"] if model != "mlp" else [])
    return [str(options.bin), "step-time", "--strategy", name, "--backend",
            "tcp", "--model", model, "--batch-size", batch, "--steps",
            str(options.steps), "--warmup", "5", "--devices", "cpu",
            "--channels-last", "off" if model == "mlp" else "on", "--trace",
            trace]


def hidden_share(trace):
    """Returns the share of rank 0's exchange during which its device also
    computes.
    """
    if not os.path.exists(trace):
        return None
    with open(trace, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    lanes = {}
    for event in events:
        if event.get("ph") == "M" and event["name"] == "thread_name":
            lanes[(event["pid"], event["tid"])] = event["args"]["name"]
    spans = {"exchange": [], "compute": []}
    for event in events:
        if event.get("ph") != "X":
            continue
        category = event.get("cat", "")
        lane = lanes.get((event["pid"], event["tid"]), "")
        span = (event["ts"], event["ts"] + event["dur"])
        if event["pid"] != 0:
            continue
        if category == "communication" and "all-reduce" in lane:
            spans["exchange"].append(span)
        elif category == "compute":
            spans["compute"].append(span)
    if not spans["compute"]:
        return None  # the user's own loop records no spans of its computation
    total = hidden = 0.0
    for begin, end in spans["exchange"]:
        total += end - begin
        parts = sorted((max(begin, b), min(end, e))
                       for b, e in spans["compute"] if b < end and e > begin)
        at = begin
        for b, e in parts:
            hidden += max(0.0, e - max(at, b))
            at = max(at, e)
    return hidden / total if total else None


def measure(link, name, model, port, options):
    """Returns the step times of rank 0 in seconds, and the hidden share of the
    exchange.
    """
    with tempfile.TemporaryDirectory() as folder:
        trace = os.path.join(folder, "trace.json")
        command = command_of(name, model, options, trace)
        ranks = [link.start(rank, command, port, subprocess.PIPE)
                 for rank in (0, 1)]
        try:
            outputs = [rank.communicate(timeout=options.timeout)
                       for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
        for rank, (_, errors) in zip(ranks, outputs):
            if rank.returncode != 0:
                sys.exit(f"{name} on {model} failed:\n{errors}")
        report = json.loads(outputs[0][0].strip().splitlines()[-1])
        return report["step_times_s"], hidden_share(trace)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="mlp,resnet18",
                        help="mlp, resnet18, resnet34, cnn [%(default)s]")
    parser.add_argument("--mbit", type=int, default=1000,
                        help="of the link, in each direction [%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    parser.add_argument("--steps", type=int, default=15,
                        help="timed steps of a round [%(default)s]")
    parser.add_argument("--timeout", type=int, default=300,
                        help="seconds for one run [%(default)s]")
    parser.add_argument("--bin", type=pathlib.Path,
                        default=ROOT / "build/release/bin/lockstep")
    parser.add_argument("--python", default=str(ROOT / ".venv/bin/python"))
    options = parser.parse_args()
    models = options.models.split(",")
    for model in models:
        if model not in BATCH:
            parser.error(f"unknown model {model}; expected {', '.join(BATCH)}")

    port = 29600
    with Link(options.mbit) as link:
        for model in models:
            times = {name: [] for name in (*OURS, PYTORCH)}
            hidden = {name: [] for name in OURS}
            for turn in range(options.rounds):
                for name in times:
                    print(f"[two_hosts] {model}: {name}, round {turn + 1} of "
                          f"{options.rounds}", file=sys.stderr)
                    port += 1
                    steps, share = measure(link, name, model, port, options)
                    times[name].append(statistics.median(steps))
                    if share is not None:
                        hidden[name].append(share)
            peer = statistics.median(times[PYTORCH])
            print(f"{model}, batch of {BATCH[model]}, {options.mbit} Mbit/s")
            for name, medians in times.items():
                step = statistics.median(medians)
                line = (f"  {name:12} {step * 1e3:8.1f} ms a step, "
                        f"{peer / step:5.2f}x PyTorch")
                if hidden.get(name):
                    line += (f", {statistics.median(hidden[name]):4.0%} of the "
                             "exchange hidden")
                print(line)


if __name__ == "__main__":
    main()
