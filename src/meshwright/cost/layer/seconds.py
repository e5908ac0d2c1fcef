"""Times layers on one device of a team, many teams at once.

Each op's share of its work is timed as any op is (`cost.compute`): fitted, or by the roofline; a
measured time is changed in proportion to those. So a team of one takes what its ops take.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.cluster.cluster import DeviceType
from meshwright.cost.compute import op_seconds, roofline_seconds
from meshwright.cost.fitted import fitted_seconds
from meshwright.cost.layer.share import Widths, divide, num_blocks
from meshwright.cost.layer.team import Team
from meshwright.cost.layer.work import LayerWork
from meshwright.graph.column import no_tensors
from meshwright.graph.graph import ANY_TYPE, Bools, Floats, Graph

_CHUNK = 100_000
"""Ops timed at once: enough for speed, few enough for memory."""


Asked = Sequence[tuple[Team, float]]
"""Teams with their samples."""


def layer_seconds(work: LayerWork, device_type: DeviceType, asked: Asked) -> Floats:
    """One row a team with its samples, one column a sort of ops."""
    step = max(1, _CHUNK // max(1, work.graph.num_ops))
    starts = range(0, len(asked), step)
    return np.concatenate([_timed(work, device_type, asked[at : at + step]) for at in starts])


def _timed(work: LayerWork, device_type: DeviceType, asked: Asked) -> Floats:
    seconds = _estimate(work, device_type, asked)
    measured = _is_measured(work.graph, device_type)
    if not measured.any():
        return seconds
    alone = _estimate(work, device_type, [(Team(), samples) for _, samples in asked])
    whole = np.stack([op_seconds(work.graph, device_type, samples) for _, samples in asked])
    share = np.where(alone > 0, seconds / np.where(alone > 0, alone, 1.0), 1.0)
    return np.where(measured, whole * share, seconds)


def _is_measured(graph: Graph, device_type: DeviceType) -> Bools:
    known = np.zeros(graph.num_ops, dtype=np.bool_)
    for name in (device_type.name, ANY_TYPE):
        if name in graph.seconds:
            known |= ~np.isnan(graph.seconds[name])
    return known


def _estimate(work: LayerWork, device_type: DeviceType, asked: Asked) -> Floats:
    """As `op_seconds` does: never below the share of the time at the graph's own batch."""
    batch = work.graph.batch
    distinct = list(dict.fromkeys(team for team, _ in asked))
    place = [distinct.index(team) for team, _ in asked]
    every = _fit(work, device_type, [*asked, *((team, batch) for team in distinct)])
    seconds, whole = every[: len(asked)], every[len(asked) :][place]
    share = np.array([samples for _, samples in asked])[:, None] / batch
    captured = work.graph.calls > 0
    use = captured & (share < 1) & device_type.is_asynchronous
    return np.where(use, np.maximum(seconds, whole * share), seconds)


def _fit(work: LayerWork, device_type: DeviceType, asked: Asked) -> Floats:
    widths = Widths.of(asked, work.graph.batch)
    graph = _joined(work, divide(work, widths))
    seconds = roofline_seconds(graph, device_type, 1.0)
    if device_type.is_asynchronous:
        fitted = fitted_seconds(graph, device_type, 1.0)
        seconds = np.where(np.isnan(fitted), seconds, fitted)
    times: Floats = seconds.reshape(len(asked), -1) * num_blocks(work, widths)
    return times


def _joined(work: LayerWork, columns: dict[str, Floats]) -> Graph:
    """Ops of all teams as one graph of one sample, without tensors: only times are asked of it."""
    graph = work.graph
    times = len(columns["flops"])
    num_ops = times * graph.num_ops
    zeros = np.zeros(num_ops)
    flat: dict[str, Any] = {
        name: np.ascontiguousarray(each).reshape(-1) for name, each in columns.items()
    }
    fixed: dict[str, Any] = {f"fixed_{name}": zeros for name in flat}
    return Graph(
        name=graph.name,
        batch=1.0,
        op_names=tuple(map(str, range(num_ops))),
        kind=graph.kind * times,
        module=("",) * num_ops,
        precision=graph.precision * times,
        phase=np.tile(graph.phase, times),
        split=np.tile(graph.split, times),
        group=np.full(num_ops, -1, dtype=np.int32),
        partner=np.full(num_ops, -1, dtype=np.int32),
        **flat,
        **fixed,
        product_alignment=np.tile(graph.product_alignment, times),
        calls=np.tile(graph.calls, times),
        parameter_bytes=zeros,
        state_bytes=zeros,
        saved_bytes=zeros,
        workspace_bytes=zeros,
        **no_tensors(),
    )
