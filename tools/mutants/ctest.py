"""Lists the tests of a build, and runs one of them."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import tempfile

from . import test_run
from .source_copy import Failure

# Labels of the tests that judge, in the order in which their tiers do.
TIERS = ("quick", "full")
# As tools/run_tests.sh has it, unless the variables are set.
ENVIRONMENT = {"OMP_WAIT_POLICY": "passive",
               "RES_OPTIONS": "timeout:1 attempts:1"}
# Tests of the sources, of their copy and of an installation. No mutant changes
# what they look at.
NO_JUDGE = re.compile(r"^(sources|consumption|api|recipes)\.")


@dataclasses.dataclass(frozen=True)
class Test:
    name: str
    tier: str
    command: tuple
    folder: str
    timeout_s: float
    passes_with: str | None  # what the output has to match

    @property
    def is_gtest(self):
        return any(word.startswith("--gtest_filter=") for word in self.command)

    def of_case(self, case):
        """Returns a test of one case of a suite."""
        if not self.is_gtest or not re.fullmatch(r"\S+\.\S+", case):
            return self
        return dataclasses.replace(
            self, command=(self.command[0], f"--gtest_filter={case}"))


def tests_of(build_folder, tiers):
    """Returns the tests of `tiers`, each suite of a program separately."""
    done = subprocess.run(
        ["ctest", "--test-dir", str(build_folder), "--show-only=json-v1"],
        env=dict(os.environ, LOCKSTEP_TEST_SUITES="1"), check=False,
        capture_output=True, text=True)
    if done.returncode != 0:
        raise Failure(f"ctest lists no tests: {done.stderr}")
    tests = []
    for listed in json.loads(done.stdout)["tests"]:
        properties = {one["name"]: one["value"] for one in listed["properties"]}
        labels = set(properties.get("LABELS", []))
        tier = next((tier for tier in tiers if tier in labels), None)
        if tier is None or NO_JUDGE.search(listed["name"]):
            continue
        if "command" not in listed:
            raise Failure(f"the program of the test {listed['name']} is not "
                          "built")
        tests.append(Test(
            name=listed["name"], tier=tier, command=tuple(listed["command"]),
            folder=properties.get("WORKING_DIRECTORY", str(build_folder)),
            timeout_s=float(properties.get("TIMEOUT", 600)),
            passes_with="|".join(
                properties.get("PASS_REGULAR_EXPRESSION", [])) or None))
    return tests


def run(test, variables, timeout_s):
    """Runs a test until its first failure, with a folder for its files."""
    command = list(test.command)
    if test.is_gtest:
        command.append("--gtest_fail_fast")
    with tempfile.TemporaryDirectory(prefix="lockstep-mutant-") as folder:
        os.chmod(folder, 0o755)  # some tests read as another user
        outcome = test_run.run(
            command, ENVIRONMENT | os.environ | {"TMPDIR": folder} | variables,
            timeout_s, test.folder)
    if test.passes_with and outcome.how in ("passed", "failed"):
        is_passed = re.search(test.passes_with, outcome.output) is not None
        outcome.how = "passed" if is_passed else "failed"
    if not test.is_gtest and outcome.how != "passed":
        outcome.test = test.name
    return outcome


class Digests:
    """Checksums of the files that tests consist of."""

    def __init__(self):
        self.file_error = {}

    def of(self, test):
        """Returns a checksum of the program and scripts of a test."""
        whole = hashlib.sha256("\0".join(test.command).encode())
        for word in test.command:
            path = pathlib.Path(word)
            if not path.is_absolute() or not path.is_file():
                continue
            if path not in self.file_error:
                self.file_error[path] = hashlib.sha256(
                    path.read_bytes()).hexdigest()
            whole.update(self.file_error[path].encode())
        return whole.hexdigest()
