"""Finds the layers that a model repeats.

Numbered module paths propose layers, or names of ops, or where neither helps ops that repeat; then
structure decides: layers of one kind are alike op by op, and layers form a chain. Where they form
none, as with an encoder and its decoder or connections that skip layers, the layers of all chains
stand in one line, in which each may read any that stand before it.
"""

from collections.abc import Iterator
from functools import lru_cache
from math import fsum

import numpy as np

from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.chain import LayerChain, make_chain
from meshwright.graph.stack.crossing import Crossings, find_crossings
from meshwright.graph.stack.kind import make_kind
from meshwright.graph.stack.line import join_chains
from meshwright.graph.stack.name import Numbering, find_chains, find_numberings, find_rival
from meshwright.graph.stack.repeat import find_repetition, find_repetitions
from meshwright.graph.stack.stack import LayerKind, Stack
from meshwright.graph.stack.template import Excerpt, excerpt, key_of, make_template, tied_bytes

_LEAST_SHARE = 0.5
"""Of the FLOPs of forward, what layers in line do at the least: else they are parts of layers, such
as queries, keys and values."""


@lru_cache(maxsize=16)
def find_layers(graph: Graph) -> Stack:
    """The graph as a line of layers; InputError where a model repeats none.

    The same graph gives the same stack, object by object, so that what is known of its kinds of
    layers, such as their prices, is found again.
    """
    if graph.mixes.any():
        raise InputError(
            f"graph {graph.name}: its layers must treat samples one by one, but op "
            f"{quoted(graph.mixing_op)} mixes the samples of a batch"
        )
    _check_phases(graph)
    rival = _find_rival(graph)
    refusal = rival
    for numbering, is_line in _proposals(graph, has_rival=rival is not None):
        try:
            chain = make_chain(graph, numbering.layer, numbering.num_layers, is_line=is_line)
        except InputError as error:
            refusal = error if is_line else refusal or error
            continue
        crossings = find_crossings(graph, chain.layer, graph.tensor_partial) if is_line else None
        parts = [excerpt(graph, chain, layer) for layer in range(chain.num_layers)]
        skips = crossings is not None and crossings.skips
        if skips or _repeats(graph, parts[_inner_layers(chain, numbering)]):
            place: dict[object, int] = {}
            keys = [key_of(graph, chain, part) for part in parts]
            numbers = [place.setdefault(key, len(place)) for key in keys]
            stack = _make_stack(graph, chain, parts, numbers, crossings)
            _check_groups(stack)
            return stack
    raise refusal or InputError(
        f"graph {graph.name}: must have repeated layers, found no two alike among its "
        f"{graph.num_ops:,} ops"
    )


def has_layers(graph: Graph) -> bool:
    """Whether the graph is a line of layers, some of which repeat."""
    try:
        find_layers(graph)
    except InputError:
        return False
    return True


def find_tokens(graph: Graph) -> int:
    """How many tokens a sample has in the layers that repeat; zero: not known."""
    kinds = find_layers(graph).kinds
    inner = [each.tokens for each in kinds if each.is_input.any() and each.is_leaving.any()]
    return round(max(inner, default=0.0))


def _check_phases(graph: Graph) -> None:
    """Layers run forward, then backward, then their updates."""
    source, target = graph.edges
    early = np.flatnonzero(graph.phase[target] < graph.phase[source])
    if len(early):
        first, second = (graph.op_names[ends[early[0]]] for ends in (source, target))
        raise InputError(
            f"graph {graph.name}: an op must not read one of a later phase of the step, but "
            f"{quoted(second)} reads {quoted(first)}"
        )


def _find_rival(graph: Graph) -> InputError | None:
    """Why layers that are named form no single chain; None: they may, or none are named."""
    named = find_numberings(graph)
    rival = find_rival(graph, named[0]) if named else None
    if rival is None:
        return None
    return InputError(
        f"graph {graph.name}: must have one chain of repeated layers, or chains whose layers do "
        f"not need each other, found {named[0].pattern} and {rival}"
    )


