"""What a layer holds on one device of a team: activations between and during its passes.

Walks the layer's ops in order with the tensors that are alive, once for each way in which bytes
are divided; a team's bytes are then a weighted sum. Under-prediction would be a bug: what may be
held is held. Weights, their gradients and optimiser states are counted in `state`.
"""

from dataclasses import dataclass
from enum import IntEnum
from operator import mul

import numpy as np
import numpy.typing as npt

from meshwright.array import Longs
from meshwright.cost.layer.mode import Keys, Recompute
from meshwright.cost.layer.recomputation import Recomputation
from meshwright.cost.layer.state import is_updated
from meshwright.cost.layer.team import Team
from meshwright.graph.graph import Bools, Floats, Graph, Phase, Split
from meshwright.graph.stack.stack import LayerKind, Role


class ByteDivision(IntEnum):
    """How bytes of a layer are divided."""

    STREAM = 0
    """By context; where `sequence`, by tensor as well."""
    WHOLE_ROWS = 1
    """By context only: what is to be added up, or was gathered."""
    CUT = 2
    """By context and tensor."""
    FIXED = 3
    """Not at all, and it does not grow with the samples: likewise what follows."""
    FIXED_CUT = 4
    """By tensor: weights in another precision, their gradients before they are added up."""
    FIXED_EXPERT = 5
    """By tensor and expert."""


RING_BLOCKS = (2, 5)
"""Blocks of keys and values, or of their gradients, that a ring has besides a member's own, in
forward and in backward: one at work and one on its way; a term, a sum, and a sum on its way."""

_Bytes = tuple[float, ...]
"""One number a `Holding`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes by `Holding` at the batch of the layer's graph."""

    saved: _Bytes
    """Held from forward to backward without recomputation, or until inference ends."""
    saved_selective: _Bytes
    """Held from forward to backward with selective recomputation; the full one holds `inputs`."""
    inputs: _Bytes
    unsaved_inputs: _Bytes
    """Of the inputs: what backward does not read."""
    gradients: _Bytes
    """Gradients that enter, of the layer's output."""
    forward: tuple[_Bytes, ...]
    """Alive at those ops of forward that may be the worst."""
    backward: tuple[_Bytes, ...]
    gathered: float
    """The largest tensor that members gather: whole rows of it."""
    keys: float
    """Bytes of keys and values that a context team gathers."""


def find_held(kind: LayerKind, recomputation: Recomputation) -> HeldBytes:
    """What one device holds of a layer, found by going through its ops in order."""
    graph = kind.graph
    # Gradients that updates read are counted with the weights, not here.
    counted = ~(kind.is_weight & is_updated(graph)) & ~kind.is_side
    first, last, saved = _spans(kind)
    holding = _holdings(kind)
    sizes = _by_holding(kind, holding)
    op_sizes = _op_bytes(kind, graph.saved_bytes)
    backward_ops = graph.phase == Phase.BACKWARD
    alive = _alive(sizes * counted, first, last, graph.num_ops)
    alive += _alive(op_sizes, *_op_spans(graph), graph.num_ops)
    alive += _op_bytes(kind, graph.workspace_bytes)
    kept = sizes * (counted & saved)
    has_backward = np.isin(np.arange(graph.num_ops), graph.partner)
    kept_ops = op_sizes * (has_backward | (graph.phase == Phase.FORWARD))
    dropped = counted & saved & recomputation.drops_tensor
    added = counted & ~saved & recomputation.needs_tensor
    selective = (sizes * ((counted & saved & ~dropped) | added)).sum(axis=1)
    selective += (kept_ops * ~(recomputation.again & has_backward)).sum(axis=1)
    entering = np.arange(graph.num_tensors) < kind.num_entering
    returns = entering & (graph.phase[graph.tensor_source] == Phase.BACKWARD)
    spread = sizes[:, kind.spread].sum(axis=0)
    return HeldBytes(
        saved=_numbers(kept.sum(axis=1) + kept_ops.sum(axis=1)),
        saved_selective=_numbers(selective),
        inputs=_numbers((sizes * kind.is_input).sum(axis=1)),
        unsaved_inputs=_numbers((sizes * (kind.is_input & ~saved)).sum(axis=1)),
        gradients=_numbers((sizes * returns).sum(axis=1)),
        forward=_worst(alive[:, graph.phase == Phase.FORWARD]),
        backward=_worst(alive[:, backward_ops]),
        gathered=float(spread.max(initial=0.0)),
        keys=kind.key_bytes,
    )


def _spans(kind: LayerKind) -> tuple[Longs, Longs, Bools]:
    """The first and the last op of each tensor's life, and whether it is held from then on: because
    backward reads it, or inference returns it."""
    graph = kind.graph
    passes = [graph.phase == Phase.FORWARD, graph.phase == Phase.BACKWARD]
    ends = [int(np.flatnonzero(each).max(initial=0)) for each in passes]
    starts_backward = np.flatnonzero(passes[1] & (np.arange(graph.num_ops) >= kind.num_entering))
    first = graph.tensor_source.astype(np.int64)
    last = first.copy()
    np.maximum.at(last, graph.use_tensor, graph.use_op)
    entering = np.arange(graph.num_tensors) < kind.num_entering
    made_forward = graph.phase[graph.tensor_source] == Phase.FORWARD
    returns = entering & ~made_forward
    first[returns] = starts_backward.min(initial=ends[1])
    read_backward = np.zeros(graph.num_tensors, dtype=np.bool_)
    read_backward[graph.use_tensor[passes[1][graph.use_op]]] = True
    leaves = kind.is_leaving | ~np.isin(np.arange(graph.num_tensors), graph.use_tensor)
    last = np.where(leaves & made_forward, np.maximum(last, ends[0]), last)
    last = np.where(leaves & ~made_forward, np.maximum(last, ends[1]), last)
    return first, last, (read_backward & made_forward) | (graph.is_returned & ~kind.is_leaving)


