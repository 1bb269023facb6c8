"""Runs the tests of torch.distributed that torch ships, over Gloo or over Lockstep.

usage: torch_distributed_tests.py gloo|lockstep [--ranks N] [-k PATTERN]... [--json FILE]

Needs torch 2.15, numpy and expecttest (pip install expecttest). Many of the tests are
skipped unless the backend is called gloo, so Lockstep's backend takes that name here.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import unittest

parser = argparse.ArgumentParser()
parser.add_argument("over", choices=["gloo", "lockstep"])
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("-k", action="append", default=[], metavar="PATTERN")
parser.add_argument("--json", metavar="FILE")
options = parser.parse_args()

# torch's module reads these when it is imported.
os.environ["WORLD_SIZE"] = str(options.ranks)
os.environ["BACKEND"] = "gloo"
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())

from torch.distributed import Backend  # noqa: E402
from torch.testing._internal.distributed.distributed_test import (  # noqa: E402
    DistributedTest,
    TestDistBackend,
)


class TorchTests(TestDistBackend, DistributedTest._DistTestBase):
    """Runs each test on ranks that are forks of this process."""

    def setUp(self):
        super().setUp()
        self._start_processes(multiprocessing.get_context("fork").Process)


class Results(unittest.TextTestResult):
    """Collects the outcome of each test by name."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.outcomes = {}

    def note(self, test, outcome):
        self.outcomes[test.id().split(".")[-1]] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "passed")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "failed")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")


def main():
    if options.over == "lockstep":
        import lockstep

        def create(rank, backend_options):
            return lockstep._module().make_backend(
                rank.store, rank.group_rank, rank.group_size, rank.timeout, name="gloo"
            )

        Backend.register_backend("gloo", create, extended_api=True,
                                 devices=["cpu", "cuda"])
    loader = unittest.TestLoader()
    if options.k:
        loader.testNamePatterns = [f"*{pattern}*" for pattern in options.k]
    suite = loader.loadTestsFromTestCase(TorchTests)
    runner = unittest.TextTestRunner(resultclass=Results, verbosity=2)
    outcomes = runner.run(suite).outcomes
    for outcome in ("passed", "failed", "skipped"):
        count = sum(found == outcome for found in outcomes.values())
        print(f"{options.over}: {count} {outcome}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(outcomes, file, indent=1, sort_keys=True)


if __name__ == "__main__":
    main()
