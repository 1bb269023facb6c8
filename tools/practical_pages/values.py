"""The values of a page: sentences and tables made from what its commands printed.

The function value_x() below makes the value `x`. Its arguments are the names of
blocks. The sentences fit any outcome of the measurement.
"""

import json
import os
import re

LEVEL = 0.03  # speeds that differ by less are called equal
EVEN = 1.05   # memory peaks with a smaller ratio are called equal


class Unknown(Exception):
    """A value can't be made from the output of the commands."""


def found(pattern, text, what):
    """Returns the groups of the first match, or raises Unknown."""
    match = re.search(pattern, text, re.MULTILINE)
    if not match:
        raise Unknown(f"no {what} in:\n{text[-1000:]}")
    return match.groups()


def seconds(number):
    """Formats a duration as the programs do."""
    for limit, factor, unit in ((1e-3, 1e6, "us"), (1, 1e3, "ms")):
        if number < limit:
            return f"{number * factor:.3g} {unit}"
    return f"{number:.3g} s"


def times(ratio):
    return f"{ratio:.2f} times"


def verdict(ratio):
    """Says whether something that is `ratio` times as fast is faster."""
    if ratio > 1 + LEVEL:
        return "faster"
    return "slower" if ratio < 1 - LEVEL else "level"


class Values:
    """Makes values from the outputs of blocks and the files that they wrote."""

    def __init__(self, outputs, folder):
        self.outputs = outputs
        self.folder = folder

    def of(self, name, *arguments):
        """Returns the value `name` of a page."""
        make = getattr(self, "value_" + name, None)
        if make is None:
            raise Unknown(f"there is no value '{name}'")
        return make(*arguments)

    # Parts of the output of a block.

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
        """Returns the memory peak of each device in MiB, by name."""
        return {name: float(mib) for name, mib in re.findall(
            r"^(\S+) memory peak: ([\d.]+) MiB", self.output(block),
            re.MULTILINE)}

    def shards(self, block):
        """Returns the samples of each shard in the first step."""
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
        """Returns a strategy's report in a file of `compare --report`."""
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
                f"{self.value_step(other)} per step compared with "
                f"{self.value_step(single)}.")

    def value_proportional(self, single, other):
        devices = len(self.peaks(other))
        ratio = self.step_s(single) / self.step_s(other)
        share = 100 * ratio / devices
        answer = "Yes" if share > 95 else "No"
        text = (f"{answer}: proportional to {devices} devices would mean "
                f"{devices} times as fast, and this is {share:.0f} % of that.")
        if next(iter(self.peaks(other))).startswith("cpu"):
            text += (" However, the single run also uses the cores of these "
                     "slices, so no speedup can be expected here.")
        return text

    def value_memory(self, single, other):
        alone = max(self.peaks(single).values())
        parts = [f"{name} {mib:.1f} MiB"
                 for name, mib in self.peaks(other).items()]
        return (f"The single device needs at most {alone:.1f} MiB. With "
                f"DataParallel, the peaks are {', '.join(parts)}. "
                f"{self.fullest(self.peaks(other))}")

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
        """Returns what `compare` says about its own tables."""
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
        """Returns the items that contain all words."""
        items = re.split(r"\n(?=- )", self.value_says(block))
        chosen = [item for item in items if all(word in item for word in words)]
        if not chosen:
            raise Unknown(f"{block} says nothing of {' '.join(words)}")
        return " ".join(" ".join(item[2:].split()) for item in chosen)

    def value_loaded(self, path, strategy):
        """Says whether the first device has more load than the others."""
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
        return (f"With `{strategy}`, {first} is {load} the other devices "
                f"({parts} of a step). In memory, "
                f"{fullest[0].lower()}{fullest[1:]}")

    def value_faster_of(self, path, one, other):
        """Says which of two strategies is faster."""
        step = [self.compared(path, name)["step_time_s"]["median"]
                for name in (one, other)]
        ratio = step[1] / step[0]
        kind = verdict(ratio)
        if kind == "level":
            return (f"`{one}` and `{other}` are equally fast "
                    f"({seconds(step[0])} and {seconds(step[1])} per step).")
        fast, slow = (one, other) if kind == "faster" else (other, one)
        return (f"`{fast}` is {times(max(ratio, 1 / ratio))} as fast as "
                f"`{slow}` ({seconds(min(step))} per step compared with "
                f"{seconds(max(step))}).")

    def fixed_share(self, path, strategy):
        """Returns the part of a step that is neither forward nor backward."""
        run = self.compared(path, strategy)
        computing = run["phases_s"]["forward"] + run["phases_s"]["backward"]
        return 1 - computing / run["step_time_s"]["mean"]

    def value_scales_better(self, two, three, *names):
        """Says with which of two strategies more devices cost less.

        A step with a third slice takes longer with each strategy, because the
        slices share the same cores.
        """
        step = {name: self.compared(three, name)["step_time_s"]["median"]
                for name in names}
        best, worst = sorted(names, key=step.get)
        fixed = {name: seconds(self.fixed_share(two, name) *
                               self.compared(two, name)["step_time_s"]["mean"])
                 for name in names}
        return (f"`{best}`: with one more device on the same cores, a step takes "
                f"{seconds(step[best])}, and with `{worst}` "
                f"{seconds(step[worst])}. More devices do not shorten what is "
                f"neither forward nor backward: {fixed[best]} of a step on two "
                f"devices with `{best}`, {fixed[worst]} with `{worst}`.")

    # Bad links.

    def value_turns_nan(self, block):
        """Says how the loss of a run over a bad link developed."""
        text = self.output(block)
        losses = [f"{float(loss):.4g}" for loss in re.findall(
            r"^step .* loss (\d[\d.e+-]*)", text, re.MULTILINE)]
        if re.search(r"nan|not-finite|not finite|bad-link", text):
            seen = f" after {', '.join(losses[:6])}" if losses else ""
            return f"The loss becomes non-finite{seen}."
        return (f"The loss stays finite ({', '.join(losses[:6])}), but differs "
                "from that of the good link.")
