"""Turns a strategy into a Plan, whose lowering inserts what keeps it equal to one device's step.

Groups with the same devices, shares and synchronisation are one part, so that their gradients
travel together, unless they are bundled apart. Decides nothing but which op of a group that is
dealt out goes where.
"""

from collections.abc import Collection, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from meshwright.plan.plan import Part, Plan, Sync
from meshwright.search.method.deploy.analysis import Analysis, split_group
from meshwright.search.method.deploy.option import GroupAction, GroupOption, Strategy

_SYNC = {
    GroupOption.ALL_REDUCE: Sync.ALL_REDUCE,
    GroupOption.PARAMETER_SERVER: Sync.PARAMETER_SERVER,
    GroupOption.DUPLICATE: Sync.DUPLICATE,
}
_DEALT: WeakKeyDictionary[
    Analysis, dict[tuple[int, tuple[int, ...]], tuple[tuple[int, int], ...]]
] = WeakKeyDictionary()
"""By group and devices: what METIS made of it, which follows from frozen data."""
_NAMES: WeakKeyDictionary[Analysis, npt.NDArray[np.object_]] = WeakKeyDictionary()
"""Of ops, as an array that is picked from at once: searches make plans by the thousand."""
_Key = tuple[tuple[int, ...], tuple[float, ...], Sync, int]


def make_plan(
    analysis: Analysis,
    strategy: Strategy,
    duplicated: Collection[int] = (),
    bundles: Sequence[int] = (),
) -> Plan:
    """The plan of a strategy.

    `duplicated`: ops that every replica runs on the whole batch though their group is replicated on
    shares of it; of groups that are not, they are what they were. `bundles`: a number for each
    group; those with different ones are in different parts, so that their gradients travel apart.
    """
    numbers: dict[_Key, int] = {}
    keys = [
        _key(action, action.option, bundle)
        for action, bundle in zip(strategy, bundles or [0] * len(strategy), strict=True)
    ]
    part_of = np.array([numbers.setdefault(key, len(numbers)) for key in keys])[analysis.group_of]
    for op in duplicated:
        places, shares = keys[analysis.group_of[op]][:2]
        if len(places) > 1:
            part_of[op] = numbers.setdefault((places, shares, Sync.DUPLICATE, 0), len(numbers))
    for group, action in enumerate(strategy):
        if action.option is GroupOption.MODEL:
            for op, device in deal_out(analysis, group, action.devices):
                key = (device,), (), Sync.ALL_REDUCE, 0
                part_of[op] = numbers.setdefault(key, len(numbers))
    if analysis not in _NAMES:
        _NAMES[analysis] = np.array(analysis.graph.op_names, dtype=np.object_)
    names, devices = _NAMES[analysis], analysis.cluster.devices
    chosen = list(numbers)
    _, first = np.unique(part_of, return_index=True)
    return Plan(
        parts=tuple(
            Part(
                ops=tuple(names[part_of == number].tolist()),
                devices=tuple(devices[device].name for device in chosen[number][0]),
                shares=chosen[number][1],
                sync=chosen[number][2],
            )
            for number in part_of[np.sort(first)].tolist()
        )
    )


def _key(action: GroupAction, option: GroupOption, bundle: int) -> _Key:
    if len(action.devices) == 1 or option is GroupOption.MODEL:
        return action.devices[:1], (), Sync.ALL_REDUCE, 0
    return action.devices, action.shares, _SYNC[option], bundle


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
    speeds = np.ones(len(devices))
    if can_run.any():  # relative to the fastest: its seconds may be too few to divide by
        least = seconds[can_run].min()
        speeds = np.where(can_run, least / np.where(can_run, seconds, 1.0), 0.0)
    place = split_group(analysis.instance, ops, speeds, seed=group)
    return tuple(zip(ops.tolist(), (devices[each] for each in place.tolist()), strict=True))
