"""Writes docs/faults.md: the tables, and how to read them."""

import os
import pathlib
import platform
import subprocess
import textwrap

from fault_table import cases, random_kills
from fault_table.faults import FAULTS

HEAD = """\
# Faults

This page shows what happens to a run when something breaks. `make faults`
injects a fault at an exact place of a small run, in {count} cases, and measures
the outcome. The times are those of one machine. On any machine, **nothing
hangs, and the parameters at the end are those of the run without the fault, to
the bit**. Otherwise, `make faults` fails.

The run is `lockstep run --max-restarts 3 --hang-timeout {hang} --nproc-per-node
2 -- lockstep train --strategy ddp --model mlp --shards 2 --intra-op-threads 1
--batch-size 8 --max-steps {steps} --checkpoint-every {every} --timeout
{timeout} --resume auto --out-dir DIR`. The fault hits rank 1, where the row names
no other, when it first enters the phase after {after} steps (at start-up after
none, in the evaluation after all). Measured on {machine}.

"""

LEGEND = """
- **detected after**: seconds from the fault to the first line of the agent or a
  rank that an uninterrupted run would not have written.
- **recovered after**: seconds from the fault to the end of the next step or, in
  the evaluation, to the end of the run.
- **steps again**: steps that were done before the fault and had to be repeated.
- **by**: how the run continued: by *itself*; with a new *rank* in the place of
  the lost one, which the other ranks wait for; after a *restart* of all ranks
  by the agent; or when the same *command* was run again, for example by a
  scheduler.
- **exit codes**: those of each command, with one for each of its agents.
- **end**: *same* means that the parameters have the SHA-256 of the
  uninterrupted run.
"""

KILLS_TITLE = "## Random kills\n"
KILLS = KILLS_TITLE + """
`tools/faults.py --random-kills {kills} --steps {steps} --seed {seed}` kills a
random rank of two with kill -9, {kills} times in one run of {steps} steps of
the MLP at batch {batch} on {data}, with a checkpoint every {every} steps. Then
it makes the same kills, at the same steps, under `torchrun --max-restarts`,
with PyTorch's DDP and a script that saves and loads as often. That run has
`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`, because otherwise restarted ranks may
wait for addresses of the previous attempt
(https://github.com/pytorch/pytorch/issues/135712). *Efficiency* is the number
of steps times the median step time of the run without kills, divided by the
wall time of the whole command, including start-up. Measured on {machine}.

"""

NOTES = {
    "kill -9 over tcp": "With `--backend tcp --verify-every 1`.",
    "three kills": "The process that replaces rank 1 is killed at the same "
                   "step, and so is the next one. A program that *fails* at the "
                   "same step three times is given up.",
    "both ranks killed": "Both continue from the memory of the agent.",
    "kill -9 with rare snapshots": "With `--snapshot-every 5`.",
    "kill -9, no descriptors": "The other rank can open no files "
                               "(`RLIMIT_NOFILE`), so the agent replaces it "
                               "too.",
    "exception": "At start-up, nothing catches it: `std::terminate`.",
    "SIGTERM": "The rank saves, and the job ends with code 75, because SIGTERM "
               "means that a scheduler needs the machine. So does SIGUSR1, "
               "and either signal to the agent.",
    "SIGSTOP": "Detected by the agent (`--hang-timeout "
               f"{cases.HANG_TIMEOUT_S}`), or by the other ranks (`--timeout "
               f"{cases.RANK_TIMEOUT_S}`). The defaults of both are minutes.",
    "out of memory": "The rank can't allocate memory (`RLIMIT_AS`). If the "
                     "kernel kills a process that uses too much memory, that "
                     "is kill -9.",
    "slow rank": "It is 1 s late. Nothing fails, so there is nothing to "
                 "detect.",
    "agent killed": "kill -9 of `lockstep run`. It is detected when all of its "
                    "workers are gone.",
    "rendezvous host killed": "kill -9 of the agent of node 0. There are two "
                              "nodes with one rank each. It is detected when "
                              "all workers of node 0 are gone. The other agent "
                              "ends with 75 when it has not reached the store for "
                              f"3 s (`--rdzv-conf {FAULTS['cut link'].conf}`).",
    **{f"node 0 restarted, node 1 2 s later, {backend}":
       f"kill -9 of the agent of node 0, which is started again at once. The "
       "agent of node 1 ends by itself with 75, and a new one is started at "
       "the given time. They find each other "
       + ("by `--rdzv-backend c10d`." if backend == "c10d" else
          "at `--master-addr`.") for backend in ("static", "c10d")},
    "agents' link silent for 10 s, static":
        "A forwarder between the agent of node 1 and the store carries nothing "
        "for that time. Agents survive 15 s, or more if it is asked for.",
    "agents' link slow, static": "The forwarder delays everything by 0.2 s in "
                                 "each direction.",
    "ranks' link reset": "Over tcp. Both ranks lose each other, and meet again.",
    "no packets for 10 s": "Two hosts, whose packets are lost for that time, "
                           "also those of the ranks. No process knows.",
    "cut link": "Two hosts (network namespaces) with TCP between them. The "
                f"agents have `--rdzv-conf {FAULTS['cut link'].conf}` and no "
                "`--hang-timeout`. The link is restored when both agents have "
                "ended.",
    "full disk": "There is no space for one checkpoint, and the run continues. "
                 "In other phases, nothing is written.",
    "torn checkpoint": "All processes are killed, and half of the newest "
                       "checkpoint is lost, so the previous one is used. The "
                       "fault comes after 9 steps, when there are two "
                       "checkpoints. In other phases, nothing is written.",
}


