"""Bounds on contiguous splits by prices of nodes: none is below the best free split."""

from collections.abc import Iterator
from time import perf_counter

from meshwright.search.method.pipeline.stage.downset import Stages
from meshwright.search.method.pipeline.stage.problem import SplitProblem
from solver.free.bound import Bounding
from solver.free.line import line_up

_SHARE = 0.5
"""The part of the time left that is spent on bounds."""
_SLICES = 12
"""Slices that this time is divided into, with a bound after each."""
_IDLE_SLICES = 3
"""Slices in a row without a higher bound after which there is no other."""
_WORK_PER_SECOND = 4e7
"""Units of the bound's work in a second (one core of a server, 2026-11-15)."""
_SECONDS_PER_NODE = 3e-3
"""Seconds that it takes to prepare a node (same machine)."""


def price_bounds(
    problem: SplitProblem, best: Stages, bound_seconds: float, until: float
) -> Iterator[float]:
    """Bounds on the largest load of any split; none where stages may have several replicas."""
    is_free = all(kind.width == 1 and not kind.pool for kind in problem.kinds)
    left = until - perf_counter() - _SECONDS_PER_NODE * problem.num_nodes
    if not is_free or left <= 0:
        return
    bounding = Bounding(problem, line_up(problem), best.seconds)
    work = int(_SHARE * left * _WORK_PER_SECOND / _SLICES)
    idle = 0
    for _ in range(_SLICES):
        if perf_counter() > until or idle == _IDLE_SLICES:
            return
        bounding.run(best.stage_of_node, best.kind_of_stage, work)
        idle = 0 if bounding.seconds > bound_seconds else idle + 1
        bound_seconds = max(bound_seconds, bounding.seconds)
        yield bounding.seconds
