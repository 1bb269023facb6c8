"""Writes docs/faults.md: the tables, and how to read them."""

import os
import pathlib
import platform
import re
import subprocess
import textwrap

from fault_table import cases, node_restarts, random_kills, torchrun_networks
from fault_table.faults import FAULTS

HEAD = """\
# Faults

This page shows what happens to a run when something breaks. **Nothing hangs,
and the parameters at the end are those of the run without the fault, to the
bit.** `make faults` injects a fault at an exact place of a small run, in {count}
cases, measures the outcome, and fails if one is different. {result}

- [Each phase of a run](#each-phase-of-a-run): {phases}
- [Two nodes](#two-nodes): {networks} in which their network fails, or node 0
- [Node 0 killed and started again](#node-0-killed-and-started-again)
- [Random kills](#random-kills)

The times are those of one machine.
"""

PHASES_TITLE = "## Each phase of a run"
PHASES = """
The run is `lockstep run --max-restarts 3 --hang-timeout {hang} --nproc-per-node
2 -- lockstep train --strategy ddp --model mlp --shards 2 --intra-op-threads 1
--batch-size 8 --max-steps {steps} --checkpoint-every {every} --timeout
{timeout} --resume auto --out-dir DIR`. The fault hits rank 1, where the row names
no other, when it first enters the phase after {after} steps (at start-up after
none, in the evaluation after all). Measured on {machine}.
"""

NETWORKS_TITLE = "## Two nodes"
NETWORKS = """
Two agents have one rank each, and rank 1 is in an all-reduce. The agents survive
15 s without a network, which is the default (`--rdzv-conf
keep_alive_interval=5,keep_alive_max_attempt=3`), and 60 s where the row says so
(`keep_alive_interval=20`). The ranks have `--timeout 60`. *static* rows use
`--master-addr`, and *c10d* rows `--rdzv-backend c10d`. The columns are those
above, and *done after* counts from the fault to the end of both agents. A
command is run again when both have ended. Measured on {machine}.
"""
# Where torchrun's part of that section begins, after the table and the notes.
TORCHRUN_BEGINS = "The columns on the right are those of torchrun:"
TORCHRUN = TORCHRUN_BEGINS + """ {version}, with DDP
over gloo and a script that makes as many steps of the same model and saves as
often. It has the same faults, `--max-restarts 3`, `--rdzv-conf` and time-out of
the ranks, and `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` as
[below](#random-kills). If node 0 is killed, its rank is killed as well, because
torchrun's ranks outlive their agent. An agent that fails while the other one is
running is started again, as Kubernetes does. At its end, an agent of torchrun
waits up to 300 s for the other one. The steps take only seconds, so a longer
silence of the agents' link falls into that time. A row that is not done after
{deadline} s is given up. {result} Measured on {machine}.
"""

RESTARTS_TITLE = "## Node 0 killed and started again"
RESTARTS = """
`tools/faults.py --restarts {count}` kills the agent of node 0 in each of
{jobs} jobs with kill -9 while the rank of node 1 is *at* the given place, and
starts it again at once, at the same address with the same command. The agent of
node 1 *ends* by itself with exit code 75, or is *killed* as well, and is started
again the given time later. That is what Kubernetes or a loop in a shell does.
Steps are done again from the newest complete checkpoint. {result} Measured on
{machine}.
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

KILLS_TITLE = "## Random kills"
KILLS = """
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
                               "(`RLIMIT_NOFILE`), so the agent replaces both "
                               "ranks.",
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
    "node 0 restarted, node 1 0 s later, static":
        "kill -9 of the agent of node 0, which is started again at once. The "
        "agent of node 1 ends by itself with 75, and a new one is started at "
        "the given time.",
    "agents' link reset, static":
        "A forwarder is between the agent of node 1 and the store, and resets "
        "its connections.",
    "agents' link slow, static": "The forwarder delays everything by 0.2 s in "
                                 "each direction.",
    "agents' link silent for 2 s, static":
        "The forwarder carries nothing for that time. The ranks go on "
        "meanwhile.",
    "ranks' link reset": "Over tcp. Both ranks lose each other, and meet again.",
    "no packets for 2 s": "Two hosts (network namespaces) whose packets are "
                          "lost for that time, also those of the ranks. No "
                          "process knows. TCP sends again after pauses that "
                          "double, so a run goes on some time after the hole.",
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
                  if not part.startswith(("#", "- ")) else part
                  for part in text.strip().split("\n\n"))
    return "\n\n".join(paragraphs) + "\n\n"


