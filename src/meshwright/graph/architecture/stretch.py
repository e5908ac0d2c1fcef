"""Makes a step of many layers from one of three: the middle layer is repeated.

Layers are alike op by op, and what they read is of the layer itself, of a neighbour or of what all
layers share, so copies need no new shapes: columns are repeated and references are moved along.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Longs, count_up, places_in
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.column import OP_SIZES

RECORDED_LAYERS = 3
_FIRST, _MIDDLE, _LAST = range(RECORDED_LAYERS)
_SHARED = -1
"""The layer of what belongs to none."""


def stretch(columns: dict[str, Any], tape: StepTape, layers: int) -> dict[str, Any]:
    """The columns of `layers` layers, from those of the tape's three."""
    ops = _Copies(_find_layers(tape), layers)
    source = columns["tensor_source"]
    tensors = _Copies(ops.recorded[source], layers)
    use_tensor, use_op = _copy_uses(columns["use_tensor"], columns["use_op"], ops, tensors)
    texts = ("names", "kind", "precision")
    of_op = (*OP_SIZES, "phase", "split")
    of_tensor = ("tensor_bytes", "fixed_tensor_bytes", "tensor_partial")
    return {
        **{name: tuple(columns[name][place] for place in ops.origin) for name in texts},
        "module": _rename(columns["module"], ops, tape.stem),
        **{name: columns[name][ops.origin] for name in of_op},
        "group": _copy_groups(columns["group"], ops),
        "partner": _copy_partners(columns["partner"], ops),
        **{name: columns[name][tensors.origin] for name in of_tensor},
        "tensor_source": ops.place(source[tensors.origin], tensors.layer).astype(np.int32),
        "use_tensor": use_tensor.astype(np.int32),
        "use_op": use_op.astype(np.int32),
    }


def _find_layers(tape: StepTape) -> Longs:
    """The layer of each kernel."""
    layer = np.full(len(tape.kernels), _SHARED)
    for marks in (tape.forward_marks, tape.backward_marks[::-1], tape.update_marks):
        assert len(marks) == RECORDED_LAYERS + 1
        for number in range(RECORDED_LAYERS):
            first, second = sorted(marks[number : number + 2])
            layer[first:second] = number
    return layer


class _Copies:
    """Things in order, of which runs belong to a recorded layer, and where their copies stand."""

    def __init__(self, recorded: Longs, layers: int) -> None:
        self.recorded, self.layers = recorded, layers
        self._alike = _match_layers(recorded)
        starts = np.flatnonzero(np.diff(recorded, prepend=-2, append=-2))
        origin, layer = [], []
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
            for number in self._numbers(start):
                origin.append(np.arange(start, stop))
                layer.append(np.full(stop - start, number))
        self.origin: Longs = np.concatenate(origin)
        """What each is a copy of."""
        self.layer: Longs = np.concatenate(layer)
        """The layer that each is in now."""
        keys = self._key(self.origin, self.layer)
        self._order = np.argsort(keys)
        self._keys = keys[self._order]

    def _numbers(self, start: int) -> Sequence[int]:
        """The layers that a run stands for, in order; backward begins with the last."""
        recorded = self.recorded[start]
        if recorded == _MIDDLE:
            middle = range(1, self.layers - 1)
            return middle[::-1] if self.recorded[start - 1] == _LAST else middle
        return [self.layers - 1 if recorded == _LAST else int(recorded)]

    def _key(self, origin: Longs, layer: Longs) -> Longs:
        return origin * (self.layers + 1) + layer + 1

    def place(self, recorded: Longs, layer: Longs) -> Longs:
        """Where, in each of these layers, that stands which is like a recorded thing."""
        kind = np.where(layer == 0, _FIRST, np.where(layer == self.layers - 1, _LAST, _MIDDLE))
        origin = np.where(layer == _SHARED, recorded, self._alike[kind, recorded])
        return self._order[np.searchsorted(self._keys, self._key(origin, layer))]

    def seen_from(self, targets: Longs, recorded: Longs, layer: Longs) -> Longs:
        """The layers of `targets`, for things of `recorded` layers that are in `layer` now."""
        of_target = self.recorded[targets]
        last = self.layers - 1
        is_at_end = (of_target == _LAST) | (recorded == _LAST)
        moved = np.where(is_at_end, last + of_target - _LAST, of_target)
        moved = np.where(recorded == _MIDDLE, layer + of_target - _MIDDLE, moved)
        return np.where(of_target == _SHARED, _SHARED, moved)


