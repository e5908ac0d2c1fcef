"""Gives every part its own copy of weights that several parts use.

An embedding whose weights are the output layer's, too, is one weight in a graph that was captured
as the model is. Where a plan has the two in different parts, each holds a copy: the gradients of
both are added up in the update phase, and both are updated by the sum, so that they stay equal.
`capture(untie=True)` traces the same step, so that such a plan runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import Placement, resolve
from meshwright.plan.part import Part
from meshwright.plan.plan import Plan
from meshwright.program.expand.expansion import unexpanded
from meshwright.program.expand.rewrite import Rewrite


@dataclass(frozen=True, slots=True)
class _Tie:
    """A weight that ops of two parts read."""

    home: int
    """The forward op in the part that updates the weight."""
    other: int
    """The forward op in the other part, which gets a copy."""
    sum: int
    """The op that adds up the gradients of both uses."""
    update: int
    near: tuple[int, ...]
    """The ops that use the copy: those of the weight in the other part."""


_UNTIED: WeakKeyDictionary[Graph, dict[tuple[_Tie, ...], tuple[Graph, tuple[str, ...]]]] = (
    WeakKeyDictionary()
)
"""Untied graphs, with the names of the copies' updates: many plans of a graph untie the same, and
what is known of a graph, such as its layers and its times, is found again by the object."""


def untie(graph: Graph, cluster: Cluster, plan: Plan) -> tuple[Graph, Plan, Placement]:
    """The graph in which parts share no weights, the plan for it, and its placement.

    Plain plans stay as they are: their parts may share weights on the same devices (`resolve`).
    """
    placement = resolve(graph, cluster, plan)
    ties = [] if plan.is_plain else list(_find_ties(graph, placement))
    if not ties:
        return graph, plan, placement
    known, key = _UNTIED.setdefault(graph, {}), tuple(ties)
    if key not in known:
        known[key] = _copy_all(graph, placement, ties)
    untied, updates = known[key]
    parts = list(plan.parts)
    for tie, name in zip(ties, updates, strict=True):
        _add_op(parts, int(placement.part_of_op[tie.other]), name, placement.priority[tie.update])
        _move_sum(parts, untied, graph.op_names[tie.sum], placement, graph)
    new = replace(plan, parts=tuple(parts))
    return untied, new, resolve(untied, cluster, new)


def _copy_all(
    graph: Graph, placement: Placement, ties: list[_Tie]
) -> tuple[Graph, tuple[str, ...]]:
    """The graph with a copy of each of these weights, and the names of the copies' updates."""
    rewrite = Rewrite(unexpanded(graph, placement))
    updates = [_copy_weights(rewrite, tie) for tie in ties]
    return rewrite.done().graph, tuple(rewrite.changed[each]["op_names"] for each in updates)


def _add_op(parts: list[Part], number: int, name: str, priority: float) -> None:
    part = parts[number]
    more = (float(priority),) if part.priorities else ()
    parts[number] = replace(part, ops=(*part.ops, name), priorities=(*part.priorities, *more))


def _move_sum(
    parts: list[Part], untied: Graph, name: str, placement: Placement, graph: Graph
) -> None:
    """Move the op that adds up gradients to the part that has the other ops of its layer, if it is
    in a layer."""
    try:
        stack = find_layers(untied)
    except InputError:
        return
    op = untied.index[name]
    near = [
        graph.index[untied.op_names[each]]
        for each in np.flatnonzero(stack.layer_of_op == stack.layer_of_op[op]).tolist()
        if each != op and untied.op_names[each] in graph.index
    ]
    before, after = int(placement.part_of_op[graph.index[name]]), placement.part_of_op[near]
    if not len(after) or before in after:
        return
    part = parts[before]
    place = part.ops.index(name)
    priority = part.priorities[place] if part.priorities else 0.0
    parts[before] = replace(
        part,
        ops=part.ops[:place] + part.ops[place + 1 :],
        priorities=part.priorities[:place] + part.priorities[place + 1 :],
    )
    _add_op(parts, int(after[0]), name, priority)


def _find_ties(graph: Graph, placement: Placement) -> Iterator[_Tie]:
    """The weights that parts share; InputError where the graph does not show how they are
    updated."""
    part_of = placement.part_of_op
    for group in np.unique(graph.group[graph.group >= 0]).tolist():
        ops = np.flatnonzero(graph.group == group)
        if (part_of[ops] == part_of[ops[0]]).all():
            continue
        users = ops[graph.phase[ops] == Phase.FORWARD]
        sums = [op for op in ops.tolist() if _adds_gradients(graph, op)]
        readers = [int(each) for op in sums for each in graph.successors[op]]
        home = [op for op in users.tolist() if part_of[op] == part_of[readers[0]]] if sums else []
        if len(users) != 2 or len(sums) != 1 or len(readers) != 1 or len(home) != 1:
            raise InputError(
                f"part {part_of[ops[-1]]}: weights of op {quoted(graph.op_names[ops[-1]])} are "
                f"also in part {part_of[ops[0]]}, and are one weight in the graph; capture the "
                f"model with `untie`, so that each part has a copy"
            )
        other = next(op for op in users.tolist() if op != home[0])
        near = np.flatnonzero(
            ((graph.group == group) & (part_of == part_of[other])) | (graph.partner == other)
        )
        yield _Tie(
            home=home[0],
            other=other,
            sum=sums[0],
            update=readers[0],
            near=tuple(near.tolist()),
        )


def _adds_gradients(graph: Graph, op: int) -> bool:
    """Whether an op adds up gradients, and updates read the sum, nothing else."""
    read, made, readers = graph.inputs[op], graph.outputs[op], graph.successors[op]
    return bool(
        graph.phase[op] == Phase.BACKWARD
        and len(read) > 1
        and graph.tensor_partial[read].all()
        and graph.tensor_partial[made].all()
        and len(readers)
        and (graph.phase[readers] == Phase.UPDATE).all()
    )


def _copy_weights(rewrite: Rewrite, tie: _Tie) -> int:
    """Give the other op a copy of the weight, with an update of its own; returns the update."""
    graph = rewrite.graph
    group = int(graph.group.max()) + 1 + tie.other
    for op in tie.near:
        rewrite.resize(op, group=group)
    for op in np.flatnonzero((graph.partner == tie.home) & (graph.group < 0)).tolist():
        rewrite.resize(op, group=int(graph.group[tie.home]))
    for name in ("parameter_bytes", "state_bytes"):
        column = getattr(graph, name)
        rewrite.resize(tie.other, **{name: float(column[tie.other] + column[tie.home])})
    rewrite.resize(
        tie.sum, phase=int(Phase.UPDATE), split=int(Split.NONE), group=-1, partner=-1, module=""
    )
    for tensor in graph.outputs[tie.sum].tolist():
        rewrite.tensors[tensor]["is_partial"] = False
    return rewrite.copy_op(
        tie.update,
        float(graph.num_ops),
        "copy",
        group=group,
        module=graph.module[tie.other],
    )
