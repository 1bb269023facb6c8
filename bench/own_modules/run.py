#!/usr/bin/env python3
"""Compares modules that are written only with torch::nn with PyTorch's own training.

Trains a transformer with dropout, a U-Net, and an LSTM with a dense and a sparse
embedding: in C++ with LibTorch, DataParallel and DistributedDataParallel (main.cc), and
in Python (peer.py). The programs take turns, round by round, so all of them see the
same machine. Prints a table in Markdown for each model: the median step time over the
rounds, and how many times as fast as PyTorch it is.

    bench/own_modules/run.py --rounds 3 --models transformer,unet

Exits with 1 if a program fails, or if two modes that must train the same parameters
differ. Rows that a library refuses, such as sparse gradients, show its message.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from baseline import machine, write_aside  # noqa: E402
from start_time import python_with_torch  # noqa: E402

MODELS = ("transformer", "unet", "lstm", "lstm-sparse")
OURS = ("plain", "dp-loop", "dp-step", "ddp-loop", "ddp-step")
PEERS = ("single", "single-compile", "ddp")
NAMES = {"plain": "LibTorch", "dp-loop": "DataParallel, loop",
         "dp-step": "DataParallel, train_step()", "ddp-loop": "DDP, loop",
         "ddp-step": "DDP, train_step()", "single": "PyTorch",
         "single-compile": "PyTorch, torch.compile", "ddp": "PyTorch DDP, Gloo"}
# Times as fast as PyTorch: (row to compare with, factor).
TARGETS = {"dp-loop": ("single", 1.0), "dp-step": ("single", 1.0),
           "ddp-loop": ("ddp", 1.15), "ddp-step": ("ddp", 1.15)}
# Modes that train the same parameters. A loop with DDP draws the numbers of dropout
# from the generator of each rank, and train_step() from the streams of the shards.
SAME_BITS = (("dp-step", "ddp-step"), ("dp-loop", "ddp-loop"))
HAVE_DROPOUT = {"transformer"}
# Messages that refuse what a row asks for. They end up in the table.
REFUSALS = re.compile(r"sparse gradient|gradient of '\S+' is sparse|"
                      r"sparse.*not (?:yet )?(?:supported|implemented)|"
                      r"torch\._(?:dynamo|inductor)\S*: .*", re.IGNORECASE)
DEADLINE_S = 600


def fail(what, expected, got, fix):
    sys.exit(f"[bench] {what}; expected {expected}, got {got}; {fix}")


def command(options, model, mode):
    """Returns the words of a row's program, and the variables it needs."""
    cores = str(len(os.sched_getaffinity(0)))
    fused = ["--fused"] if options.fused and model != "lstm-sparse" else []
    arguments = ["--model", model, "--mode", mode, "--steps", str(options.steps),
                 "--warmup", str(options.warmup)]
    if mode in OURS:
        words = [str(options.bin / "own_modules"), *arguments]
        if mode.startswith("ddp"):
            words = [str(options.bin / "lockstep"), "run", "--nproc-per-node", cores,
                     "--", *words]
        return words + (fused if mode.endswith("-loop") else []), {}
    script = [str(HERE / "peer.py"), *arguments, *fused]
    if mode != "ddp":
        return [options.python, *script], {}
    return [options.python, "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", cores, *script], {"OMP_NUM_THREADS": "1"}


def measure(options, model, mode):
    """Runs the program of a row. Returns its JSON, or a dict with its refusal."""
    words, variables = command(options, model, mode)
    environment = {name: value for name, value in os.environ.items()
                   if name != "OMP_NUM_THREADS"}
    try:
        done = subprocess.run(words, env={**environment, **variables}, text=True,
                              capture_output=True, timeout=options.deadline)
    except subprocess.TimeoutExpired:
        fail(f"{mode} of {model} did not end", f"at most {options.deadline} s",
             "no result", "use fewer --steps or a longer --deadline")
    except FileNotFoundError:
        fail(f"can't start {mode} of {model}", f"the program {words[0]}",
             "no such file", "run `make all`, or pass --bin and --python")
    found = re.findall(r"^(?:\[rank 0\] )?(\{.*\})$", done.stdout, re.MULTILINE)
    if done.returncode == 0 and found:
        return json.loads(found[-1])
    output = done.stderr + done.stdout
    for line in output.splitlines():
        if REFUSALS.search(line):
            return {"refused": re.sub(r"^\[rank \d+\] ", "", line.strip())}
    fail(f"{mode} of {model} failed", "exit code 0 and a line of JSON",
         f"exit code {done.returncode}", f"its output says why:\n{output}")


