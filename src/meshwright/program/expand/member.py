"""What a member of a tensor team does with every op and tensor of a planned step.

The kinds of layers of a model (`meshwright.graph.stack`) say it of one layer each; here it is said
of every op of the whole graph. Knows no parts and no widths.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.array import freeze_arrays, marked
from meshwright.cost.layer.call import loss_bytes
from meshwright.graph.graph import Bools, Floats, Graph, Ints, Phase
from meshwright.graph.stack.block import find_block
from meshwright.graph.stack.product import is_product
from meshwright.graph.stack.stack import PRODUCT_SIZES, Codes, LayerKind, Role, Stack
from meshwright.kernel.row import gather_rows

_STRIDED = "strided_"
"""A kind of op begins so where it reads or writes views."""
_ADD = "add"
"""The kind of sums of two tensors."""
_COPIES = frozenset(("_to_copy", "clone", "copy", "select_backward", "slice_backward"))
"""Kinds of ops that give a sum of copies from copies of the terms: casts, copies, padding."""

_FEWEST_TOKENS = 5
"""From so many on, all but one of them is no part that features are split into."""
_BITS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Numbers that an op makes may have so many times the bits of those it reads, or a part."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Members:
    """Arrays over the ops, then over the tensors of a planned graph."""

    role: Codes
    """By op: a `Role`."""
    cut: Codes
    """By op: a `ProductCut`."""
    makes_terms: Bools
    """By op: whether its results are terms of a sum over the team: a row product, a divided table,
    a column product's gradient of what it read."""
    is_softmax: Bools
    """By op: whether it norms divided classes, for which the team adds up two numbers a row."""
    is_loss: Bools
    """By op: whether it sums divided classes, for which the team adds up one number a row."""
    has_tokens: Bools
    """By op: whether the rows it works on are the tokens of the model's layers, so that members
    can divide them; products of one row a sample, layers in which rows meet, and what sorts tokens
    by expert, computes them there and puts them back, have others."""
    drops_tokens: Bools
    """By op: whether it leaves out one of a sample's tokens, as a loss does that compares each with
    the next: members of a context team would have different numbers of them."""
    loss_bytes: Floats
    """By op: four bytes a row of its layer."""
    is_add: Bools
    """By op: whether it adds up two tensors."""
    is_copy: Bools
    """By op: whether it gives a sum of copies where it reads terms."""
    is_cut: Bools
    """By tensor: whether members have their own features of it."""
    has_rows: Bools
    """By tensor: whether it has a row a token (or a sample)."""
    is_stream: Bools
    """By tensor: whether it is the next layer's input, or the gradient of one."""

    def __post_init__(self) -> None:
        freeze_arrays(self)


def find_members(stack: Stack) -> Members:
    """Say of all ops and tensors what the kinds of layers say of theirs."""
    graph = stack.graph
    kind_of_layer = np.array(stack.layers)
    tensor_layer = stack.layer_of_op[graph.tensor_source]
    kinds = stack.kinds
    op_start = np.cumsum([0, *(kind.graph.num_ops for kind in kinds)])
    tensor_start = np.cumsum([0, *(kind.graph.num_tensors for kind in kinds)])
    op_place = op_start[kind_of_layer[stack.layer_of_op]] + stack.template_op
    tensor_place = tensor_start[kind_of_layer[tensor_layer]] + stack.template_tensor
    tokens = {kind: _tokens(stack, kind) for kind in kinds}

    def by_op(find: Callable[[LayerKind], Any]) -> Any:
        return np.concatenate([find(kind) for kind in kinds])[op_place]

    def by_tensor(find: Callable[[LayerKind], Bools]) -> Any:
        return np.concatenate([find(kind) for kind in kinds])[tensor_place]

    names, codes = graph.kind_codes
    plain = [name.removeprefix(_STRIDED) for name in names]
    several = np.diff(graph.inputs.start) > 1
    return Members(
        role=by_op(lambda kind: kind.role),
        cut=by_op(lambda kind: kind.tensor_cut),
        makes_terms=by_op(_makes_terms),
        is_softmax=by_op(_is_softmax),
        is_loss=by_op(_is_loss),
        has_tokens=by_op(lambda kind: _has_tokens(kind, tokens[kind])),
        drops_tokens=by_op(lambda kind: _drops_tokens(kind, tokens[kind])),
        loss_bytes=by_op(lambda kind: np.full(kind.graph.num_ops, loss_bytes(kind))),
        is_add=np.array([name == _ADD for name in plain])[codes] & several,
        is_copy=np.array([name in _COPIES for name in plain])[codes] & ~several,
        is_cut=by_tensor(lambda kind: kind.is_cut),
        has_rows=by_tensor(lambda kind: kind.has_rows),
        is_stream=by_tensor(lambda kind: kind.is_leaving) | _returns(stack),
    )


