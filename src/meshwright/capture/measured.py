"""Puts measured times of kernel calls on the ops of a graph.

A step has an op for each gradient of a convolution (see `divide.py`). Where only a call that makes
both was measured, its time is theirs, in proportion to what the cost model says of each.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import pairwise

import numpy as np

from meshwright.array import Floats
from meshwright.capture.call import describe_call
from meshwright.capture.divide import MASK
from meshwright.capture.trace import Trace
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Graph, Split
from meshwright.profile.profile import Measured

_LIKE = "h200"
"""Whose proportions count on types of device that the catalogue does not have."""


def with_measured(graph: Graph, kernels: Trace, calls: Trace, measured: Measured | None) -> Graph:
    """The graph with the seconds of its calls, NaN where there is no measurement.

    A type of device for which there is none at all is left out.

    Its ops are those of `kernels`; they are called as in `calls`, which may lack some or have more.
    """
    if not measured:
        return graph
    seconds = _find_seconds(graph, kernels, calls, measured, graph.batch)
    return replace(
        graph, seconds={kind: each for kind, each in seconds.items() if not np.isnan(each).all()}
    )


def with_rung(
    graph: Graph, kernels: Trace, calls: Trace, measured: Measured, samples: float
) -> Graph:
    """The graph with what its ops take on another number of samples, as they are called in
    `calls`, on types that have times of the batch; ops that need the whole batch have none."""
    seconds = _find_seconds(graph, kernels, calls, measured, samples)
    ladders = {kind: dict(ladder) for kind, ladder in graph.ladders.items()}
    for kind, each in seconds.items():
        rung = np.where(graph.split == Split.NONE, np.nan, each)
        if kind in graph.seconds and not np.isnan(rung).all():
            ladders.setdefault(kind, {})[float(samples)] = rung
    return replace(graph, ladders=ladders)


def _find_seconds(
    graph: Graph, kernels: Trace, calls: Trace, measured: Measured, samples: float
) -> dict[str, Floats]:
    """By type of device the seconds of calls on so many samples, NaN where there are none."""
    texts = _aligned(kernels, calls)
    seconds = {
        kind: np.array([table.get(text, np.nan) for text in texts], dtype=np.float64)
        for kind, table in measured.items()
    }
    wholes = _find_wholes(texts)
    for kind, each in seconds.items():
        _share_wholes(each, measured[kind], wholes, graph, (kind, samples))
    return seconds


def _aligned(kernels: Trace, calls: Trace) -> list[str]:
    """The call of each kernel, "" for those that have no counterpart."""
    called = calls.ledger.kernels
    if kernels is calls:
        return [describe_call(kernel.node) for kernel in called]
    first = [str(kernel.node.target) for kernel in kernels.ledger.kernels]
    second = [str(kernel.node.target) for kernel in called]
    texts = [""] * len(first)
    for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            texts[block.a + offset] = describe_call(called[block.b + offset].node)
    return texts


def _find_wholes(texts: Sequence[str]) -> dict[int, str]:
    """The call that makes both gradients of a convolution, by the op that makes the input's.

    The op that makes the weight's comes next.
    """
    found = {}
    for op, (one, other) in enumerate(pairwise(texts)):
        if ".convolution_backward." in one and ".convolution_backward." in other:
            first, second = json.loads(one), json.loads(other)
            of_input, *rest = second["args"][MASK]
            if first["args"].pop(MASK) == [True, False, False] and not of_input:
                second["args"].pop(MASK)
                if first == second:
                    first["args"].insert(MASK, [True, *rest])
                    found[op] = json.dumps(first, sort_keys=True, separators=(",", ":"))
    return found


def _share_wholes(
    seconds: Floats,
    table: Mapping[str, float],
    wholes: Mapping[int, str],
    graph: Graph,
    of: tuple[str, float],
) -> None:
    """Divide what whole calls took where one of the two has no time of its own.

    `of`: the type of device and the samples.
    """
    kind, samples = of
    chosen = [
        op for op, text in wholes.items() if text in table and np.isnan(seconds[op : op + 2]).any()
    ]
    if chosen:
        device_type = DEVICE_TYPES.get(kind, DEVICE_TYPES[_LIKE])
        expected = op_seconds(graph, device_type, samples)
        for op in chosen:
            both = expected[op : op + 2]
            seconds[op : op + 2] = table[wholes[op]] * both / both.sum()
