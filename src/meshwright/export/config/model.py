"""The model of a graph as sizes that other programs are told, and back. Knows architectures with
their sizes; which words a program has for them is that program's."""

from collections.abc import Mapping

import numpy as np

from meshwright.errors import InputError
from meshwright.graph.architecture.shape import Shape, is_shape, read_shape
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers, find_tokens
from meshwright.zoo.shape import find_shape

_MIXED = "mixed-"


def find_numbers(graph: Graph) -> tuple[str, str]:
    """The precision and the optimiser of a step: the ones of its updates; empty where it has none
    or several."""
    updates = np.flatnonzero(graph.phase == Phase.UPDATE)
    kinds = {graph.kind[op] for op in updates.tolist()}
    if len(kinds) != 1:
        return "", ""
    name = kinds.pop().removeprefix("_fused_").removesuffix("_")
    precisions = {graph.precision[op] for op in updates.tolist()}
    if name.startswith(_MIXED):
        return "mixed", name.removeprefix(_MIXED)
    if "tf32" in graph.precision and precisions == {"fp32"}:
        return "tf32", name
    return (precisions.pop() if len(precisions) == 1 else ""), name


def find_model(graph: Graph) -> Shape | None:
    """The architecture and sizes of a graph that was made of a shape or is the zoo's; None: it is
    of neither, or not what its name says."""
    shape = read_shape(graph.name) if is_shape(graph.name) else find_shape(graph.name, None)
    if shape is None:
        return None
    try:
        stack = find_layers(graph)
    except InputError:
        return None
    heads = {kind.heads for kind in stack.kinds} - {0}
    if heads != {shape.sizes["heads"]}:
        return None
    tokens = {"sequence": find_tokens(graph)} if shape.architecture != "vit" else {}
    return Shape(architecture=shape.architecture, sizes={**shape.sizes, **tokens}).complete()


def shape_text(architecture: str, sizes: Mapping[str, int]) -> str:
    """A shape as `load_graph` takes it."""
    return f"{architecture}:{','.join(f'{name}={value}' for name, value in sizes.items())}"
