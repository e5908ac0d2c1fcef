"""Finds layers where names do not help: forward ops that repeat, one after the other.

Looks at kinds and sizes only. Layers that alternate come out as one layer of both.
"""

import numpy as np
import numpy.typing as npt

from meshwright.array import places_in
from meshwright.graph.graph import Floats, Graph, Ints, Phase
from meshwright.graph.stack.name import Numbering, is_large

_MAX_PERIODS = 200
"""Distances that are tried; a real model has a few."""


def find_repetition(graph: Graph) -> Numbering | None:
    """The longest run of forward ops that repeats with one period, cut where least crosses."""
    return _find_among(graph, np.flatnonzero(graph.phase == Phase.FORWARD).astype(np.int32))


def find_repetitions(graph: Graph) -> list[Numbering]:
    """That run, and the longest ones before and after it, but for those with little work."""
    waiting = [np.flatnonzero(graph.phase == Phase.FORWARD).astype(np.int32)]
    found: list[Numbering] = []
    while waiting:
        ops = waiting.pop()
        run = _find_among(graph, ops)
        if run is None or (found and not is_large(run, found[0])):
            continue
        found.append(run)
        inside = np.flatnonzero(run.layer[ops] >= 0)
        waiting += [each for each in (ops[: inside[0]], ops[inside[-1] + 1 :]) if len(each)]
    return found


def _find_among(graph: Graph, forward: Ints) -> Numbering | None:
    codes = _signatures(graph, forward)
    best: tuple[int, int, int] | None = None
    for period in _periods(graph, forward, codes):
        start, length = _longest_run(codes[period:] == codes[:-period])
        if length >= period and (best is None or length + period > best[0]):
            best = length + period, start, period
    if best is None:
        return None
    covered, start, period = best
    first = start + _offset(graph, forward, start, period)
    num_layers = (start + covered - first) // period
    if num_layers < 2:
        return None
    layer = np.full(graph.num_ops, -1, dtype=np.int32)
    inside = forward[first : first + num_layers * period]
    layer[inside] = np.arange(len(inside), dtype=np.int32) // period
    flops = float(graph.flops[inside].sum())
    return Numbering(pattern="", layer=layer, num_layers=num_layers, flops=flops)


def _signatures(graph: Graph, forward: Ints) -> npt.NDArray[np.int64]:
    """Equal numbers: ops of one kind and size."""
    rows = np.stack(
        [
            graph.kind_codes[1][forward].astype(np.float64),
            graph.flops[forward],
            graph.bytes_read[forward],
            graph.bytes_written[forward],
            graph.parameter_bytes[forward],
            np.diff(graph.inputs.start)[forward].astype(np.float64),
        ],
        axis=1,
    )
    codes: npt.NDArray[np.int64] = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    return codes


def _periods(graph: Graph, forward: Ints, codes: npt.NDArray[np.int64]) -> list[int]:
    """Distances between ops that are alike and hold weights, the smallest first."""
    weighted = np.flatnonzero(graph.parameter_bytes[forward] > 0)
    last: dict[int, list[int]] = {}
    periods: dict[int, int] = {}
    for place in weighted.tolist():
        seen = last.setdefault(int(codes[place]), [])
        for earlier in seen[-4:]:  # alike ops of one layer: queries, keys, values, output
            periods[place - earlier] = periods.get(place - earlier, 0) + 1
        seen.append(place)
    common = sorted(periods, key=lambda period: -periods[period])[:_MAX_PERIODS]
    return sorted(common)


def _longest_run(equal: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Start and length of the longest run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
    if not len(edges):
        return 0, 0
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    longest = int(np.argmax(lengths))
    return int(starts[longest]), int(lengths[longest])


def _offset(graph: Graph, forward: Ints, start: int, period: int) -> int:
    """How far into the run layers begin: where the fewest bytes go from one to the next."""
    size, born, last = _spans(graph, forward)
    crossing = np.zeros(period)
    for offset in range(period):
        place = start + offset + period
        alive = (born >= start) & (born < place) & (last >= place)
        crossing[offset] = size[alive].sum()
    return int(np.argmin(crossing))


def _spans(graph: Graph, forward: Ints) -> tuple[Floats, Ints, Ints]:
    """Tensors of forward: bytes, places of the ops that make them and of the last readers."""
    place = places_in(forward, graph.num_ops, np.int32)
    last = np.full(graph.num_tensors, -1, dtype=np.int32)
    np.maximum.at(last, graph.use_tensor, place[graph.use_op])
    born = place[graph.tensor_source]
    return graph.tensor_bytes[born >= 0], born[born >= 0], last[born >= 0]
