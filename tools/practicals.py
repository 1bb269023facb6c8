#!/usr/bin/env python3
"""Fills the pages of docs/practicals with the output of their commands.

    practicals.py --bin DIR [--examples DIR] [--data-dir DIR] [PAGE ...]
    practicals.py --check

A page has blocks and values. Each follows a comment that describes it:

    <!-- run NAME [keep=FIRST,LAST] [timeout=SECONDS] [terminal] [fails]
    the command, as bash reads it
    -->
    ```
    $ the command, and what it printed
    ```

    A step takes <!-- value step NAME -->12 ms<!-- /value -->.

Without --check, the commands of each page run in a separate folder, and blocks
and values are replaced. Long outputs are cut to their first and last lines, and
a line says how many are left out. `beside=NAME` runs a command while that of
the block NAME is running. With --check, nothing runs. Then each block must be
filled and show its command, and no measured number may be outside of a value.
tools/check/pages.py checks the options of `lockstep` in all pages.
"""

import argparse
import pathlib
import sys
import tempfile

from practical_pages import check, pages, runner, values

ROOT = pathlib.Path(__file__).resolve().parents[1]


def fill(page, options):
    """Runs the commands of a page and writes the results into it."""
    with tempfile.TemporaryDirectory(prefix="practicals-") as folder:
        place = runner.Place(folder, ROOT, options.bin, options.examples,
                             options.data_dir, options.scale)
        text = pages.fill_blocks(page.read_text(encoding="utf-8"), place.run)
        known = values.Values(place.outputs, pathlib.Path(folder))
        text = pages.fill_values(text, known.of)
    beside = page.with_suffix(".new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true",
                        help="run nothing: look whether the pages are in order")
    parser.add_argument("--bin", type=pathlib.Path,
                        default=ROOT / "build/release/bin",
                        help="where lockstep is")
    parser.add_argument("--examples", type=pathlib.Path,
                        default=ROOT / "build/release/examples/bin",
                        help="where the programs of examples/ are")
    parser.add_argument("--data-dir", type=pathlib.Path,
                        help="a folder with CIFAR-10's *.bin files")
    parser.add_argument("--scale", type=float, default=1,
                        help="times the deadline of each command")
    parser.add_argument("pages", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    found = options.pages or sorted((ROOT / "docs/practicals").glob("*.md"))
    if options.check:
        findings = [f"{page.name}: {finding}" for page in found
                    for finding in check.findings(page, ROOT)]
        print("\n".join(findings) or "[practicals] ok")
        sys.exit(1 if findings else 0)
    for page in found:
        print(f"[practicals] {page.name}", flush=True)
        fill(page, options)


if __name__ == "__main__":
    try:
        main()
    except (runner.Failed, values.Unknown) as error:
        sys.exit(f"[practicals] {error}")