def _match_layers(recorded: Longs) -> Longs:
    """For each recorded layer and each thing: the thing of that layer that is like it."""
    table = np.tile(np.arange(len(recorded)), (RECORDED_LAYERS, 1))
    runs = []
    for number in range(RECORDED_LAYERS):
        places = np.flatnonzero(recorded == number)
        runs.append(np.split(places, np.flatnonzero(np.diff(places) > 1) + 1))
    for alike in zip(*runs, strict=True):  # forward, backward, updates
        for each in alike:
            table[:, each] = alike
    return table


def _copy_uses(
    use_tensor: Longs, use_op: Longs, ops: _Copies, tensors: _Copies
) -> tuple[Longs, Longs]:
    """Every copy of an op reads what stands to it as what the op read."""
    by_op = np.argsort(use_op, kind="stable")
    counts = np.bincount(use_op, minlength=len(ops.recorded))
    first = np.cumsum(counts) - counts
    reader = np.repeat(np.arange(len(ops.origin)), counts[ops.origin])
    use = by_op[first[ops.origin][reader] + count_up(counts[ops.origin])]
    target = use_tensor[use]
    layer = tensors.seen_from(target, ops.recorded[ops.origin][reader], ops.layer[reader])
    tensor = tensors.place(target, layer)
    order = np.lexsort((reader, tensor))
    return tensor[order], reader[order]


def _copy_partners(partner: Longs, ops: _Copies) -> npt.NDArray[np.int32]:
    before = partner[ops.origin]
    known = np.maximum(before, 0)
    layer = ops.seen_from(known, ops.recorded[ops.origin], ops.layer)
    return np.where(before >= 0, ops.place(known, layer), -1).astype(np.int32)


def _copy_groups(group: Longs, ops: _Copies) -> npt.NDArray[np.int32]:
    """A group of a layer has copies; one that is not of a single layer is one group still."""
    count = int(group.max(initial=-1)) + 1
    low, high = np.full(count, RECORDED_LAYERS), np.full(count, _SHARED)
    is_grouped = group >= 0
    np.minimum.at(low, group[is_grouped], ops.recorded[is_grouped])
    np.maximum.at(high, group[is_grouped], ops.recorded[is_grouped])
    before = group[ops.origin]
    is_one = (low != high)[np.maximum(before, 0)]
    key = before * (ops.layers + 1) + np.where(is_one, 0, ops.layer + 1)
    key = np.where(before >= 0, key, -1)
    found, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    first = np.where(found < 0, -1, first)  # those without a group come first, as number -1
    rank = places_in(np.argsort(first), len(found), np.int64)
    return (rank[inverse] - int(found[0] < 0)).astype(np.int32)


def _rename(modules: Sequence[str], ops: _Copies, stem: str) -> tuple[str, ...]:
    """The number of the layer in each path, as `seen_from` moves it."""
    parts = [_split_path(module, stem) for module in modules]
    renamed = []
    for place, layer in zip(ops.origin.tolist(), ops.layer.tolist(), strict=True):
        number, rest = parts[place]
        recorded = ops.recorded[place]
        if number < 0:
            renamed.append(rest)
            continue
        if recorded == _MIDDLE:
            number += layer - _MIDDLE
        elif recorded == _LAST or number == _LAST:
            number += ops.layers - RECORDED_LAYERS
        renamed.append(f"{stem}.{number}{rest}")
    return tuple(renamed)


def _split_path(module: str, stem: str) -> tuple[int, str]:
    """The number of a layer and what follows it; -1 and the whole where there is none."""
    if not module.startswith(f"{stem}."):
        return -1, module
    number, dot, rest = module[len(stem) + 1 :].partition(".")
    return int(number), dot + rest
