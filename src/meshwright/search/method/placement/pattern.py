"""Finds units that are alike, and moves all of a kind at once.

Deep networks repeat their layers: what is right for one value projection is right for the others.
A walk that moves them one by one must find that a hundred times; here one try moves them all. Units
are alike if they compute and exchange the same with units that are alike, some steps far (the
refinement of Weisfeiler and Lehman, 1968). A step without repetition has kinds of one unit each,
and loses nothing but the time to find that out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints, Longs
from meshwright.kernel.word import Words, mix_words
from meshwright.search.instance import Instance
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk

_ROUNDS = 3
"""How far units that are alike must have neighbours that are alike."""
_LEAST_UNITS = 4
"""A kind of no fewer units than these is worth a move of its own."""
_MOST_KINDS = 48
"""Kinds with the most time come first; the others are left to the walk."""

_NEAR = 2
"""Devices next to an anchor's that are tried."""
_PASSES = 6


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kinds:
    """Units of each kind that is worth moving, by falling time, and each unit's anchor."""

    units: tuple[Ints, ...]
    pairs: tuple[Ints, ...]
    """Units of two kinds that exchange tensors, by falling bytes."""
    anchors: tuple[Ints, ...]
    """What each unit reads most from, and what reads most from it; the unit itself where there is
    none."""


def find_kinds(instance: Instance) -> Kinds:
    """The repeated kinds of units of an instance."""
    ops = np.repeat(np.arange(instance.num_ops), np.diff(instance.out_start))
    source, target = instance.unit_of[ops], instance.unit_of[instance.out_edges["op"]]
    is_cut = source != target
    source, target, size = source[is_cut], target[is_cut], instance.out_edges["bytes"][is_cut]
    word = _words(instance.unit_bytes)
    for column in instance.unit_seconds.T:  # one after the other: types are not alike
        word = mix_words(word) ^ _words(column)
    weight = _words(size)
    for _ in range(_ROUNDS):
        near = np.zeros(instance.num_units, np.uint64)  # of neighbours, by direction and bytes
        np.add.at(near, source, mix_words(word[target] ^ weight))
        np.add.at(near, target, mix_words(~word[source] ^ weight))
        word = mix_words(word + near)
    _, inverse, counts = np.unique(word, return_inverse=True, return_counts=True)
    seconds = np.where(np.isfinite(instance.unit_seconds), instance.unit_seconds, 0.0)
    total = np.bincount(inverse, weights=seconds.sum(axis=1), minlength=len(counts))
    chosen = [
        int(kind) for kind in np.argsort(-total, kind="stable") if counts[kind] >= _LEAST_UNITS
    ][:_MOST_KINDS]
    kind_of = inverse.astype(np.int64)
    by_kind = np.argsort(inverse, kind="stable").astype(np.int32)
    start = np.concatenate(([0], np.cumsum(counts)))
    members = {kind: by_kind[start[kind] : start[kind + 1]] for kind in chosen}
    return Kinds(
        units=tuple(members.values()),
        pairs=tuple(_pairs(members, kind_of[source], kind_of[target], size)),
        anchors=(
            _find_anchors(word, source, target, size, instance.num_units),
            _find_anchors(word, target, source, size, instance.num_units),
        ),
    )


def _pairs(
    members: dict[int, Ints], source: Longs, target: Longs, size: npt.NDArray[np.float64]
) -> Iterator[Ints]:
    """The units of kinds that exchange most with each other."""
    count = max(members, default=0) + 1
    is_known = np.isin(source, list(members)) & np.isin(target, list(members)) & (source != target)
    low = np.minimum(source[is_known], target[is_known]).astype(np.int64)
    key, inverse = np.unique(
        low * count + np.maximum(source[is_known], target[is_known]), return_inverse=True
    )
    moved = np.bincount(inverse, weights=np.maximum(size[is_known], 0.0), minlength=len(key))
    for pair in key[np.argsort(-moved, kind="stable")][:_MOST_KINDS].tolist():
        yield np.concatenate((members[pair // count], members[pair % count]))


def sweep_kinds(
    walk: PlacementWalk, placed: Placed, kinds: Kinds, is_over: Callable[[], bool]
) -> Placed:
    """Move kinds to where a neighbour is, or to the next devices to that, wherever it is faster.

    One kind after the other, then pairs of kinds that exchange tensors; until a whole pass finds
    nothing, or for some passes.
    """
    near = _nearest(walk.instance)
    best = placed
    for number in range(_PASSES):
        before = best.rank
        for units in kinds.units if number % 2 == 0 else kinds.pairs:
            for moved in _targets(walk.instance, best.device_of_unit, units, kinds.anchors, near):
                if is_over():
                    return best
                tried = walk.time(moved, limit=best.seconds if best.lacking_bytes == 0 else np.inf)
                if tried.rank < best.rank:
                    best = tried
        if number > 0 and best.rank == before:
            break
    return best


def _targets(
    instance: Instance, device_of_unit: Ints, units: Ints, anchors: tuple[Ints, ...], near: Ints
) -> Iterator[Ints]:
    """Placements with the units at their anchors' devices, or at the next devices to those."""
    can_run = np.isfinite(instance.unit_seconds)
    seen = {device_of_unit[units].tobytes()}
    for anchor in anchors:
        device = device_of_unit[anchor[units]]
        for step in range(min(_NEAR + 1, instance.num_devices)):
            target = device if step == 0 else near[device, step - 1]
            if target.tobytes() in seen or not can_run[units, instance.type_of[target]].all():
                continue
            seen.add(target.tobytes())
            moved = device_of_unit.copy()
            moved[units] = target
            yield moved


def _nearest(instance: Instance) -> Ints:
    """The other devices of each device, the nearest first; of equals the next in number."""
    num = instance.num_devices
    numbers = np.arange(num)
    rows = []
    for device in range(num):
        others = np.delete(numbers, device)
        turn = (others - device) % num
        there, back = instance.bandwidth[device, others], instance.bandwidth[others, device]
        rows.append(others[np.lexsort((turn, 1.0 / there + 1.0 / back))])
    # As wide as devices of units: `_targets` compares bytes.
    return np.array(rows, np.int32).reshape(num, max(0, num - 1))


def _words(values: npt.NDArray[np.float64]) -> Words:
    """The bits of numbers, well mixed."""
    return mix_words(np.ascontiguousarray(values, np.float64).view(np.uint64))


def _find_anchors(
    word: Words, source: Ints, target: Ints, size: npt.NDArray[np.float64], num_units: int
) -> Ints:
    anchor = np.arange(num_units, dtype=np.int32)
    # The last one written stands: that of the most bytes, of equals the one with the largest word,
    # so that units that are alike have anchors that are alike.
    order = np.lexsort((source, word[source], size))
    anchor[target[order]] = source[order]
    return anchor
