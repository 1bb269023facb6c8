"""Builds the program with all mutants, and runs its tests."""

import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile

from . import sites as site_code

LAYERS = ("device", "parallel", "comm")
TARGET = "test_accelerator"


class Failure(Exception):
    """A problem that ends the tool."""


@dataclasses.dataclass
class Outcome:
    """What a run of tests showed."""
    test: str | None  # the first test that failed
    how: str  # "passed", "failed", "hung" or the name of a signal
    output: str


def find_all_sites(root):
    """Returns the numbered sites of all layers."""
    found = []
    for layer in LAYERS:
        for path in sorted((root / "lockstep" / layer).rglob("*")):
            if path.suffix in (".h", ".cc"):
                name = path.relative_to(root).as_posix()
                found += site_code.find_sites(
                    name, path.read_text(encoding="utf-8"))
    for number, site in enumerate(found):
        site.number = number
    return found


def write_if_changed(path, data):
    """Keeps the time of a file that does not change, so that Ninja does not
    build it again."""
    if path.exists() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


class Program:
    """The program with all mutants, in a folder with a copy of the sources."""

    def __init__(self, root, folder):
        self.root = root
        self.folder = folder
        self.source = folder / "source"
        self.build_folder = folder / "build"
        self.path = self.build_folder / "bin" / TARGET

    def copy_sources(self, sites):
        """Copies the user's tree, with its changes, and instruments it."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-co", "--exclude-standard"],
            cwd=self.root, check=True, capture_output=True, text=True).stdout
        names = {name for name in listed.split("\0")
                 if name and (self.root / name).is_file()}
        of_file = {}
        for site in sites:
            if not site.needs_gpu:
                of_file.setdefault(site.file, []).append(site)
        for name in names:
            data = (self.root / name).read_bytes()
            if name in of_file:
                data = site_code.instrument(
                    data.decode("utf-8"), of_file[name]).encode("utf-8")
            write_if_changed(self.source / name, data)
            shutil.copymode(self.root / name, self.source / name)
        write_if_changed(self.source / "lockstep/mutant.h",
                         site_code.HEADER.encode("utf-8"))
        for path in self.source.rglob("*"):
            name = path.relative_to(self.source).as_posix()
            if path.is_file() and name not in names | {"lockstep/mutant.h"}:
                path.unlink()

    def build(self, jobs):
        """Builds the program. Raises Failure if that fails."""
        log = self.folder / "build.log"
        # Make exports variables that are not set as empty ones.
        python = os.environ.get("LOCKSTEP_PYTHON") or (
            self.root / ".venv/bin/python")
        torch = (f"-DTorch_DIR={os.environ['Torch_DIR']}"
                 if os.environ.get("Torch_DIR")
                 else f"-DLOCKSTEP_PYTHON={python}")
        commands = [
            ["cmake", "--preset", "release", "-S", str(self.source),
             "-B", str(self.build_folder), torch, "-DLOCKSTEP_CUDA=OFF",
             "-DLOCKSTEP_BUILD_CLI=OFF", "-DLOCKSTEP_BUILD_BENCH=OFF",
             "-DLOCKSTEP_INSTALL=OFF"],
            ["ninja", "-C", str(self.build_folder), "-j", str(jobs), TARGET]]
        if (self.build_folder / "build.ninja").exists():
            commands = commands[1:]  # Ninja runs CMake when it has to
        with log.open("w", encoding="utf-8") as output:
            for command in commands:
                done = subprocess.run(command, cwd=self.source, check=False,
                                      stdout=output, stderr=subprocess.STDOUT)
                if done.returncode != 0:
                    raise Failure(f"the mutants do not build; see {log}")

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
            outcome = self.run_in(tests, timeout_s, environment)
            if reached is not None and note.exists():
                reached.update(int(line) for line in note.read_text().split())
        return outcome

    def run_in(self, tests, timeout_s, environment):
        child = subprocess.Popen(
            [self.path, f"--gtest_filter={':'.join(tests)}",
             "--gtest_fail_fast"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True)
        try:
            output, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            output, _ = child.communicate()
            how = "hung"
        else:
            how = ("passed" if child.returncode == 0 else
                   "failed" if child.returncode > 0 else
                   signal.Signals(-child.returncode).name)
        text = output.decode("utf-8", "replace")
        return Outcome(None if how == "passed" else failed_test(text), how, text)


def report_of(output):
    """Returns what the first test that failed printed, or the end."""
    found = re.search(r"^\[ RUN      \] (\S+)\n(?:(?!^\[ RUN ).*\n)*?"
                      r"\[  FAILED  \] \1.*", output, re.M)
    return found.group() if found else output[-3000:]


def failed_test(output):
    """Returns the test that failed first, or that did not end."""
    failed = re.search(r"^\[  FAILED  \] (\S+?)(?:,| \()", output, re.M)
    if failed:
        return failed.group(1)
    begun = re.findall(r"^\[ RUN      \] (\S+)", output, re.M)
    return begun[-1] if begun else "the start or the end of the program"
