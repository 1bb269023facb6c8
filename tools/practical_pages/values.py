"""The values of a page: sentences and tables from what its commands printed.

A value's name is that of a function below; its arguments are names of blocks.
Sentences say what was measured, whichever way it came out.
"""

import json
import os
import re

LEVEL = 0.03  # speeds that differ by less are called level
EVEN = 1.05   # and memory peaks whose ratio is less


class Unknown(Exception):
    """A value that can't be made of what the commands printed."""


def found(pattern, text, what):
    """The groups of the first match, or Unknown."""
    match = re.search(pattern, text, re.MULTILINE)
    if not match:
        raise Unknown(f"no {what} in:\n{text[-1000:]}")
    return match.groups()


def seconds(number):
    """A duration as the programs print it."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1, 1e3, "ms")):
        if number < limit:
            return f"{number * factor:.3g} {unit}"
    return f"{number:.3g} s"


def times(ratio):
    return f"{ratio:.2f} times"


def verdict(ratio):
    """Whether something that is `ratio` times as fast is faster."""
    if ratio > 1 + LEVEL:
        return "faster"
    return "slower" if ratio < 1 - LEVEL else "level"


class Values:
    """Values from the blocks' outputs and the files that they left."""

    def __init__(self, outputs, folder):
        self.outputs = outputs
        self.folder = folder

    def of(self, name, *arguments):
        """The value that a page asks for."""
        make = getattr(self, "value_" + name, None)
        if make is None:
            raise Unknown(f"there is no value '{name}'")
        return make(*arguments)

    # What the blocks printed.

    def output(self, block):
        if block not in self.outputs:
            raise Unknown(f"no block '{block}' ran before")
        return self.outputs[block]

    def step_s(self, block):
        return float(found(r"^Step time: ([\d.e-]+) s", self.output(block),
                           "step time")[0])

    def total_s(self, block):
        text = self.output(block)
        return float(found(r"Total time: ([\d.e-]+) s", text, "total time")[0])

    def peaks(self, block):
        """By device, MiB."""
        return {name: float(mib) for name, mib in re.findall(
            r"^(\S+) memory peak: ([\d.]+) MiB", self.output(block),
            re.MULTILINE)}

    def shards(self, block):
        """Samples of each shard of the first step, by the model's lines."""
        lines = re.findall(r"^Inside model on device (\S+), shape \[(\d+),",
                           self.output(block), re.MULTILINE)
        first = {}
        for device, samples in lines:
            first.setdefault(device, int(samples))
        return [first[device] for device in sorted(first)]

    def digest(self, block):
        return found(r"parameter_sha256 ([0-9a-f]{64})", self.output(block),
                     "digest")[0]

    def compared(self, path, strategy):
        """A strategy's report in what `compare --report` wrote."""
        runs = json.loads((self.folder / path).read_text())["runs"]
        for run in runs:
            if run["strategy"] == strategy and run["engine"] == "lockstep":
                return run
        raise Unknown(f"{path} has no run of {strategy}")

    # Single values.

    def value_step(self, block):
        return seconds(self.step_s(block))

    def value_machine(self):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = found(r"^model name\s*: (.*)$", file.read(), "model name")
        return f"{len(os.sched_getaffinity(0))} cores, {model[0]}"

    # Practical 5.

    def value_time_table(self, *blocks):
        rows = ["| Set up | Step Time (sec) | Total Time (sec) |",
                "| --- | --: | --: |"]
        names = ("Single GPU", "DataParallel")
        for name, block in zip(names, blocks):
            rows.append(f"| {name} | {self.step_s(block):.4f} | "
                        f"{self.total_s(block):.2f} |")
        return "\n".join(rows)

    def value_split_table(self, batch, *blocks):
        rows = ["| #GPUs | Batch Size | Split per GPU |", "| --: | --: | --- |"]
        for block in blocks:
            split = self.shards(block)
            if sum(split) != int(batch):
                raise Unknown(f"the shards of {block} are not {batch} samples")
            rows.append(f"| {len(split)} | {batch} | "
                        f"{'/'.join(map(str, split))} |")
        return "\n".join(rows)

    def value_faster(self, single, other):
        ratio = self.step_s(single) / self.step_s(other)
        answer = {"faster": "Yes", "slower": "No, it became slower",
                  "level": "No, it is level"}[verdict(ratio)]
        return (f"{answer}: {times(ratio)} as fast, "
                f"{self.value_step(other)} a step against "
                f"{self.value_step(single)}.")

    def value_proportional(self, single, other):
        devices = len(self.peaks(other))
        ratio = self.step_s(single) / self.step_s(other)
        share = 100 * ratio / devices
        answer = "Yes" if share > 95 else "No"
        text = (f"{answer}: proportional to {devices} devices would be "
                f"{devices} times as fast, of which this is {share:.0f} %.")
        if next(iter(self.peaks(other))).startswith("cpu"):
            text += (" But the slices are cores that the single run has as "
                     "well, so here nothing above 1 time is owed to them.")
        return text

    def value_memory(self, single, other):
        alone = max(self.peaks(single).values())
        parts = [f"{name} {mib:.1f} MiB"
                 for name, mib in self.peaks(other).items()]
        return (f"One device needs {alone:.1f} MiB at most; with DataParallel "
                f"it is {', '.join(parts)}. {self.fullest(self.peaks(other))}")

    @staticmethod
    def fullest(peaks):
        most = max(peaks, key=peaks.get)
        least = min(peaks, key=peaks.get)
        if peaks[least] <= 0:
            return f"Only {most} needs any."
        ratio = peaks[most] / peaks[least]
        if ratio <= EVEN:
            return "They are equally full."
        return f"{most} is the fullest, {ratio:.1f} times {least}."

    def value_same_digest(self, *blocks):
        digests = {self.digest(block) for block in blocks}
        short = sorted(digest[:12] for digest in digests)
        if len(digests) == 1:
            return f"The digests are equal: `{short[0]}...`."
        return f"The digests differ: {', '.join(f'`{d}...`' for d in short)}."

    # Comparisons.

    def value_says(self, block):
        """What `compare` says of its own tables."""
        text = self.output(block)
        if "What this says\n" not in text:
            raise Unknown(f"{block} says nothing")
        lines = text.split("What this says\n", 1)[1].splitlines()
        items = []
        for line in lines:
            if line.startswith("- "):
                items.append(line)
            elif line.startswith("  ") and items:
                items[-1] += "\n" + line
            else:
                break
        return "\n".join(items)

    def value_says_of(self, block, *words):
        """Those items in which all words are."""
        items = re.split(r"\n(?=- )", self.value_says(block))
        chosen = [item for item in items if all(word in item for word in words)]
        if not chosen:
            raise Unknown(f"{block} says nothing of {' '.join(words)}")
        return " ".join(" ".join(item[2:].split()) for item in chosen)

    def value_loaded(self, path, strategy):
        """Is the first device more loaded than the others?"""
        devices = self.compared(path, strategy)["devices"]
        peaks = {d["name"]: d["memory_peak_bytes"] / 2**20 for d in devices}
        busy = {d["name"]: 100 * d["busy_fraction"] for d in devices}
        first, *others = busy
        gap = busy[first] - max(busy[name] for name in others)
        more = "more" if gap > 3 else "less" if gap < -3 else "as"
        load = {"more": "busier than", "less": "less busy than",
                "as": "as busy as"}[more]
        parts = ", ".join(f"{name} {share:.0f} %"
                          for name, share in busy.items())
        fullest = self.fullest(peaks)
        return (f"Under `{strategy}`, {first} is {load} the others ({parts} of "
                f"a step). In memory {fullest[0].lower()}{fullest[1:]}")

    def value_faster_of(self, path, one, other):
        """Which of two strategies is faster."""
        step = [self.compared(path, name)["step_time_s"]["median"]
                for name in (one, other)]
        ratio = step[1] / step[0]
        kind = verdict(ratio)
        if kind == "level":
            return (f"`{one}` and `{other}` are level ({seconds(step[0])} and "
                    f"{seconds(step[1])} a step).")
        fast, slow = (one, other) if kind == "faster" else (other, one)
        return (f"`{fast}`: {times(max(ratio, 1 / ratio))} as fast as `{slow}` "
                f"({seconds(min(step))} against {seconds(max(step))} a step).")

    def value_scales_better(self, two, three, one, other):
        """Which of two strategies loses less from `two` to `three` devices."""
        change = {name: self.compared(three, name)["step_time_s"]["median"] /
                  self.compared(two, name)["step_time_s"]["median"]
                  for name in (one, other)}
        best = min(change, key=change.get)
        parts = ", ".join(f"that of `{name}` {ratio:.2f} times as long"
                          for name, ratio in change.items())
        return (f"`{best}`: with a device more on the same cores, a step "
                f"becomes: {parts}. Less is better.")

    # Bad links.

    def value_turns_nan(self, block):
        """How a run whose loss is not finite ends."""
        text = self.output(block)
        losses = [f"{float(loss):.4g}" for loss in re.findall(
            r"^step .* loss (\d[\d.e+-]*)", text, re.MULTILINE)]
        if re.search(r"nan|not-finite|not finite|bad-link", text):
            seen = f", after {', '.join(losses[:6])}" if losses else ""
            return f"The loss is not finite{seen}."
        return (f"The loss stays finite ({', '.join(losses[:6])}), and yet is "
                "not that of the good link.")
