"""Node 0 of two is killed and started again, in all phases of a job and with
different times until node 1 is back.
"""

import dataclasses

from fault_table import cases
from fault_table.faults import (BOTH_KILLED, DEFAULT_CONF, HOST_KILLED, LOST,
                                PHASES, Fault)

BACKENDS = ("static", "c10d")
LONGEST_S = 8.0


@dataclasses.dataclass(frozen=True)
class Restart:
    """One row of the table."""

    phase: str
    node_1_before: str  # what the old agent of node 1 does: "ends", "killed"
    node_1_after_s: float

    def fault(self, backend):
        ends = BOTH_KILLED if self.node_1_before == "killed" else HOST_KILLED
        return Fault(f"node 0 restarted, {backend}", "ask", ends, ends,
                     phases=(self.phase,), two_nodes=True, rendezvous=backend,
                     conf=DEFAULT_CONF, node_1_after_s=self.node_1_after_s,
                     node_1_before=self.node_1_before,
                     says=LOST if ends == HOST_KILLED else "")


def plan(count):
    """Returns `count` restarts: the times are spread evenly, and each phase has
    both ends of node 1 in turn.
    """
    return [Restart(PHASES[number % len(PHASES)],
                    ("ends", "killed")[(number + number // len(PHASES)) % 2],
                    LONGEST_S * number / max(1, count - 1))
            for number in range(count)]


def run_restarts(programs, count, digest, verbose):
    """Runs all restarts. Returns pairs of a restart and its outcomes by
    rendezvous.
    """
    results = []
    for number, restart in enumerate(plan(count), 1):
        outcomes = {}
        for backend in BACKENDS:
            outcome, lines = cases.run_case(programs, restart.fault(backend),
                                            restart.phase, digest)
            outcomes[backend] = outcome
            print(f"[faults] {number}/{count} {outcome.fault}, node 1 "
                  f"{restart.node_1_before}, {restart.node_1_after_s:.1f} s "
                  "later:", " | ".join(outcome.cells()), flush=True)
            if outcome.problem or verbose:
                print("\n".join(f"    {at:.3f} {text}" for at, text in lines))
        results.append((restart, outcomes))
    return results
