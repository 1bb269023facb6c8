"""Runs bin/sim_lockstep and bin/lockstep, for the tests in this folder."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
DEADLINE_S = 200

# Slices then compute with one thread and the layout of devices.
ONE_THREAD = ("--intra-op-threads", "1")
PLAIN_LAYOUT = ("--channels-last", "off")


class Programs:
    """The folder of the built programs."""
    bin = ROOT / "build/release/bin"

    @classmethod
    def path(cls, on_devices):
        return str(cls.bin / ("sim_lockstep" if on_devices else "lockstep"))


def environment(extra):
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("SIM_")}
    return {**kept, **extra}


def ended(*words, on_devices=True, cwd=None, **extra):
    """Runs the program to its end. `extra` is added to the environment."""
    return subprocess.run([Programs.path(on_devices), *map(str, words)],
                          cwd=cwd, capture_output=True, text=True, check=False,
                          timeout=DEADLINE_S, env=environment(extra))


def run(*words, **options):
    """Returns the output of a program that has to succeed."""
    done = ended(*words, **options)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout}"
                             f"{done.stderr}")
    return done.stdout


def digest(output):
    found = re.findall(r"parameter_sha256 ([0-9a-f]{64})", output)
    if not found:
        raise AssertionError(f"no digest in:\n{output}")
    return found[-1]


def devices_of(words):
    return words[words.index("--devices") + 1]


def train(*words, **options):
    """Returns the output of a short run. There may be more slices than cores."""
    has_slices = devices_of(words).endswith("cpu")
    more = ("--oversubscribe",) if has_slices else ()
    return run("train", *words, *ONE_THREAD, *more, on_devices=not has_slices,
               **options)


def read_json(path):
    return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))


class FolderTest(unittest.TestCase):
    """A test with a temporary folder, which is the working directory of its
    programs."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="sim-lockstep-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def train(self, *words, **options):
        return train(*words, cwd=self.folder, **options)

    def run_program(self, *words, **options):
        return run(*words, cwd=self.folder, **options)
