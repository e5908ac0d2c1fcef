"""The part of a scope that is near some plans: their widths, halved and doubled."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.search.method.hybrid.scope import Scope, divisors

_WIDTHS = ("tensor", "context", "expert")


def near_scope(graph: Graph, scope: Scope, starts: Sequence[Plan]) -> Scope:
    """The scope with widths of teams and numbers of microbatches within twice and half of those of
    some plans; replicas, stages, ZeRO and recomputation stay as open as they were, since they have
    to take up what devices come or go."""
    if not starts:
        return scope
    near = {
        name: _near(getattr(scope, name), {getattr(part, name) for part in each.parts})
        for each in starts[:1]
        for name in _WIDTHS
    }
    used = {plan.schedule.microbatches if plan.schedule else 1 for plan in starts}
    batch = int(graph.batch)
    counts = [
        each for each in divisors(batch) if any(each <= 2 * one and one <= 2 * each for one in used)
    ]
    allowed = tuple(each for each in counts if not scope.microbatches or each in scope.microbatches)
    return replace(scope, microbatches=allowed or scope.microbatches, **near)


def _near(limits: Sequence[int], used: Iterable[int]) -> tuple[int, ...]:
    """Of the widths that are allowed (none: all) those near the ones that are used."""
    wanted = sorted({width for one in used for width in (one // 2, one, 2 * one) if width >= 1})
    kept = tuple(width for width in wanted if not limits or width in limits)
    return kept or tuple(limits)
