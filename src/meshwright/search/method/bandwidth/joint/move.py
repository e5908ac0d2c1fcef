"""Moves single units of a placement, each timed with the network shared out anew for it.

Most moves cannot pay: what is no faster when every pair of hosts has all that its ways can carry is
left out before anything is shared out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.array import Ints, marked
from meshwright.search.instance import Instance
from meshwright.search.method.bandwidth.joint.timing import Bench, Shared

_GAIN = 1e-6
_PASSES = 4
"""Times that all units near the longest path are gone through."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitMoves:
    """The best that was found, and how many moves were timed with rates of their own."""

    shared: Shared
    num_tried: int


def improve_shared(
    bench: Bench, shared: Shared, seed: int, is_over: Callable[[], bool]
) -> UnitMoves:
    """Move or swap units on the longest path and next to it, wherever it is faster."""
    random, most = np.random.default_rng(seed), bench.space.most
    best, tried = shared, 0
    for _ in range(_PASSES):
        before = best
        units = _units_near(bench, best)
        for unit in random.permutation(units).tolist():
            for device_of_unit in _moves(bench.instance, best.placed.device_of_unit, unit, random):
                if is_over():
                    return UnitMoves(shared=best, num_tried=tried)
                limit = best.placed.seconds * (1 - _GAIN)
                hoped = bench.time(device_of_unit, most, best.waits, limit=limit)
                if not hoped.rank <= (best.placed.lacking_bytes, limit):
                    continue
                tried += 1
                found = bench.reallocate(hoped, best.rates, best.waits)
                if found.rank < (best.placed.lacking_bytes, limit):
                    best = found
        if best is before:
            break
    return UnitMoves(shared=best, num_tried=tried)


def _units_near(bench: Bench, shared: Shared) -> Ints:
    """The units of the longest path, and those that exchange tensors with them."""
    instance = bench.instance
    on_path = marked(instance.num_units, instance.unit_of[bench.longest_path(shared)])
    source = instance.unit_of[np.repeat(np.arange(instance.num_ops), np.diff(instance.out_start))]
    target = instance.unit_of[instance.out_edges["op"]]
    near = on_path.copy()
    near[target[on_path[source]]] = True
    near[source[on_path[target]]] = True
    return np.flatnonzero(near).astype(np.int32)


def _moves(
    instance: Instance, device_of_unit: Ints, unit: int, random: np.random.Generator
) -> Iterator[Ints]:
    """The unit on each other device that can run it, and in the place of another unit."""
    can_run = np.isfinite(instance.unit_seconds)
    for device in np.flatnonzero(can_run[unit, instance.type_of]).tolist():
        if device != device_of_unit[unit]:
            moved = device_of_unit.copy()
            moved[unit] = device
            yield moved
    other = int(random.integers(instance.num_units))
    here, there = device_of_unit[unit], device_of_unit[other]
    fits = can_run[unit, instance.type_of[there]] and can_run[other, instance.type_of[here]]
    if here != there and fits:
        swapped = device_of_unit.copy()
        swapped[unit], swapped[other] = there, here
        yield swapped
