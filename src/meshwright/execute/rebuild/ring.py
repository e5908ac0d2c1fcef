"""Rebuilds attention whose keys and values travel around a context team, block by block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel
from meshwright.capture.stride import dense_stride
from meshwright.execute.cut.attention import LaterRows
from meshwright.execute.cut.call import MemberCall
from meshwright.execute.cut.cut import WHOLE, AnyCut, plain_cut
from meshwright.execute.member import CUT, ROWS, with_cuts
from meshwright.execute.on_parts import TeamPlace
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.rebuild.tokens import keys_of
from meshwright.execute.ring import AddKeys, Block, Skipped, add_blocks, pack_keys
from meshwright.execute.shard import Share
from meshwright.execute.talk import Shift
from meshwright.program.expand.expansion import Owned
from meshwright.program.expand.ring import PACK

KEYS = "keys"
"""What nodes of blocks know: which columns of all scores theirs are."""
_PACKED = "packed"
"""What nodes of packed keys and values know: `_Packed`."""

aten = torch.ops.aten


@dataclass(frozen=True)
class _Packed:
    """Keys and values in a row, or their gradients."""

    shapes: tuple[tuple[int, ...], ...]
    cuts: tuple[AnyCut, ...]
    """How a tensor team cuts them."""

    @staticmethod
    def of(nodes: Sequence[Node]) -> "_Packed":
        """What keys and values are, in a row."""
        return _Packed(
            tuple(tuple(each.meta["val"].shape) for each in nodes),
            tuple(each.meta.get(CUT, WHOLE) for each in nodes),
        )


def shift_block(builder: Builder, op: int) -> Node:
    """The block of the member before."""
    (given,) = _inputs(builder, op)
    return _packed(builder.call(Shift(), given), given.meta[_PACKED])


def pack_or_add(builder: Builder, op: int) -> list[Node]:
    """Keys and values in a row; or the sum of two blocks of their gradients, or that of a member's
    own keys and values."""
    if builder.graph.kind[op] == PACK:
        reader = next(
            each for each in builder.graph.successors[op].tolist() if _is_block(builder, each)
        )
        kernel = builder.kernel(reader)
        views = [builder.argument(op, kernel, each) for each in keys_of(kernel)]
        return [_packed(builder.call(pack_keys, *views), _Packed.of(views))]
    term, total = _inputs(builder, op)
    what = term.meta[_PACKED]
    made = builder.graph.outputs[op]
    if (builder.expansion.tensor_origin[made] < 0).all():
        return [_packed(builder.call(add_blocks, term, total), what)]
    return _own_gradients(builder, op, term, total)


def _own_gradients(builder: Builder, op: int, term: Node, total: Node) -> list[Node]:
    """The gradients of a member's own keys and values, as the planned backward lays them out."""
    what: _Packed = term.meta[_PACKED]
    block = next(
        each for each in builder.graph.predecessors[op].tolist() if _is_block(builder, each)
    )
    _, *values = builder.kernel(block).node.meta["val"]
    strides = tuple(
        dense_stride(value.stride(), shape)
        for value, shape in zip(values, what.shapes, strict=True)
    )
    made = builder.call(AddKeys(what.shapes, strides), term, total)
    width = builder.context.width
    return [
        with_cuts(builder.item(made, place), cut, plain_cut(len(shape) - 2, shape[-2] * width))
        for place, (shape, cut) in enumerate(zip(what.shapes, what.cuts, strict=True))
    ]


def block_keys(builder: Builder, op: int) -> Mapping[Node, Node]:
    """The keys and values of a block, by those of a planned attention."""
    hop, origin = builder.expansion.hop, builder.expansion.origin
    source = builder.graph.tensor_source
    packed = next(
        builder.root[t]
        for t in builder.graph.inputs[op].tolist()
        if origin[source[t]] < 0 and hop[source[t]] == hop[op] and t in builder.root
    )
    what: _Packed = packed.meta[_PACKED]
    views, start = [], 0
    for shape, cut in zip(what.shapes, what.cuts, strict=True):
        stride = dense_stride(range(len(shape), 0, -1), shape)
        view = builder.call(aten.as_strided.default, packed, shape, stride, start)
        views.append(with_cuts(view, cut))
        start += view.meta["val"].numel()
    return dict(zip(keys_of(builder.kernel(op)), views, strict=True))


def run_block(builder: Builder, op: int, kernel: Kernel, given: Callable[[Node], Node]) -> Node:
    """Call one block of an attention, or of its backward."""
    graph, expansion, context = builder.graph, builder.expansion, builder.context
    hop = int(expansion.hop[op])
    change = partial(_change, kernel, context, hop, _combined(builder, op))
    made = [each for each in graph.outputs[op].tolist() if graph.tensor_bytes[each] > 0]
    held = Owned(int(expansion.held[made[0]]))
    node = builder.cutter.call(kernel.node, given, held, None, True, change)
    key, value = keys_of(kernel)
    columns = plain_cut(key.meta["val"].dim() - 1, key.meta["val"].shape[-2])
    node.meta[KEYS] = Share(columns, context.width, (context.member - hop) % context.width)
    if len(node.meta[CUT]) > 2:  # a backward, whose gradients of keys are one row of numbers
        for meta in (CUT, ROWS):
            node.meta[meta] = (node.meta[meta][0], WHOLE)
        node.meta[_PACKED] = _Packed.of([given(key), given(value)])
    first = len(node.meta[CUT]) - len(made)
    for place, tensor in enumerate(made, first):
        if expansion.tensor_origin[tensor] < 0:
            builder.root[tensor] = item = builder.item(node, place)
            item.meta[_PACKED] = node.meta.get(_PACKED)
    return node


def _combined(builder: Builder, op: int) -> list[Node]:
    """What the block before this one gives it; none: it is the first."""
    graph, expansion = builder.graph, builder.expansion
    source = graph.tensor_source
    return [
        builder.root[t]
        for t in graph.inputs[op].tolist()
        if t in builder.root
        and expansion.hop[source[t]] == expansion.hop[op] - 1
        and expansion.origin[source[t]] == expansion.origin[op]
    ]


def _change(
    kernel: Kernel, context: TeamPlace, hop: int, before: list[Node], call: MemberCall
) -> MemberCall:
    """The call of the block that a member is with after some hops around the ring, instead of one
    with all keys."""
    owner, is_last = (context.member - hop) % context.width, hop == context.width - 1
    names = tuple(each.name for each in kernel.node.target._schema.arguments)  # type: ignore[union-attr]
    tokens = keys_of(kernel)[0].meta["val"].shape[-2] // context.width
    target: Any = call.target
    if isinstance(target, LaterRows):  # causal
        target = replace(target, first=(context.member - owner) * tokens)
    block: Any = Block(target, names, owner * tokens, len(before), is_last)
    if isinstance(target, LaterRows) and owner > context.member:
        is_backward = len(call.cuts) > 2
        places = (names.index("key"), names.index("value")) if is_backward else None
        block = Skipped(len(before), is_last, places)
    return replace(call, target=block, args=(*call.args, *before))


def _packed(node: Node, what: _Packed) -> Node:
    node.meta[_PACKED] = what
    return node


def _is_block(builder: Builder, op: int) -> bool:
    return bool(builder.expansion.hop[op] >= 0 and builder.expansion.origin[op] >= 0)


def _inputs(builder: Builder, op: int) -> list[Node]:
    return [builder.root[t] for t in builder.filled_inputs(op)]
