"""What the search for a mapping says, and why there may be none."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meshwright.array import Floats
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.map.match import match_slots
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem
from meshwright.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingAnswer:
    """The best assignment and a proven bound."""

    assignment: Assignment | None
    stage_seconds: Floats
    """The time of each slot, in seconds; empty without an assignment."""
    seconds: float
    """The largest of them, which is minimised; infinite without an assignment."""
    bound_seconds: float
    """No assignment is faster."""
    stop: Stop
    reason: str = ""
    """Why there is no assignment."""
    search_seconds: float = 0.0
    is_interrupted: bool = False
    """Whether Ctrl-C ended the search."""
    statistics: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far above the bound the assignment may be: seconds / bound - 1."""
        if self.stop is Stop.PROVED or self.seconds <= self.bound_seconds:
            return 0.0
        return self.seconds / self.bound_seconds - 1 if self.bound_seconds > 0 else float("inf")


def find_reason(problem: MappingProblem) -> str:
    """Why no assignment exists; empty when one does."""
    if problem.num_places > problem.num_devices:
        return _too_few(problem)
    can_run = np.isfinite(problem.seconds[:, problem.type_of_device])
    for slot in range(problem.num_slots):
        wanted = int(problem.replicas_of_slot[slot])
        able = int(can_run[slot].sum())
        if able < wanted:
            return f"stage {slot} has {wanted:,} replicas, but only {able:,} devices can run it"
        fits = int(np.isfinite(problem.compute[slot]).sum())
        if fits < wanted:
            needed = float(problem.memory_bytes[slot])
            largest = float(problem.device_memory_bytes[can_run[slot]].max())
            return (
                f"stage {slot} needs {format_bytes(needed)} on each of {wanted:,} devices, but it "
                f"fits on {fits} (the largest that can run it has {format_bytes(largest)})"
            )
    missing = match_slots(np.isfinite(problem.compute), problem.replicas_of_slot)[1]
    if missing:
        return f"{missing} stage replicas get no device that runs them and holds their memory"
    return ""


def _too_few(problem: MappingProblem) -> str:
    replicas = np.unique(problem.replicas_of_slot)
    if len(replicas) == 1:
        wanted = f"{problem.num_slots:,} stages x {replicas[0]:,} replicas"
    else:
        wanted = f"{problem.num_slots:,} stages of {replicas[0]} to {replicas[-1]:,} replicas"
    return f"{wanted} = {problem.num_places} need more than the {problem.num_devices:,} devices"
