"""Random plans of the kind that `deploy` makes: groups of ops, each on devices and in a way."""

import random
from collections.abc import Sequence

import numpy as np

from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Part, Plan, Sync
from meshwright.program.bucket import tie_sums

WAYS = (Sync.ALL_REDUCE, Sync.PARAMETER_SERVER, Sync.DUPLICATE, None)
"""None: not replicated, each unit on one device."""


def find_units(graph: Graph) -> list[list[int]]:
    """Ops that stay together: those that share state, and those that sum over the same samples."""
    label = tie_sums(graph).tolist()
    leader = list(range(graph.num_ops))

    def find(op: int) -> int:
        while leader[op] != op:
            op = leader[op]
        return op

    first: dict[tuple[str, int], int] = {}
    for op, (tie, group) in enumerate(zip(label, graph.group.tolist(), strict=True)):
        keys = [("tie", tie), *([("group", group)] if group >= 0 else [])]
        for key in keys:
            one, other = find(first.setdefault(key, op)), find(op)
            leader[max(one, other)] = min(one, other)
    units: dict[int, list[int]] = {}
    for op in range(graph.num_ops):
        units.setdefault(find(op), []).append(op)
    return list(units.values())


def deploy_plan(graph: Graph, devices: Sequence[str], seed: int, ways: Sequence[object]) -> Plan:
    """Up to five groups, of neighbours or of units from anywhere; all that is alike is one part."""
    draw = random.Random(seed)
    units = find_units(graph)
    count = draw.randint(1, 5)
    cuts = sorted(draw.choices(range(len(units) + 1), k=count - 1))
    is_mixed = draw.random() < 0.5
    actions = [_draw_action(graph, devices, draw, ways) for _ in range(count)]
    members: dict[tuple[tuple[str, ...], tuple[float, ...], Sync], list[int]] = {}
    for number, unit in enumerate(units):
        group = draw.randrange(count) if is_mixed else int(np.searchsorted(cuts, number, "right"))
        used, shares, way = actions[group]
        if way is None:
            used, shares, way = (draw.choice(used),), (), Sync.ALL_REDUCE
        assert isinstance(way, Sync)
        for op in unit:
            members.setdefault((used, shares, way), []).append(op)
    _duplicate_some(graph, members, draw)
    parts = (
        Part(ops=tuple(graph.op_names[op] for op in ops), devices=used, shares=shares, sync=way)
        for (used, shares, way), ops in members.items()
    )
    return Plan(parts=tuple(parts))


def _draw_action(
    graph: Graph, devices: Sequence[str], draw: random.Random, ways: Sequence[object]
) -> tuple[tuple[str, ...], tuple[float, ...], object]:
    way = draw.choice(ways)
    used = draw.sample(devices, draw.randint(1, len(devices)))
    if draw.random() < 0.7:
        used.sort()
    shares: tuple[float, ...] = ()
    if isinstance(way, Sync) and way is not Sync.DUPLICATE and draw.random() < 0.5:
        batch = int(graph.batch)
        cuts = sorted(draw.sample(range(1, batch), len(used) - 1))
        counts = np.diff([0, *cuts, batch])
        shares = tuple((counts / batch).tolist())
    return tuple(used), shares, way


def _duplicate_some(
    graph: Graph,
    members: dict[tuple[tuple[str, ...], tuple[float, ...], Sync], list[int]],
    draw: random.Random,
) -> None:
    """Of replicated parts, let some ops run on the whole batch: sufficient factors."""
    if draw.random() < 0.5:
        return
    label = tie_sums(graph)
    is_tied = np.bincount(label, minlength=graph.num_ops)[label] > 1
    for key, ops in list(members.items()):
        used, shares, way = key
        if way is Sync.DUPLICATE or len(used) == 1:
            continue
        chosen = [
            op
            for op in ops
            if graph.phase[op] != Phase.UPDATE and not is_tied[op] and draw.random() < 0.3
        ]
        rest = [op for op in ops if op not in set(chosen)]
        if chosen and rest:
            members[key] = rest
            members.setdefault((used, shares, Sync.DUPLICATE), []).extend(chosen)
