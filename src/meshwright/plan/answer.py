"""What a search says: a plan or none, its value, a proven bound, and why it stopped."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from meshwright.plan.plan import Plan

ROUNDING = 1e-9
"""Relative. Sums in another order differ in the last bits: so far a step may be below its bound."""


class Stop(StrEnum):
    """Why a search stopped, and so what it claims."""

    PROVED = "PROVED"
    """No plan of the kind that was searched is faster."""
    LIMIT = "LIMIT"
    """The method or its time ended; the plan is its best, the bound holds."""
    INFEASIBLE = "INFEASIBLE"
    """No plan that fits was found; `binding` says what is in the way. A proof that none exists only
    where it is the memory bound, as a heuristic may miss one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """Another plan that a search has simulated, and that fits."""

    plan: Plan
    step_seconds: float
    description: str
    """For people, as `meshwright.plan.describe` words it: "tensor 8, pipeline 16, data 8, ..."."""


def is_below(bound: float, step: float) -> bool:
    """Whether a bound is at most a step, but for rounding; below the least normal number that is
    all there is."""
    return bound <= step * (1 + ROUNDING) + sys.float_info.min


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A search's result."""

    method: str
    plan: Plan | None
    step_seconds: float
    """Simulated time of one step under the plan; infinity without one."""
    bound_seconds: float
    """No plan of the kind that was searched can be faster; of `auto`: no plan at all, unless
    `notes` say that it searched one kind only."""
    stop: Stop
    binding: str = ""
    """The constraint that binds and, when nothing fits, the nearest change that would."""
    search_seconds: float = 0.0
    peak_bytes: tuple[float, ...] = ()
    """Predicted peak of each device."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Counts of the search: evaluations, accepted moves, ..."""
    runner_ups: tuple[RunnerUp, ...] = ()
    """The next best plans of other degrees, the fastest first, where the search keeps them."""
    notes: tuple[str, ...] = ()
    """What else is worth knowing, a line each: which methods were left out, and why."""

    def __post_init__(self) -> None:
        # No assert, which -O leaves out: a false proof must never reach anybody.
        if self.plan is not None and not is_below(self.bound_seconds, self.step_seconds):
            raise AssertionError(
                f"{self.method}: a plan of {self.step_seconds!r} s is faster than what was proven "
                f"to be impossible, {self.bound_seconds!r} s"
            )

    @property
    def gap(self) -> float:
        """How far above the bound the plan may be: step / bound - 1."""
        if self.plan is None or self.bound_seconds <= 0:
            return float("inf") if self.step_seconds > 0 else 0.0
        return max(0.0, self.step_seconds / self.bound_seconds - 1)
