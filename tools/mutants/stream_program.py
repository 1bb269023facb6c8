"""Builds the program with all mutants, and runs its tests."""

import hashlib
import os
import pathlib
import re
import subprocess
import tempfile

from . import stream_sites, test_run
from .source_copy import SourceCopy

LAYERS = ("device", "parallel", "comm")
TARGET = "test_accelerator"


def find_all_sites(root):
    """Returns the numbered sites of all layers."""
    found = []
    for layer in LAYERS:
        for path in sorted((root / "lockstep" / layer).rglob("*")):
            if path.suffix in (".h", ".cc"):
                name = path.relative_to(root).as_posix()
                found += stream_sites.find_sites(
                    name, path.read_text(encoding="utf-8"))
    for number, site in enumerate(found):
        site.number = number
    return found


class Program:
    """The program with all mutants, in a folder with a copy of the sources."""

    def __init__(self, root, folder):
        self.root = root
        self.folder = folder
        self.copy = SourceCopy(root, folder)
        self.path = self.copy.build_folder / "bin" / TARGET

    def copy_sources(self, sites):
        """Copies the user's tree, with its changes, and instruments it."""
        file_error = {}
        for site in sites:
            if not site.needs_gpu:
                file_error.setdefault(site.file, []).append(site)
        changed = {name: stream_sites.instrument(
            (self.root / name).read_text(encoding="utf-8"), in_file)
            for name, in_file in file_error.items()}
        self.copy.write(changed | {"lockstep/mutant.h": stream_sites.HEADER})

    def build(self, jobs):
        """Builds the program. Raises Failure if that fails."""
        self.copy.build(["-DLOCKSTEP_BUILD_CLI=OFF"], [TARGET], jobs)

    def digest(self):
        """Returns a checksum of the program."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()

    def tests(self, pattern):
        """Returns the names of the tests that match `pattern`."""
        listed = subprocess.run(
            [self.path, "--gtest_list_tests", f"--gtest_filter={pattern}"],
            check=True, capture_output=True, text=True).stdout
        names = []
        suite = ""
        for line in listed.splitlines():
            word = line.split("#")[0].rstrip()
            if re.fullmatch(r"\S+\.", word):
                suite = word
            elif re.fullmatch(r"  \S+", word) and suite:
                names.append(suite + word.strip())
        return names

    def run(self, tests, seed, timeout_s, site=None, reached=None):
        """Runs tests until one fails, without a site if it is given. With
        `reached`, the numbers of the sites that were reached are added."""
        environment = dict(os.environ, SIM_SEED=str(seed))
        environment.pop("MUTANT_SITE", None)
        if site is not None:
            environment["MUTANT_SITE"] = str(site)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            note = pathlib.Path(folder, "reached")
            if reached is not None:
                environment["MUTANT_REACHED"] = str(note)
            outcome = test_run.run(
                [self.path, f"--gtest_filter={':'.join(tests)}",
                 "--gtest_fail_fast"], environment, timeout_s)
            if reached is not None and note.exists():
                reached.update(int(line) for line in note.read_text().split())
        return outcome
