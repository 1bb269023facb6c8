"""The faults of the table: what each one does, and how a run must continue."""

import dataclasses

PHASES = ("start", "forward", "backward", "all-reduce", "checkpoint",
          "evaluate")

# How a run continues, and the exit codes of its commands, with one for each
# agent of a command.
ITSELF = ("itself", (0,))
RANK = ("rank", (0,))
RESTART = ("restart", (0,))
PREEMPTED = ("command", (75, 0))
AGENT_KILLED = ("command", (-9, 0))

# A fault that hits while a rank starts leaves no rank that could wait.
WAITS = "1 starts again, 1 waits for it"

# Over tcp, the memory of the agent has the state of the steps in which the ranks
# compared it.
OVER_TCP = ("--backend", "tcp", "--verify-every", "1")


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault. Its place is a phase of one rank."""

    name: str
    # What the faulty program does; "ask": tools/faults.py does it from outside.
    kind: str
    # How the run continues, and how it continues after a fault at the start.
    ends: tuple
    ends_at_start: tuple = RESTART
    # A line of the agents or ranks must match this regular expression. At the
    # start, the words are different.
    says: str = ""
    phases: tuple = PHASES
    # The phases that CI tests. The others are tested every night.
    full: tuple = ()
    rank: int = 1
    times: int = 1
    two_nodes: bool = False
    needs_root: bool = False
    options: tuple = ()  # more options of `lockstep train`

    def expected(self, phase):
        """Returns how the run continues, and the exit codes."""
        return self.ends_at_start if phase == "start" else self.ends


CHECKPOINT = ("checkpoint",)

FAULTS = {fault.name: fault for fault in (
    Fault("kill -9", "kill", RANK, says=WAITS, full=PHASES),
    Fault("kill -9 of rank 0", "kill", RANK, says=WAITS, rank=0,
          phases=("start", "backward", "checkpoint")),
    Fault("kill -9 over tcp", "kill", RANK, says=WAITS, options=OVER_TCP,
          phases=("backward", "all-reduce")),
    Fault("kill -9 of rank 0 over tcp", "kill", RANK, says=WAITS, rank=0,
          options=OVER_TCP, phases=("all-reduce",), full=("all-reduce",)),
    # A program that fails at the same step three times is given up. A kill
    # proves nothing about the program.
    Fault("three kills", "kill", RANK, says="3 failures survived", times=3,
          phases=("backward",)),
    Fault("both ranks killed", "ask", RESTART, phases=("all-reduce",),
          says="resumed from memory: step 6 "),
    Fault("kill -9 with rare snapshots", "kill", RANK, phases=("forward",),
          options=("--snapshot-every", "5"),
          says="resumed from memory: step 5 "),
    Fault("kill -9, no descriptors", "ask", RANK, phases=("forward",),
          says=r"Too many open files \(this process may have 3 open\)"),
    Fault("SIGSTOP", "stop", RANK, says="the process is stopped",
          full=("all-reduce",)),
    Fault("SIGTERM", "term", PREEMPTED, full=("checkpoint",),
          says="the job was preempted, and can continue"),
    Fault("SIGUSR1", "usr1", PREEMPTED, phases=("backward",),
          says="the job was preempted, and can continue"),
    Fault("SIGTERM to the agent", "ask", PREEMPTED, phases=("backward",),
          says="the job was preempted, and can continue"),
    Fault("SIGUSR1 to the agent", "ask", PREEMPTED, phases=("backward",),
          says="the job was preempted, and can continue"),
    Fault("exit 1", "exit", RANK, says=WAITS),
    Fault("exception", "throw", RANK, says=WAITS, full=("backward",)),
    Fault("out of memory", "oom", RANK, says=WAITS),
    Fault("slow rank", "slow", ITSELF, ITSELF),
    Fault("agent killed", "ask", AGENT_KILLED, AGENT_KILLED),
    Fault("rendezvous host killed", "ask", ("command", (-9, 1, 0, 0)),
          ("command", (-9, 1, 0, 0)), two_nodes=True, full=("backward",)),
    Fault("cut link", "ask", ("command", (1, 1, 0, 0)),
          ("command", (1, 1, 0, 0)), two_nodes=True, needs_root=True),
    Fault("full disk", "ask", ITSELF, phases=CHECKPOINT, needs_root=True),
    Fault("torn checkpoint", "ask", AGENT_KILLED, phases=CHECKPOINT,
          full=CHECKPOINT),
)}


def all_cases():
    """Yields pairs of a fault's name and a phase."""
    for fault in FAULTS.values():
        for phase in fault.phases:
            yield fault.name, phase


def slug(fault, phase):
    """Returns the name of a case in tests and for --only: "kill-9@backward"."""
    words = fault.replace(",", "").replace(" -", "-").replace(" ", "-")
    return f"{words}@{phase}"


def tier(fault, phase):
    """Returns when a case is tested: "full" (by CI) or "nightly"."""
    return "full" if phase in FAULTS[fault].full else "nightly"
