"""What the loss of hosts has cost a run: steps that were taken again, and where the time went."""

from dataclasses import dataclass
from typing import Any

from meshwright.units import format_count, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLoss:
    """One loss of hosts, and how training went on."""

    hosts: tuple[str, ...]
    cause: str
    """Why the ranks ended, as the launcher said it."""
    known_time: float
    """When it was known which hosts are lost, by the wall clock."""
    step: int
    """The last step that was taken before."""
    plan: str | None
    """The folder of the plan that was run next; None: it was not kept."""
    description: str
    """That plan in words; empty: none fits."""
    predicted_seconds: float | None
    """The predicted step of it; None: there is none."""
    notice_seconds: float
    """From the first sign of it (a rank has ended, or was heard of for the last time) until it was
    known which hosts are lost."""
    stop_seconds: float
    """From then until the ranks of all other hosts had ended."""
    replan_seconds: float
    """From then until there was a plan for the hosts that are left."""
    start_seconds: float | None = None
    """From then until the first step by that plan had been taken; None: none has been."""
    resumed_step: int | None = None
    """The step of the checkpoint that training went on from; 0: it began again."""

    @property
    def repeated_steps(self) -> int | None:
        """How many steps were taken once more."""
        return None if self.resumed_step is None else max(0, self.step - self.resumed_step)

    @property
    def seconds(self) -> float | None:
        """From the loss until training went on; None: it did not."""
        if self.start_seconds is None:
            return None
        known = self.notice_seconds + self.stop_seconds + self.replan_seconds
        return known + self.start_seconds

    def describe_end(self) -> str:
        """How long it took until training went on, in words."""
        assert self.seconds is not None and self.start_seconds is not None
        assert self.resumed_step is not None
        parts = (
            f"{format_seconds(self.notice_seconds)} to notice it",
            f"{format_seconds(self.stop_seconds)} to stop the others",
            f"{format_seconds(self.replan_seconds)} to plan",
            f"{format_seconds(self.start_seconds)} to start",
        )
        return (
            f"training again, {format_seconds(self.seconds)} after {' and '.join(self.hosts)} "
            f"{'was' if len(self.hosts) == 1 else 'were'} lost ({', '.join(parts)}); "
            f"{format_count(self.repeated_steps or 0, 'step')} repeated from step "
            f"{self.resumed_step + 1}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The loss as plain objects, for JSON."""
        return {
            "hosts": list(self.hosts),
            "cause": self.cause,
            "known_time": self.known_time,
            "step": self.step,
            "resumed_step": self.resumed_step,
            "repeated_steps": self.repeated_steps,
            "plan": self.plan,
            "description": self.description,
            "predicted_seconds": self.predicted_seconds,
            "notice_seconds": self.notice_seconds,
            "stop_seconds": self.stop_seconds,
            "replan_seconds": self.replan_seconds,
            "start_seconds": self.start_seconds,
        }
