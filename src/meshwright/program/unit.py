"""Merges the ops of each action of a stage into one unit: granularity `part`.

A unit is an op of a coarse graph: its time is the sum of its ops' times on each replica, its
tensors are those that leave it, joined where the same units read them. A joined tensor knows its
largest member, because transfers that share no links run side by side and take as long as that one.
Backward is cut where a gradient bucket is full, so that gradients travel while the rest of backward
runs, as op by op. A step takes as long as op by op, except where rows from several replicas must be
concatenated: a unit does so when all it receives is there, which may be a little later.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import OP_SIZES, Graph, Split
from meshwright.plan.check import Placement
from meshwright.plan.plan import Sync
from meshwright.program.schedule import Action
from meshwright.program.work import Work


def merge_units(work: Work) -> Work:
    """The same work, one op an action and gradient bucket."""
    _check_mergeable(work)
    graph = work.graph
    unit_of, first_op = _number_units(work)
    num_units = len(first_op)
    tensors = _merge_tensors(work, unit_of)
    bucket_of_tensor, beside = tensors.pop("buckets"), tensors.pop("beside")
    sums: dict[str, Any] = {
        name: np.bincount(unit_of, weights=getattr(graph, name), minlength=num_units)
        for name in _SUMMED
    }
    workspace, whole_workspace = _unit_workspace(work, unit_of, num_units)
    sums |= dict.fromkeys(_UNKNOWN, np.zeros(num_units))
    is_split = np.bincount(unit_of, weights=work.split != Split.NONE, minlength=num_units) > 0
    coarse = Graph(
        name=graph.name,
        batch=graph.batch,
        op_names=tuple(_unit_name(work, op) for op in first_op.tolist()),
        kind=("unit",) * num_units,
        module=("",) * num_units,
        precision=tuple(graph.precision[op] for op in first_op.tolist()),
        phase=graph.phase[first_op],
        split=np.where(is_split, Split.BATCH, Split.NONE).astype(np.int8),
        group=np.full(num_units, -1, dtype=np.int32),
        partner=_unit_partners(work, first_op),
        workspace_bytes=workspace,
        **sums,
        **tensors,
    )
    placement = replace(
        work.placement,
        part_of_op=work.placement.part_of_op[first_op],
        priority=work.placement.priority[first_op],
    )
    seconds, start = _unit_seconds(work, unit_of, placement, num_units)
    return replace(
        work,
        graph=coarse,
        placement=placement,
        split=coarse.split,
        tensor_partial=coarse.tensor_partial,
        tensor_beside=beside,
        action=work.action[first_op],
        segment=work.segment[first_op],
        buckets=replace(
            work.buckets, of_tensor=bucket_of_tensor, last_op=unit_of[work.buckets.last_op]
        ),
        seconds=seconds,
        seconds_start=start,
        workspace_bytes=workspace,
        whole_workspace_bytes=whole_workspace,
    )


_SUMMED = (
    "flops", "fixed_flops", "bytes_read", "fixed_bytes_read", "bytes_written",
    "fixed_bytes_written", "calls", "parameter_bytes", "state_bytes", "saved_bytes",
)  # fmt: skip
_UNKNOWN = tuple(name for name in OP_SIZES if "product" in name)
"""Dimensions of single products, which mean nothing for a sum of ops."""


def _number_units(work: Work) -> tuple[Ints, Ints]:
    """Each op's unit, in an order in which units run, and the first op of each unit."""
    part, action = work.placement.part_of_op, work.action
    level = _update_levels(work)
    # Forward along the pipeline, backward against it, weight gradients after their stage's
    # backward, updates last: every tensor goes from an earlier unit to a later one.
    stage = np.where(action == Action.FORWARD, part, -part)
    when = np.where(action == Action.UPDATE, 2, np.where(action == Action.FORWARD, 0, 1))
    stage = np.where(action == Action.UPDATE, 0, stage)
    keys = np.stack((when, stage, action, level, work.segment, part), axis=1)
    unique, first, unit_of = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    assert len(unique) == len(first)
    return unit_of.ravel().astype(np.int32), first.astype(np.int32)


def _update_levels(work: Work) -> Ints:
    """How often the way to an update op goes from part to part: those before and after a sum over
    all parts (a gradient norm) are different units."""
    level = np.zeros(work.graph.num_ops, dtype=np.int32)
    part = work.placement.part_of_op
    source, reader = work.graph.edges
    both = (work.action[source] == Action.UPDATE) & (work.action[reader] == Action.UPDATE)
    order = np.argsort(reader[both], kind="stable")
    for first, second in zip(
        source[both][order].tolist(), reader[both][order].tolist(), strict=True
    ):
        level[second] = max(level[second], level[first] + (part[first] != part[second]))
    return level


