"""Ops that melt together: the arrays and the elementary moves of coarsening's kernels.

A web has nodes (ops, or what has been merged so far) and links (a tensor from its maker to one
reader). Merging two nodes chains their lists of links, in constant time; links that have become
inner or double are dropped when somebody walks over them. What is asked all the time is whether a
node has one successor only: the walk stops at the second one, and drops on its way what it passes,
so that it costs what is dropped and two steps more.

Merging i and j, which a link i -> j joins, leaves no cycle exactly when that link is the only path
from i to j: another one would begin and end in the merged node. Nodes keep a place in a topological
order through all merges:

- i has no other successor: any path from i goes through j. The merged node takes j's place: what
  read i is j, and whatever j waits for stands before j, as does what i waits for.
- j has no other predecessor: likewise, with i's place.
- else `path.find_path` searches between the places of i and j, and `path.settle` moves what it
  found.

Units are hard co-location groups, or ops without one; merging ops unites their units. A cap on the
size of united units (seconds, bytes: whatever they were made with) forbids merges.
"""

from typing import Any, NamedTuple

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, Bool, Float, Int, inlined, outlined
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.kernel.root import find_root, roots_of

NODE = np.dtype(
    [
        ("seconds", np.float64),
        ("parent", np.int32),  # itself: a node that is there; else one merged into that
        ("place", np.int32),  # in a topological order
        ("unit", np.int32),
        ("mark", np.int32),  # of the search that has found it last
        ("first", np.int32, (2,)),  # links OUT and IN: a list from first to last, -1: none
        ("last", np.int32, (2,)),
        ("num", np.int32, (2,)),  # links in the list, those to be dropped included
    ],
    align=True,
)

LINK = np.dtype(
    [
        ("bytes", np.float64),
        ("source", np.int32),  # ops, whatever they have been merged into
        ("target", np.int32),
        ("next", np.int32, (2,)),  # in the list of its source (OUT) and of its target (IN)
        ("tensor", np.int32),
        ("is_dead", np.bool_),  # its tensor reaches the same node by another link
    ],
    align=True,
)

UNIT = np.dtype([("size", np.float64), ("parent", np.int32)], align=True)

OUT, IN = 0, 1
"""The two ways of a link: to a successor of its source, to a predecessor of its target."""
NONE, MANY = -1, -2
"""What stands for the one neighbour where there is none, or more than one."""


class WebArrays(NamedTuple):
    """A web, for kernels."""

    nodes: Array
    """A NODE for each op of the graph."""
    links: Array
    """A LINK for each tensor and reader."""
    units: Array
    """A UNIT for each co-location group, or op without one."""


class Web:
    """The nodes, links and units of a graph."""

    def __init__(
        self,
        seconds: Floats,
        uses: tuple[Ints, Ints, Ints, Floats],
        unit_of: Ints,
        unit_sizes: Floats,
    ) -> None:
        """`uses`: source, target, tensor and bytes, none of them double; sources before targets."""
        num_ops = len(seconds)
        source, target, tensor, size = uses
        order = np.lexsort((target, source))
        self.links = np.zeros(len(order), LINK)
        self.links["source"], self.links["target"] = source[order], target[order]
        self.links["tensor"], self.links["bytes"] = tensor[order], size[order]
        self.nodes = np.zeros(num_ops, NODE)
        self.nodes["seconds"] = seconds
        self.nodes["parent"] = self.nodes["place"] = np.arange(num_ops)
        self.nodes["unit"] = unit_of
        self.nodes["mark"] = -1
        self.units = np.zeros(len(unit_sizes), UNIT)
        self.units["size"], self.units["parent"] = unit_sizes, np.arange(len(unit_sizes))
        everything = np.arange(len(order), dtype=np.int32)
        self._chain(OUT, everything, "source")
        self._chain(IN, np.argsort(self.links["target"], kind="stable"), "target")

    def _chain(self, way: int, order: Any, end: str) -> None:
        """Make the lists of one direction, links in `order`, which gathers them by `end`."""
        own = self.links[end][order]
        changes = np.flatnonzero(np.diff(own)) if len(own) else np.zeros(0, dtype=np.int64)
        following = np.append(order[1:], -1) if len(order) else order
        following[changes] = -1
        self.links["next"][order, way] = following
        first = np.concatenate(([0], changes + 1)) if len(own) else changes
        last = np.append(changes, len(own) - 1) if len(own) else changes
        self.nodes["first"][:, way] = self.nodes["last"][:, way] = NONE
        self.nodes["first"][own[first], way] = order[first]
        self.nodes["last"][own[last], way] = order[last]
        self.nodes["num"][:, way] = np.bincount(own, minlength=len(self.nodes))

    @staticmethod
    def of(graph: Graph, seconds: Floats, sizes: Floats | None = None) -> "Web":
        """The web of a graph whose ops take `seconds`; `sizes` (seconds, too, unless said) cap
        units."""
        check_seconds(graph, seconds)
        group = graph.group.astype(np.int64)
        label = np.where(group >= 0, group, group.max(initial=0) + 1 + np.arange(graph.num_ops))
        unit_of = np.unique(label, return_inverse=True)[1].ravel()
        unit_sizes: Any = np.bincount(unit_of, weights=seconds if sizes is None else sizes)
        uses = (*graph.edges, graph.use_tensor, graph.tensor_bytes[graph.use_tensor])
        return Web(seconds, _without_doubles(*uses), unit_of.astype(np.int32), unit_sizes)

    @property
    def arrays(self) -> WebArrays:
        """The web itself, for kernels, which change it."""
        return WebArrays(self.nodes, self.links, self.units)

    @property
    def num_nodes(self) -> int:
        """How many are there at the start."""
        return len(self.nodes)

    def label(self) -> Ints:
        """The number of each op's node, in a topological order."""
        place = self.nodes["place"][roots_of(self.nodes["parent"])]
        label: Ints = np.unique(place, return_inverse=True)[1].ravel().astype(np.int32)
        return label

    def contracted(self, label: Ints) -> "Web":
        """A new web of what the nodes have become; `label` is from `label()`."""
        num_nodes = int(label.max(initial=-1)) + 1
        links = self.links
        uses = _without_doubles(
            label[links["source"]], label[links["target"]], links["tensor"], links["bytes"]
        )
        seconds: Any = np.bincount(label, weights=self._own("seconds"), minlength=num_nodes)
        units = self.units["parent"]
        while not np.array_equal(units[units], units):
            units = units[units]
        unit_of = np.zeros(num_nodes, dtype=np.int32)
        unit_of[label] = units[self.nodes["unit"]]
        return Web(seconds, uses, unit_of, self.units["size"].copy())

    def _own(self, name: str) -> Any:
        """Zero for nodes that have been merged into another, which has counted them."""
        is_there = self.nodes["parent"] == np.arange(len(self.nodes))
        return np.where(is_there, self.nodes[name], 0.0)

    def pairs(self) -> tuple[Ints, Ints, Floats]:
        """Source, target and bytes between every two nodes that a link joins, before any merge."""
        source, target = self.links["source"], self.links["target"]
        key = source.astype(np.int64) * max(1, self.num_nodes) + target
        is_first = np.diff(key, prepend=-1) > 0  # links are sorted
        pair = np.cumsum(is_first) - 1
        size = np.bincount(pair, weights=self.links["bytes"], minlength=int(is_first.sum()))
        return source[is_first], target[is_first], size.astype(np.float64, copy=False)


