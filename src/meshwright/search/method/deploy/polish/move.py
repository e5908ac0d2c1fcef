"""Moves of the local search: other devices, shares or ways to synchronise for some of the groups.

Each draws a set of groups, mostly those that the step waits for, and gives them one action. Shares
are divided so that devices finish together, with what each has to do besides. Decides nothing about
which move to keep.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.graph.graph import Floats
from meshwright.search.method.deploy.option import GroupAction, GroupOption, Strategy
from meshwright.search.method.deploy.polish.load import Loads

_OPTIONS = tuple(GroupOption)
_OPTION_ODDS = (0.6, 0.12, 0.18, 0.1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """Where a move starts: a strategy and what is known of it."""

    strategy: Strategy
    heat: Floats
    """By group: seconds for which the step waits for it, or for its gradients."""
    elite: Sequence[Strategy]
    """Good strategies found before."""
    loads: Loads

    def busy(self, groups: Sequence[int]) -> Floats:
        """By device: seconds of all other groups."""
        table = self.loads.table(self.strategy)
        rest: Floats = table.sum(axis=0) - table[list(groups)].sum(axis=0)
        return rest

    def replace(self, groups: Sequence[int], action: GroupAction | None) -> Strategy | None:
        """The strategy with another action for some groups; None: that would change nothing, or the
        action cannot run one of them."""
        changed = list(self.strategy)
        for group in groups:
            changed[group] = action or changed[group]
        if tuple(changed) == self.strategy or not self.can_run(changed):
            return None
        return tuple(changed)

    def can_run(self, strategy: Sequence[GroupAction]) -> bool:
        """Whether every device can run what it has of every group."""
        table = self.loads.can_run
        return table is None or all(
            table[group, list(each.devices)].all() for group, each in enumerate(strategy)
        )


Move = Callable[[Site, np.random.Generator], Strategy | None]


def pick_group(site: Site, rng: np.random.Generator) -> int:
    """One that the step waits for, the longer the likelier; now and then any."""
    total = float(site.heat.sum())
    if total <= 0 or rng.random() < 0.25:
        return int(rng.integers(len(site.strategy)))
    return int(rng.choice(len(site.strategy), p=site.heat / total))


def pick_groups(site: Site, rng: np.random.Generator) -> list[int]:
    """A group, its neighbours in the step's order, all with its action, or all."""
    first = pick_group(site, rng)
    draw = rng.random()
    if draw < 0.3:
        return [first]
    if draw < 0.65:
        order = site.loads.order.tolist()
        place = order.index(first)
        length = int(rng.integers(2, max(3, len(order) // 2 + 1)))
        start = max(0, place - int(rng.integers(length)))
        return sorted(order[start : start + length])
    action = site.strategy[first]
    if draw < 0.9:
        return [group for group, each in enumerate(site.strategy) if each == action]
    return list(range(len(site.strategy)))


def pick_devices(site: Site, groups: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
    """A set of devices: near what the groups have, of other groups, of the menu, or small."""
    analysis = site.loads.analysis
    here = site.strategy[groups[int(rng.integers(len(groups)))]].devices
    places = analysis.device_groups
    draw = rng.random()
    if draw < 0.3:
        place = places[int(rng.integers(len(places)))].devices
        piece = set(place if rng.random() < 0.6 else [place[int(rng.integers(len(place)))]])
        found = set(here) - piece if piece & set(here) else set(here) | piece
        return tuple(sorted(found)) or here
    if draw < 0.5:
        other = site.strategy[int(rng.integers(len(site.strategy)))]
        return other.devices
    if draw < 0.7:
        return analysis.actions[int(rng.integers(len(analysis.actions)))].devices
    if draw < 0.85:
        return places[int(rng.integers(len(places)))].devices
    return (int(rng.integers(analysis.cluster.num_devices)),)


def pick_option(rng: np.random.Generator) -> GroupOption:
    """How a group synchronises gradients, drawn at random: mostly by all-reduce."""
    return _OPTIONS[int(rng.choice(len(_OPTIONS), p=_OPTION_ODDS))]


def move_devices(site: Site, rng: np.random.Generator) -> Strategy | None:
    """Some groups on another set of devices."""
    groups = pick_groups(site, rng)
    devices = pick_devices(site, groups, rng)
    action = site.loads.divide(groups, devices, site.busy(groups), pick_option(rng))
    return site.replace(groups, action)


def divide_again(site: Site, rng: np.random.Generator) -> Strategy | None:
    """Some groups on the devices that they have, with shares that level all devices."""
    groups = pick_groups(site, rng)
    action = site.strategy[groups[0]]
    groups = [group for group in groups if site.strategy[group].devices == action.devices]
    if len(action.devices) < 2 or action.option in (GroupOption.DUPLICATE, GroupOption.MODEL):
        return None
    busy = site.busy(groups)
    if rng.random() < 0.5:  # what sums do not see: a device that waits, or is waited for
        noise = rng.normal(0.0, 0.05, len(busy)) * float((busy + 1e-12).max())
        busy = np.maximum(busy + noise, 0.0)
    return site.replace(groups, site.loads.divide(groups, action.devices, busy, action.option))


def shift_sample(site: Site, rng: np.random.Generator) -> Strategy | None:
    """A sample or two from one device to another, for all groups with that action or some."""
    first = pick_group(site, rng)
    action = site.strategy[first]
    if len(action.devices) < 2 or action.option in (GroupOption.DUPLICATE, GroupOption.MODEL):
        return None
    groups = [group for group, each in enumerate(site.strategy) if each == action]
    if rng.random() < 0.4:
        groups = [group for group in pick_groups(site, rng) if group in groups] or groups
    devices = np.array(action.devices, dtype=np.intp)
    samples = site.loads.samples(action)[devices].astype(np.float64)
    total = site.loads.table(site.strategy).sum(axis=0)[devices]
    rank = np.argsort(total + rng.normal(0.0, 0.03, len(total)) * float(total.max() + 1e-12))
    count = int(rng.integers(1, 1 + max(1, len(devices) // 3)))
    count = min(count, len(devices) // 2)
    for giver, taker in zip(rank[::-1][:count], rank[:count], strict=True):
        step = min(1.0, samples[giver])
        samples[giver] -= step
        samples[taker] += step
    return site.replace(groups, site.loads.act(devices, samples, action.option))


def take_neighbour(site: Site, rng: np.random.Generator) -> Strategy | None:
    """Groups next to others take their action, so that borders move."""
    order = site.loads.order.tolist()
    borders = [
        place
        for place in range(len(order) - 1)
        if site.strategy[order[place]] != site.strategy[order[place + 1]]
    ]
    if not borders:
        return None
    place = borders[int(rng.integers(len(borders)))]
    length = 1 + int(rng.geometric(0.6))
    if rng.random() < 0.5:
        groups, source = order[max(0, place + 1 - length) : place + 1], order[place + 1]
    else:
        groups, source = order[place + 1 : place + 1 + length], order[place]
    return site.replace(groups, site.strategy[source])


def change_option(site: Site, rng: np.random.Generator) -> Strategy | None:
    """Some groups with one action synchronise in another way on the same devices."""
    first = pick_group(site, rng)
    action = site.strategy[first]
    if len(action.devices) < 2:
        return None
    groups = [first]
    if rng.random() < 0.5:
        groups = [group for group, each in enumerate(site.strategy) if each == action]
    option = _OPTIONS[int(rng.integers(len(_OPTIONS)))]
    if option is action.option:
        return None
    if {option, action.option} == {GroupOption.ALL_REDUCE, GroupOption.PARAMETER_SERVER}:
        devices = np.array(action.devices, dtype=np.intp)
        samples = site.loads.samples(action)[devices].astype(np.float64)
        return site.replace(groups, site.loads.act(devices, samples, option))
    action_found = site.loads.divide(groups, action.devices, site.busy(groups), option)
    return site.replace(groups, action_found)


def move_heavy(site: Site, rng: np.random.Generator) -> Strategy | None:
    """Groups with many gradient bytes for their compute on few devices, or duplicated."""
    analysis = site.loads.analysis
    density = analysis.gradient_bytes / np.maximum(site.loads.seconds[:, :, -1].min(axis=1), 1e-9)
    heaviest = np.argsort(-density, kind="stable")
    groups = sorted(heaviest[: 1 + int(rng.geometric(0.35))].tolist())
    draw = rng.random()
    place = analysis.device_groups[int(rng.integers(len(analysis.device_groups)))]
    if draw < 0.4:
        devices: tuple[int, ...] = (place.devices[int(rng.integers(len(place.devices)))],)
        option = GroupOption.ALL_REDUCE
    elif draw < 0.65:
        devices, option = place.devices, GroupOption.ALL_REDUCE
    else:
        devices, option = site.strategy[groups[0]].devices, GroupOption.DUPLICATE
        if len(devices) == 1:
            devices = site.strategy[int(np.argmax(site.heat))].devices
    changed = site.replace(groups, site.loads.divide(groups, devices, site.busy(groups), option))
    return None if changed is None else level_rest(site, changed, groups)


def level_rest(site: Site, strategy: Strategy, groups: Sequence[int]) -> Strategy:
    """Divide the most common action of all other groups again, now that these are elsewhere."""
    others = [each for group, each in enumerate(strategy) if group not in groups]
    counts = Counter(action for action in others if len(action.devices) > 1)
    if not counts:
        return strategy
    ((common, _),) = counts.most_common(1)
    if common.option in (GroupOption.DUPLICATE, GroupOption.MODEL):
        return strategy
    members = [
        group for group, each in enumerate(strategy) if each == common and group not in groups
    ]
    after = Site(strategy=strategy, heat=site.heat, elite=site.elite, loads=site.loads)
    levelled = site.loads.divide(members, common.devices, after.busy(members), common.option)
    return after.replace(members, levelled) or strategy


def swap_actions(site: Site, rng: np.random.Generator) -> Strategy | None:
    """What has one action takes another's, and the other way round; or two groups do."""
    first, second = pick_group(site, rng), int(rng.integers(len(site.strategy)))
    one, other = site.strategy[first], site.strategy[second]
    if one == other:
        return None
    changed = list(site.strategy)
    if rng.random() < 0.5:
        changed[first], changed[second] = other, one
    else:
        exchange = {one: other, other: one}
        changed = [exchange.get(each, each) for each in changed]
    return tuple(changed) if site.can_run(changed) else None


def mix_elite(site: Site, rng: np.random.Generator) -> Strategy | None:
    """A run of groups, or one action's, as in another good strategy."""
    others = [each for each in site.elite if each != site.strategy]
    if not others:
        return None
    other = others[int(rng.integers(len(others)))]
    groups = pick_groups(Site(strategy=other, heat=site.heat, elite=(), loads=site.loads), rng)
    changed = list(site.strategy)
    for group in groups:
        changed[group] = other[group]
    return None if tuple(changed) in (site.strategy, other) else tuple(changed)


MOVES: tuple[Move, ...] = (
    move_devices,
    divide_again,
    shift_sample,
    take_neighbour,
    change_option,
    move_heavy,
    swap_actions,
    mix_elite,
)
