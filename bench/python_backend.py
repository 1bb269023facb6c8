#!/usr/bin/env python3
"""Compares PyTorch over Lockstep's backend with PyTorch over Gloo.

Run it in the Python environment of the wheel. The backends take turns, round by round,
so both see the same machine. Prints tables in Markdown: the median step time of
PyTorch's DDP and FSDP2, and the median time of an all-reduce.

    bench/python_backend.py --rounds 3 --ranks 2,4 --models mlp,gpt-char
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve()
BACKENDS = ("lockstep", "gloo")
BATCHES = {"mlp": 64, "gpt-char": 16, "resnet18": 32, "gpt-wide": 8}
# A step of gpt-wide takes seconds: (warm-up steps, steps).
FEWER_STEPS = {"gpt-wide": (1, 4)}
SIZES = [4, 4096, 1 << 20, 16 << 20, 256 << 20]
DEADLINE_S = 600


def run(ranks, words):
    """Runs a script on some ranks, and returns the JSON that rank 0 printed."""
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         "--nproc-per-node", str(ranks), *map(str, words)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=DEADLINE_S)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        sys.exit(f"[bench] a script failed; expected exit code 0 and a line of JSON, "
                 f"got {done.returncode}:\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])


def measure_all_reduce(backend):
    """Times all-reduces on this rank. Rank 0 prints seconds by bytes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    medians = {}
    for size in SIZES:
        tensor = torch.ones(size // 4)
        times = []
        for _ in range(max(5, min(500, (64 << 20) // size))):
            dist.barrier()
            begin = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - begin)
        medians[size] = statistics.median(times)
    if dist.get_rank() == 0:
        print(json.dumps(medians), flush=True)
    dist.destroy_process_group()


def print_table(what, unit, scale, rows):
    print(f"\n| {what} | ranks | Lockstep ({unit}) | Gloo ({unit}) | times as fast |")
    print("|---|--:|--:|--:|--:|")
    for (name, ranks), times in rows.items():
        ours, gloo = (statistics.median(times[backend]) for backend in BACKENDS)
        print(f"| {name} | {ranks} | {ours * scale:.3g} | {gloo * scale:.3g} | "
              f"{gloo / ours:.2f} |")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--models", default="mlp,gpt-char,resnet18")
    parser.add_argument("--fsdp2-models", default="gpt-wide")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--all-reduce-of", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.all_reduce_of:
        measure_all_reduce(options.all_reduce_of)
        return
    steps, calls = {}, {}
    for _ in range(options.rounds):
        for ranks in map(int, options.ranks.split(",")):
            works = [("ddp", model) for model in options.models.split(",") if model]
            works += [("fsdp2", model)
                      for model in options.fsdp2_models.split(",") if model]
            for mode, model in works:
                times = steps.setdefault((f"{mode} {model}", ranks), {})
                warmup, count = FEWER_STEPS.get(model, (5, options.steps))
                for backend in BACKENDS:
                    found = run(ranks, [
                        HERE.with_name("pytorch_step_time.py"), "--mode", mode,
                        "--fused", "--model", model, "--batch", BATCHES[model],
                        "--warmup", warmup, "--steps", count,
                        "--backend", backend])
                    times.setdefault(backend, []).append(found["median_ms"] / 1e3)
            for backend in BACKENDS:
                found = run(ranks, [HERE, "--all-reduce-of", backend])
                for size, seconds in found.items():
                    row = calls.setdefault((f"{int(size):,} B", ranks), {})
                    row.setdefault(backend, []).append(seconds)
    print_table("step", "ms", 1e3, steps)
    print_table("all-reduce", "us", 1e6, calls)


if __name__ == "__main__":
    main()
