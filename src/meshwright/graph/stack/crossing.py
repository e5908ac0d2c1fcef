"""What layers make for other layers than the next, and what of it crosses a cut between them.

Layers stand in one line, each after all that it reads. A stage is a run of them, so that what it
reads was made in it or before it. A tensor is sent once to every stage that reads it, from the
stage that makes it; gradients go the other way. Knows no devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from meshwright.array import Bools, Floats, Ints, Longs, freeze_arrays
from meshwright.graph.graph import Graph, Phase


class ByteLine(NamedTuple):
    """Bytes as a line in the samples of a microbatch."""

    fixed: float
    """At no samples."""
    per_sample: float

    def at(self, samples: float) -> float:
        """The bytes of so many samples."""
        return self.fixed + self.per_sample * samples


class StageLink(NamedTuple):
    """What goes between two stages."""

    origin: int
    """The number of the stage that makes what goes forward ..."""
    goal: int
    """... and of the later one that reads it."""
    forward: ByteLine
    backward: ByteLine
    """Gradients, from the goal to the origin."""


class StageBytes(NamedTuple):
    """What a run of layers has to do with others."""

    coming: ByteLine
    """What it reads of other layers: tensors of earlier ones, gradients of later ones."""
    leaving: ByteLine
    """What others read of it."""
    cut: ByteLine
    """What crosses the cut behind it in forward, and back, if all went from one stage to the
    next: the mean of both ways."""
    over: ByteLine
    """The most that waits in it for a layer further on than the next, in forward or in backward,
    while another layer runs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Crossings:
    """The tensors that a layer makes and another reads, one row a tensor: of forward, and gradients
    in backward."""

    source: Ints
    """The layer that makes each."""
    reads: Bools
    """By tensor and layer: whether it reads the tensor, in forward or in backward."""
    is_gradient: Bools
    """Whether a tensor goes from later layers to earlier ones."""
    fixed_bytes: Floats
    """The part that does not grow with the batch."""
    sample_bytes: Floats
    """What a sample adds."""

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @property
    def num_layers(self) -> int:
        """How many layers there are."""
        return int(self.reads.shape[1])

    @property
    def skips(self) -> bool:
        """Whether a layer reads another than its neighbours: else they form a chain."""
        layers = np.arange(self.num_layers)
        return bool(np.any(self.reads & (np.abs(layers - self.source[:, None]) > 1)))

    def links(self, bounds: Sequence[int]) -> list[StageLink]:
        """What goes between stages that begin at these layers; at the end how many layers there
        are. By the first stage of each pair, then by the other."""
        starts = np.array(bounds[:-1])
        made = np.searchsorted(starts, self.source, side="right") - 1
        read = np.add.reduceat(self.reads, starts, axis=1) > 0
        found: dict[tuple[int, int], Floats] = {}
        for row, (origin, is_gradient) in enumerate(
            zip(made.tolist(), self.is_gradient.tolist(), strict=True)
        ):
            size = self.fixed_bytes[row], self.sample_bytes[row]
            for goal in np.flatnonzero(read[row]).tolist():
                if goal != origin:
                    pair = (goal, origin) if is_gradient else (origin, goal)
                    found.setdefault(pair, np.zeros((2, 2)))[int(is_gradient)] += size
        return [
            StageLink(*pair, ByteLine(*sizes[0].tolist()), ByteLine(*sizes[1].tolist()))
            for pair, sizes in sorted(found.items())
        ]

    def reads_of(self, one: range, other: range) -> tuple[bool, bool]:
        """Whether some of these layers make what one of the others reads: in forward, and gradients
        in backward."""
        counts = self._read_counts
        below, above = counts[:, :, other.start], counts[:, :, other.stop]
        forward, backward = (above - below)[:, one.stop] - (above - below)[:, one.start]
        return bool(forward), bool(backward)

    @cached_property
    def _read_counts(self) -> Longs:
        """Of forward and of backward: how many tensors, counted once a layer that reads them, go
        from layers before one to layers before another."""
        counts = np.zeros((2, self.num_layers + 1, self.num_layers + 1), dtype=np.int64)
        row, reader = np.nonzero(self.reads)
        way = self.is_gradient[row].astype(np.int64)
        np.add.at(counts, (way, self.source[row] + 1, reader + 1), 1)
        return np.asarray(counts.cumsum(axis=1).cumsum(axis=2))

    def of(self, first: int, after: int) -> StageBytes:
        """What the layers from one to the one before another have to do with others."""
        lines = self.of_stages[first, after].tolist()
        return StageBytes(*(ByteLine(*line) for line in lines))

    @cached_property
    def of_stages(self) -> Floats:
        """The numbers of `StageBytes`, by first layer, the layer after the last, field and part of
        the line."""
        count = self.num_layers
        sizes = np.stack((self.fixed_bytes, self.sample_bytes), axis=1)
        source = self.source[:, None]
        before = np.pad(np.cumsum(self.reads, axis=1), ((0, 0), (1, 0)))  # readers before a layer
        ends = np.arange(count + 1)
        ahead = (source < ends) & (before < before[:, -1:])
        back = (source >= ends) & (before > 0)
        cut = _sums(np.where(self.is_gradient[:, None], back, ahead), sizes) / self._num_ways
        over = self._waiting(sizes)
        table = np.zeros((count + 1, count + 1, len(StageBytes._fields), 2))
        for first in range(count):
            inner = before - before[:, first : first + 1] > 0
            is_own = (source >= first) & (source < ends)
            read = before[:, first : first + 1] + before[:, -1:] - before > 0
            run = slice(first + 1, count + 1)
            stages = table[first, run]
            stages[:, 0] = _sums(inner & ~is_own, sizes)[run]
            stages[:, 1] = _sums(read & is_own, sizes)[run]
            stages[:, 2] = cut[run]
            stages[:, 3] = np.maximum.accumulate(over[0][first], axis=0)[first:]
        for after in range(1, count + 1):  # of gradients from the last layer on
            back = np.maximum.accumulate(over[1][after][after - 1 :: -1], axis=0)[::-1]
            table[:after, after, 3] = np.maximum(table[:after, after, 3], back)
        table.setflags(write=False)
        return table

    @property
    def _num_ways(self) -> int:
        return 2 if self.is_gradient.any() else 1

    def _waiting(self, sizes: Floats) -> tuple[list[Floats], list[Floats]]:
        """Bytes that wait while a layer runs: in forward by the first layer of a stage, in backward
        by the layer after its last."""
        layers = np.arange(self.num_layers)
        source, last = self.source[:, None], _last(self.reads)[:, None]
        nearest = self.reads.argmax(axis=1)[:, None]
        passes = (source < layers) & (layers < last) & ~self.is_gradient[:, None]
        returns = (nearest < layers) & (layers < source) & self.is_gradient[:, None]
        forward = [_sums(passes & (source >= first), sizes) for first in range(self.num_layers)]
        backward = [_sums(returns & (source < after), sizes) for after in range(len(layers) + 1)]
        return forward, backward


