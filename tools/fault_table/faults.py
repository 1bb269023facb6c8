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
# Jobs with two nodes.
BOTH_ITSELF = ("itself", (0, 0))
BOTH_RESTART = ("restart", (0, 0))
# The agent that serves the store is lost. The other one says that the job can
# continue.
HOST_KILLED = ("command", (-9, 75, 0, 0))
BOTH_KILLED = ("command", (-9, -9, 0, 0))
NETWORK_LOST = ("command", (75, 75, 0, 0))

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
    # For two nodes.
    rendezvous: str = "static"
    conf: str = "keep_alive_interval=1,keep_alive_max_attempt=3"
    # The agent of node 1 reaches the store over a forwarder that delays
    # everything by this time. None: there is no forwarder.
    delay_s: float | None = None
    # The forwarder resets its connections.
    is_reset: bool = False
    # Time for which the network carries nothing, or the agent is stopped.
    lasts_s: float = 0
    # The hosts whose packets are lost meanwhile.
    silent: tuple = (0, 1)
    # When the agent of node 1 is started again, after that of node 0. None: node
    # 0 is not started again.
    node_1_after_s: float | None = None
    # The old agent of node 1 then: "left" as it is, "killed" with kill -9 before
    # that time, or "ends" by itself, and the time counts from its end.
    node_1_before: str = "left"

    @property
    def is_of_network(self):
        """Whether the fault is in the table of two nodes, not in that of the
        phases.
        """
        return self.two_nodes and self.phases == ("all-reduce",)

    def expected(self, phase):
        """Returns how the run continues, and the exit codes."""
        return self.ends_at_start if phase == "start" else self.ends


CHECKPOINT = ("checkpoint",)
LOST = "the job lost a node or its network, and can continue"
DEFAULT_CONF = "keep_alive_interval=5,keep_alive_max_attempt=3"
PATIENT_CONF = "keep_alive_interval=20,keep_alive_max_attempt=3"
# A rank's own timeout must be longer than a hole.
PATIENT_RANKS = ("--timeout", "60")


def restarts():
    """Yields faults in which node 0 is lost and comes back at its address."""
    for backend in ("static", "c10d"):
        for delay_s in (0, 2, 8):
            yield Fault(f"node 0 restarted, node 1 {delay_s} s later, {backend}",
                        "ask", HOST_KILLED, two_nodes=True,
                        phases=("all-reduce",), rendezvous=backend,
                        conf=DEFAULT_CONF, node_1_after_s=delay_s, says=LOST,
                        full=("all-reduce",) if delay_s == 2 else ())


def network_faults():
    """Yields faults of the network between two nodes that it survives, and one
    that lasts longer than the agents wait.
    """
    common = {"kind": "ask", "two_nodes": True, "phases": ("all-reduce",),
              "conf": DEFAULT_CONF, "options": PATIENT_RANKS}
    for backend in ("static", "c10d"):
        agents = {**common, "delay_s": 0.0, "rendezvous": backend}
        yield Fault(f"agents' link reset, {backend}", ends=BOTH_ITSELF,
                    is_reset=True, **{**agents, "full": ("all-reduce",)})
        yield Fault(f"agents' link slow, {backend}", ends=BOTH_ITSELF,
                    **{**agents, "delay_s": 0.2})
        yield Fault(f"agents' slow link reset, {backend}", ends=BOTH_ITSELF,
                    is_reset=True, **{**agents, "delay_s": 0.2})
        for seconds in (2, 5, 10):
            yield Fault(f"agents' link silent for {seconds} s, {backend}",
                        ends=BOTH_ITSELF, **agents, lasts_s=seconds)
        yield Fault(f"agents' link silent for 30 s, {backend}",
                    ends=NETWORK_LOST, **agents, lasts_s=30, says=LOST)
        yield Fault(f"agents' link silent for 30 s, 60 s allowed, {backend}",
                    ends=BOTH_ITSELF, lasts_s=30,
                    **{**agents, "conf": PATIENT_CONF})
    yield Fault("agents' link silent one way for 5 s", ends=BOTH_ITSELF,
                **common, delay_s=0.0, lasts_s=5, silent=(0,))
    yield Fault("kill -9 while the agents' link is silent", ends=BOTH_RESTART,
                **common, delay_s=0.0, lasts_s=5)
    yield Fault("agent of node 0 stopped for 7 s", ends=BOTH_ITSELF, **common,
                lasts_s=7)
    yield Fault("ranks' link reset", ends=BOTH_RESTART,
                **{**common, "options": (*OVER_TCP, *PATIENT_RANKS)})
    hosts = {**common, "needs_root": True,
             "options": (*OVER_TCP, *PATIENT_RANKS)}
    for seconds in (2, 5, 10):
        yield Fault(f"no packets for {seconds} s", ends=BOTH_ITSELF, **hosts,
                    lasts_s=seconds)
    yield Fault("no packets one way for 5 s", ends=BOTH_ITSELF, **hosts,
                lasts_s=5, silent=(1,))
    yield Fault("no packets for 30 s", ends=NETWORK_LOST, **hosts, lasts_s=30,
                says=LOST)
    yield Fault("no packets for 30 s, 60 s allowed", ends=BOTH_ITSELF,
                lasts_s=30, **{**hosts, "conf": PATIENT_CONF})


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
    Fault("rendezvous host killed", "ask", HOST_KILLED, HOST_KILLED,
          two_nodes=True, says=LOST, full=("backward",)),
    *restarts(),
    Fault("cut link", "ask", NETWORK_LOST, NETWORK_LOST, two_nodes=True,
          says=LOST, needs_root=True),
    *network_faults(),
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
    words = words.replace("'", "")
    return f"{words}@{phase}"


def tier(fault, phase):
    """Returns when a case is tested: "full" (by CI) or "nightly"."""
    return "full" if phase in FAULTS[fault].full else "nightly"
