"""Reads a trace as strictly as the Trace Event Format is written, and prints
what is in it, a line a rank:

    rank 0: steps 3-5; lanes main, cpu:0; spans step x3, forward x6

https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

import collections
import json
import math
import sys

FIELDS = {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"}
ORDER = {"process_sort_index", "thread_sort_index"}


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def refuse_twins(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), f"a key is there twice: {names}"
    return dict(pairs)


def is_whole(value):
    return isinstance(value, int) and not isinstance(value, bool)


def check_metadata(event, names):
    kind = event["name"]
    assert is_whole(event["pid"]), event
    value = event["args"][{"process_labels": "labels"}.get(
        kind, "sort_index" if kind in ORDER else "name")]
    assert is_whole(value) if kind in ORDER else value, event
    place = (event["pid"], event.get("tid"))
    assert (kind, place) not in names, f"named twice: {event}"
    names[kind, place] = value


def check_span(event):
    assert set(event) <= FIELDS and set(event) >= FIELDS - {"args"}, event
    assert isinstance(event["name"], str) and event["name"], event
    assert isinstance(event["cat"], str) and event["cat"], event
    for key in ("ts", "dur"):
        value = event[key]
        assert isinstance(value, (int, float)), event
        assert math.isfinite(value) and value >= 0, event
    assert is_whole(event["pid"]) and is_whole(event["tid"]), event


def check_nesting(spans):
    """Of two spans of a lane one is in the other, or they don't meet."""
    whole_ns = sorted((round(e["ts"] * 1e3), -round(e["dur"] * 1e3), e["name"])
                      for e in spans)
    open_ends = []
    for begin, minus_duration, name in whole_ns:
        end = begin - minus_duration
        while open_ends and open_ends[-1] <= begin:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{name} at {begin} ns"
        open_ends.append(end)


def check_simultaneous(steps):
    """No rank ends a step before all have begun it."""
    for spans in steps.values():
        latest = max(event["ts"] for event in spans)
        assert all(e["ts"] + e["dur"] > latest for e in spans), spans


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        trace = json.load(file, parse_constant=refuse_constant,
                          object_pairs_hook=refuse_twins)
    assert trace["displayTimeUnit"] == "ms"
    names, lanes = {}, collections.defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "M":
            check_metadata(event, names)
        else:
            assert event["ph"] == "X", event
            check_span(event)
            lanes[event["pid"], event["tid"]].append(event)
    for (rank, lane), spans in lanes.items():
        for kind in ("process_name", "process_sort_index"):
            assert (kind, (rank, None)) in names, f"{rank} has no {kind}"
        for kind in ("thread_name", "thread_sort_index"):
            assert (kind, (rank, lane)) in names, f"{lane} has no {kind}"
        check_nesting(spans)
    steps = collections.defaultdict(list)
    for spans in lanes.values():
        for event in spans:
            if event["cat"] == "step":
                steps[event["args"]["index"]].append(event)
    check_simultaneous(steps)
    for rank in sorted({rank for rank, _ in lanes}):
        own = [e for (r, _), spans in lanes.items() if r == rank for e in spans]
        steps = sorted(e["args"]["index"] for e in own if e["cat"] == "step")
        assert steps == list(range(steps[0], steps[-1] + 1)), steps
        rank_lanes = sorted(l for r, l in lanes if r == rank)
        counts = collections.Counter(e["name"] for e in own)
        print(f"rank {rank}: steps {steps[0]}-{steps[-1]}; lanes "
              + ", ".join(names["thread_name", (rank, l)] for l in rank_lanes)
              + "; spans "
              + ", ".join(f"{n} x{counts[n]}" for n in sorted(counts)))


if __name__ == "__main__":
    main()
