"""Carries a plan over to another cluster: what of it can stay where it is, and what cannot.

Devices are the same by host and name. Replicas that have lost a device are dropped and the others
take over their samples. A part that has lost all of its replicas has nowhere to stay: its ops go to
devices that nothing uses, to the stages beside it, or to the devices that it talks to. Knows
nothing of time.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.part import Allocation, Part
from meshwright.plan.plan import Plan
from meshwright.search.instance import make_instance
from meshwright.search.method.deploy.analysis import split_group
from meshwright.search.replica import divide_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """A plan on another cluster than it was made for."""

    plan: Plan | None
    """As much of it as stays, where every part has a device left; None: some part has none."""
    homeless: tuple[int, ...] = ()
    """The numbers of the parts that have lost all their replicas."""
    dropped: Mapping[int, int]
    """By number of a part: how many of its replicas are gone, where any are."""
    repaired: tuple[Plan, ...] = ()
    """Plans that give what is gone to other devices, those that change least first."""

    @property
    def starts(self) -> tuple[Plan, ...]:
        """All plans that a search may start from."""
        return self.repaired if self.plan is None else (self.plan, *self.repaired)


def carry_plan(graph: Graph, old: Cluster, new: Cluster, plan: Plan) -> Carried:
    """Carry a plan in ops of the graph over from one cluster to another."""
    here = shared_devices(old, new)
    parts = [_carry_part(graph, plan, part, here) for part in plan.parts]
    dropped = {
        number: part.num_replicas - (0 if kept is None else kept.num_replicas)
        for number, (part, kept) in enumerate(zip(plan.parts, parts, strict=True))
        if kept is None or kept.num_replicas < part.num_replicas
    }
    homeless = tuple(number for number, kept in enumerate(parts) if kept is None)
    allocations = tuple(_carry_allocations(old, new, plan.allocations))
    whole = replace(plan, allocations=allocations)
    stand_in = [] if not dropped else list(_stand_in(new, whole, here))
    if not homeless:
        kept = tuple(part for part in parts if part is not None)
        return Carried(plan=replace(whole, parts=kept), dropped=dropped, repaired=tuple(stand_in))
    repaired = [*stand_in, *_repair(graph, new, whole, parts)]
    distinct = tuple(each for k, each in enumerate(repaired) if each not in repaired[:k])
    return Carried(plan=None, homeless=homeless, dropped=dropped, repaired=distinct)


def shared_devices(old: Cluster, new: Cluster) -> frozenset[str]:
    """The names of the devices that both clusters have, in the same hosts."""
    there = {(device.host, device.name) for device in old.devices}
    return frozenset(each.name for each in new.devices if (each.host, each.name) in there)


def _stand_in(cluster: Cluster, plan: Plan, here: Collection[str]) -> Iterator[Plan]:
    """The plan with a device that nothing uses in the place of each that is gone, hosts by hosts;
    none where there are too few of them."""
    used = dict.fromkeys(device for part in plan.parts for device in part.devices)
    lost = [device for device in used if device not in here]
    idle = [device.name for device in cluster.devices if device.name not in used]
    if lost and len(idle) >= len(lost):
        names = dict(zip(lost, idle, strict=False))
        parts = (
            replace(part, devices=tuple(names.get(each, each) for each in part.devices))
            for part in plan.parts
        )
        yield replace(plan, parts=tuple(parts))


def _carry_part(graph: Graph, plan: Plan, part: Part, here: Collection[str]) -> Part | None:
    """The part with the replicas that are left; None: there is none.

    Of replicas that hold different experts all stay, or none.
    """
    teams = part.teams()
    kept: list[int] = []
    for first in range(0, len(teams), part.expert):
        together = range(first, first + part.expert)
        if all(device in here for number in together for device in teams[number]):
            kept += together
    if not kept:
        return None
    if len(kept) == len(teams):
        return part
    old = np.array(part.shares or (1.0,) * len(teams))[kept]
    shares = _share_samples(graph, plan, old / old.sum())
    kept = [number for number, share in zip(kept, shares.tolist(), strict=True) if share > 0]
    left = shares[shares > 0]
    is_equal = bool(np.ptp(left) <= 1e-12)
    devices = tuple(chain.from_iterable(teams[number] for number in kept))
    holders = len(kept) * part.context
    return replace(
        part,
        devices=devices,
        shares=() if is_equal or len(left) % part.expert else tuple(left.tolist()),
        zero=part.zero if holders > 1 else 0,
    )


def _share_samples(graph: Graph, plan: Plan, weights: Floats) -> Floats:
    """The parts of a batch by weight, in whole samples of every microbatch where these are
    counted and suffice."""
    microbatches = plan.schedule.microbatches if plan.schedule else 1
    samples = graph.batch / microbatches
    if samples < len(weights) or not samples.is_integer():
        return weights
    return divide_batch(samples, weights)


def _carry_allocations(
    old: Cluster, new: Cluster, allocations: Sequence[Allocation]
) -> Iterator[Allocation]:
    """Those between hosts that are still there and have as many ways between them."""
    hosts = set(new.hosts)
    for each in allocations:
        if {each.source, each.target} <= hosts:
            ways = [_num_ways(cluster, each) for cluster in (old, new)] if each.shares else [0, 0]
            if ways[0] == ways[1]:
                yield each


def _num_ways(cluster: Cluster, allocation: Allocation) -> int:
    place = cluster.host_index
    return len(cluster.ways.links[place[allocation.source], place[allocation.target]])


def _repair(
    graph: Graph, cluster: Cluster, plan: Plan, parts: Sequence[Part | None]
) -> Iterator[Plan]:
    """Plans in which the ops of parts without devices run elsewhere."""
    kept = [part for part in parts if part is not None]
    used = {device for part in kept for device in part.devices}
    idle = [device.name for device in cluster.devices if device.name not in used]
    if moved := _move_to_idle(plan, parts, idle):
        yield moved
    if not kept:
        return
    if plan.schedule is not None:
        for prefers_next in (True, False):
            yield replace(plan, parts=_join_stages(plan.parts, parts, prefers_next=prefers_next))
        return
    yield from _deal_out(graph, cluster, plan, parts, sorted(used, key=cluster.index.__getitem__))


def _move_to_idle(plan: Plan, parts: Sequence[Part | None], idle: Sequence[str]) -> Plan | None:
    """Parts without devices on devices that nothing uses, parts that shared theirs together; with
    fewer replicas where there is not room. None: there is not room for all."""
    lost = {part.devices: part for part, kept in zip(plan.parts, parts, strict=True) if not kept}
    least = {devices: part.width * part.expert for devices, part in lost.items()}
    if not lost or sum(least.values()) > len(idle):
        return None
    left, waiting = list(idle), sum(least.values())
    homes: dict[tuple[str, ...], tuple[str, ...]] = {}
    for devices, unit in least.items():
        waiting -= unit
        count = min(len(devices), (len(left) - waiting) // unit * unit)
        homes[devices], left = tuple(left[:count]), left[count:]
    found = []
    for part, kept in zip(plan.parts, parts, strict=True):
        home = part.devices if kept else homes[part.devices]
        is_whole = len(home) == len(part.devices)
        found.append(kept or replace(part, devices=home, shares=part.shares if is_whole else ()))
    return replace(plan, parts=tuple(found))


def _join_stages(
    old: Sequence[Part], parts: Sequence[Part | None], *, prefers_next: bool
) -> tuple[Part, ...]:
    """The stages that have devices, each with the ops of those beside it that have none."""
    present = [number for number, part in enumerate(parts) if part is not None]
    owner = []
    for number in range(len(old)):
        after = [each for each in present if each >= number]
        before = [each for each in present if each <= number]
        first, second = (after, before[::-1]) if prefers_next else (before[::-1], after)
        owner.append((first or second)[0])
    found = []
    for place in present:
        part = parts[place]
        assert part is not None
        ops = tuple(
            chain.from_iterable(
                each.ops for each, goes_to in zip(old, owner, strict=True) if goes_to == place
            )
        )
        is_same = len(ops) == len(part.ops)
        found.append(part if is_same else replace(part, ops=ops, priorities=()))
    return tuple(found)


def _deal_out(
    graph: Graph, cluster: Cluster, plan: Plan, parts: Sequence[Part | None], used: Sequence[str]
) -> Iterator[Plan]:
    """The ops of parts without devices on one device each, dealt out so that little is sent; or
    all of them to the part that has the most devices."""
    kept = [part for part in parts if part is not None]
    lost = [part for part, own in zip(plan.parts, parts, strict=True) if own is None]
    homeless = np.array(sorted(graph.index[op] for part in lost for op in part.ops), np.int32)
    instance = make_instance(graph, cluster)
    numbers = np.array([cluster.index[device] for device in used], np.int32)
    seconds = np.where(np.isfinite(instance.seconds), instance.seconds, np.inf)[homeless].sum(0)
    taken = seconds[instance.type_of[numbers]]
    able = np.isfinite(taken)
    if able.any():
        chosen = numbers[able]
        least = max(float(taken[able].min()), 1e-300)
        speeds = least / np.maximum(taken[able], least)
        place = split_group(instance, homeless, speeds, seed=0)
        yield _with_ops(graph, cluster, plan, kept, homeless, chosen[place])
    widest = max(kept, key=lambda part: len(part.devices))
    if len(widest.devices) > 1:
        ops = tuple(chain(widest.ops, (graph.op_names[op] for op in homeless.tolist())))
        others = (part for part in kept if part is not widest)
        yield replace(plan, parts=(replace(widest, ops=ops, priorities=()), *others))


def _with_ops(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    kept: Sequence[Part],
    ops: Ints,
    device_of_op: Ints,
) -> Plan:
    """The plan with more ops on single devices: in the part of the device, if it has one."""
    more: dict[str, list[str]] = {}
    for op, device in zip(ops.tolist(), device_of_op.tolist(), strict=True):
        more.setdefault(cluster.devices[device].name, []).append(graph.op_names[op])
    found = []
    for part in kept:
        own = more.pop(part.devices[0], []) if len(part.devices) == 1 else []
        found.append(replace(part, ops=(*part.ops, *own), priorities=()) if own else part)
    found += [Part(ops=tuple(names), devices=(device,)) for device, names in more.items()]
    return replace(plan, parts=tuple(found))
