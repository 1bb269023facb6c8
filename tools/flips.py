#!/usr/bin/env python3
"""Flips a bit in the memory of running jobs, and reports what they make of it.

Each run trains the cnn with `lockstep run` on 2 or 4 ranks. A bit of one rank
is flipped through /proc/PID/mem: in a parameter or in a momentum buffer. Or a
bit of a snapshot is flipped in the memory of the agent, and a rank is killed,
so that the run goes on from a snapshot.

The place is found from outside. A first run, without a flip, saves a checkpoint
after each step. All runs have the same bits, so these are the values that a
rank has in its memory after each step. The rank is stopped (SIGSTOP) while its
memory is searched for them. A copy that is not in use would not follow the
training, so a place counts only if it also has the values of a later step when
the rank is stopped again. A snapshot is found by its stamp in the agent's
memory, which names its step.

Prints a line for each run and a table in Markdown. Exits with 1 if a run hangs,
ends with 0 but with other bits, or names a rank that is not the one. Needs the
right to write to the memory of its own children (ptrace).
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import pathlib
import random
import re
import signal
import struct
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from fault_table.job import (Job, digest_in, steps_in,  # noqa: E402
                             wait_until)

ROOT = pathlib.Path(__file__).resolve().parents[1]
STEPS = 80
SHARDS = 4
# The largest tensors, which ZeRO splits.
TENSORS = {"parameter": ("model", "conv3.weight"),
           "momentum": ("optimizer", "momentum_buffer.6"),
           "snapshot": ("model", "conv3.weight")}
SIGNATURE_BYTES = 32
# With ZeRO, a rank has only a part of the optimizer state.
SIGNATURES = 8
# Steps that a rank may have made since its last line was read.
STEPS_AHEAD = 6
PAGE = 4096
ATTEMPT_BITS = 20  # of the stamp of a snapshot
HIGH_BIT = 22      # highest bit of a float's mantissa

# Messages that name the step after which it was noticed, and the rank.
NOTICED = re.compile(
    r"after step \d+ (the ranks have different|parameters or optimizer state)|"
    r"the values of .* differ: |was repeated: |has changed in the snapshot|"
    r"description of a snapshot in memory has changed|parameters-differ|"
    r"or its state was changed between two steps")
AFTER_STEP = re.compile(r"after step (\d+) ")
BLAMED = (re.compile(r"was repeated: ranks? ([\d, ]+) had been wrong; "),
          re.compile(r"optimizer state of ranks? ([\d, ]+) differ"),
          re.compile(r"rank (\d+) had different parameters from"),
          re.compile(r"differ: ranks? ([\d, ]+) from those of the other ranks"))


class NotFound(Exception):
    """The run ended, or the deadline came, before a bit could be flipped."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A kind of flip, and the job that it hits."""

    what: str
    zero: int
    ranks: int
    backend: str

    @property
    def name(self):
        zero = f"-zero{self.zero}" if self.zero else ""
        return f"{self.what}@{self.backend}-{self.ranks}{zero}"


def all_cases():
    """Returns all cases. Only ranks with separate memory split their state."""
    found = [Case(what, zero, ranks, backend)
             for what in ("parameter", "momentum")
             for backend in ("shm", "tcp")
             for ranks in (2, 4)
             for zero in ((0, 1, 2) if backend == "tcp" else (0,))]
    return found + [Case("snapshot", 0, ranks, backend)
                    for backend in ("shm", "tcp") for ranks in (2, 4)]


@dataclasses.dataclass
class Outcome:
    """The result of one run."""

    case: Case
    rank: int
    flipped_after: int | None = None  # steps that were done
    noticed_after: int | None = None
    message: str = ""
    blamed: tuple = ()
    code: int | None = None
    end: str = ""

    @property
    def blame(self):
        if self.case.what == "snapshot":
            return "–" if not self.blamed else "wrong"
        if not self.blamed:
            return "nobody"
        return "right" if set(self.blamed) == {self.rank} else "wrong"

    @property
    def steps(self):
        """Returns how many steps later it was noticed, or None."""
        if self.noticed_after is None or self.flipped_after is None:
            return None
        return max(0, self.noticed_after - self.flipped_after)

    @property
    def is_bad(self):
        return (self.end not in ("repaired", "refused", "no effect")
                or self.blame == "wrong")

    def line(self):
        steps = "–" if self.steps is None else self.steps
        return (f"{self.case.name}: rank {self.rank}, flipped after step "
                f"{self.flipped_after}, noticed after {steps} steps, "
                f"exit code {self.code}, {self.end}, blamed: {self.blame} | "
                f"{self.message[:120]}")


