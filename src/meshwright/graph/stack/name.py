"""Numbers forward ops by the layer that their module path, or else their name, puts them in.

A path such as "transformer.h.5.attn" has a numbered part, "transformer.h.#", of which 5 is one
instance. Knows nothing about structure: whether the instances are alike is for others to find.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.graph.graph import Graph, Ints, Phase

_NUMBERED = re.compile(r"(.*?)(\d+)")
_RIVAL_SHARE = 0.5
"""FLOPs of an instance, as a share of a layer's, from which it would be a layer of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbering:
    """One way to number layers."""

    pattern: str
    """What the paths of its ops begin with, numbers replaced by "#"."""
    layer: Ints
    """By op: its instance, counted in the order of their first ops; -1: in none."""
    num_layers: int
    flops: float
    """Of all its ops in forward."""


def find_numberings(graph: Graph) -> list[Numbering]:
    """Numberings with two instances or more: the one with the most FLOPs first, then its parts.

    A pattern that does not lie within the first is left out: layers of another kind of chain.
    """
    found = _all_numberings(graph)
    return [each for each in found if each.pattern.startswith(found[0].pattern)]


def find_chains(graph: Graph) -> list[Numbering]:
    """Numberings of which none lies within another, as an encoder's and a decoder's, but for those
    with less work than half a layer of the largest."""
    found = _all_numberings(graph)
    outer = [
        each
        for each in found
        if not any(each.pattern.startswith(other.pattern) for other in found if other is not each)
    ]
    return [each for each in outer if is_large(each, outer[0])]


def is_large(one: Numbering, chosen: Numbering) -> bool:
    """Whether a chain has enough work that its ops should not all be in one layer with others."""
    return one.flops * chosen.num_layers >= _RIVAL_SHARE * chosen.flops


def _all_numberings(graph: Graph) -> list[Numbering]:
    """Those with two instances or more, the one with the most FLOPs first."""
    patterns: dict[str, dict[int, tuple[int, ...]]] = {}
    for op in np.flatnonzero(graph.phase == Phase.FORWARD).tolist():
        for pattern, instance in _numbered(_path(graph, op)):
            patterns.setdefault(pattern, {})[op] = instance
    found = [_number(graph, pattern, ops) for pattern, ops in patterns.items()]
    found = [each for each in found if each.num_layers > 1]
    return sorted(found, key=lambda each: (-each.flops, each.pattern.count("#"), each.pattern))


def find_rival(graph: Graph, chosen: Numbering) -> str | None:
    """A pattern outside the chosen layers with two instances as large as one of them."""
    enough = _RIVAL_SHARE * chosen.flops / chosen.num_layers
    sums: dict[str, dict[tuple[int, ...], float]] = {}
    for op in np.flatnonzero((graph.phase == Phase.FORWARD) & (chosen.layer < 0)).tolist():
        for pattern, instance in _numbered(_path(graph, op)):
            flops = sums.setdefault(pattern, {})
            flops[instance] = flops.get(instance, 0.0) + float(graph.flops[op])
    for pattern, flops in sums.items():
        if enough > 0 and sum(each >= enough for each in flops.values()) > 1:
            return pattern
    return None


def _path(graph: Graph, op: int) -> str:
    return graph.module[op] or graph.op_names[op].partition("/")[0]


def _numbered(path: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The numbered beginnings of a path, the shortest first."""
    masked: list[str] = []
    numbers: list[int] = []
    for piece in path.split("."):
        match = _NUMBERED.fullmatch(piece)
        masked.append(f"{match[1]}#" if match else piece)
        if match:
            numbers.append(int(match[2]))
            yield ".".join(masked), tuple(numbers)


def _number(graph: Graph, pattern: str, ops: dict[int, tuple[int, ...]]) -> Numbering:
    place: dict[tuple[int, ...], int] = {}
    layer = np.full(graph.num_ops, -1, dtype=np.int32)
    for op, instance in ops.items():  # rising: ops were met in order
        layer[op] = place.setdefault(instance, len(place))
    flops = float(graph.flops[layer >= 0].sum())
    return Numbering(pattern=pattern, layer=layer, num_layers=len(place), flops=flops)
