"""The step on one sample, with the ops that it has on more samples.

Traced on one sample a step has other kernels than the graph that was planned: a dimension of size
one needs no copy to be reshaped and a matrix-vector product takes its bias along. So we take the
step from two traces on more samples instead, whose ops are those of the graph: what differs
between their calls (sizes, strides, a mean's divisor) follows the number of samples, and is known
for one sample, too. Then the calls run once more on fake tensors, to see what they make. Knows
nothing of graphs, plans and devices.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.fake import StepMode
from meshwright.capture.stride import effective_strides
from meshwright.capture.torch_private import FakeTensorMode, pytree
from meshwright.capture.trace import Trace
from meshwright.errors import InputError

TWO, THREE = 2, 3
"""The samples in the two traces: the fewest at which no dimension of the batch is of size one."""
_ADVICE = "let every replica have two samples or more"


def align_trace(two: Trace, three: Trace) -> Trace:
    """The step on one sample, node by node that on two; `three` is the same step on three."""
    pairs = list(_pair_nodes(two, three))
    graph = copy.deepcopy(two.graph)  # under the same names
    nodes = list(graph.nodes)
    made = {pair[0]: node for pair, node in zip(pairs, nodes, strict=True)}
    mode = StepMode(allow_non_fake_inputs=False)
    values: dict[Node, Any] = {}
    for (small, large), node in zip(pairs, nodes, strict=True):
        if node.op == "placeholder":
            values[node] = _held(small, large, mode)
        elif node.op == "get_attr":
            _check_constant(two, three, small, large)
            values[node] = _held(small, large, mode)
        else:
            node.args, node.kwargs = _arguments(small, large, made)
            if node.op == "call_function":
                values[node] = _call(node, values, mode)
        if "val" in small.meta:
            # As it is now: a later op may give the very tensor another shape.
            node.meta["val"] = pytree.tree_map_only(
                torch.Tensor, lambda each: each.detach(), values[node]
            )
    trace = replace(two, graph=graph)
    _check_kernels(two, trace)
    _check_gradients(two, trace)
    return trace


def _pair_nodes(two: Trace, three: Trace) -> Iterator[tuple[Node, Node]]:
    """The nodes of both traces, which must be the same calls in the same order."""
    ones, others = list(two.graph.nodes), list(three.graph.nodes)
    for small, large in zip(ones, others, strict=False):
        if small.target != large.target or small.op != large.op:
            raise InputError(
                f"op {small.name}: must be the same call at every number of samples to be run on "
                f"one sample, got {small.target} at {TWO} and {large.target} at {THREE}; {_ADVICE}"
            )
        yield small, large
    assert len(ones) == len(others)  # what ends a trace is the same in both


def _held(small: Node, large: Node, mode: FakeTensorMode) -> torch.Tensor:
    """What the step starts from: a parameter as it is, an input on one sample."""
    one, other = small.meta["val"], large.meta["val"]
    shape, stride = (
        [_at_one(small, *pair) for pair in zip(sizes, larger, strict=True)]
        for sizes, larger in ((one.shape, other.shape), (one.stride(), other.stride()))
    )
    with mode:
        return torch.empty_strided(shape, stride, dtype=one.dtype, device=one.device)


def _check_constant(two: Trace, three: Trace, small: Node, large: Node) -> None:
    """Refuse a constant of the model's code that depends on the number of samples."""
    one = two.constants[str(small.target)]
    other = three.constants[str(large.target)]
    if one.shape != other.shape or not bool(torch.isclose(one, other, 0, 0, equal_nan=True).all()):
        raise InputError(
            f"constant {small.target}: must be the same at every number of samples to be run on "
            f"one sample, got other numbers at {TWO} than at {THREE}; {_ADVICE}"
        )


def _arguments(
    small: Node, large: Node, made: dict[Node, Node]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a call is given on one sample, as nodes of the new graph and numbers."""
    leaves, structure = pytree.tree_flatten((small.args, small.kwargs))
    others, other_structure = pytree.tree_flatten((large.args, large.kwargs))
    if structure != other_structure:
        raise InputError(
            f"op {small.name}: must have as many arguments at every number of samples to be run "
            f"on one sample, got {len(leaves):,} at {TWO} and {len(others)} at {THREE}; {_ADVICE}"
        )
    found = [
        made[one] if isinstance(one, Node) else _at_one(small, one, other)
        for one, other in zip(leaves, others, strict=True)
    ]
    args, kwargs = pytree.tree_unflatten(found, structure)
    return args, kwargs


def _at_one(node: Node, two: Any, three: Any) -> Any:
    """A number of a call on one sample, from those on two and three.

    Whole numbers are sizes, strides, offsets and counts, so on a line. Other numbers grow in
    proportion to the samples or to one over them: two numbers do not tell a line from a curve.
    """
    if two == three or (two != two and three != three):
        return two
    if type(two) is int and type(three) is int:
        found = two - (three - two)
        if (found < 0) == (two < 0):
            return found
    if type(two) is float and type(three) is float:
        if math.isclose(TWO * two, THREE * three):
            return TWO * two
        if math.isclose(two / TWO, three / THREE):
            return two / TWO
    raise InputError(
        f"op {node.name}: what it is given must be in proportion to the samples to be run on one "
        f"sample, got {two} at {TWO} and {three} at {THREE}; {_ADVICE}"
    )


def _call(node: Node, values: dict[Node, Any], mode: FakeTensorMode) -> Any:
    """What a call makes, on fake tensors."""
    args, kwargs = pytree.tree_map_only(Node, values.__getitem__, (node.args, node.kwargs))
    assert callable(node.target)
    try:
        with mode, torch.no_grad():
            return node.target(*args, **kwargs)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"op {node.name}: must run on one sample as it does on {TWO}, got: {reason}; {_ADVICE}"
        ) from error


def _check_kernels(two: Trace, one: Trace) -> None:
    """The same kernels read and write the same versions: an op is a view at all sizes or at none.

    Torch has no other ops in a trace; it decides whether to copy in what runs them.
    """
    for kernel, other in zip(one.ledger.kernels, two.ledger.kernels, strict=True):
        is_same = (kernel.reads, kernel.made) == (other.reads, other.made)
        assert kernel.node.name == other.node.name and is_same, kernel.node.name


def _check_gradients(two: Trace, one: Trace) -> None:
    """Refuse gradients that lie otherwise: fused updates rely on it, and replicas add them up."""
    for node, other in zip(one.returned[1:], two.returned[1:], strict=True):
        found, expected = node.meta["val"], other.meta["val"]
        if found.shape != expected.shape or effective_strides(found) != effective_strides(expected):
            raise InputError(
                f"gradient {node.name}: must lie in memory on one sample as on {TWO}, got shape "
                f"{tuple(found.shape)} with strides {found.stride()} and "
                f"{tuple(expected.shape)} with {expected.stride()}; {_ADVICE}"
            )