def _op_spans(graph: Graph) -> tuple[Longs, Longs]:
    """From each op to the last of its backward, or to the end where it has none."""
    first = np.arange(graph.num_ops, dtype=np.int64)
    has_backward = np.isin(first, graph.partner)
    last = np.where(has_backward, first, graph.num_ops - 1)
    known = np.flatnonzero(graph.partner >= 0)
    np.maximum.at(last, graph.partner[known], known)
    return first, last


def _holdings(kind: LayerKind) -> npt.NDArray[np.int8]:
    """Of each tensor, the part that grows with the batch."""
    graph = kind.graph
    holding = np.where(kind.is_cut, ByteDivision.CUT, ByteDivision.STREAM).astype(np.int8)
    source_divides = kind.role[graph.tensor_source] != Role.WHOLE
    holding[~kind.is_cut & source_divides] = ByteDivision.WHOLE_ROWS
    return holding


def _by_holding(kind: LayerKind, holding: npt.NDArray[np.int8]) -> Floats:
    """One row a `Holding`, one column a tensor."""
    graph = kind.graph
    tensors = np.arange(graph.num_tensors)
    sizes = np.zeros((len(ByteDivision), graph.num_tensors))
    sizes[holding, tensors] = graph.tensor_bytes - graph.fixed_tensor_bytes
    fixed = np.where(kind.is_expert, ByteDivision.FIXED_EXPERT, ByteDivision.FIXED_CUT)
    sizes[np.where(kind.is_cut, fixed, ByteDivision.FIXED), tensors] += graph.fixed_tensor_bytes
    return sizes


def op_holdings(kind: LayerKind) -> npt.NDArray[np.int8]:
    """By op: how the bytes that it holds for itself are divided."""
    graph = kind.graph
    is_table = (kind.role == Role.INNER) & (graph.parameter_bytes > 0) & (graph.flops == 0)
    holding = np.where(kind.role == Role.WHOLE, ByteDivision.STREAM, ByteDivision.CUT)
    holding = np.where(is_table, ByteDivision.WHOLE_ROWS, holding)
    return np.where(graph.split == Split.NONE, ByteDivision.FIXED, holding).astype(np.int8)


def _op_bytes(kind: LayerKind, amount: Floats) -> Floats:
    """Bytes that ops hold for themselves, as `Graph.at_batch` scales them."""
    num_ops = kind.graph.num_ops
    sizes = np.zeros((len(ByteDivision), num_ops))
    sizes[op_holdings(kind), np.arange(num_ops)] = amount
    return sizes


def _alive(
    sizes: Floats,
    first: Longs,
    last: Longs,
    num_ops: int,
) -> Floats:
    """Bytes alive at each op, by `Holding`."""
    steps = np.zeros((len(ByteDivision), num_ops + 1))
    for row, size in zip(steps, sizes, strict=True):
        np.add.at(row, first, size)
        np.subtract.at(row, last + 1, size)
    alive: Floats = np.cumsum(steps, axis=1)[:, :num_ops]
    return alive


def _numbers(amounts: Floats) -> _Bytes:
    return tuple(amounts.tolist())


def _worst(alive: Floats) -> tuple[_Bytes, ...]:
    """Columns that no other one exceeds in all rows: whatever the shares, one of them is the peak.

    They are few, and a search asks thousands of times.
    """
    distinct = np.unique(alive, axis=1)
    above = np.all(distinct[:, :, None] <= distinct[:, None, :], axis=0)
    kept = distinct[:, above.sum(axis=1) == 1]  # each is at least as large as itself
    return tuple(_numbers(column) for column in kept.T)


def saved_and_workspace(
    held: HeldBytes, team: Team, growth: float, recompute: Recompute
) -> tuple[float, float]:
    """Bytes held from forward to backward, and the most beyond them while either runs."""
    share = _shares(team, growth)
    forward = max((_bytes(share, column) for column in held.forward), default=0.0)
    backward = max((_bytes(share, column) for column in held.backward), default=0.0)
    if team.sequence and team.tensor > 1:
        gathered = held.gathered * share[ByteDivision.WHOLE_ROWS] * (1 - 1 / team.tensor)
        forward, backward = forward + gathered, backward + gathered
    if team.context > 1:
        keys = held.keys * growth / team.tensor
        if team.keys is Keys.RING:
            in_forward, in_backward = (keys / team.context * each for each in RING_BLOCKS)
        else:  # those of all members; in backward their gradients, too
            in_forward = keys * (1 - 1 / team.context)
            in_backward = 2 * in_forward
        forward, backward = forward + in_forward, backward + in_backward
    saved = _bytes(share, held.saved)
    if recompute is Recompute.NONE:
        return saved, max(forward, backward, saved) - saved
    again = forward + _bytes(share, held.gradients)
    backward += _bytes(share, held.unsaved_inputs)
    kept = _bytes(share, held.inputs if recompute is Recompute.FULL else held.saved_selective)
    return kept, max(again, backward, kept) - kept


def _shares(team: Team, growth: float) -> _Bytes:
    """A device's share of bytes of each `Holding`."""
    rows = growth / team.context
    stream = rows / team.tensor if team.sequence else rows
    part = 1 / team.tensor
    return stream, rows, rows * part, 1.0, part, part / team.expert


def _bytes(share: _Bytes, amounts: _Bytes) -> float:
    """Plain numbers: arrays as short as these would take ten times as long."""
    total: float = sum(map(mul, share, amounts))
    return total
