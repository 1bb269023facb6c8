"""Loses many ranks in one run, one after another, with few descriptors.
Measures what the other ranks and the agent keep.
"""

import dataclasses
import os
import pathlib
import signal
import statistics
import tempfile
import time

from fault_table.job import Job, digest_in, steps_in, wait_until

STEPS_BETWEEN = 2
SECONDS_EACH = 60
# Growth of a heap that is not a leak.
HEAP_MB = 16
# After this many recoveries, a process has everything that it keeps.
WARM = 2


@dataclasses.dataclass
class Usage:
    """The resources that a process holds."""

    descriptors: int
    mappings: int
    shared_mb: float
    private_mb: float

    @classmethod
    def of(cls, pid):
        process = pathlib.Path(f"/proc/{pid}")
        values = {}
        for line in (process / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "RssShmem"):
                values[name] = int(value.split()[0]) / 1024
        maps = (process / "maps").read_text()
        return cls(len(os.listdir(process / "fd")),
                   maps.count("memfd:lockstep"), values["RssShmem"],
                   values["RssAnon"])

    def __str__(self):
        return (f"{self.descriptors} descriptors, {self.mappings} shared "
                f"mappings, {self.shared_mb:.0f} MB shared, "
                f"{self.private_mb:.0f} MB private")


def median(samples):
    """Returns the median of each figure."""
    return Usage(*(statistics.median_high(values) for values in zip(
        *(dataclasses.astuple(sample) for sample in samples))))


def growth(name, samples):
    """Prints how the figures of a process developed. Returns a problem or "".
    """
    if len(samples) <= WARM + 1:
        return f"{name}: only {len(samples)} samples"
    warm = samples[WARM:]
    part = max(1, min(10, len(warm) // 3))
    first, last = median(warm[:part]), median(warm[-part:])
    print(f"[faults] {name}, {len(samples)} recoveries:\n"
          f"    at first  {first}\n    at last   {last}", flush=True)
    is_flat = (last.descriptors <= first.descriptors
               and last.mappings <= first.mappings
               and last.shared_mb <= first.shared_mb + HEAP_MB
               and last.private_mb <= first.private_mb + HEAP_MB)
    return "" if is_flat else f"{name} grows"


def command(program, options, folder, count):
    steps = STEPS_BETWEEN * (count + 1) + 20
    return ["sh", "-c", 'ulimit -n "$0" && exec "$@"',
            str(options.descriptors), str(program), "run", "--nproc-per-node",
            "2", "--max-restarts", str(count + 10), "--", str(program),
            "train", "--strategy", "ddp", "--model", "mlp", "--data",
            "synthetic", "--shards", "2", "--batch-size", "8", "--max-steps",
            str(steps), "--no-eval", "--log-every", "1", "--out-dir", folder]


def lose_ranks(job, count):
    """Kills ranks. Returns the usage of the surviving processes by name."""
    samples = {}
    since = 0

    def is_over():
        return job.process.poll() is not None

    def has_gone_on():
        later = [step for at, step in steps_in(job.lines) if at > since]
        return len(later) >= STEPS_BETWEEN

    for number in range(count + 1):
        deadline = time.monotonic() + SECONDS_EACH
        # In the first half, a process of rank 0 survives. Then one of rank 1
        # does.
        victim = 1 if number < count // 2 else 0
        wait_until(lambda: has_gone_on() or is_over(), deadline)
        wait_until(lambda: len(job.workers()) == 2 or is_over(), deadline)
        workers = job.workers()
        if len(workers) != 2 or not has_gone_on():
            return samples, f"stopped after {number} of {count} recoveries"
        if number > 0:
            for name, pid in (("the agent", job.pid),
                              (f"rank {1 - victim}", workers[1 - victim])):
                samples.setdefault((name, pid), []).append(Usage.of(pid))
        if number < count:
            since = time.monotonic()
            os.kill(workers[victim], signal.SIGKILL)
    return samples, ""


def recoveries(program, options):
    """Returns the problems of a run with `options.recoveries` recoveries."""
    count = options.recoveries
    with tempfile.TemporaryDirectory(prefix="lockstep-kills-") as folder:
        quiet = Job(command(program, options, f"{folder}/quiet", count))
        code = quiet.wait(time.monotonic() + SECONDS_EACH + count)
        if code != 0:
            raise RuntimeError("\n".join(text for _, text in quiet.lines[-30:]))
        job = Job(command(program, options, f"{folder}/run", count))
        try:
            samples, problem = lose_ranks(job, count)
            code = job.wait(time.monotonic() + SECONDS_EACH + count)
        finally:
            job.end()
    problems = [problem] if problem else []
    if code != 0:
        problems.append(f"ends with {code}")
    elif digest_in(job.lines) != digest_in(quiet.lines):
        problems.append("its digest differs from that of the run without kills")
    if problems:
        print("\n".join(text for _, text in job.lines[-40:]))
    # A process with only a few samples was the next victim.
    for (name, _), figures in samples.items():
        if len(figures) >= count // 3:
            problems.append(growth(name, figures))
    return [problem for problem in problems if problem]
