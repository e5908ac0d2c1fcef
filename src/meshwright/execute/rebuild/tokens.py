"""Rebuilds the collectives that move tokens: gathers of keys and values in context teams, and
all-to-alls between replicas that divide experts."""

import math

from torch.fx import Node

from meshwright.capture.ledger import Kernel, arguments_of
from meshwright.errors import InputError, quoted
from meshwright.execute.cut.cut import WHOLE, plain_cut
from meshwright.execute.member import CUT, ROWS, token_cut, with_cuts
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.talk import GatherParts, ScatterTerms, TakePart
from meshwright.execute.tokens import CountTokens, ReturnTokens, SendTokens, find_rows
from meshwright.graph.stack.stack import Role
from meshwright.program.expand.expansion import Axis
from meshwright.program.program import Kind


def travel(builder: Builder, op: int, width: int) -> list[Node]:
    """Call an all-to-all that sends tokens to experts or back, or that exchanges their numbers."""
    graph, expansion = builder.graph, builder.expansion
    read, made = graph.inputs[op].tolist(), graph.outputs[op].tolist()
    moved = next(each for each in read if expansion.tensor_origin[each] >= 0)
    given = builder.root[moved]
    if len(made) == 2:
        readers = [builder.kernel(each) for each in graph.readers[made[0]]]
        rows = find_rows(readers, graph.op_names[int(graph.tensor_source[moved])])
        builder.received.add(rows)
        builder.rows_of[made[1]] = rows
        both = builder.call(CountTokens(width), given)
        return [builder.item(both, 0), builder.item(both, 1)]
    (counts,) = (each for each in read if each != moved)
    version = builder.step.versions[int(expansion.tensor_origin[moved])]
    rows, shape = builder.rows_of[counts], builder.step.layouts[version].shape
    if math.prod(shape) % rows:
        raise InputError(
            f"op {quoted(graph.op_names[int(graph.tensor_source[moved])])}: what it makes must "
            f"have a row for each of {rows} tokens of experts that replicas divide, has shape "
            f"{tuple(shape)}"
        )
    comes_back = expansion.role[graph.tensor_source[moved]] == Role.EXPERT
    talk = ReturnTokens(width, rows, shape) if comes_back else SendTokens(width, rows)
    node = builder.call(talk, given, builder.root[counts])
    return [with_cuts(node, given.meta.get(CUT, WHOLE))]


def is_of_tokens(builder: Builder, op: int) -> bool:
    """Whether an op divides tokens among a context team or gathers them.

    A slice does so if it reads whole tensors and makes rows.
    """
    if builder.expansion.is_collective[op]:
        return bool(builder.expansion.axis[op] == Axis.CONTEXT)
    rows, graph = builder.expansion.rows, builder.graph
    return bool(rows[graph.outputs[op]].any() and not rows[graph.inputs[op]].any())


def exchange_tokens(builder: Builder, op: int, kind: Kind) -> list[Node]:
    """Call a context team's all-gather of rows or reduce-scatter of gradients, or take the member's
    rows of a whole tensor."""
    graph, context = builder.graph, builder.context
    read = builder.filled_inputs(op)
    if kind == Kind.COMPUTE:
        given = builder.root[read[0]]
        tokens = token_cut(given.meta["val"].shape, builder.step.samples, builder.tokens)
        part = builder.call(TakePart(tokens, context.width, context.member), given)
        return [with_cuts(part, given.meta.get(CUT, WHOLE), tokens)]
    if kind == Kind.REDUCE_SCATTER:
        return _scatter_keys(builder, read)
    if builder.expansion.tensor_origin[graph.outputs[op]][0] < 0:
        reader = next(
            each for each in graph.successors[op].tolist() if builder.expansion.origin[each] >= 0
        )
        kernel = builder.kernel(reader)
        views = [builder.argument(op, kernel, each) for each in keys_of(kernel)]
    else:
        views = [builder.root[read[0]]]
    cuts = tuple(each.meta[ROWS] for each in views)
    made = builder.call(GatherParts(cuts, context.width), *views)
    return [
        with_cuts(builder.item(made, place), view.meta.get(CUT, WHOLE))
        for place, view in enumerate(views)
    ]


def _scatter_keys(builder: Builder, read: list[int]) -> list[Node]:
    """Call the reduce-scatter that gives a member its rows of the gradients of keys and values."""
    context = builder.context
    terms = [builder.root[each] for each in read]
    shapes = [each.meta["val"].shape for each in terms]
    cuts = tuple(plain_cut(len(shape) - 2, shape[-2]) for shape in shapes)
    talk = ScatterTerms(cuts, context.width, context.member)
    made = builder.call(talk, *terms)
    return [
        with_cuts(builder.item(made, place), each.meta.get(CUT, WHOLE), cuts[place])
        for place, each in enumerate(terms)
    ]


def keys_of(kernel: Kernel) -> list[Node]:
    """The keys and values among the arguments of an attention, or of its backward."""
    given = arguments_of(kernel.node)
    return [given["key"], given["value"]]
