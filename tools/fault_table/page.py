"""docs/faults.md: the table, and how to read it."""

import os
import pathlib
import platform
import subprocess
import textwrap

from fault_table import cases, random_kills

HEAD = """\
# Faults

What happens to a run when something breaks, made by `make faults`: a fault at an
exact place of a small run, in {count} cases, and what was measured. The times
are this machine's; that **nothing hangs, and that the parameters at the end are
those of the run without the fault, to the bit**, holds anywhere: `make faults`
fails otherwise.

The run: `lockstep run --max-restarts 3 --hang-timeout {hang} --nproc-per-node 2
-- lockstep train --strategy ddp --model mlp --shards 2 --intra-op-threads 1
--batch-size 8 --max-steps {steps} --checkpoint-every {every} --timeout {timeout}
--resume auto --out-dir DIR`. The fault comes to rank
1 as it enters the phase for the first time with {after} steps done (at start-up
with none, in the evaluation with all). Measured on {machine}.

"""

LEGEND = """
- **detected after**: seconds from the fault to the first line, of the agent or
  of a rank, that a quiet run would not have written.
- **recovered after**: seconds from the fault to the end of the next step, or, in
  the evaluation, to the end of the run.
- **steps again**: steps that had been done, and were done once more.
- **by**: what went on: the run *itself*; a new *rank* in the place of the lost
  one, for which the others wait; a *restart* of all ranks by the agent; or the
  same *command* again, by whoever watches over it (a scheduler, say).
- **exit codes**: of each command, and of each agent of it.
- **end**: *same*: the parameters' SHA-256 is that of the quiet run.
"""

KILLS_TITLE = "## Random kills\n"
KILLS = KILLS_TITLE + """
`tools/faults.py --random-kills {kills} --steps {steps} --seed {seed}`: kill -9 of
a random rank of two, {kills} times in one run of {steps} steps of the MLP at
batch {batch} on {data}, a checkpoint each {every} steps. The same kills, by
steps, under `torchrun --max-restarts` with PyTorch's DDP and a script that saves
and loads as often, and with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`: without it
ranks that start again may wait in vain for addresses of the attempt before
(https://github.com/pytorch/pytorch/issues/135712). *Efficiency* is the steps of the quiet run at its median step
time, by the wall time of the whole command, start-up and all. Measured on
{machine}.

"""

NOTES = {
    "exception": "At start-up nobody catches it: `std::terminate`.",
    "SIGTERM": "A rank that is asked to end saves, and the job ends with code "
               "75: a scheduler wants the machine.",
    "SIGSTOP": "Found by the agent (`--hang-timeout "
               f"{cases.HANG_TIMEOUT_S}`), or by the other ranks (`--timeout "
               f"{cases.RANK_TIMEOUT_S}`). Both are minutes unless given.",
    "out of memory": "The rank can't allocate (`RLIMIT_AS`). The kernel's own "
                     "end of a process that has used too much is kill -9.",
    "slow rank": "1 s late: nothing has failed, and nothing is to be detected.",
    "agent killed": "kill -9 of `lockstep run`. Detected: all of its workers "
                    "are gone.",
    "rendezvous host killed": "kill -9 of node 0's agent, of two (one rank "
                              "each). Detected: all of its workers are gone. "
                              "The other agent ends with 1 by itself.",
    "cut link": "Two hosts (network namespaces), Gloo between them; agents "
                f"with `--rdzv-conf {cases.KEEP_ALIVE}` and no `--hang-timeout`. "
                "The link is up again when both have ended by themselves.",
    "full disk": "No space for one checkpoint; the run goes on. Elsewhere "
                 "nothing is written.",
    "torn checkpoint": "All are killed, and half of the newest checkpoint is "
                       "gone: the one before it is used. With 9 steps done, so that "
                       "there are two. Elsewhere nothing is "
                       "written.",
}


def machine():
    """The processor, its cores and the system, in words."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    models = [line.partition(":")[2].strip() for line in info.splitlines()
              if line.startswith("model name")]
    return (f"{len(models)} cores of {models[0] if models else 'a processor'}"
            f" at a load average of {os.getloadavg()[2]:.1f}, Linux "
            f"{platform.release()}")


def version(program):
    """What the program says of itself."""
    return subprocess.run([str(program), "--version"], capture_output=True,
                          text=True).stdout.strip().partition("\n")[0]


def wrap(text):
    """Prose in 80 columns."""
    paragraphs = (textwrap.fill(part, 80, break_on_hyphens=False)
                  if not part.startswith("#") else part
                  for part in text.strip().split("\n\n"))
    return "\n\n".join(paragraphs) + "\n\n"


def table(columns, rows, numbers):
    """Markdown; the columns with those places are numbers."""
    rules = ("--:" if place in numbers else "---"
             for place in range(len(columns)))
    lines = [columns, rules, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def faults_text(outcomes, program):
    """All but the random kills."""
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
    text += table(columns, rows, {2, 3, 4}) + LEGEND + "\nOf the rows:\n\n"
    for fault, note in NOTES.items():
        if any(outcome.fault == fault for outcome in outcomes):
            text += textwrap.fill(f"- *{fault}*: {note}", 80,
                                  subsequent_indent="  ",
                                  break_on_hyphens=False) + "\n"
    return text


def kills_text(results, options):
    """The section of the random kills."""
    data = "CIFAR-10" if options.data_dir else "synthetic images"
    text = wrap(KILLS.format(kills=options.random_kills, steps=options.steps,
                             seed=options.seed, data=data, machine=machine(),
                             batch=random_kills.BATCH_SIZE,
                             every=random_kills.CHECKPOINT_EVERY))
    rows = [result.cells() for result in results]
    return text + table(random_kills.COLUMNS, rows, set(range(1, 9)))


def halves(path):
    """The page's text before the section of the kills, and from there on."""
    text = path.read_text() if path.exists() else ""
    before, title, after = text.partition(KILLS_TITLE)
    return before.rstrip("\n") + "\n", title + after


def write_faults(path, outcomes, program):
    """Writes the table, and leaves the kills."""
    _, kills = halves(path)
    text = faults_text(outcomes, program)
    path.write_text(text + ("\n" + kills if kills else ""))


def write_kills(path, results, options):
    """Writes the kills, and leaves the table."""
    faults, _ = halves(path)
    path.write_text(faults + "\n" + kills_text(results, options))
