"""Divides the backward of convolutions: the gradient of the input, and that of the parameters.

Autograd asks for both in one call, but each is a product of its own that libraries run a kernel
for: apart, the layers before wait for the input's gradient only, and the weight's can be computed
at any time until the update. Changes a traced step; what each op costs follows from its mask.
"""

import operator
from typing import Any

import torch
from torch.fx import Graph, Node

_BACKWARD = torch.ops.aten.convolution_backward.default
MASK = 10
"""Where the mask stands among the arguments: of the input, the weight and the bias."""


def divide_convolutions(graph: Graph) -> list[int]:
    """Make two ops of each that has gradients of both input and weight, the input's first.

    Returns the places, among the nodes as they were, of those that are two nodes now.
    """
    nodes = list(graph.nodes)
    calls = [(place, node) for place, node in enumerate(nodes) if node.target is _BACKWARD]
    found = [place for place, node in calls if all(_mask(node)[:2])]
    for place in found:
        _divide(nodes[place])
    return found


def _mask(node: Node) -> list[bool]:
    mask: Any = node.args[MASK]
    return list(mask)


def _divide(node: Node) -> None:
    """The node keeps the gradients of the parameters; one before it makes the input's."""
    _, weight, bias = _mask(node)
    with node.graph.inserting_before(node):
        first = node.graph.create_node(
            "call_function", _BACKWARD, node.args, node.kwargs, name=f"{node.name}_input"
        )
    first.meta = dict(node.meta)
    for each in list(node.users):
        if each.target is operator.getitem and each.args[1] == 0:
            each.replace_input_with(node, first)
    _keep(first, [True, False, False])
    _keep(node, [False, weight, bias])


def _keep(node: Node, mask: list[bool]) -> None:
    """Make only these of the three gradients."""
    node.update_arg(MASK, mask)
    pairs = zip(node.meta["val"], mask, strict=True)
    node.meta["val"] = tuple(each if is_made else None for each, is_made in pairs)