# Reference values.

def read_tensor(path, name):
    """Returns the bytes of a tensor in a safetensors file."""
    with path.open("rb") as file:
        length, = struct.unpack("<Q", file.read(8))
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + begin)
        return file.read(end - begin)


def training(program, *more):
    return [str(program), "train", "--model", "cnn", "--data", "synthetic",
            "--shards", str(SHARDS), "--batch-size", "16",
            "--intra-op-threads", "1", "--max-steps", str(STEPS),
            "--log-every", "1", "--no-eval",
            # Tensors have the same order in memory as in files.
            "--channels-last", "off", *more]


def reference(program, deadline):
    """Returns the digest, and the values by tensor and step."""
    with tempfile.TemporaryDirectory(prefix="lockstep-flips-") as folder:
        job = Job(training(program, "--strategy", "single", "--devices", "1",
                           "--checkpoint-every", "1", "--keep",
                           str(STEPS + 1), "--out-dir", folder))
        if job.wait(deadline) != 0:
            sys.exit("[flips] the run without a flip failed:\n"
                     + "\n".join(text for _, text in job.lines[-20:]))
        values = {tensor: {} for tensor in TENSORS.values()}
        for step in range(1, STEPS + 1):
            saved = pathlib.Path(folder) / f"step-{step:08}"
            for file, name in values:
                values[file, name][step] = read_tensor(
                    saved / f"{file}.safetensors", name)
        return digest_in(job.lines), values