def machine():
    """Describes the processor, its cores and the system."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in info.splitlines()
              if line.startswith("model name")]
    return (f"{len(models)} cores of {models[0] if models else 'a processor'}"
            f" at a load average of {os.getloadavg()[2]:.1f}, Linux "
            f"{platform.release()}")


def version(program):
    """Returns the version that the program prints."""
    return subprocess.run([str(program), "--version"], capture_output=True,
                          text=True).stdout.strip().partition("\n")[0]


def wrap(text):
    """Wraps prose at 80 columns."""
    paragraphs = (textwrap.fill(part, 80, break_on_hyphens=False)
                  if not part.startswith("#") else part
                  for part in text.strip().split("\n\n"))
    return "\n\n".join(paragraphs) + "\n\n"


def table(columns, rows, numbers):
    """Returns a Markdown table; `numbers` are indices of numeric columns."""
    rules = ("--:" if place in numbers else "---"
             for place in range(len(columns)))
    lines = [columns, rules, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def faults_text(outcomes, program):
    """Returns the page without the section of the random kills."""
    text = wrap(HEAD.format(count=len(outcomes), steps=cases.STEPS,
                            every=cases.CHECKPOINT_EVERY,
                            hang=cases.HANG_TIMEOUT_S,
                            timeout=cases.RANK_TIMEOUT_S,
                            after=cases.FAULT_AFTER_STEPS,
                            machine=f"{machine()}, {version(program)}"))
    columns = ("fault", "at", "detected after (s)", "recovered after (s)",
               "steps again", "by", "exit codes", "end")
    rows = []
    before = None
    for outcome in outcomes:
        fault = outcome.fault if outcome.fault != before else ""
        rows.append((fault, *outcome.cells()))
        before = outcome.fault
    text += table(columns, rows, {2, 3, 4}) + LEGEND
    text += "\nNotes on the rows:\n\n"
    for fault, note in NOTES.items():
        if any(outcome.fault == fault for outcome in outcomes):
            text += textwrap.fill(f"- *{fault}*: {note}", 80,
                                  subsequent_indent="  ",
                                  break_on_hyphens=False) + "\n"
    return text


def kills_text(results, options):
    """Returns the section of the random kills."""
    data = "CIFAR-10" if options.data_dir else "synthetic images"
    text = wrap(KILLS.format(kills=options.random_kills, steps=options.steps,
                             seed=options.seed, data=data, machine=machine(),
                             batch=random_kills.BATCH_SIZE,
                             every=random_kills.CHECKPOINT_EVERY))
    rows = [result.cells() for result in results]
    return text + table(random_kills.COLUMNS, rows, set(range(1, 9)))


def halves(path):
    """Splits the page before the section of the random kills."""
    text = path.read_text() if path.exists() else ""
    before, title, after = text.partition(KILLS_TITLE)
    return before.rstrip("\n") + "\n", title + after


def write_faults(path, outcomes, program):
    """Writes the table of faults, and keeps the section of the kills."""
    _, kills = halves(path)
    text = faults_text(outcomes, program)
    path.write_text(text + ("\n" + kills if kills else ""))


def write_kills(path, results, options):
    """Writes the section of the kills, and keeps the table of faults."""
    faults, _ = halves(path)
    path.write_text(faults + "\n" + kills_text(results, options))
