"""Which ops a layer computes again in backward, and what it keeps for them.

Full recomputation keeps the layer's input. The selective one keeps what products with weights give
and computes again what lies between them within a member's share: attention, activation functions
(Korthikanti et al. 2022, section 5, of which it is a wider form). What is not a layer is computed
once: the embedding, the last norm, the head and the loss.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.graph.graph import Bools, Phase
from meshwright.graph.stack.product import has_weight
from meshwright.graph.stack.stack import LayerKind, Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """The selective one of a layer."""

    again: Bools
    """The ops that are computed again."""
    drops_tensor: Bools
    """The tensors that these ops make, which need not be kept."""
    needs_tensor: Bools
    """The tensors that these ops read and that none of them makes."""
    attends: bool
    """Whether attention is among them, so that a context team gathers keys again."""


def find_recomputation(kind: LayerKind) -> Recomputation:
    """Ops within members' shares, products with weights aside, that saved tensors come from."""
    graph = kind.graph
    may = (graph.phase == Phase.FORWARD) & (kind.role != Role.WHOLE) & ~has_weight(graph)
    may &= kind.is_wrapped
    may &= ~((graph.parameter_bytes > 0) & (graph.flops == 0))  # tables
    read_backward = np.zeros(graph.num_tensors, dtype=np.bool_)
    read_backward[graph.use_tensor[graph.phase[graph.use_op] == Phase.BACKWARD]] = True
    wanted = np.zeros(graph.num_ops, dtype=np.bool_)
    wanted[graph.tensor_source[read_backward]] = True
    wanted |= np.isin(np.arange(graph.num_ops), graph.partner) & (graph.saved_bytes > 0)
    again = np.zeros(graph.num_ops, dtype=np.bool_)
    for op in np.flatnonzero(may)[::-1].tolist():
        again[op] = wanted[op]
        if wanted[op]:
            wanted[graph.predecessors[op]] = True
    needs = np.zeros(graph.num_tensors, dtype=np.bool_)
    needs[graph.use_tensor[again[graph.use_op]]] = True
    return Recomputation(
        again=again,
        drops_tensor=again[graph.tensor_source],
        needs_tensor=needs & ~again[graph.tensor_source],
        attends=bool(np.any(again & (kind.role == Role.ATTENTION))),
    )
