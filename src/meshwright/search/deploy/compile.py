"""Turns a strategy into a Plan, whose lowering inserts what keeps it equal to one device's step.

Groups with the same devices, shares and synchronisation are one part, so that their gradients
travel together. Decides nothing but which op of a group that is dealt out goes where.
"""

from collections.abc import Collection
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.plan.plan import Part, Plan, Sync
from meshwright.search.deploy.analysis import Analysis
from meshwright.search.deploy.group import split_group
from meshwright.search.deploy.option import Action, Option, Strategy

_SYNC = {
    Option.ALL_REDUCE: Sync.ALL_REDUCE,
    Option.PARAMETER_SERVER: Sync.PARAMETER_SERVER,
    Option.DUPLICATE: Sync.DUPLICATE,
}
_DEALT: WeakKeyDictionary[
    Analysis, dict[tuple[int, tuple[int, ...]], tuple[tuple[int, int], ...]]
] = WeakKeyDictionary()
"""By group and devices: what METIS made of it, which follows from frozen data."""
_Key = tuple[tuple[int, ...], tuple[float, ...], Sync]


def make_plan(analysis: Analysis, strategy: Strategy, duplicated: Collection[int] = ()) -> Plan:
    """The plan of a strategy.

    `duplicated`: ops that every replica runs on the whole batch though their group is replicated on
    shares of it; of groups that are not, they are what they were.
    """
    part_of: dict[_Key, list[int]] = {}
    groups = analysis.group_of.tolist()
    dealt = {
        op: device
        for group, action in enumerate(strategy)
        if action.option is Option.MODEL
        for op, device in deal_out(analysis, group, action.devices)
    }
    keys = [_key(action, action.option) for action in strategy]
    for op, group in enumerate(groups):
        key = keys[group]
        if op in dealt:
            key = (dealt[op],), (), Sync.ALL_REDUCE
        elif op in duplicated and len(key[0]) > 1:
            key = key[0], key[1], Sync.DUPLICATE
        part_of.setdefault(key, []).append(op)
    ops, devices = analysis.graph.op_names, analysis.cluster.devices
    return Plan(
        parts=tuple(
            Part(
                ops=tuple(ops[op] for op in members),
                devices=tuple(devices[device].name for device in key[0]),
                shares=key[1],
                sync=key[2],
            )
            for key, members in part_of.items()
        )
    )


def _key(action: Action, option: Option) -> _Key:
    if len(action.devices) == 1 or option is Option.MODEL:
        return action.devices[:1], (), Sync.ALL_REDUCE
    return action.devices, action.shares, _SYNC[option]


def deal_out(
    analysis: Analysis, group: int, devices: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    """Each op of a group with one of the devices, which get work in proportion to their speed."""
    memo = _DEALT.setdefault(analysis, {})
    if (group, devices) not in memo:
        memo[group, devices] = _deal_out(analysis, group, devices)
    return memo[group, devices]


def _deal_out(
    analysis: Analysis, group: int, devices: tuple[int, ...]
) -> tuple[tuple[int, int], ...]:
    ops = np.flatnonzero(analysis.group_of == group).astype(np.int32)
    seconds = analysis.seconds[group, analysis.cluster.type_of[list(devices)]]
    can_run = np.isfinite(seconds) & (seconds > 0)
    speeds = np.where(can_run, 1.0 / np.where(can_run, seconds, 1.0), 0.0)
    if not speeds.any():
        speeds = np.ones(len(devices))
    place = split_group(analysis.instance, ops, speeds, seed=group)
    return tuple(zip(ops.tolist(), (devices[each] for each in place.tolist()), strict=True))
