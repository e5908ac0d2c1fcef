"""The best placement and order of a step of few ops, by looking at all of them.

Every co-location group on every device, and on every device every order of its ops, is counted:
first placements with their bounds, then, best bound first, the orders of each. What bounds rule out
is not walked; the simulator judges every complete order that is left, and knows the rules.

Other disciplines have nothing to add: what a device runs first-in-first-out or by priority is some
order of its ops, and with that order fixed every op starts no later.
"""

import math

from meshwright.errors import InputError
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance
from meshwright.search.method.placement.exhaustive.bound import list_placements
from meshwright.search.method.placement.exhaustive.order import Exhausted, walk_orders

MAX_PLACEMENTS = 2**21
"""Some ten seconds' worth, and 100 MB; three devices and thirteen ops have fewer."""
MAX_OPS = 64
"""Long before that there are too many orders."""


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
    best = Exhausted(
        instance=instance,
        sharing=sharing,
        seconds=incumbent_seconds,
        lack_bytes=lack,
        clock=clock or Clock(),
    )
    num_placements = instance.num_devices**instance.num_units
    if instance.num_ops <= MAX_OPS and num_placements <= MAX_PLACEMENTS:
        best.is_complete = _search(best)
    return best


def _search(best: Exhausted) -> bool:
    """Improve the best by the orders of every placement; returns whether all were counted."""
    rows, bounds, is_whole = list_placements(best.instance, best.sharing, best.seconds, best.clock)
    for row, (lack, seconds) in zip(rows, bounds.tolist(), strict=True):
        if not best.is_beaten_by(lack, seconds):
            break  # nor by those that follow, which lack or else take more
        walk_orders(best, row.tolist(), lack, seconds)
        if best.is_late:
            return False
    return is_whole
