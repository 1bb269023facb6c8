"""The outcome of a case."""

import dataclasses


def seconds(value):
    return "–" if value is None else f"{value:.2f}"


@dataclasses.dataclass
class Outcome:
    """The times count from the fault. None means that it did not happen."""

    fault: str
    phase: str
    detected_s: float | None = None
    said: str = ""
    recovered_s: float | None = None
    done_s: float | None = None  # all agents have ended
    steps_again: int | None = None
    commands: int = 0
    restarts: int = 0  # by the agent
    waited: bool = False  # the other workers waited for the one that failed
    codes: tuple = ()
    problem: str = ""

    def gone_on_by(self):
        """Returns how the run continued."""
        if self.commands > 1:
            return "command"
        if self.restarts:
            return "rank" if self.waited else "restart"
        return "itself"

    def end_cells(self):
        """Returns the last cells of a row."""
        codes = ", ".join("?" if c is None else str(c) for c in self.codes)
        return self.gone_on_by(), codes, self.problem or "same"

    def cells(self):
        """Returns a row of the table of phases."""
        again = "–" if self.steps_again is None else str(self.steps_again)
        return (self.phase.replace("start", "start-up"),
                seconds(self.detected_s), seconds(self.recovered_s), again,
                *self.end_cells())

    def network_cells(self):
        """Returns one launcher's part of a row of the table of two nodes."""
        return (seconds(self.recovered_s), seconds(self.done_s),
                *self.end_cells())
