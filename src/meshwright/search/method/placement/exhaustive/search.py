"""The best placement and order of a step of few ops, by looking at all of them.

Every co-location group on every device, and on every device every order of its ops, is counted:
first placements with their bounds, then, best bound first, the orders of each. What bounds rule out
is not walked. The simulator times complete orders and counts their memory (`exhaustive_leaf`).

Other disciplines have nothing to add: what a device runs first-in-first-out or by priority is some
order of its ops, and with that order fixed every op starts no later.

Under sharing "fair" times without sharing are bounds: a transfer takes its latency and then at most
the rate that it has alone; and with the order of every device fixed, a start is the latest of some
finishes, so that nothing gets earlier when a transfer takes longer. That does not hold for memory,
which depends on what happens at the same time: there only buffers count that are held whatever the
times are.
"""

import math
from dataclasses import dataclass

import numpy as np

from meshwright.array import Ints
from meshwright.errors import InputError
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, order_plan
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.placement.exhaustive.bound import (
    MAX_PLACEMENTS,
    PlacementProblem,
    list_placements,
    state_problem,
)
from meshwright.search.method.placement.exhaustive.leaf import place
from meshwright.search.method.placement.exhaustive.order import Best, search_orders

MAX_OPS = 64
"""Long before that there are too many orders."""
_NEAR = 1e-9
"""Relative. The simulator adds up in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhausted:
    """What was found, and whether that is all."""

    device_of_op: Ints | None
    """None: nothing better than the incumbent was found, or nothing that can run."""
    order: Ints | None
    """All ops; each device runs its own in this order."""
    verdict: Verdict | None
    """The simulator's. Where nothing fits: of the plan that lacks the least memory."""
    is_complete: bool
    """Whether every plan was counted. Then one that fits is the best, one that does not fit the
    proof that none does, and none at all that the incumbent is the best."""
    num_nodes: int
    """Beginnings of orders that were looked at."""


def exhaust(
    instance: Instance,
    *,
    sharing: str = "fair",
    incumbent_seconds: float = math.inf,
    clock: Clock | None = None,
) -> Exhausted:
    """Search all placements and orders for one that is faster than a plan that is known to fit.

    `incumbent_seconds` is that plan's time; infinity: none is known. Gives up when
    the time is over, and at once where there are too many ops or placements to try.
    """
    if instance.num_ops == 0:
        raise InputError(f"graph {instance.graph.name}: must have ops to place, got none")
    lack = 0.0 if incumbent_seconds < math.inf else math.inf
    best = Best(seconds=incumbent_seconds, lack_bytes=lack, clock=clock or Clock())
    is_complete = (
        instance.num_ops <= MAX_OPS and instance.num_devices**instance.num_units <= MAX_PLACEMENTS
    )
    if is_complete:
        is_complete = _search(state_problem(instance, sharing), best)
    verdict = None
    if best.order:
        plan = order_plan(instance, best.device, best.order)
        verdict = try_plan(instance.graph, instance.cluster, plan, sharing)
        is_complete = is_complete and _agrees(verdict, best)
    return Exhausted(
        device_of_op=np.array(best.device, np.int32) if verdict else None,
        order=np.array(best.order, np.int32) if verdict else None,
        verdict=verdict,
        is_complete=is_complete,
        num_nodes=best.num_nodes,
    )


def _search(problem: PlacementProblem, best: Best) -> bool:
    """Improve the best by the orders of every placement; returns whether all were counted."""
    rows, bounds, is_whole = list_placements(problem, best.seconds, best.clock)
    for row, (lack, seconds) in zip(rows, bounds.tolist(), strict=True):
        if not best.is_beaten_by(lack, seconds):
            break  # nor by those that follow, which lack or else take more
        search_orders(place(problem, row.tolist()), best)
        if best.is_late:
            return False
    return is_whole


def _agrees(verdict: Verdict, best: Best) -> bool:
    """Whether the simulator says what the search says; a proof stands on that."""
    is_near = math.isclose(verdict.step_seconds, best.seconds, rel_tol=_NEAR)
    most = max(verdict.peak_bytes)
    return is_near and abs(verdict.missing_bytes - best.lack_bytes) <= _NEAR * most