def _last(reads: Bools) -> Ints:
    """By tensor the last layer that reads it."""
    last: Ints = np.int32(reads.shape[1] - 1) - reads[:, ::-1].argmax(axis=1).astype(np.int32)
    return last


def _sums(chosen: Bools, sizes: Floats) -> Floats:
    """By column, the sizes of the tensors that are chosen."""
    return np.asarray(chosen.T.astype(np.float64) @ sizes)


def find_crossings(graph: Graph, layer: Ints, skipped: Bools) -> Crossings:
    """What passes between layers that stand in line. `skipped`: tensors that are no activations nor
    their gradients, and stay out."""
    source, reader = graph.edges
    made, read = layer[source], layer[reader]
    crosses = (made != read) & ~skipped[graph.use_tensor]
    crosses &= (graph.phase[source] != Phase.UPDATE) & (graph.phase[reader] != Phase.UPDATE)
    tensors, row = np.unique(graph.use_tensor[crosses], return_inverse=True)
    reads = np.zeros((len(tensors), int(layer.max()) + 1), dtype=np.bool_)
    reads[row.ravel(), read[crosses]] = True
    growing = graph.tensor_bytes[tensors] - graph.fixed_tensor_bytes[tensors]
    return Crossings(
        source=layer[graph.tensor_source[tensors]],
        reads=reads,
        is_gradient=graph.phase[graph.tensor_source[tensors]] == Phase.BACKWARD,
        fixed_bytes=graph.fixed_tensor_bytes[tensors],
        sample_bytes=growing / graph.batch,
    )