def _returns(stack: Stack) -> Bools:
    """Gradients that another layer reads to go on."""
    graph, layer = stack.graph, stack.layer_of_op
    source, reader = graph.edges
    backward = (graph.phase[source] == Phase.BACKWARD) & (graph.phase[reader] == Phase.BACKWARD)
    returned = graph.use_tensor[backward & (layer[source] != layer[reader])]
    return marked(graph.num_tensors, returned) & ~graph.tensor_partial


def _tokens(stack: Stack, kind: LayerKind) -> float:
    """Rows a sample of the layers that repeat; the embedding and the head may have other ones."""
    if kind.is_input.any() and kind.is_leaving.any():
        return kind.tokens
    inner = [each.tokens for each in stack.kinds if each.is_input.any() and each.is_leaving.any()]
    return max(inner, default=kind.tokens)


def _reads_cut(kind: LayerKind) -> Bools:
    graph = kind.graph
    return marked(graph.num_ops, graph.use_op[kind.is_cut[graph.use_tensor]])


def _gives(graph: Graph, chosen: Bools | Ints) -> Bools:
    """Ops that make any of these tensors."""
    return marked(graph.num_ops, graph.tensor_source[chosen])


def _makes_terms(kind: LayerKind) -> Bools:
    graph = kind.graph
    divided = (kind.role != Role.WHOLE) & (graph.phase == Phase.BACKWARD) & _reads_cut(kind)
    whole = _gives(graph, ~kind.is_cut)
    # Beside a gradient that is cut, only sums over samples are terms.
    beside = _gives(graph, kind.is_cut) & _gives(graph, ~kind.is_cut & ~graph.tensor_partial)
    given: Bools = divided & whole & ~beside
    return given | _gives(graph, kind.reduced)


def _is_softmax(kind: LayerKind) -> Bools:
    graph = kind.graph
    named = np.array(["softmax" in name for name in graph.kind], dtype=np.bool_)
    found: Bools = named & (graph.phase == Phase.FORWARD) & (kind.role == Role.INNER)
    return found & _reads_cut(kind) & np.bool_(kind.is_loss)


def _is_loss(kind: LayerKind) -> Bools:
    graph = kind.graph
    divided = (kind.role != Role.WHOLE) & (graph.phase == Phase.FORWARD) & _reads_cut(kind)
    sums: Bools = divided & _gives(graph, ~kind.is_cut) & ~_gives(graph, kind.is_cut)
    return sums & ~_gives(graph, kind.reduced)


def _has_tokens(kind: LayerKind, tokens: float) -> Bools:
    """Backward ops go with their forward op, which alone tells by its sizes."""
    graph = kind.graph
    if kind.mixes_rows:
        return np.zeros(graph.num_ops, dtype=np.bool_)
    rows = np.zeros(graph.num_ops)
    for code, name in PRODUCT_SIZES.items():
        rows = np.where(kind.row_cut == code, getattr(graph, name), rows)
    is_few = (rows > 0) & (rows < 0.999 * tokens * graph.batch)
    is_few &= is_product(graph) & (kind.role != Role.ATTENTION)
    is_few |= find_block(kind)
    has: Bools = ~is_few
    known = graph.partner >= 0
    has[known] &= ~is_few[graph.partner[known]]
    return has


def _drops_tokens(kind: LayerKind, tokens: float) -> Bools:
    """By the bytes it makes of what it reads, in numbers of the same bits or of others; in a layer
    that repeats, as many tokens leave as enter."""
    graph = kind.graph
    found = np.zeros(graph.num_ops, dtype=np.bool_)
    if tokens < _FEWEST_TOKENS or (kind.is_input.any() and kind.is_leaving.any()):
        return found
    grown = np.where(kind.has_rows, graph.tensor_bytes - graph.fixed_tensor_bytes, 0.0)
    for op in np.flatnonzero(graph.phase == Phase.FORWARD).tolist():
        made, read = (grown[each] for each in (graph.outputs[op], graph.inputs[op]))
        parts = np.outer(made[made > 0], 1 / read[read > 0]).ravel()
        bits = np.outer(parts, _BITS)
        found[op] = bool(np.isclose(bits, 1 - 1 / tokens, rtol=1e-9, atol=0.0).any())
    return found


def template_rows(stack: Stack, layers: Ints) -> list[Ints]:
    """The ops of the model's graph that each of some layers has, in the order of its kind."""
    order, start = gather_rows(stack.layer_of_op, stack.num_layers)
    ops = order.astype(np.int32)
    return [ops[start[layer] : start[layer + 1]] for layer in layers.tolist()]