def check_bits(model, results):
    """Ends the program if two modes trained different parameters."""
    for one, other in SAME_BITS:
        if one not in results or other not in results:
            continue
        if one == "dp-loop" and model in HAVE_DROPOUT:
            continue
        digests = [results[mode].get("parameter_sha256") for mode in (one, other)]
        if digests[0] != digests[1]:
            fail(f"{one} and {other} of {model} trained different parameters",
                 f"the digest {digests[0]} of {one}", digests[1],
                 "set DistributedDataParallelOptions().verify_memory(true) in main.cc "
                 "to find the first step that differs")


def times_as_fast(runs, peers):
    """Returns how many times as fast as PyTorch a row is: the median over the rounds,
    each of which compares programs that ran shortly after one another.
    """
    ratios = [peer["median_s"] / run["median_s"] for run, peer in zip(runs, peers)
              if "median_s" in run and "median_s" in peer]
    return statistics.median(ratios) if ratios else None


def row_of(mode, results):
    """Returns the cells of a row. `results` has the runs of all modes."""
    runs = results[mode]
    refusals = [run["refused"] for run in runs if "refused" in run]
    if refusals:
        return [NAMES[mode], *"----", f"refused: {refusals[-1]}"]
    ratios = {peer: times_as_fast(runs, results.get(peer, []))
              for peer in ("single", "ddp")}
    target = ""
    peer, factor = TARGETS.get(mode, (None, None))
    if ratios.get(peer):
        verdict = "met" if ratios[peer] >= factor else "missed"
        target = f"{factor:g}x {NAMES[peer]}: {verdict}"
    return [NAMES[mode], f"{1e3 * statistics.median(r['median_s'] for r in runs):.1f}",
            f"{1e3 * min(run['min_s'] for run in runs):.1f}",
            *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios.values()), target]


def print_table(model, results):
    print(f"\n{model}\n")
    print("| | median step (ms) | shortest | x PyTorch | x PyTorch DDP | target |")
    print("|---|--:|--:|--:|--:|---|")
    for mode in results:
        print("| " + " | ".join(row_of(mode, results)) + " |")


def parse_options():
    def names(text):
        return text.split(",")

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--python", help="a Python with torch; default: the build's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", type=names, default=list(MODELS),
                        help="some of " + ",".join(MODELS))
    parser.add_argument("--modes", type=names, default=[*OURS, *PEERS],
                        help="some of " + ",".join([*OURS, *PEERS]))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--fused", action="store_true",
                        help="optim::fuse() in the loops, and PyTorch's fused optimizers")
    parser.add_argument("--deadline", type=float, default=DEADLINE_S, metavar="SECONDS",
                        help="longest time of a program")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE",
                        help="write the result of every program")
    options = parser.parse_args()
    for name, known in (("models", MODELS), ("modes", (*OURS, *PEERS))):
        unknown = set(getattr(options, name)) - set(known)
        if unknown:
            parser.error(f"[bench] unknown --{name}; expected some of "
                         f"{','.join(known)}, got {','.join(sorted(unknown))}; "
                         "correct the list")
    options.python = (options.python or python_with_torch(options.bin / "lockstep")
                      or sys.executable)
    return options


def main():
    options = parse_options()
    results = {model: {mode: [] for mode in options.modes} for model in options.models}
    for number in range(options.rounds):
        for model in options.models:
            for mode in options.modes:
                results[model][mode].append(measure(options, model, mode))
                print(f"[bench] round {number + 1}: {model}, {mode}, load "
                      f"{os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            check_bits(model, {mode: runs[-1] for mode, runs in results[model].items()})
    used = machine()
    if options.json:
        write_aside(options.json, json.dumps({
            "machine": used, "steps": options.steps, "warmup": options.warmup,
            "fused": options.fused, "results": results}, indent=1) + "\n")
    print(f"{used['cores']} cores of {used['processor']}, {options.rounds} rounds of "
          f"{options.steps} steps"
          + (", fused optimizers" if options.fused else ""))
    for model, rows in results.items():
        print_table(model, rows)


if __name__ == "__main__":
    main()
