"""Weights, gradients and optimiser states of a layer, by how a team divides them."""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Longs
from meshwright.cost.layer.team import Team
from meshwright.graph.graph import Bools, Floats, Graph, Phase
from meshwright.graph.stack.stack import LayerKind, Role

Amounts = tuple[float, ...]
"""Bytes that every member has, that a tensor team divides, and likewise of experts: by place."""
_NUM_PLACES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """All that a layer holds for the whole step."""

    parameters: Amounts
    gradients: Amounts
    gradient_growth: float
    """How many times their bytes gradients have in fp32."""
    optimiser: Amounts


def find_weights(kind: LayerKind) -> WeightBytes:
    """A weight is divided as its gradient is: the bias of a row product is not."""
    graph = kind.graph
    gradients, place, size = _find_gradients(kind)
    shares = _op_shares(kind, gradients, place, size)
    optimiser = graph.state_bytes - np.minimum(graph.parameter_bytes, graph.state_bytes)
    return WeightBytes(
        parameters=tuple((graph.parameter_bytes @ shares).tolist()),
        gradients=tuple(_by_place(place, size).tolist()),
        gradient_growth=_gradient_growth(kind, gradients, size),
        optimiser=tuple((optimiser @ shares).tolist()),
    )


def _gradient_growth(kind: LayerKind, gradients: Longs, size: Floats) -> float:
    """Gradients of 16-bit weights have twice the bytes in fp32, unless they have them already.

    Weights have 16 bits where updates do; under autocast they have 32, whatever makes their
    gradients.
    """
    graph = kind.graph
    is_short = np.isin(np.array(graph.precision), ("bf16", "fp16"))
    weights = float(graph.parameter_bytes.sum())
    updates = is_short[graph.phase == Phase.UPDATE].any()
    makers = is_short[graph.tensor_source[gradients]]
    if not (updates and makers.any()) or size.sum() > weights:
        return 1.0
    return float((size * np.where(makers, 2.0, 1.0)).sum() / size.sum())


def find_shares(kind: LayerKind) -> Floats:
    """By op and place of `Amounts`: what of the bytes of its weights is divided so."""
    return _op_shares(kind, *_find_gradients(kind))


def _find_gradients(kind: LayerKind) -> tuple[Longs, Longs, Floats]:
    """The gradients that updates read, how each is divided, and its bytes."""
    gradients = np.flatnonzero(kind.is_weight & is_updated(kind.graph))
    place = 2 * kind.is_expert[gradients] + kind.is_cut[gradients]
    return gradients, place, kind.graph.tensor_bytes[gradients]


def is_updated(graph: Graph) -> Bools:
    """The tensors that updates read."""
    found = np.zeros(graph.num_tensors, dtype=np.bool_)
    found[graph.use_tensor[graph.phase[graph.use_op] == Phase.UPDATE]] = True
    return found


def _op_shares(kind: LayerKind, gradients: Longs, place: Longs, size: Floats) -> Floats:
    """By op and way to divide: what of its weights' bytes is divided so."""
    graph = kind.graph
    role = 2 * (kind.role == Role.EXPERT) + (kind.role != Role.WHOLE)
    shares: Floats = np.eye(_NUM_PLACES)[role]
    group = graph.group[graph.tensor_source[gradients]]
    for each in np.unique(group[group >= 0]):
        sums = _by_place(place[group == each], size[group == each])
        members = (graph.group == each) & (graph.phase != Phase.UPDATE)
        if sums.sum() > 0:
            shares[members] = sums / sums.sum()
    return shares


def _by_place(place: Longs, size: Floats) -> Floats:
    return np.bincount(place, weights=size, minlength=_NUM_PLACES).astype(np.float64, copy=False)


def divided(amounts: Amounts, team: Team) -> tuple[float, float]:
    """Bytes of one device: dense ones, and experts'."""
    whole, cut, expert_whole, expert_cut = amounts
    dense = whole + cut / team.tensor
    return dense, (expert_whole + expert_cut / team.tensor) / team.expert
