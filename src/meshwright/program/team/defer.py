"""What zero-bubble schedules hold from a backward to its postponed weight gradient.

Weight gradients are products of what a layer's products read in forward, and of the gradients of
what they gave. What forward saved for the rest of backward is gone by then.
"""

from typing import NamedTuple

import numpy as np

from meshwright.array import marked
from meshwright.cost.layer.team import Team
from meshwright.graph.graph import Phase, Split
from meshwright.graph.stack.stack import LayerKind
from meshwright.plan.plan import Recompute


class Postponed(NamedTuple):
    """Bytes that weight gradients read, on one member of a team."""

    saved: float
    """Of what forward saved."""
    made: float
    """Of what backward made: gradients, and what it computed again."""


def deferred_bytes(kind: LayerKind, team: Team, recompute: Recompute, samples: float) -> Postponed:
    """Of one layer for one microbatch of so many samples.

    What is computed again counts as made, although selective recomputation has some of it saved.
    Where a member of a tensor team may hold its rows only, all of them count.
    """
    graph = kind.graph
    makes_weights = (graph.phase == Phase.BACKWARD) & (graph.split == Split.SUM)
    is_read = marked(graph.num_tensors, graph.use_tensor[makes_weights[graph.use_op]])
    is_read &= ~kind.is_weight & ~kind.is_side
    width = np.where(kind.is_cut, team.tensor, 1) * np.where(kind.has_rows, team.context, 1)
    size = graph.scaled("tensor_bytes", samples) / width * is_read
    phase = graph.phase[graph.tensor_source]
    read = float(size[phase == Phase.FORWARD].sum())
    made = float(size[phase == Phase.BACKWARD].sum())
    keeps = recompute is Recompute.NONE or not kind.is_wrapped
    return Postponed(read, made) if keeps else Postponed(0.0, read + made)