def _proposals(graph: Graph, *, has_rival: bool) -> Iterator[tuple[Numbering, bool]]:
    """Numberings, each with whether its layers stand in line; chains come first."""
    if not has_rival:
        yield from ((each, False) for each in find_numberings(graph))
        repeated = find_repetition(graph)
        if repeated is not None:
            yield repeated, False
    work = float(graph.flops[graph.phase == Phase.FORWARD].sum())
    for chains in (find_chains(graph), find_repetitions(graph)):
        line = join_chains(graph, chains) if chains else None
        if line is not None and line.flops > _LEAST_SHARE * work:
            yield from ((line, is_line) for is_line in (False, True))


def _inner_layers(chain: LayerChain, numbering: Numbering) -> slice:
    """The layers that are neither the embedding nor the head."""
    first = int(chain.layer[np.flatnonzero(numbering.layer == 0)[0]])
    return slice(first, first + numbering.num_layers)


def _repeats(graph: Graph, layers: list[Excerpt]) -> bool:
    """Whether most layers have another with the same ops, whatever their sizes."""
    ops = [tuple(graph.kind[op] for op in layer.ops) for layer in layers]
    alike = sum(ops.count(each) > 1 for each in ops)
    return 2 * alike > len(ops) and alike > 1


def _make_stack(
    graph: Graph,
    chain: LayerChain,
    parts: list[Excerpt],
    numbers: list[int],
    crossings: Crossings | None,
) -> Stack:
    made: list[LayerKind] = []
    for number in range(max(numbers) + 1):
        layers = [layer for layer, each in enumerate(numbers) if each == number]
        ops = np.stack([parts[layer].ops for layer in layers])
        template = make_template(graph, chain, parts[layers[0]], ops)
        made.append(make_kind(_name(layers, len(parts), len(made)), template))
    boundary, side = graph.tensor_bytes * chain.is_boundary, graph.tensor_bytes * chain.is_side
    passed = np.bincount(
        chain.layer[graph.tensor_source], weights=boundary, minlength=chain.num_layers
    )
    return Stack(
        graph=graph,
        kinds=tuple(made),
        layers=tuple(numbers),
        layer_of_op=chain.layer,
        boundary_bytes=tuple(passed[:-1].tolist()),
        side_bytes=float(side.sum()),
        fixed_side_bytes=float((graph.fixed_tensor_bytes * chain.is_side).sum()),
        tied_bytes=fsum(tied_bytes(graph, update) for update in parts[-1].tied)
        + float(graph.tensor_bytes[parts[0].copied_gradients].sum()),
        crossings=crossings,
    )


def _check_groups(stack: Stack) -> None:
    """Layers may run on different devices, so ops that must share one are in one layer; weights
    that the first and the last layer share are copies."""
    graph, layer = stack.graph, stack.layer_of_op
    members = np.flatnonzero(graph.group >= 0)
    groups, place = np.unique(graph.group[members], return_inverse=True)
    first = np.full(len(groups), stack.num_layers)
    last = np.full(len(groups), -1)
    np.minimum.at(first, place, layer[members])
    np.maximum.at(last, place, layer[members])
    is_tie = (first == 0) & (last == stack.num_layers - 1) & (stack.tied_bytes > 0)
    bad = np.flatnonzero((first != last) & ~is_tie)
    if len(bad):
        number = bad[0]
        raise InputError(
            f"graph {graph.name}: ops of one group must be in one layer, group {groups[number]} is "
            f"in layers {first[number]} and {last[number]}"
        )


def _name(layers: list[int], num_layers: int, number: int) -> str:
    if layers == [0]:
        return "embedding"
    return "head" if layers == [num_layers - 1] else f"layer {layers[0]}" if number else "layer"