def _unit_name(work: Work, op: int) -> str:
    stage = work.placement.part_of_op[op]
    name = f"stage {stage} {Action(int(work.action[op])).name.lower()}"
    segment = work.segment[op]
    return f"{name} {segment} ({work.graph.op_names[op]})"


def _unit_partners(work: Work, first_op: Ints) -> Ints:
    """The forward unit of each backward unit of the same stage."""
    part, action = work.placement.part_of_op[first_op], work.action[first_op]
    forward = {int(part[u]): u for u in range(len(first_op)) if action[u] == Action.FORWARD}
    is_backward = (action == Action.BACKWARD) | (action == Action.WEIGHT)
    return np.array(
        [forward.get(int(part[u]), -1) if is_backward[u] else -1 for u in range(len(first_op))],
        dtype=np.int32,
    )


def _check_mergeable(work: Work) -> None:
    """No op within an action may need the rows of other replicas: a unit cannot stop for them."""
    for number, part in enumerate(work.plan.parts):
        if part.sync is Sync.DUPLICATE and part.num_replicas > 1:
            # Joined tensors would be of rows for some readers and whole for others.
            raise InputError(
                f"granularity part: part {number} duplicates its ops on {part.num_replicas:,} "
                f"replicas; use granularity op"
            )
    graph = work.graph
    source, reader = graph.edges
    replicas = np.diff(work.placement.replica_start)[work.placement.part_of_op]
    is_partial = work.tensor_partial[graph.use_tensor]
    stops = (
        (work.split[reader] == Split.NONE)
        & (work.action[reader] != Action.UPDATE)
        & ((work.split[source] == Split.BATCH) | is_partial)
        & (replicas[source] > 1)
    )
    if stops.any():
        name = graph.op_names[reader[np.flatnonzero(stops)[0]]]
        raise InputError(
            f"granularity part: op {quoted(name)} needs the whole batch in the middle of a "
            f"replicated stage; use granularity op"
        )


def _merge_tensors(work: Work, unit_of: Ints) -> dict[str, Any]:
    """Tensors that leave their unit or are returned, joined where the same units read them; their
    sizes add."""
    graph = work.graph
    groups = _group_tensors(work, unit_of)
    first = [members[0] for _, members in groups]
    lengths = [len(units) for units, _ in groups]
    total, fixed, largest = (
        np.array([add(sizes[members]) for _, members in groups], dtype=np.float64)
        for sizes, add in (
            (graph.tensor_bytes, np.sum),
            (graph.fixed_tensor_bytes, np.sum),
            (graph.tensor_bytes, np.max),
        )
    )
    return {
        "tensor_source": unit_of[graph.tensor_source[first]],
        "tensor_bytes": total,
        "fixed_tensor_bytes": fixed,
        "tensor_partial": work.tensor_partial[first],
        "use_tensor": np.repeat(np.arange(len(groups), dtype=np.int32), lengths),
        "use_op": np.array([unit for units, _ in groups for unit in units], dtype=np.int32),
        "buckets": work.buckets.of_tensor[first],
        "beside": 1 - np.divide(largest, total, out=np.ones_like(total), where=total > 0),
    }


def _group_tensors(work: Work, unit_of: Ints) -> list[tuple[tuple[int, ...], list[int]]]:
    """The reading units and the members of each joined tensor, in the order of first members.

    Transfers from device to device queue in the order of tensors, so what is sent is joined only
    while nothing for other units comes in between: it arrives when it would op by op.
    """
    graph = work.graph
    readers: list[set[int]] = [set() for _ in range(graph.num_tensors)]
    for tensor, unit in zip(graph.use_tensor.tolist(), unit_of[graph.use_op].tolist(), strict=True):
        readers[tensor].add(unit)
    source, apart = unit_of[graph.tensor_source].tolist(), _tell_apart(work).tolist()
    partial, bucket = work.tensor_partial.tolist(), work.buckets.of_tensor.tolist()
    groups: list[tuple[int, tuple[int, ...], list[int]]] = []
    joined: dict[tuple[Any, ...], list[int]] = {}
    last_sent: dict[int, tuple[Any, ...]] = {}
    for tensor, others in enumerate(readers):
        others.discard(source[tensor])
        if not others and not graph.is_returned[tensor]:
            continue
        units = tuple(sorted(others))
        key = (source[tensor], units, partial[tensor], bucket[tensor], apart[tensor])
        is_sent = apart[tensor] != _STAYS
        if key not in joined or (is_sent and last_sent[source[tensor]] != key):
            joined[key] = []
            groups.append((source[tensor], units, joined[key]))
        joined[key].append(tensor)
        if is_sent:
            last_sent[source[tensor]] = key
    groups.sort(key=lambda group: (group[0], group[2][0]))
    return [(units, members) for _, units, members in groups]


