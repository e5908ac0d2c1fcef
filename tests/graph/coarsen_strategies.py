"""Random steps for coarsening, and what networkx makes of ops that are merged."""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
import numpy as np
from hypothesis import strategies as st

from meshwright.array import Floats, Ints
from meshwright.graph.build import GraphBuilder
from meshwright.graph.column import OP_LINES
from meshwright.graph.graph import Graph, Phase, Split

DELAYS = (0, 1, 1, 2, 3, 5, 8, 20)
"""Whole numbers: sums are exact, and many are equal."""


@st.composite
def steps(
    draw: st.DrawFn, max_ops: int = 10, groups: Sequence[int] = (-1, -1, -1, 0, 1)
) -> tuple[Graph, Floats]:
    """A graph and the delays of its ops; some tensors have several readers, some pairs several."""
    num_ops = draw(st.integers(2, max_ops))
    builder = GraphBuilder("step", 4)
    # Links are drawn by hand: Hypothesis alone makes few, and nothing but trees of them.
    noise = random.Random(draw(st.integers(0, 100_000)))
    density = draw(st.sampled_from((0.1, 0.25, 0.5)))
    for op in range(num_ops):
        others = ("parameter_bytes", "state_bytes", "saved_bytes", "workspace_bytes", "calls")
        sizes: dict[str, Any] = {name: noise.randint(0, 100) for name in (*OP_LINES, *others)}
        sizes |= {f"fixed_{name}": noise.randint(0, sizes[name]) for name in OP_LINES}
        builder.add_op(
            f"op{op}",
            phase=noise.choice(list(Phase)),
            split=noise.choice(list(Split)),
            group=noise.choice(groups),
            partner=noise.randint(-1, num_ops - 1),
            module=noise.choice(("", "a.b.c", "a.b.d", "a.c")),
            seconds={kind: 1.0 for kind in ("any", "h200") if noise.random() < 0.5},
            **sizes,
        )
    for source in range(num_ops):
        for _ in range(noise.randint(0, 3)):
            targets = [op for op in range(source + 1, num_ops) if noise.random() < density]
            builder.add_tensor(source, noise.randint(0, 100), targets, fixed_bytes=0.0)
    delays = [noise.choice(DELAYS) for _ in range(num_ops)]
    return builder.finish(), np.array(delays, dtype=np.float64)


def chain_of(edges: Iterable[tuple[int, int]], num_ops: int, size: float = 10.0) -> Graph:
    """Ops "op0", "op1", ... with one tensor an edge."""
    builder = GraphBuilder("step", 1)
    for op in range(num_ops):
        builder.add_op(f"op{op}")
    for source, target in edges:
        builder.add_tensor(source, size, [target])
    return builder.finish()


class Melted:
    """The same ops in networkx, merged one pair after the other; every node is a root op."""

    def __init__(self, graph: Graph, seconds: Floats) -> None:
        self.graph = graph
        self.root = list(range(graph.num_ops))
        self.seconds = dict(enumerate(seconds.tolist()))

    def digraph(self) -> Any:
        """The distinct links between what is there, with the bytes of the distinct tensors."""
        built = nx.DiGraph()
        built.add_nodes_from(self.seconds)
        moved = {
            (int(tensor), self.root[source], self.root[target])
            for tensor, source, target in zip(
                self.graph.use_tensor, *(ends.tolist() for ends in self.graph.edges), strict=True
            )
            if self.root[source] != self.root[target]
        }
        for tensor, source, target in moved:
            before = built.get_edge_data(source, target, {"bytes": 0.0})["bytes"]
            built.add_edge(source, target, bytes=before + float(self.graph.tensor_bytes[tensor]))
        return built

    def is_only_path(self, source: int, target: int) -> bool:
        digraph = self.digraph()
        digraph.remove_edge(source, target)
        return not nx.has_path(digraph, source, target)

    def may_fuse(self, source: int, target: int, alpha: float) -> bool:
        """QuickP's rule, word by word."""
        digraph = self.digraph()
        out, into = digraph.out_degree(source), digraph.in_degree(target)
        if out == 1 and into == 1:
            return True
        if out >= 2 and into >= 2:
            return False
        return bool(
            (self.seconds[source] <= alpha and out == 1)
            or (self.seconds[target] <= alpha and into == 1)
        )

    def merge(self, kept: int, gone: int) -> None:
        self.root = [kept if root == gone else root for root in self.root]
        self.seconds[kept] += self.seconds.pop(gone)
        assert nx.is_directed_acyclic_graph(self.digraph())

    def sets(self) -> set[frozenset[int]]:
        return sets_of(self.root)


def sets_of(label: Iterable[int]) -> set[frozenset[int]]:
    """The sets of things with equal labels."""
    found: dict[int, set[int]] = {}
    for thing, each in enumerate(label):
        found.setdefault(int(each), set()).add(thing)
    return {frozenset(each) for each in found.values()}


def groups_of(group: Ints) -> set[frozenset[int]]:
    """The sets of things with equal labels that are not negative."""
    return {
        frozenset(np.flatnonzero(group == number).tolist()) for number in set(group.tolist()) - {-1}
    }


def assert_topological(graph: Graph, order: Ints) -> None:
    place = np.empty(graph.num_ops, dtype=np.int64)
    place[order] = np.arange(graph.num_ops)
    source, target = graph.edges
    assert sorted(order.tolist()) == list(range(graph.num_ops))
    assert np.all(place[source] < place[target])


def line(num_ops: int) -> list[tuple[int, int]]:
    return list(pairwise(range(num_ops)))
