"""Runs the dynamic programme over downsets under rising limits.

The lower the limit, the less is left to look at; a limit without a split is a proven bound.
"""

import math
from dataclasses import dataclass
from time import perf_counter

from meshwright.array import Ints
from meshwright.search.method.pipeline.stage.downset import Chains
from meshwright.search.method.pipeline.stage.lattice import Lattice
from meshwright.search.method.pipeline.stage.problem import SplitProblem

ROUNDING = 1e-9
"""Relative: by how much sums in another order may differ."""
TOLERANCE = 1e-10
"""Relative: splits that are better by less than this are not looked for."""

_STEPS = (0.02, 0.06, 0.15, 0.4, 1.0, 3.0)
"""How far above the bound the limit is set, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stages:
    """A split of a problem's nodes."""

    stage_of_node: Ints
    kind_of_stage: tuple[int, ...]
    seconds: float
    """The largest load."""


class Rise:
    """The search among the downsets of one lattice; what it knows stays when it is interrupted."""

    def __init__(
        self,
        problem: SplitProblem,
        lattice: Lattice,
        until: float,
        *,
        most_seconds: float = math.inf,
        bound_seconds: float = 0.0,
    ) -> None:
        """Look for splits below `most_seconds`; `bound_seconds` are proven already."""
        self._chains, self._until = Chains(problem, lattice), until
        self.bound_seconds = max(bound_seconds, self._chains.first_bound)
        """No split of this lattice is below, or none that is below `most_seconds`."""
        self.best: Stages | None = None
        self._most = most_seconds
        self.ceiling_seconds = _largest_load(problem)
        """No split is above."""
        self._first = self.bound_seconds

    @property
    def stages_seen(self) -> int:
        """Stages that were looked at."""
        return self._chains.stages_seen

    def run(self) -> None:
        """Search until the best split is proved or the time is up."""
        most = min(self._most * (1 - TOLERANCE), self.ceiling_seconds)
        for step in (*_STEPS, math.inf):
            limit = min(self._first * (1 + step), most) if self._first > 0 else most
            if limit < self.bound_seconds:
                continue
            if not self.search(limit):
                return
            if self.best is not None or limit >= most:
                self.bound_seconds = self.best.seconds if self.best is not None else self._most
                return
            self.bound_seconds = max(self.bound_seconds, limit)

    def search(self, limit: float, most_work: int | None = None) -> bool:
        """Look for the best split of loads up to a limit; whether it came to an end, which it does
        not where the time is up or more stages than `most_work` were looked at."""
        self._chains.start()
        last = None if most_work is None else self.stages_seen + most_work
        is_done = False
        while not is_done:
            is_done = self._chains.advance(limit)
            is_late = perf_counter() > self._until or (last is not None and self.stages_seen > last)
            if is_late and not is_done:
                break
        seconds, stage_of_node, kind_of_stage = self._chains.result()
        if seconds < (self.best.seconds if self.best is not None else math.inf):
            self.best = Stages(
                stage_of_node=stage_of_node, kind_of_stage=kind_of_stage, seconds=seconds
            )
        return is_done


def _largest_load(problem: SplitProblem) -> float:
    """What no device's load can exceed."""
    wires = float(problem.wire_seconds.sum())
    loads = [
        float(kind.seconds[kind.seconds < math.inf].sum()) + kind.wire_share * wires
        for kind in problem.kinds
    ]
    return (1 + ROUNDING) * max(loads)
