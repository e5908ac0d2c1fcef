"""What one device of every part runs, as a graph: the planned step, expanded.

The planned graph says what a step computes. A device of a team runs shards of its ops, talks to the
other members, gathers weights that ZeRO divides and computes again what was not kept. An expansion
is that as a graph of its own, in which collectives are ops like all others; lowering, simulator and
runtime need not know why they are there.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from meshwright.array import freeze_arrays
from meshwright.graph.graph import Bools, Floats, Graph, Ints
from meshwright.graph.stack.stack import ProductCut, Role
from meshwright.plan.check import Placement
from meshwright.program.program import Kind

Codes = npt.NDArray[np.int8]


class Axis(IntEnum):
    """Which devices of a part take part in a collective op."""

    NONE = 0
    """The op is no collective."""
    TENSOR = 1
    """Those of a team that have the same tokens and share features."""
    CONTEXT = 2
    """Those of a team that have the same features and share tokens."""
    HOLDERS = 3
    """Those that hold the same weights: of every replica, and of all its context members."""
    REPLICAS = 4
    """One of every replica, where that is all there is of one: they have different samples."""
    EXPERT = 5
    """Those at the same place in replicas that hold different experts."""
    EXPERT_HOLDERS = 6
    """Those that hold the same experts."""


HOLDING = (Axis.HOLDERS, Axis.EXPERT_HOLDERS)
"""Axes of collectives that move weights and their gradients."""


class Owned(IntEnum):
    """What a member of a tensor team has of a tensor."""

    WHOLE = 0
    """All of it (of its replica's samples)."""
    FEATURES = 1
    """Its own features: heads, columns, rows of a table."""
    ROWS = 2
    """All features of its own tokens (`sequence`)."""
    TERMS = 3
    """Its term of a sum over the members."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Expansion:
    """One device's step: arrays over the ops and tensors of `graph`."""

    graph: Graph
    part_of_op: Ints
    priority: Floats
    origin: Ints
    """By op: the op of the planned graph that it is, a shard of it, or that op once more; -1: a
    collective."""
    collective: Codes
    """By op: the `Kind` of a collective; COMPUTE: it is none."""
    axis: Codes
    """By op: an `Axis`."""
    tensor_origin: Ints
    """By tensor: the tensor of the planned graph that it is, or a shard or sum of; -1: weights that
    were gathered, what an op that runs again saves besides its tensors, or nothing but an order (no
    bytes)."""
    held: Codes
    """By tensor: a `Held`."""
    rows: Bools
    """By tensor: whether a member of a context team has only its own tokens' rows of it. Of what it
    makes of such rows without rows, as a weight's gradient, it has its term of a sum."""
    role: Codes
    """By op: a `Role`, WHOLE where there is no tensor team."""
    cut: Codes
    """By op: the `ProductCut` of its product that a tensor team divides."""
    bundles: tuple[tuple[int, ...], ...] = ()
    """Weights that ZeRO moves together: updates, as numbers of the planned graph."""
    bundle: Ints
    """By op: the bundle that a collective gathers or scatters; -1: it moves a tensor."""
    hop: Ints
    """By op of ring attention: how many members keys and values have come along that it makes,
    moves or works on; -1: it does none of this."""

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @property
    def is_collective(self) -> Bools:
        """By op: whether it is a collective."""
        found: Bools = self.axis != Axis.NONE
        return found


def unexpanded(graph: Graph, placement: Placement) -> Expansion:
    """The step as it was planned."""
    return Expansion(
        graph=graph,
        part_of_op=placement.part_of_op,
        priority=placement.priority,
        origin=np.arange(graph.num_ops, dtype=np.int32),
        collective=np.full(graph.num_ops, Kind.COMPUTE, dtype=np.int8),
        axis=np.full(graph.num_ops, Axis.NONE, dtype=np.int8),
        tensor_origin=np.arange(graph.num_tensors, dtype=np.int32),
        held=np.full(graph.num_tensors, Owned.WHOLE, dtype=np.int8),
        rows=np.zeros(graph.num_tensors, dtype=np.bool_),
        role=np.full(graph.num_ops, Role.WHOLE, dtype=np.int8),
        cut=np.full(graph.num_ops, ProductCut.NONE, dtype=np.int8),
        bundle=np.full(graph.num_ops, -1, dtype=np.int32),
        hop=np.full(graph.num_ops, -1, dtype=np.int32),
    )
