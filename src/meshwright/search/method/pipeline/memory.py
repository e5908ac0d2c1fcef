"""Peak memory of stages with recomputation, by formula.

Plans of this search must fit without recomputation; the formula says what it would save.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Floats, sum_by
from meshwright.graph.graph import Graph, Phase
from meshwright.search.method.pipeline.candidate import StageCut


def recomputed_peak_bytes(
    graph: Graph, cut: StageCut, microbatches: int, replicas: Sequence[int]
) -> Floats:
    """Parmesan's peak memory of each stage with recomputation, on a replica.

    (1 / MB) (sum over ops of the larger of forward and backward memory + boundary tensors), where
    an op's memory is what it makes, saves and works with; state comes on top.
    """
    made = np.bincount(graph.tensor_source, weights=graph.tensor_bytes, minlength=graph.num_ops) + (
        graph.saved_bytes + graph.workspace_bytes
    )
    is_backward = graph.phase == Phase.BACKWARD
    owner = np.where(is_backward & (graph.partner >= 0), graph.partner, np.arange(graph.num_ops))
    forward = np.where(graph.phase == Phase.FORWARD, made, 0.0)
    backward = sum_by(owner[is_backward], made[is_backward], graph.num_ops)
    there, back = cut.wires
    boundary = there.sum(axis=0) + back.sum(axis=0)
    passing = sum_by(cut.stage_of_op, np.maximum(forward, backward), cut.num_stages) + boundary
    state = sum_by(cut.stage_of_op, graph.state_bytes, cut.num_stages)
    peak: Floats = state + passing / microbatches / np.asarray(replicas)
    return peak
