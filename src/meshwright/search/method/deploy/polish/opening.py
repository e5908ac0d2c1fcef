"""What a person would try first, before moves are drawn.

Groups with many gradient bytes for their compute, such as fully connected layers, on one device,
one device group or duplicated, all others levelled over a set of devices that suits them without;
where nothing fits, groups packed by their memory. Tries none of it: the likeliest come first.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Floats
from meshwright.search.method.deploy.option import GroupAction, GroupOption, Strategy
from meshwright.search.method.deploy.polish.load import Loads
from meshwright.search.method.deploy.polish.move import Site, level_rest

_PARTS = (0.35, 0.65, 0.9)
"""Of all gradient bytes: how many the heaviest groups have that are moved together."""
_MOST_SETS = 8
"""Of devices, for the groups that are not heavy."""
_MOST_TARGETS = 5
_FULL = (0.95, 0.7, 0.5)
"""Of the memory: how much of it packing fills."""

Devices = tuple[int, ...]


def open_strategies(
    loads: Loads, starts: Sequence[Strategy], *, fits: bool, is_over: Callable[[], bool]
) -> Iterator[Strategy]:
    """Strategies to try, those that may be shortest first; no more are made once it is over."""
    if not fits:
        yield from pack_groups(loads)
    found: dict[Strategy, float] = {}
    for strategy in starts:
        levelled = level_rest(_site(loads, strategy), strategy, ())
        found.setdefault(levelled, loads.estimate_seconds(levelled))
    for groups in (*heavy_groups(loads), []):
        for devices in () if is_over() else _trunk_sets(loads, groups):
            for strategy in () if is_over() else _spread(loads, groups, devices):
                found.setdefault(strategy, loads.estimate_seconds(strategy))
    yield from sorted(found, key=lambda strategy: found[strategy])


def heavy_groups(loads: Loads) -> Iterator[list[int]]:
    """Sets of groups with the most gradient bytes for their compute."""
    size = loads.analysis.gradient_bytes
    density = size / np.maximum(loads.seconds[:, :, -1].min(axis=1), 1e-9)
    order = np.argsort(-density, kind="stable")
    reached = np.cumsum(size[order])
    total = float(reached[-1])
    if total <= 0:
        return
    seen = set()
    for part in _PARTS:
        count = int(np.searchsorted(reached, part * total)) + 1
        if count not in seen and count < len(order):
            seen.add(count)
            yield sorted(order[:count].tolist())


def _site(loads: Loads, strategy: Strategy) -> Site:
    return Site(strategy=strategy, heat=np.ones(len(strategy)), elite=(), loads=loads)


def _trunk_sets(loads: Loads, heavy: Sequence[int]) -> list[Devices]:
    """Sets of devices of the menu on which all but the heavy groups may take least."""
    analysis = loads.analysis
    light = [group for group in range(analysis.num_groups) if group not in heavy]
    size = float(analysis.gradient_bytes[light].sum())
    idle = np.zeros(len(loads.type_of))
    found: dict[Devices, float] = {}
    for devices in dict.fromkeys(action.devices for action in analysis.actions):
        action = loads.divide(light, devices, idle, GroupOption.ALL_REDUCE)
        if action is not None and action.devices not in found:
            compute = _busiest(loads, light, action)
            moved = size * loads.gradient_seconds(action.devices) if len(devices) > 1 else 0.0
            found[action.devices] = max(compute, compute / 3 + moved)
    return sorted(found, key=lambda devices: found[devices])[:_MOST_SETS]


def _busiest(loads: Loads, groups: Sequence[int], action: GroupAction) -> float:
    samples = loads.samples(action)
    table: Floats = loads.seconds[list(groups)].sum(axis=0)
    return float(table[loads.type_of, samples].max())


def _spread(loads: Loads, heavy: Sequence[int], devices: Devices) -> Iterator[Strategy]:
    """All but the heavy groups over these devices, the heavy ones wherever may be best."""
    num_groups = loads.analysis.num_groups
    light = [group for group in range(num_groups) if group not in heavy]
    idle = np.zeros(len(loads.type_of))
    trunk = loads.divide(light, devices, idle, GroupOption.ALL_REDUCE)
    if trunk is None:
        return
    for action in _heavy_actions(loads, heavy, devices) if heavy else (trunk,):
        strategy = tuple(action if group in heavy else trunk for group in range(num_groups))
        site = _site(loads, strategy)
        if site.can_run(strategy):
            yield level_rest(site, strategy, heavy) if heavy else strategy


def _heavy_actions(loads: Loads, heavy: Sequence[int], used: Devices) -> Iterator[GroupAction]:
    """One device, a device group, or every device of the others': those of them that take least."""
    places = loads.analysis.device_groups
    size = float(loads.analysis.gradient_bytes[list(heavy)].sum())
    idle = np.zeros(len(loads.type_of))
    targets = {place.devices for place in places} | {place.devices[:1] for place in places}
    found: dict[GroupAction, float] = {}
    for devices in sorted(targets):
        action = loads.divide(heavy, devices, idle, GroupOption.ALL_REDUCE)
        if action is not None:
            moved = size * loads.gradient_seconds(devices) if len(devices) > 1 else 0.0
            # Devices that the others use, too, save transfers.
            near = 1.0 if set(devices) <= set(used) else 1.5
            found[action] = near * (_busiest(loads, heavy, action) + moved)
    yield from sorted(found, key=lambda action: found[action])[:_MOST_TARGETS]
    for option in (GroupOption.DUPLICATE, GroupOption.PARAMETER_SERVER):
        action = loads.divide(heavy, used, idle, option)
        if action is not None:
            yield action


def pack_groups(loads: Loads) -> Iterator[Strategy]:
    """Each group on one device: groups in the step's order, devices from the fastest, each filled
    up to a part of its memory before the next."""
    analysis = loads.analysis
    usable = usable_bytes(analysis.graph, analysis.cluster)
    speed = loads.seconds[:, :, -1].sum(axis=0)[loads.type_of]
    order = np.lexsort((np.arange(len(speed)), speed)).tolist()
    need = np.maximum(analysis.held_bytes, analysis.state_bytes)
    for full in _FULL:
        left = usable * full
        chosen: dict[int, GroupAction] = {}
        place = 0
        for group in loads.order.tolist():
            while place < len(order) - 1 and need[group] > left[order[place]]:
                place += 1
            device = order[place]
            left[device] -= need[group]
            chosen[group] = loads.act(np.array([device]), np.ones(1), GroupOption.ALL_REDUCE)
        strategy = tuple(chosen[group] for group in range(analysis.num_groups))
        if _site(loads, strategy).can_run(strategy):
            yield strategy
