#!/usr/bin/python3
"""Makes the screenshots in docs/reports.md. Runs the strategies of practicals 5
and 6, makes their report, and opens it in a browser at two widths.

    tools/report_screenshots.py [--bin build/release/bin] [--steps 60]

Needs Debian's chromium, chromium-driver, python3-selenium and python3-pil.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
CHECK = ROOT / "tests" / "tools" / "page" / "browser" / "check_page.py"
# This is enough for a page, and few colours make a small file.
COLOURS = 64
MOST_BYTES = 200_000
# (strategy, devices)
RUNS = (("single", "cpu"), ("dp-classic", "2xcpu"), ("dp", "2xcpu"),
        ("ddp", "2xcpu"))


def train(lockstep, folder, strategy, devices, arguments):
    subprocess.run(
        [lockstep, "train", "--model", arguments.model, "--data", "synthetic",
         "--strategy", strategy, "--devices", devices, "--shards", "2",
         "--batch-size", "32", "--max-steps", str(arguments.steps),
         "--eval-every", str(max(arguments.steps // 4, 1)), "--quiet",
         "--out-dir", folder / strategy],
        check=True, timeout=1800)


def make_small(path):
    from PIL import Image
    picture = Image.open(path).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(
        path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{path} has {size} bytes, of at most {MOST_BYTES}")
    print(path, size, "bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", type=pathlib.Path,
                        default=ROOT / "build" / "release" / "bin")
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    lockstep = arguments.bin / "lockstep"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for strategy, devices in RUNS:
            train(lockstep, folder, strategy, devices, arguments)
        page = folder / "report.html"
        runs = ",".join(str(folder / strategy) for strategy, _ in RUNS)
        subprocess.run([lockstep, "compare", "--runs", runs, "--html", page],
                       check=True, timeout=60)
        IMAGES.mkdir(exist_ok=True)
        subprocess.run([CHECK, "--screenshots", IMAGES / "report", page],
                       check=True, timeout=300)
    for width in (390, 1280):
        make_small(IMAGES / f"report-{width}.png")


if __name__ == "__main__":
    main()