def check_seconds(graph: Graph, seconds: Floats) -> None:
    """Raise InputError unless every op has a time."""
    if np.shape(seconds) != (graph.num_ops,):
        raise InputError(
            f"graph {graph.name}: seconds must have one entry an op ({graph.num_ops}), "
            f"got {np.shape(seconds)}"
        )
    bad = np.flatnonzero(~((seconds >= 0) & (seconds < np.inf)))
    if len(bad):
        raise InputError(
            f"graph {graph.name}: seconds of ops must be finite and not negative, "
            f"got {seconds[bad[0]]}"
        )


def _without_doubles(
    source: Ints, target: Ints, tensor: Ints, size: Floats
) -> tuple[Ints, Ints, Ints, Floats]:
    """Links between different nodes, one a tensor and target."""
    outside = np.flatnonzero(source != target)
    key = tensor[outside].astype(np.int64) * (int(target.max(initial=0)) + 1) + target[outside]
    kept = outside[np.unique(key, return_index=True)[1]]
    return source[kept], target[kept], tensor[kept], size[kept]


@inlined
def find(nodes: Array, op: Int) -> Int:
    """The node that an op has become part of; works on units, too."""
    return find_root(nodes.parent, op)


@inlined
def neighbour(web: WebArrays, link: Int, way: Int) -> Int:
    """The node that a link leads to, OUT or IN."""
    return find(web.nodes, web.links[link].target if way == OUT else web.links[link].source)


@inlined
def drop_link(web: WebArrays, node: Int, way: Int, before: Int, link: Int) -> None:
    """Take a link, which stands after `before` (-1: first), out of a node's list."""
    after = web.links[link].next[way]
    if before >= 0:
        web.links[before].next[way] = after
    else:
        web.nodes[node].first[way] = after
    if after < 0:
        web.nodes[node].last[way] = before
    web.nodes[node].num[way] -= 1


@outlined
def one_neighbour(web: WebArrays, node: Int, way: Int) -> Int:
    """The only other node that reads a node (OUT) or that it reads (IN), NONE or MANY; drops what
    it need not see again."""
    found, before = np.int64(NONE), np.int64(NONE)
    at = np.int64(web.nodes[node].first[way])
    while at >= 0:
        other = neighbour(web, at, way)
        after = np.int64(web.links[at].next[way])
        if other in (node, found):
            drop_link(web, node, way, before, at)
        elif found >= 0:
            return np.int64(MANY)
        else:
            found, before = other, at
        at = after
    return found


@inlined
def fits(nodes: Array, units: Array, first: Int, second: Int, cap: Float) -> Bool:
    """Whether two nodes may share a device: in one unit already, or in two that fit the cap."""
    one, two = find(units, nodes[first].unit), find(units, nodes[second].unit)
    return one == two or units[one].size + units[two].size <= cap


@inlined
def unite_units(units: Array, first: Int, second: Int) -> None:
    """Make two units one."""
    one, two = find(units, first), find(units, second)
    if one != two:
        units[one].size += units[two].size
        units[two].parent = one


@outlined
def merge(web: WebArrays, kept: Int, gone: Int) -> None:
    """Let `gone` become part of `kept`, which keeps its place."""
    nodes, links = web.nodes, web.links
    nodes[gone].parent = kept
    nodes[kept].seconds += nodes[gone].seconds
    unite_units(web.units, nodes[kept].unit, nodes[gone].unit)
    for way in range(2):
        if nodes[gone].first[way] >= 0:
            if nodes[kept].last[way] >= 0:
                links[nodes[kept].last[way]].next[way] = nodes[gone].first[way]
            else:
                nodes[kept].first[way] = nodes[gone].first[way]
            nodes[kept].last[way] = nodes[gone].last[way]
            nodes[kept].num[way] += nodes[gone].num[way]
