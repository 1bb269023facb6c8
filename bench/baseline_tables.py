"""Tables in Markdown of what bench/baseline.py records, and comparisons of two."""

import collections
import statistics

# Rows of the longest tables.
MOST_ROWS = 30
# Tests whose CPU time is below this are too short for a ratio.
SHORT_TEST_S = 1.0


def table(columns, rows):
    """Returns the lines of a table. All columns but the first one are numbers."""
    return ["", "| " + " | ".join(columns) + " |",
            "|---|" + "--:|" * (len(columns) - 1),
            *("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)]


def machine_table(report):
    machine = report["machine"]
    rows = [("commit", report["revision"][:12]), ("began", report["began"]),
            ("processor", machine["processor"]), ("cores", machine["cores"]),
            ("flags", " ".join(machine["flags"]) or "none"),
            ("torch", machine["torch"])]
    if "old_revision" in report:
        rows.insert(1, ("old commit", report["old_revision"][:12]))
    rows += [(f"load before {section}", " ".join(f"{each:.1f}" for each in load))
             for section, load in report["loads"].items()]
    return table(("machine", ""), rows)


def digest_table(digests):
    rows = []
    for name, found in digests.items():
        same = len(set(found.values())) == 1
        shown = (next(iter(found.values()))[:16] if same else ", ".join(
            f"{strategy} {digest[:8]}" for strategy, digest in found.items()))
        rows.append((name, len(found), "same" if same else "different", shown))
    return table(("digests", "strategies", "are", "first digits"), rows)


def cell_table(name, unit, found):
    """Returns a table of the medians of rounds, with old/new if both builds ran."""
    new, old = found["new"], found.get("old")
    columns, rows = [name, f"median ({unit})", "lowest", "highest"], []
    if old:
        columns += [f"old ({unit})", "old / new"]
    for cell, values in new.items():
        row = [cell, *(f"{each:.4g}" for each in
                       (statistics.median(values), min(values), max(values)))]
        if old and cell in old:
            row += [f"{statistics.median(old[cell]):.4g}",
                    f"{round_ratio(old[cell], values):.2f}"]
        elif old:
            row += ["-", "-"]
        rows.append(row)
    return table(columns, rows)


def round_ratio(old, new):
    """Returns the median of old / new over the rounds, which ran side by side."""
    return statistics.median(a / b for a, b in zip(old, new))


def sums(rows):
    """Returns the columns of a group of tests."""
    results = collections.Counter(row["result"] for row in rows)
    good = results.pop("passed", 0)
    skipped = results.pop("skipped", 0)
    return (len(rows), good, skipped, sum(results.values()),
            f"{sum(row.get('wall_s', 0) for row in rows):.0f}",
            f"{sum(row.get('cpu_s', 0) for row in rows):.0f}")


def test_tables(tests):
    rows = tests["rows"]
    columns = ("tests", "passed", "skipped", "failed", "time (s)", "CPU (s)")
    groups = {"by label": lambda name, row: " ".join(row["labels"]) or "none",
              "by prefix": lambda name, row: name.split(".")[0],
              "at the same time": lambda name, row:
                  "alone" if row["serial"] else f"{tests['jobs']} at a time"}
    lines = []
    for title, key in groups.items():
        found = collections.defaultdict(list)
        for name, row in rows.items():
            found[key(name, row)].append(row)
        lines += table((title, *columns), [(name, *sums(each))
                                           for name, each in sorted(found.items())])
    lines.append("| all | " + " | ".join(map(str, sums(rows.values()))) + " |")
    longest = sorted(rows.items(), key=lambda item: item[1].get("cpu_s", 0),
                     reverse=True)[:MOST_ROWS]
    lines += table(("largest CPU time", "label", "result", "time (s)", "CPU (s)",
                    "memory (MB)"),
                   [(name, " ".join(row["labels"]), row["result"],
                     f"{row.get('wall_s', 0):.1f}", f"{row.get('cpu_s', 0):.1f}",
                     f"{row.get('peak_bytes', 0) / 1e6:.0f}") for name, row in longest])
    bad = [(name, row["result"], "timed out" if row.get("timed_out") else
            row.get("error", f"exit code {row.get('exit_code')}"))
           for name, row in rows.items() if row["result"] not in ("passed", "skipped")]
    if bad:
        lines += table(("did not pass", "result", "why"), bad)
    left = [(name, row["left_behind"]) for name, row in rows.items()
            if row.get("left_behind")]
    if left:
        lines += table(("left processes behind", "number"), left)
    return lines


def build_table(build):
    lines = table(("build", ""), [
        ("steps", build["steps"]), ("compilations", build["compilations"]),
        ("sum of the steps (s)", f"{build['sum_s']:.0f}"),
        ("from the first to the last (s)", f"{build['wall_s']:.0f}")])
    return lines + table(("slowest steps", "time (s)"),
                         [(step["outputs"][0], f"{step['seconds']:.1f}")
                          for step in build["slowest"]])


def tables(report):
    """Returns the lines of all tables of a baseline."""
    lines = machine_table(report)
    if "digests" in report:
        lines += digest_table(report["digests"])
    if "bench" in report:
        lines += cell_table("all-reduce, bytes", "us", report["bench"])
    if "compare" in report:
        lines += cell_table("step", "ms", report["compare"])
    if report.get("tests", {}).get("rows"):
        lines += test_tables(report["tests"])
    if "build" in report:
        lines += build_table(report["build"])
    return lines


def digest_changes(old, new):
    """Returns the digests of both baselines that differ: (name, strategy)."""
    return [(name, strategy)
            for name, found in new.get("digests", {}).items()
            for strategy, digest in found.items()
            if old.get("digests", {}).get(name, {}).get(strategy, digest) != digest]


def common_digests(old, new):
    """Returns how many digests both baselines have."""
    return sum(strategy in old.get("digests", {}).get(name, {})
               for name, found in new.get("digests", {}).items() for strategy in found)


def problems(old, new):
    """Returns why a baseline is not as it must be: an error for each reason."""
    found = []
    for name, digests in new.get("digests", {}).items():
        if len(set(digests.values())) > 1:
            found.append(f"the strategies of {name} have different digests; expected "
                         f"one, got {digests}; find the first step that differs: "
                         "lockstep train --log-every 1")
    changes = digest_changes(old, new)
    if changes:
        found.append(f"{len(changes)} digests changed; expected those of --against, "
                     f"got others for {', '.join(' '.join(each) for each in changes)}; "
                     "run both builds on one machine, then look for the change")
    if old and "digests" in new and not common_digests(old, new):
        found.append("no digest was compared; expected digests in --against, got none "
                     "of the same model; run the section digests in both")
    return found


def cell_comparison(name, old, new):
    rows = []
    for cell, values in new["new"].items():
        if cell in old["new"]:
            before, after = map(statistics.median, (old["new"][cell], values))
            rows.append((cell, f"{before:.4g}", f"{after:.4g}",
                         f"{before / after:.2f}"))
    return table((name, "before", "now", "before / now"), rows)


def test_comparison(old, new):
    """Returns tables of the tests: what changed its result, and the largest changes."""
    before, now = old["rows"], new["rows"]
    common = [name for name in now if name in before]
    lines = table(("tests", "before", "now"), [
        ("number", len(before), len(now)),
        ("in both", len(common), len(common)),
        *((f"{what} of all (s)",
           *(f"{sum(row.get(key, 0) for row in rows.values()):.0f}"
             for rows in (before, now)))
          for what, key in (("time", "wall_s"), ("CPU time", "cpu_s"))),
        ("CPU time of those in both (s)",
         *(f"{sum(rows[name].get('cpu_s', 0) for name in common):.0f}"
           for rows in (before, now)))])
    changed = [(name, before[name]["result"], now[name]["result"]) for name in common
               if before[name]["result"] != now[name]["result"]]
    if changed:
        lines += table(("other result", "before", "now"), changed)
    cpu = [(name, before[name].get("cpu_s", 0), now[name].get("cpu_s", 0))
           for name in common]
    cpu = sorted((each for each in cpu if max(each[1:]) >= SHORT_TEST_S),
                 key=lambda each: abs(each[1] - each[2]), reverse=True)[:MOST_ROWS]
    return lines + table(
        ("largest changes of CPU time", "before (s)", "now (s)", "before / now"),
        [(name, f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}" if b else "-")
         for name, a, b in cpu])


def comparison(old, new):
    """Returns the lines that compare a baseline with an earlier one."""
    count, changes = common_digests(old, new), digest_changes(old, new)
    lines = table(("against the baseline of", old["began"]), [
        ("processor", "same" if old["machine"]["processor"] ==
         new["machine"]["processor"] else "different"),
        ("digests that are the same", f"{count - len(changes)} of {count}")])
    for name in ("bench", "compare"):
        if name in old and name in new:
            lines += cell_comparison(name, old[name], new[name])
    if old.get("tests", {}).get("rows") and new.get("tests", {}).get("rows"):
        lines += test_comparison(old["tests"], new["tests"])
    if "build" in old and "build" in new:
        rows = [(what, f"{old['build'][key]:.0f}", f"{new['build'][key]:.0f}")
                for what, key in (("steps", "steps"), ("sum of the steps (s)", "sum_s"),
                                  ("from the first to the last (s)", "wall_s"))]
        lines += table(("build", "before", "now"), rows)
    return lines