def table(columns, rows, numbers):
    """Returns a Markdown table; `numbers` are indices of numeric columns."""
    rules = ("--:" if place in numbers else "---"
             for place in range(len(columns)))
    lines = [columns, rules, *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def notes(outcomes):
    """Returns the notes on these rows as a list."""
    lines = [textwrap.fill(f"- *{fault}*: {note}", 80, subsequent_indent="  ",
                           break_on_hyphens=False)
             for fault, note in NOTES.items()
             if any(outcome.fault == fault for outcome in outcomes)]
    return "\nNotes on the rows:\n\n" + "\n".join(lines) + "\n" if lines else ""


def counted(number, noun):
    """Returns "1 case" or "2 cases"."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def result_of(outcomes, noun):
    """Says how many outcomes are as promised."""
    good = sum(not outcome.problem for outcome in outcomes)
    if good == len(outcomes):
        return f"All {good} {noun} ended as promised."
    return (f"{good} of {len(outcomes)} {noun} ended as promised; the column "
            "*end* shows the others.")


def phases_text(outcomes, where):
    """Returns the section of the faults in each phase."""
    text = wrap(PHASES.format(steps=cases.STEPS, every=cases.CHECKPOINT_EVERY,
                              hang=cases.HANG_TIMEOUT_S,
                              timeout=cases.RANK_TIMEOUT_S,
                              after=cases.FAULT_AFTER_STEPS, machine=where))
    columns = ("fault", "at", "detected after (s)", "recovered after (s)",
               "steps again", "by", "exit codes", "end")
    rows = []
    before = None
    for outcome in outcomes:
        fault = outcome.fault if outcome.fault != before else ""
        rows.append((fault, *outcome.cells()))
        before = outcome.fault
    return text + table(columns, rows, {2, 3, 4}) + LEGEND + notes(outcomes)


# Both launchers have a part of each row of the table of two nodes, and each part
# is written without the other.
OUR_COLUMNS = ("recovered after (s)", "done after (s)", "by", "exit codes",
               "end")
THEIR_COLUMNS = ("torchrun: recovered after (s)", *OUR_COLUMNS[1:])


def network_parts(text):
    """Returns the parts of the section of two nodes: what comes before its
    table, the rows (both launchers' cells by fault), what comes after, and the
    text on torchrun.
    """
    ours, begins, theirs = text.partition(TORCHRUN_BEGINS)
    found = re.search(r"^(?:\|.*\n)+", ours, re.MULTILINE)
    if not found:
        return ours, {}, "", begins + theirs
    cells = [line.strip("| ").split(" | ") for line in found[0].splitlines()]
    end = len(OUR_COLUMNS) + 1
    rows = {row[0]: (row[1:end], row[end:]) for row in cells[2:]}
    return ours[:found.start()], rows, ours[found.end():], begins + theirs


def networks_table(rows):
    """Returns the table of two nodes, in the order in which faults are listed.
    """
    return table(("fault", *OUR_COLUMNS, *THEIR_COLUMNS),
                 [(fault, *rows[fault][0], *rows[fault][1])
                  for fault in FAULTS if fault in rows], {1, 2, 6, 7})


def networks_text(outcomes, where, old):
    """Returns the section of two nodes with torchrun's part of the old one."""
    _, rows, _, torchrun = network_parts(old)
    nothing = (None, len(THEIR_COLUMNS) * ("–",))
    rows = {outcome.fault: (outcome.network_cells(),
                            rows.get(outcome.fault, nothing)[1])
            for outcome in outcomes}
    return (wrap(NETWORKS.format(machine=where)) + networks_table(rows)
            + notes(outcomes) + "\n" + torchrun)


def torchrun_text(outcomes, torch_version, old):
    """Returns the section of two nodes with our part of the old one."""
    before, rows, after, _ = network_parts(old)
    nothing = (len(OUR_COLUMNS) * ("–",), None)
    for outcome in outcomes:
        rows[outcome.fault] = (rows.get(outcome.fault, nothing)[0],
                               outcome.network_cells())
    ends = [theirs[-1] for _, theirs in rows.values() if theirs[-1] != "–"]
    result = f"{ends.count('same')} of {len(ends)} rows end with the same bits."
    text = wrap(TORCHRUN.format(version=f"PyTorch {torch_version}",
                                deadline=torchrun_networks.DEADLINE_S,
                                result=result, machine=machine()))
    return before + networks_table(rows) + after.rstrip("\n") + "\n\n" + text


def restarts_text(results, where):
    """Returns the section of the restarts of nodes."""
    outcomes = [outcome for _, both in results for outcome in both.values()]
    text = wrap(RESTARTS.format(count=len(results), jobs=len(outcomes),
                                result=result_of(outcomes, "jobs"),
                                machine=where))
    columns = ["node 1", "again after (s)", "at"]
    for backend in node_restarts.BACKENDS:
        columns += [f"{backend}: recovered after (s)", "steps again", "end"]
    rows = []
    for restart, both in results:
        row = [restart.node_1_before, f"{restart.node_1_after_s:.1f}",
               restart.phase.replace("start", "start-up")]
        for backend in node_restarts.BACKENDS:
            _, _, recovered, again, _, _, end = both[backend].cells()
            row += [recovered, again, end]
        rows.append(row)
    return text + table(columns, rows, {1, 3, 4, 6, 7})


def kills_text(results, options):
    """Returns the section of the random kills."""
    data = "CIFAR-10" if options.data_dir else "synthetic images"
    text = wrap(KILLS.format(kills=options.random_kills, steps=options.steps,
                             seed=options.seed, data=data, machine=machine(),
                             batch=random_kills.BATCH_SIZE,
                             every=random_kills.CHECKPOINT_EVERY))
    rows = [result.cells() for result in results]
    return text + table(random_kills.COLUMNS, rows, set(range(1, 9)))


TITLES = (PHASES_TITLE, NETWORKS_TITLE, RESTARTS_TITLE, KILLS_TITLE)


def sections_of(path):
    """Returns the texts of the page by title. What comes before them has the
    title "".
    """
    text = path.read_text() if path.exists() else ""
    parts = re.split(r"^(## .*)\n", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2]))}


