"""How an op of an expansion is called where no planned call stands for it, or another one does.

A reduce-scatter turns the gradients of a bundle of weights into the shards that ZeRO's holders
update, an all-gather turns shards into weights. The collectives of a tensor or context team turn
the parts and partial sums of its members into whole tensors, and back.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel, counts_steps, op_name
from meshwright.errors import InputError, quoted
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut
from meshwright.execute.member import CUT, ROWS, token_cut, with_cuts
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.rebuild.loss import LOSSES, has_words, run_loss, say
from meshwright.execute.rebuild.norm import add_moments, run_norm, word_of
from meshwright.execute.rebuild.ring import block_keys, pack_or_add, run_block, shift_block
from meshwright.execute.rebuild.tokens import exchange_tokens, is_of_tokens, keys_of, travel
from meshwright.execute.rebuild.weight_cut import find_cut
from meshwright.execute.talk import (
    AllReduce,
    GatherParts,
    GatherWeights,
    ScatterGradients,
    ScatterTerms,
    SpreadWeights,
    TakePart,
)
from meshwright.execute.traced import Layout
from meshwright.execute.update import gradients, held_name, updated
from meshwright.program.expand.expansion import Axis, Owned
from meshwright.program.expand.ring import ADD, PACK
from meshwright.program.piece import bounds
from meshwright.program.program import Kind

aten = torch.ops.aten


def find_brought(builder: Builder, op: int) -> Mapping[Node, Node]:
    """The keys and values of all members of a context team, or of the member whose block it
    is, by the key and value arguments of the planned attention."""
    expansion, graph = builder.expansion, builder.graph
    if expansion.hop[op] >= 0:
        return block_keys(builder, op)
    gathered = [
        builder.root[t]
        for t in graph.inputs[op].tolist()
        if expansion.axis[graph.tensor_source[t]] == Axis.CONTEXT and expansion.tensor_origin[t] < 0
    ]
    if not gathered:
        return {}
    return dict(zip(keys_of(builder.kernel(op)), gathered, strict=True))


def find_wanted(builder: Builder, op: int) -> AnyCut | None:
    """The cut of the weight that an op's result is the gradient of, by itself or as a term of a
    sum; None: it is no gradient."""
    return _weight_cut(
        builder, int(builder.expansion.origin[op]), int(builder.expansion.part_of_op[op])
    )


def _weight_cut(builder: Builder, kernel: int, part: int) -> AnyCut | None:
    """The cut of the weight that a kernel updates, or that is updated by the kernel's result.

    Where a gradient updates several copies of a weight, the copy in this part counts.
    """
    ledger = builder.step.ledger
    readers = [kernel]
    while True:
        found = [each for each in readers if each in builder.shares.updates]
        near = [
            each
            for each in found
            if builder.shares.updates[each] is builder.shares.plan.parts[part]
        ]
        if found:
            name, _ = updated(builder.step, (near or found)[0])
            return builder.cutter.cuts.get(name)
        if len(readers) != 1 or not ledger.kernels[readers[0]].made:
            return None
        readers = ledger.versions[ledger.kernels[readers[0]].made[0]].readers


def call_collective(builder: Builder, op: int) -> list[Node]:
    """Call a collective, or take the rank's part of a whole tensor; returns the results."""
    if builder.expansion.axis[op] == Axis.REPLICAS:
        return [add_moments(builder, op)]
    bundle = int(builder.expansion.bundle[op])
    kind = Kind(int(builder.expansion.collective[op]))
    part = builder.shares.part(op)
    if kind == Kind.ALL_TO_ALL:
        return travel(builder, op, part.expert)
    if kind == Kind.SHIFT:
        return [shift_block(builder, op)]
    if builder.graph.kind[op] in (PACK, ADD):
        return pack_or_add(builder, op)
    if bundle < 0 and is_of_tokens(builder, op):
        return exchange_tokens(builder, op, kind)
    if bundle < 0:
        return [_exchange(builder, op, kind)]
    updates = builder.expansion.bundles[bundle]
    holders = builder.shares.holders(part, updates[0])
    if kind == Kind.REDUCE_SCATTER:
        return _scatter(builder, op, updates, holders)
    names = [updated(builder.step, update)[0] for update in updates]
    states = [builder.held.node(name) for name in names]
    if part.zero == 3:
        layouts = _layouts(builder, names)
        made = builder.call(GatherWeights(layouts, holders[0]), *states)
        starts = accumulate((each.length for each in layouts), initial=0)  # in one buffer
        pairs = zip(layouts, starts, strict=False)
        builder.gather(op, names, [replace(each, offset=start) for each, start in pairs])
        return [made]
    builder.call(SpreadWeights(*holders), *states)
    return []