_STAYS, _ROWS, _FIXED = -1, -2, -3
"""Of tensors: not sent; sent, and all of it grows with the rows; sent, and nothing of it does."""


def _tell_apart(work: Work) -> Longs:
    """A number for each tensor; those with different ones may not be joined.

    Of joined tensors the same one must be the largest whatever rows of them are sent, so those that
    are sent are all rows or all fixed. Collectives follow each other, so each keeps its own.
    """
    graph, placement = work.graph, work.placement
    source, reader = graph.edges
    part, tensor = placement.part_of_op, graph.use_tensor
    is_collected = (
        (np.diff(placement.replica_start)[part[source]] > 1)
        & (work.split[reader] == Split.NONE)
        & ((work.split[source] == Split.BATCH) | work.tensor_partial[tensor])
        & (work.buckets.of_tensor[tensor] < 0)
    )
    size, fixed = graph.tensor_bytes, graph.fixed_tensor_bytes
    own = np.arange(graph.num_tensors)
    apart = np.full(graph.num_tensors, _STAYS)
    sent = tensor[part[source] != part[reader]]
    apart[sent] = np.where(fixed == 0, _ROWS, np.where(fixed == size, _FIXED, own))[sent]
    collected = tensor[is_collected]
    apart[collected] = own[collected]
    return apart


def _unit_workspace(work: Work, unit_of: Ints, num_units: int) -> tuple[Floats, Floats]:
    """The most that each unit holds at once of what is made and used up within it.

    For one microbatch and all rows, and of that what rows do not shrink. The most for some of the
    rows is convex in their share, so the line between the two is never below it.
    """
    graph = work.graph
    reader_unit = unit_of[graph.use_op]
    leaves = graph.is_returned.copy()
    leaves[graph.use_tensor[reader_unit != unit_of[graph.tensor_source[graph.use_tensor]]]] = True
    last_reader = graph.tensor_source.copy()
    np.maximum.at(last_reader, graph.use_tensor, graph.use_op)
    size = graph.scaled("tensor_bytes", graph.batch / work.microbatches)
    shrinks = (work.split[graph.tensor_source] == Split.BATCH) & ~work.tensor_partial
    whole = np.where(shrinks, graph.fixed_tensor_bytes, size)
    own = (work.workspace_bytes, work.whole_workspace_bytes)
    peaks = []
    for each, workspace in zip((size, whole), own, strict=True):
        inner = np.where(leaves, 0.0, each)
        made = np.bincount(graph.tensor_source, weights=inner, minlength=graph.num_ops).tolist()
        dies = np.bincount(last_reader, weights=inner, minlength=graph.num_ops).tolist()
        peaks.append(_peak_by_unit(unit_of.tolist(), num_units, made, dies, workspace.tolist()))
    return peaks[0], peaks[1]


def _peak_by_unit(
    unit_of: Sequence[int],
    num_units: int,
    made: Sequence[float],
    dies: Sequence[float],
    workspace: Sequence[float],
) -> Floats:
    """The most alive in each unit as its ops run in turn."""
    live, peak = [0.0] * num_units, [0.0] * num_units
    for unit, more, less, held in zip(unit_of, made, dies, workspace, strict=True):
        live[unit] += more
        peak[unit] = max(peak[unit], live[unit] + held)
        live[unit] -= less
    return np.array(peak)


def _unit_seconds(
    work: Work, unit_of: Ints, placement: Placement, num_units: int
) -> tuple[Floats, Ints]:
    """Sums of the ops' times by unit and replica."""
    replicas = np.diff(placement.replica_start)[placement.part_of_op]
    start = np.zeros(num_units + 1, dtype=np.int32)
    np.cumsum(replicas, out=start[1:])
    counts = np.diff(work.seconds_start)
    op = np.repeat(np.arange(len(counts)), counts)
    replica = np.arange(len(op)) - work.seconds_start[op]
    place = start[unit_of[op]] + replica
    sums = np.bincount(place, weights=work.seconds, minlength=int(start[-1]))
    return sums.astype(np.float64, copy=False), start