def signature_offsets(size):
    """Returns places in a tensor of `size` bytes, spread evenly."""
    return [i * (size // SIGNATURES) // 4 * 4 for i in range(SIGNATURES)]


# Memory of processes.

@dataclasses.dataclass
class Mapping:
    begin: int
    end: int
    inode: int
    is_shared: bool
    is_memfd: bool


def writable_mappings(pid):
    """Returns the mappings of a process that it can read and write."""
    found = []
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        path = words[5] if len(words) > 5 else ""
        if not words[1].startswith("rw") or path.startswith(("[v", "/dev/")):
            continue
        begin, end = (int(part, 16) for part in words[0].split("-"))
        found.append(Mapping(begin, end, int(words[4]), words[1][3] == "s",
                             path.startswith("/memfd:")))
    return found


class Memory:
    """The memory of another process."""

    def __init__(self, pid):
        self.file = os.open(f"/proc/{pid}/mem", os.O_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.file)

    def read(self, at, size):
        """Returns the bytes, or b"" if they can't be read."""
        try:
            return os.pread(self.file, size, at)
        except OSError:
            return b""

    def flip(self, at, bit):
        byte = self.read(at, 1)
        if os.pwrite(self.file, bytes([byte[0] ^ 1 << bit]), at) != 1:
            raise OSError(f"can't write to the memory at {at:#x}")


class Stopped:
    """Stops processes for the time of a `with` block."""

    def __init__(self, pids, deadline):
        self.pids = pids
        self.deadline = deadline

    def __enter__(self):
        for pid in self.pids:
            os.kill(pid, signal.SIGSTOP)
        if not wait_until(lambda: all(map(is_stopped, self.pids)),
                          self.deadline):
            self.__exit__()
            raise NotFound("a process does not stop")

    def __exit__(self, *_):
        for pid in self.pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                pass


def is_stopped(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return True  # it has ended
    return stat.rpartition(")")[2].split()[0] in "TtXZ"


class Disturbance:
    """Flips a bit of one running job."""

    def __init__(self, job, outcome, values, deadline):
        self.job = job
        self.outcome = outcome
        self.values = values  # of the tensor, by step
        self.deadline = deadline

    def wait_for_step(self, step):
        wait_until(lambda: self.job.has_step(step) or self.job.is_over(),
                   self.deadline)
        if self.job.is_over() or not self.job.has_step(step):
            raise NotFound(f"the run did not get to step {step}")

    def last_step(self):
        return max(step for _, step in steps_in(self.job.lines))

    def pid(self):
        pid = self.job.workers().get(self.outcome.rank)
        if pid is None:
            raise NotFound("the rank is not running")
        return pid

    def possible_steps(self):
        """Returns the numbers of steps that a stopped rank may have done."""
        last = self.last_step()
        return [step for step in range(max(1, last - 1), last + STEPS_AHEAD)
                if step in self.values]

    def candidates(self):
        """Returns pairs of an address and an offset in the tensor, and the
        step. The rank is stopped.
        """
        own = writable_mappings(self.pid())
        # Snapshots, and the page that the agent shares with the rank.
        agents = {m.inode for m in writable_mappings(self.job.pid)
                  if m.is_memfd}
        found = set()
        step_found = None
        with Memory(self.pid()) as memory:
            for mapping in own:
                if mapping.is_memfd and mapping.inode in agents:
                    continue
                content = memory.read(mapping.begin,
                                      mapping.end - mapping.begin)
                for step in self.possible_steps():
                    for offset in signature_offsets(len(self.values[step])):
                        pattern = self.pattern(step, offset)
                        at = content.find(pattern)
                        while at >= 0:
                            found.add((mapping.begin + at, offset))
                            step_found = step
                            at = content.find(pattern, at + 1)
        return found, step_found

    def pattern(self, step, offset):
        return self.values[step][offset:offset + SIGNATURE_BYTES]

    def flip_in_rank(self):
        """Flips a bit of the tensor in the memory of the rank."""
        self.wait_for_step(random.randrange(4, STEPS // 2))
        found = set()
        while not found:
            with Stopped([self.pid()], self.deadline):
                found, step = self.candidates()
            self.check_time()
        while True:
            self.wait_for_step(step + 2)
            time.sleep(random.random() * 0.05)
            with Stopped([self.pid()], self.deadline), \
                    Memory(self.pid()) as memory:
                live = [(at, now) for at, offset in sorted(found)
                        for now in self.possible_steps() if now > step
                        and memory.read(at, SIGNATURE_BYTES)
                        == self.pattern(now, offset)]
                if live:
                    at, self.outcome.flipped_after = random.choice(live)
                    bit = (32 * random.randrange(SIGNATURE_BYTES // 4)
                           + random.randrange(HIGH_BIT + 1))
                    memory.flip(at + bit // 8, bit % 8)
                    return
            self.check_time()
            step = self.last_step()

    def check_time(self):
        if self.job.is_over() or time.monotonic() > self.deadline:
            raise NotFound("the tensor was not found in memory")
        time.sleep(0.01)

    def flip_in_snapshot(self):
        """Flips a bit in the newest snapshot, and kills the rank."""
        # Over tcp, the second snapshot is taken after step 20.
        self.wait_for_step(22)
        pids = list(self.job.workers().values())
        with Stopped(pids, self.deadline), Memory(self.job.pid) as memory:
            at, step = self.newest_snapshot(memory)
            memory.flip(at + HIGH_BIT // 8, HIGH_BIT % 8)
            self.outcome.flipped_after = step
            os.kill(self.pid(), signal.SIGKILL)

    def newest_snapshot(self, memory):
        """Returns the address of the tensor in the newest snapshot, and the
        snapshot's step.
        """
        ranks = self.outcome.case.ranks
        newest = None
        for mapping in writable_mappings(self.job.pid):
            if not mapping.is_memfd:
                continue
            content = memory.read(mapping.begin, mapping.end - mapping.begin)
            stamps = struct.unpack_from(f"<{ranks}Q", content)
            step = (stamps[0] >> ATTEMPT_BITS) - 1
            if len(set(stamps)) > 1 or step not in self.values:
                continue
            at = content.find(self.pattern(step, 0), PAGE)
            if at >= 0 and (newest is None or step > newest[1]):
                newest = (mapping.begin + at, step)
        if newest is None:
            raise NotFound("there is no snapshot")
        return newest


def run(case, rank, program, digest, values, arguments):
    """Runs a job, flips a bit, and returns the outcome and the lines."""
    outcome = Outcome(case, rank)
    deadline = time.monotonic() + arguments.deadline
    job = Job([str(program), "run", "--nproc-per-node", str(case.ranks),
               "--max-restarts", "3", "--hang-timeout", "30", "--",
               *training(program, "--strategy", "ddp", "--backend",
                         case.backend, "--zero", str(case.zero),
                         "--timeout", "30", "--verify-every",
                         str(arguments.verify_every))])
    try:
        flip = Disturbance(job, outcome, values[TENSORS[case.what]], deadline)
        if case.what == "snapshot":
            flip.flip_in_snapshot()
        else:
            flip.flip_in_rank()
        outcome.code = job.wait(deadline)
    except NotFound as why:
        outcome.end = f"not flipped: {why}"
    finally:
        job.end()
        job.reader.join(5)
    judge(outcome, job.lines, digest)
    return outcome, job.lines


def judge(outcome, lines, digest):
    """Fills in what the lines of the job say."""
    blamed = set()
    for number, (_, text) in enumerate(lines):
        for pattern in BLAMED:
            for ranks in pattern.findall(text):
                blamed.update(int(rank) for rank in ranks.split(","))
        if outcome.message or not NOTICED.search(text):
            continue
        outcome.message = text
        steps = [step for _, step in steps_in(lines[:number])]
        named = AFTER_STEP.search(text)
        outcome.noticed_after = (int(named[1]) if named
                                 else steps[-1] if steps else 0)
    outcome.blamed = tuple(sorted(blamed))
    if outcome.end:
        return
    if outcome.code is None:
        outcome.end = "hangs"
    elif outcome.code != 0:
        outcome.end = "refused"
    elif digest_in(lines) != digest:
        outcome.end = "OTHER BITS"
    else:
        outcome.end = "repaired" if outcome.message else "no effect"


def table(outcomes):
    """Returns a Markdown table with a row for each case."""
    rows = ["| flip in | backend | ranks | zero | runs | noticed | steps later "
            "| repaired | refused | no effect | other bits | rank blamed: "
            "right | nobody | wrong |",
            "| --- | --- |" + " --: |" * 12]
    for case in dict.fromkeys(one.case for one in outcomes):
        own = [one for one in outcomes
               if one.case == case and not one.end.startswith("not flipped")]
        steps = [one.steps for one in own if one.steps is not None]

        def count(end, own=own):
            return sum(one.end == end for one in own)

        later = f"{min(steps)}–{max(steps)}" if steps else "–"
        blames = [one.blame for one in own]
        rows.append(
            f"| {case.what} | {case.backend} | {case.ranks} | {case.zero} | "
            f"{len(own)} | {sum(bool(one.message) for one in own)} | {later} | "
            f"{count('repaired')} | {count('refused')} | {count('no effect')} "
            f"| {count('OTHER BITS') + count('hangs')} | "
            f"{blames.count('right')} | "
            f"{blames.count('nobody')} | {blames.count('wrong')} |")
    return "\n".join(rows)


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path,
                        default=ROOT / "build/release/bin",
                        help="folder of lockstep")
    parser.add_argument("--only", default="*", metavar="PATTERNS",
                        help="cases, as in 'parameter@tcp*,snapshot@*'")
    parser.add_argument("--repeat", type=int, default=1, metavar="N",
                        help="runs of each case")
    parser.add_argument("--seed", type=int, default=0,
                        help="chooses the ranks and the steps")
    parser.add_argument("--verify-every", type=int, default=1, metavar="N",
                        help="option of the runs; with 1, each step checks all "
                             "memory, and with more, parts of it in turns")
    parser.add_argument("--deadline", type=float, default=120, metavar="S",
                        help="longest time of a run in seconds")
    parser.add_argument("--list", action="store_true",
                        help="print the names of the cases")
    parser.add_argument("--verbose", action="store_true",
                        help="print all lines of the runs")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    chosen = [case for case in all_cases()
              if any(fnmatch.fnmatch(case.name, pattern)
                     for pattern in arguments.only.split(","))]
    if arguments.list:
        print("\n".join(case.name for case in chosen))
        return 0
    if not chosen:
        sys.exit(f"[flips] no case is named {arguments.only}")
    program = arguments.bin.resolve() / "lockstep"
    if not program.exists():
        sys.exit(f"[flips] there is no {program}; expected a built program; "
                 "run make, or name its folder with --bin")
    # Leave no run behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    random.seed(arguments.seed)
    digest, values = reference(program,
                               time.monotonic() + arguments.deadline)
    outcomes = []
    for _ in range(arguments.repeat):
        for case in chosen:
            outcome, lines = run(case, random.randrange(case.ranks), program,
                                 digest, values, arguments)
            outcomes.append(outcome)
            print("[flips]", outcome.line(), flush=True)
            if arguments.verbose or outcome.is_bad:
                print("\n".join(f"    {text}" for _, text in lines[-60:]))
    print(table(outcomes))
    failed = sum(outcome.is_bad for outcome in outcomes)
    print(f"[flips] {failed} failed" if failed else "[flips] ok")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
