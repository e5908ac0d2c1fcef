"""Ideas for the boundaries of a pipeline's stages: a layer more or less, of graphs without layers a
block of ops."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.errors import InputError
from meshwright.explain.neighbour import Idea
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.plan import Plan
from meshwright.search.method.pipeline.block import Blocks, find_blocks


def boundary_ideas(graph: Graph, plan: Plan, busy: Floats) -> list[Idea]:
    """Both ways over every boundary, those beside the busiest stage first; `busy` is by stage."""
    if plan.schedule is None or len(plan.parts) < 2:
        return []
    stage_of_op = np.zeros(graph.num_ops, dtype=np.int64)
    for number, part in enumerate(plan.parts):
        stage_of_op[[graph.index[op] for op in part.ops]] = number
    order = sorted(range(len(plan.parts) - 1), key=lambda k: (-max(busy[k], busy[k + 1]), k))
    try:
        stack = find_layers(graph)
        holders = [np.unique(stage_of_op[stack.layer_of_op == n]) for n in range(stack.num_layers)]
    except InputError:
        return list(_block_ideas(graph, plan, stage_of_op, order))
    if any(len(each) > 1 for each in holders):
        return list(_block_ideas(graph, plan, stage_of_op, order))
    stage_of_layer = np.array([int(each[0]) for each in holders])
    return list(_layer_ideas(stack, plan, stage_of_layer, order))


def _layer_ideas(
    stack: Stack, plan: Plan, stage_of_layer: Ints, order: Sequence[int]
) -> Iterator[Idea]:
    for before in order:
        for source, target in ((before, before + 1), (before + 1, before)):
            own = np.flatnonzero(stage_of_layer == source)
            layer = int(own[-1 if source == before else 0])
            moved = stage_of_layer.copy()
            moved[layer] = target
            yield Idea(
                decision=_describe_stage(stack, target, stage_of_layer),
                change=f"one layer more, {stack.layer_name(layer)} from stage {source}",
                make=partial(_with_layers, stack, plan, moved),
            )


def _describe_stage(stack: Stack, stage: int, stage_of_layer: Ints) -> str:
    own = np.flatnonzero(stage_of_layer == stage)
    names = list(dict.fromkeys((stack.layer_name(int(own[0])), stack.layer_name(int(own[-1])))))
    count = "1 layer" if len(own) == 1 else f"{len(own):,} layers"
    return f"stage {stage} has {count} ({' to '.join(names)})"


def _with_layers(stack: Stack, plan: Plan, stage_of_layer: Ints) -> Plan:
    parts = []
    for number, part in enumerate(plan.parts):
        layers = np.flatnonzero(stage_of_layer == number).tolist()
        if not layers:
            raise InputError(f"stage {number}: must have at least one layer")
        ops = tuple(op for layer in layers for op in stack.ops_of_layer[layer])
        parts.append(replace(part, ops=ops, priorities=()))
    return replace(plan, parts=tuple(parts))


def _block_ideas(
    graph: Graph, plan: Plan, stage_of_op: Longs, order: Sequence[int]
) -> Iterator[Idea]:
    """A block at the end of a stage may go to the next one if nothing after it stays behind."""
    try:
        blocks = find_blocks(graph)
    except InputError:
        return
    stage_of_block = np.zeros(blocks.num_blocks, dtype=np.int64)
    stage_of_block[blocks.block_of_op[::-1]] = stage_of_op[::-1]
    is_whole = np.array_equal(stage_of_block[blocks.block_of_op], stage_of_op)
    if blocks.has_tail or not is_whole:
        return
    for before in order:
        for source, target in ((before, before + 1), (before + 1, before)):
            block = _free_block(blocks, stage_of_block, source, is_end=source == before)
            moved = stage_of_block.copy()
            moved[block] = target
            first = graph.op_names[int(np.flatnonzero(blocks.block_of_op == block)[0])]
            count = int((blocks.block_of_op == block).sum())
            yield Idea(
                decision=f"stage {target} has {int((stage_of_op == target).sum()):,} ops",
                change=f"{count:,} ops more ({first} and its own) from stage {source}",
                make=partial(_with_ops, graph, plan, moved[blocks.block_of_op]),
            )


def _free_block(blocks: Blocks, stage_of_block: Longs, stage: int, *, is_end: bool) -> int:
    """The last block of a stage that none of its own comes after, or the first that none comes
    before."""
    held = {
        (first if is_end else second)
        for first, second in blocks.edges
        if stage_of_block[first] == stage == stage_of_block[second]
    }
    free = [each for each in np.flatnonzero(stage_of_block == stage).tolist() if each not in held]
    return int(free[-1] if is_end else free[0])


def _with_ops(graph: Graph, plan: Plan, stage_of_op: Longs) -> Plan:
    parts = []
    for number, part in enumerate(plan.parts):
        ops = tuple(graph.op_names[op] for op in np.flatnonzero(stage_of_op == number).tolist())
        if not ops:
            raise InputError(f"stage {number}: must have at least one op")
        parts.append(replace(part, ops=ops, priorities=()))
    return replace(plan, parts=tuple(parts))