def _exchange(builder: Builder, op: int, kind: Kind) -> Node:
    """Call a collective of a tensor team, or take the member's part of a tensor that it has all
    of."""
    team, origin = builder.team, builder.expansion.tensor_origin
    read = builder.filled_inputs(op)
    made = builder.graph.outputs[op].tolist()[0]
    if origin[made] < 0:
        return say(builder, op, read, made)
    given = builder.root[read[0]]
    cut, rows = given.meta.get(CUT, WHOLE), given.meta.get(ROWS, WHOLE)
    if kind == Kind.ALL_REDUCE:
        assert cut is TERMS, "only terms are added up"
        return with_cuts(builder.call(AllReduce(), given), WHOLE, rows)
    if kind == Kind.ALL_GATHER:
        assert isinstance(cut, Cut), "only parts are gathered"
        gathered = builder.call(GatherParts((cut,), team.width), given)
        return with_cuts(builder.item(gathered, 0), WHOLE, rows)
    if builder.expansion.held[made] == Owned.FEATURES:
        return _take_features(builder, op, given, int(origin[made]))
    count = builder.tokens // builder.context.width
    tokens = token_cut(given.meta["val"].shape, builder.step.samples, count)
    if kind == Kind.REDUCE_SCATTER:
        scattered = builder.call(ScatterTerms((tokens,), team.width, team.member), given)
        return with_cuts(builder.item(scattered, 0), tokens, rows)
    own = builder.call(TakePart(tokens, team.width, team.member), given)
    return with_cuts(own, tokens, rows)


def _take_features(builder: Builder, op: int, given: Node, tensor: int) -> Node:
    """A member's part of a gradient that another part of the plan found for a copy of its
    weight.

    It is cut as the weight is that the reader updates.
    """
    made, team = builder.graph.outputs[op].tolist()[0], builder.team
    reader = int(builder.graph.readers[made][0])
    planned, kernel = int(builder.expansion.origin[reader]), builder.kernel(reader)
    wanted = _weight_cut(builder, planned, int(builder.expansion.part_of_op[op]))
    for old in kernel.node.all_input_nodes:
        if builder.step.tensor_of.get(kernel.reads.get(old.name, -1)) == tensor:
            cut = find_cut(builder, old, wanted)
            return with_cuts(builder.call(TakePart(cut, team.width, team.member), given), cut)
    raise AssertionError("it is cut for who reads it")


def _layouts(builder: Builder, names: list[str]) -> tuple[Layout, ...]:
    layouts = tuple(Layout.of(builder.held.part(name, builder.team)) for name in names)
    types = sorted({str(each.dtype) for each in layouts})
    if len(types) > 1:
        raise InputError(
            f"part of parameter {quoted(names[0])}: weights that ZeRO 3 gathers together must "
            f"be of one type, got {' and '.join(types)}"
        )
    return layouts


def _scatter(
    builder: Builder, op: int, updates: tuple[int, ...], holders: tuple[int, int]
) -> list[Node]:
    """Call the reduce-scatter of a bundle's gradients, each once; returns the shards of their
    sums."""
    step = builder.step
    found: dict[int, tuple[Node, Layout]] = {}
    origin = builder.expansion.tensor_origin
    wanted = builder.tensors_read(op)
    for update in updates:
        layout = Layout.of(builder.held.part(updated(step, update)[0], builder.team))
        for old, tensor in gradients(step, update).items():
            if tensor in wanted and tensor not in found:
                found[tensor] = builder.view(old, builder.root[wanted[tensor]]), layout
    views = [found[int(origin[t])] for t in builder.graph.outputs[op].tolist()]
    talk = ScatterGradients(tuple(layout for _, layout in views), *holders)
    made = builder.call(talk, *(view for view, _ in views))
    return [builder.item(made, place) for place in range(len(views))]


def run_changed(builder: Builder, op: int, given: Callable[[Node], Node]) -> Node | None:
    """Call an op that is not called as it was planned: an update of shards, a block of a ring,
    a synchronised batch norm, a loss over divided classes. None: it is none of these."""
    planned = int(builder.expansion.origin[op])
    kernel = builder.kernel(op)
    if planned in builder.shares.divided:
        return _update(builder, op, planned, kernel)
    if builder.expansion.hop[op] >= 0:
        return run_block(builder, op, kernel, given)
    word = word_of(builder, op)
    if word is not None:
        return run_norm(builder, op, kernel, word, builder.shares.part(op).num_replicas)
    is_loss = op_name(kernel.node) in LOSSES and builder.team.width > 1
    if is_loss and has_words(builder, op):
        return run_loss(builder, op, kernel)
    return None


def _update(builder: Builder, op: int, update: int, kernel: Kernel) -> Node:
    """Call an update on the shards of its weight, gradient and optimiser state."""
    step = builder.step
    part = builder.shares.updates[update]
    name, _ = updated(step, update)
    shards = {origin: builder.root[t] for origin, t in builder.tensors_read(op).items()}
    found = gradients(step, update)

    def given(old: Node) -> Node:
        if old in found:
            return shards[found[old]]
        held = builder.held.nodes[old.all_input_nodes[0] if counts_steps(old) else old]
        if held_name(step, kernel, old) == name and part.zero < 3:
            start, stop = bounds(held.meta["val"].numel(), *builder.shares.holders(part, update))
            return builder.call(aten.as_strided.default, held, [stop - start], [1], start)
        return held

    return builder.call_whole(kernel.node, given)
