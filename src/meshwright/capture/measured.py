"""Puts measured times of kernel calls on the ops of a graph."""

from dataclasses import replace
from difflib import SequenceMatcher

import numpy as np

from meshwright.capture.call import describe_call
from meshwright.capture.convert import read_trace
from meshwright.capture.trace import Trace
from meshwright.graph.graph import Graph
from meshwright.profile.profile import Measured


def with_measured(graph: Graph, kernels: Trace, calls: Trace, measured: Measured | None) -> Graph:
    """The graph with the seconds of its calls, NaN where there is no measurement.

    A type of device for which there is none at all is left out.

    Its ops are those of `kernels`; they are called as in `calls`, which may lack some or have more.
    """
    if not measured:
        return graph
    texts = _aligned(kernels, calls)
    seconds = {
        kind: np.array([table.get(text, np.nan) for text in texts], dtype=np.float64)
        for kind, table in measured.items()
    }
    return replace(
        graph, seconds={kind: each for kind, each in seconds.items() if not np.isnan(each).all()}
    )


def _aligned(kernels: Trace, calls: Trace) -> list[str]:
    """The call of each kernel, "" for those that have no counterpart."""
    called = read_trace(calls).kernels
    if kernels is calls:
        return [describe_call(kernel.node) for kernel in called]
    first = [str(kernel.node.target) for kernel in read_trace(kernels).kernels]
    second = [str(kernel.node.target) for kernel in called]
    texts = [""] * len(first)
    for block in SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            texts[block.a + offset] = describe_call(called[block.b + offset].node)
    return texts