def write(path, sections):
    """Writes the page with these sections."""
    texts = [sections[""].strip("\n")]
    texts += [title + "\n\n" + sections[title].strip("\n")
              for title in TITLES if title in sections]
    path.write_text("\n\n".join(text for text in texts if text) + "\n")


def write_faults(path, outcomes, program):
    """Writes the head and the tables of all cases, and keeps torchrun's part
    and the other sections.
    """
    sections = sections_of(path)
    phases, networks = [], []
    for outcome in outcomes:
        is_network = FAULTS[outcome.fault].is_of_network
        (networks if is_network else phases).append(outcome)
    sections[""] = wrap(HEAD.format(
        count=len(outcomes), phases=counted(len(phases), "case"),
        networks=counted(len(networks), "case"),
        result=result_of(outcomes, "cases")))
    where = f"{machine()}, {version(program)}"
    sections[PHASES_TITLE] = phases_text(phases, where)
    sections[NETWORKS_TITLE] = networks_text(
        networks, where, sections.get(NETWORKS_TITLE, ""))
    write(path, sections)


def write_torchrun(path, outcomes, torch_version):
    """Writes torchrun's part of the table of two nodes."""
    sections = sections_of(path)
    sections[NETWORKS_TITLE] = torchrun_text(
        outcomes, torch_version, sections.get(NETWORKS_TITLE, ""))
    write(path, sections)


def write_restarts(path, results, program):
    """Writes the section of the restarts of nodes."""
    sections = sections_of(path)
    sections[RESTARTS_TITLE] = restarts_text(
        results, f"{machine()}, {version(program)}")
    write(path, sections)


def write_kills(path, results, options):
    """Writes the section of the random kills."""
    sections = sections_of(path)
    sections[KILLS_TITLE] = kills_text(results, options)
    write(path, sections)
