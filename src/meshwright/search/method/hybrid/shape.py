"""The distinct stages of a stack.

What a stage costs depends on how many layers of each kind it has and on what comes in and leaves,
not on which layers these are. Where layers read any that stand before them, what passes is told by
its bytes, so that stages between which as much passes are still one shape. Knows nothing of costs.
"""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from meshwright.array import Bools, Floats, Longs
from meshwright.graph.stack.stack import Stack


@dataclass(frozen=True, kw_only=True, eq=False)
class Shapes:
    """The distinct stages of a stack: how many layers of each kind."""

    counts: Floats
    """How many layers of each kind (column) a shape (row) has."""
    shape_of: Longs
    """The shape of the stage from one layer (row) to the layer before another (column); -1: there
    is none."""
    pairs: Floats
    """How often a kind of layer stands before another in a shape, by shape, kind and next kind; of
    stages of one shape the first counts."""
    first_kind: Longs
    """The kind of the first layer of each shape."""
    second_kind: Longs
    """The kind of the second layer of each shape; of stages of one layer that of the first."""
    last_kind: Longs
    """The kind of the last layer of each shape, whose output leaves the stage."""
    before_kind: Longs
    """The kind of the layer before each shape, whose output comes; -1: there is none."""
    has_next: Bools
    """Whether layers follow on each shape."""
    passing: Floats
    """Where layers do not form a chain: what each shape has to do with others, by the fields of
    `StageBytes` and parts of a line; of a chain without fields."""

    @cached_property
    def is_present(self) -> Bools:
        """Whether a shape (row) has layers of a kind (column)."""
        return self.counts > 0

    def near(self, num_stages: int) -> "Shapes":
        """Those of stages with half to one and a half of an even share of the layers, and two.

        A stage far from that is never in the best cut of layers that are alike; where an embedding
        or a head weighs as much as many layers, its stage has few others.
        """
        num_layers = len(self.shape_of) - 1
        share = num_layers / num_stages
        first, after = np.nonzero(self.shape_of >= 0)
        length = after - first
        is_end = (first == 0) | (after == num_layers)
        is_near = (is_end | (length >= share / 2 - 2)) & (length <= 1.5 * share + 2)
        return self._only(first[is_near], after[is_near])

    @cached_property
    def whole(self) -> "Shapes":
        """That of one stage with all layers."""
        return self._only(np.array([0]), np.array([len(self.shape_of) - 1]))

    def _only(self, first: Longs, after: Longs) -> "Shapes":
        """Those of some stages, by their first layers and the layers after them."""
        kept, place = np.unique(self.shape_of[first, after], return_inverse=True)
        shape_of = np.full_like(self.shape_of, -1)
        shape_of[first, after] = place.ravel()
        by_shape = {each.name for each in fields(self)} - {"shape_of"}
        picked = {name: getattr(self, name)[kept] for name in by_shape}
        return Shapes(shape_of=shape_of, **picked)


def find_shapes(stack: Stack) -> Shapes:
    """Number the stages of a stack by their counts."""
    num_layers, num_kinds = stack.num_layers, len(stack.kinds)
    before = np.zeros((num_layers + 1, num_kinds), dtype=np.int64)
    for layer, kind in enumerate(stack.layers):
        before[layer + 1] = before[layer]
        before[layer + 1, kind] += 1
    first, after = np.triu_indices(num_layers + 1, 1)
    kinds = np.array(stack.layers)
    coming = np.where(first > 0, kinds[first - 1], -1)
    ends = (kinds[after - 1], coming, after < num_layers)
    keys = np.column_stack((before[after] - before[first], *ends))
    passing = np.zeros((len(first), 0, 2))
    if stack.crossings is not None:
        passing = stack.crossings.of_stages[first, after]
        keys = np.column_stack((keys, _number_rows(passing.reshape(len(first), -1))))
    unique, index, place = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    steps = np.zeros((num_layers, num_kinds, num_kinds))  # up to each layer
    steps[np.arange(1, num_layers), kinds[:-1], kinds[1:]] = 1.0
    steps = np.cumsum(steps, axis=0)
    shape_of = np.full((num_layers + 1, num_layers + 1), -1, dtype=np.int64)
    shape_of[first, after] = place.ravel()
    return Shapes(
        counts=unique[:, :num_kinds].astype(np.float64),
        shape_of=shape_of,
        pairs=steps[after[index] - 1] - steps[first[index]],
        first_kind=kinds[first[index]],
        second_kind=kinds[np.minimum(first[index] + 1, after[index] - 1)],
        last_kind=unique[:, num_kinds].astype(np.int64),
        before_kind=unique[:, num_kinds + 1].astype(np.int64),
        has_next=unique[:, num_kinds + 2].astype(np.bool_),
        passing=passing[index],
    )


def _number_rows(table: Floats) -> Longs:
    """Equal numbers for rows that are equal but for rounding."""
    rounded = np.array([float(f"{each:.12g}") for each in table.ravel().tolist()])
    numbers = np.unique(rounded.reshape(table.shape), axis=0, return_inverse=True)[1]
    return np.asarray(numbers, dtype=np.int64).ravel()
