"""Parts in layers and parts in ops: turns one into the other for a graph.

A part may say `layers` such as "embedding-6" instead of the names of all their ops. Layers are
those that `find_layers` finds and summaries show, by number along the chain or, where the graph
has them, as `embedding` and `head`. How they are spelt is checked by `meshwright.plan.part`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Part


def name_ops(graph: Graph, parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same parts by the names of their ops: layer after layer, each in the graph's order."""
    first = next((number for number, part in enumerate(parts) if part.layers), None)
    if first is None:
        return tuple(parts)
    try:
        stack = find_layers(graph)
    except InputError as error:
        raise InputError(
            f"part {first}: layers {parts[first].layers} need a graph that has layers: {error}"
        ) from None
    layers = [_number_layers(stack, part, number) for number, part in enumerate(parts)]
    _check_cover(stack, layers, has_ops=any(part.ops for part in parts))
    return tuple(
        replace(part, layers="", ops=tuple(op for each in some for op in stack.ops_of_layer[each]))
        if part.layers
        else part
        for part, some in zip(parts, layers, strict=True)
    )


def name_layers(graph: Graph, parts: Sequence[Part]) -> tuple[Part, ...]:
    """The same parts by their layers, where that says exactly the same."""
    try:
        stack = find_layers(graph)
    except InputError:
        return tuple(parts)
    return tuple(_in_layers(stack, part) for part in parts)


def _in_layers(stack: Stack, part: Part) -> Part:
    index, layer_of_op = stack.graph.index, stack.layer_of_op
    if part.layers or part.priorities or not all(op in index for op in part.ops):
        return part
    layers = list(dict.fromkeys(int(layer_of_op[index[op]]) for op in part.ops))
    if part.ops != tuple(op for each in layers for op in stack.ops_of_layer[each]):
        return part
    # Consecutive layers keep the same distance from their place in the list.
    runs = groupby(enumerate(layers), lambda each: each[1] - each[0])
    spans = [[stack.layer_name(layer) for _, layer in run] for _, run in runs]
    texts = ["-".join(dict.fromkeys((span[0], span[-1]))) for span in spans]
    return replace(part, ops=(), layers=",".join(texts))


def _number_layers(stack: Stack, part: Part, number: int) -> list[int]:
    """The layers that a part names, in its order."""
    number_of = {stack.layer_name(layer): layer for layer in range(stack.num_layers)}
    number_of |= {str(layer): layer for layer in range(stack.num_layers)}
    found: list[int] = []
    for span in part.layers.split(",") if part.layers else ():
        for name in (ends := span.split("-")):
            if name not in number_of:
                raise InputError(
                    f"part {number}: layer {name} is not in graph {stack.graph.name}, whose layers "
                    f"are {stack.layer_name(0)} to {stack.layer_name(stack.num_layers - 1)}"
                )
        first, last = number_of[ends[0]], number_of[ends[-1]]
        if first > last:
            raise InputError(f"part {number}: layers must be named first to last, got {span}")
        found += range(first, last + 1)
    return found


def _check_cover(stack: Stack, layers: Sequence[Sequence[int]], *, has_ops: bool) -> None:
    """Refuse a layer that stands twice or, where no part names ops, one that is missing."""
    owner: dict[int, int] = {}
    for part, layer in ((part, layer) for part, some in enumerate(layers) for layer in some):
        if layer in owner:
            first = owner[layer]
            where = f"twice in part {part}" if first == part else f"in part {first} and {part}"
            raise InputError(
                f"layer {stack.layer_name(layer)}: must be in exactly one part, stands {where}"
            )
        owner[layer] = part
    missing = [layer for layer in range(stack.num_layers) if layer not in owner]
    if missing and not has_ops:
        more = f" (as are {len(missing):,} layers in all)" if len(missing) > 1 else ""
        raise InputError(
            f"layer {stack.layer_name(missing[0])}: must be in exactly one part, is in none{more}"
        )
