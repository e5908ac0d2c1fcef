"""Plans as strategies: what each group of ops does in them, as nearly as actions can say it."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from meshwright.plan.plan import Part, Plan, Sync
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.option import GroupAction, GroupOption, Strategy

_OPTION = {
    Sync.ALL_REDUCE: GroupOption.ALL_REDUCE,
    Sync.RING: GroupOption.ALL_REDUCE,
    Sync.TREE: GroupOption.ALL_REDUCE,
    Sync.PARAMETER_SERVER: GroupOption.PARAMETER_SERVER,
    Sync.DUPLICATE: GroupOption.DUPLICATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadStrategy:
    """A plan in the words of the search."""

    strategy: Strategy
    duplicated: frozenset[int]
    """Ops that all replicas run on the whole batch though their group does not."""
    bundles: tuple[int, ...]
    """By group: groups whose gradients travel together have one number."""


def read_strategy(analysis: Analysis, plan: Plan) -> ReadStrategy:
    """Each group does what most of its ops, by their time, do in the plan."""
    graph = analysis.graph
    part_of_op = np.zeros(graph.num_ops, dtype=np.int64)
    for number, part in enumerate(plan.parts):
        part_of_op[[graph.index[op] for op in part.ops]] = number
    seconds = analysis.instance.seconds
    weight = np.where(np.isfinite(seconds), seconds, 0.0).sum(axis=1) + 1e-12
    actions, bundles = [], []
    for group in range(analysis.num_groups):
        ops = analysis.group_of == group
        votes: Counter[int] = Counter()
        for number, each in zip(part_of_op[ops].tolist(), weight[ops].tolist(), strict=True):
            votes[number] += each
        chosen = votes.most_common(1)[0][0]
        alone = [number for number in votes if len(plan.parts[number].devices) == 1]
        actions.append(_read_action(analysis, plan.parts[chosen], [plan.parts[n] for n in alone]))
        bundles.append(chosen)
    duplicated = [
        op
        for op in range(graph.num_ops)
        if plan.parts[int(part_of_op[op])].sync is Sync.DUPLICATE
        and actions[int(analysis.group_of[op])].option is not GroupOption.DUPLICATE
    ]
    return ReadStrategy(
        strategy=tuple(actions), duplicated=frozenset(duplicated), bundles=tuple(bundles)
    )


def _read_action(analysis: Analysis, part: Part, alone: list[Part]) -> GroupAction:
    """What a part does; of parts on one device each that share a group, dealing out."""
    index = analysis.cluster.index
    if len(part.devices) == 1 and len(alone) > 1:
        devices = tuple(sorted({index[each.devices[0]] for each in alone}))
        return GroupAction(
            places=_places(analysis, devices), devices=devices, option=GroupOption.MODEL
        )
    numbers = [index[device] for device in part.devices]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    devices = tuple(numbers[each] for each in order)
    option = _OPTION[part.sync] if len(devices) > 1 else GroupOption.ALL_REDUCE
    return GroupAction(
        places=_places(analysis, devices),
        devices=devices,
        option=option,
        shares=tuple(part.shares[each] for each in order) if part.shares else (),
    )


def _places(analysis: Analysis, devices: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({int(analysis.place_of[device]) for device in devices}))
