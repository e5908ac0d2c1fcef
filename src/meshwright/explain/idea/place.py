"""Ideas for placements and replicas of plans without a pipeline: groups of ops on other devices,
parts on one device or on all, gradients added up another way, other shares of the batch."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.neighbour import Idea
from meshwright.graph.graph import Graph
from meshwright.plan.part import Part, Sync
from meshwright.plan.plan import Plan, place_ops
from meshwright.search.instance import Instance, make_instance

_HEAVIEST = 8
"""So many groups of ops, or parts, are thought about."""
_OTHERS = 3
"""So many other devices for each of them."""


def move_ideas(graph: Graph, cluster: Cluster, plan: Plan) -> list[Idea]:
    """The groups of ops that take longest, each moved to other devices."""
    if plan.schedule is not None or any(len(part.devices) > 1 for part in plan.parts):
        return []
    instance = make_instance(graph, cluster)
    device_of_op = np.zeros(graph.num_ops, dtype=np.int64)
    for part in plan.parts:
        device_of_op[[graph.index[op] for op in part.ops]] = cluster.index[part.devices[0]]
    seconds = _unit_seconds(instance, device_of_op)
    first_op = instance.unit_ops[instance.unit_start[:-1]]
    ideas = []
    for unit in np.argsort(-seconds, kind="stable")[:_HEAVIEST].tolist():
        here = int(device_of_op[first_op[unit]])
        count = int((instance.unit_of == unit).sum())
        what = graph.op_names[int(first_op[unit])]
        for device in _other_devices(cluster, here):
            moved = np.where(instance.unit_of == unit, device, device_of_op)
            ideas.append(
                Idea(
                    decision=f"{what}{f' and {count - 1} more ops' if count > 1 else ''} on "
                    f"{cluster.devices[here].name}",
                    change=f"on {cluster.devices[device].name}",
                    make=partial(_placed, graph, cluster, plan, moved),
                )
            )
    return ideas


def _unit_seconds(instance: Instance, device_of_op: Longs) -> Floats:
    """What each group of ops takes where it is."""
    ops = np.arange(instance.num_ops)
    own = instance.seconds[ops, instance.type_of[device_of_op]]
    return np.bincount(instance.unit_of, weights=own, minlength=instance.num_units).astype(
        np.float64
    )


def _other_devices(cluster: Cluster, here: int) -> list[int]:
    """A few devices, the first of each host and type in turn."""
    first: dict[tuple[str, str], list[int]] = {}
    for number, device in enumerate(cluster.devices):
        if number != here:
            first.setdefault((device.host, device.type), []).append(number)
    ranked = sorted(
        (place, group[0], number) for group in first.values() for place, number in enumerate(group)
    )
    return [number for _, _, number in ranked[:_OTHERS]]


def _placed(graph: Graph, cluster: Cluster, plan: Plan, device_of_op: Ints) -> Plan:
    priority = {
        op: each
        for part in plan.parts
        for op, each in zip(part.ops, part.priorities or range(0, -len(part.ops), -1), strict=True)
    }
    has_priorities = any(part.priorities for part in plan.parts)
    names = [device.name for device in cluster.devices]
    priorities = [float(priority[op]) for op in graph.op_names] if has_priorities else []
    moved = place_ops(graph.op_names, device_of_op.tolist(), names, priorities, plan.discipline)
    return replace(plan, parts=moved.parts)


def replica_ideas(graph: Graph, cluster: Cluster, plan: Plan) -> list[Idea]:
    """The parts that compute most: replicated or not, and how their gradients are added up."""
    if plan.schedule is not None and len(plan.parts) > 1:
        return []
    if all(len(part.devices) == 1 for part in plan.parts) and len(plan.parts) > _HEAVIEST:
        return []
    is_plain = all(part.is_plain for part in plan.parts)
    work = [sum(float(graph.flops[graph.index[op]]) for op in part.ops) for part in plan.parts]
    order = sorted(range(len(plan.parts)), key=lambda place: -work[place])[:_HEAVIEST]
    ideas: list[Idea] = []
    for number in order:
        ideas += _ideas_of_part(cluster, plan, number, is_plain=is_plain)
    return ideas


def _ideas_of_part(cluster: Cluster, plan: Plan, number: int, *, is_plain: bool) -> Iterator[Idea]:
    part = plan.parts[number]
    what = f"part {number + 1} ({part.what})" if len(plan.parts) > 1 else "the step"
    every = tuple(device.name for device in cluster.devices)
    if is_plain and len(part.devices) < len(every):
        yield _on_devices(plan, part, f"{what} on {_few(part.devices)}", every, "on all devices")
    if part.num_replicas < 2:
        return
    if is_plain:
        yield _on_devices(
            plan, part, f"{what} on {_few(part.devices)}", part.devices[:1],
            f"not replicated, on {part.devices[0]}",
        )  # fmt: skip
        for sync in Sync:
            if sync is not part.sync:
                changed = replace(part, sync=sync)
                yield Idea(
                    decision=f"{what}: gradients by {part.sync}",
                    change=str(sync),
                    make=partial(_with_part, plan, number, changed),
                )


def _few(devices: Sequence[str]) -> str:
    return devices[0] if len(devices) == 1 else f"{len(devices):,} devices"


def _on_devices(
    plan: Plan, part: Part, decision: str, devices: tuple[str, ...], change: str
) -> Idea:
    """All parts on the devices of one go with it: ops that share weights must stay together."""

    def make() -> Plan:
        parts = [
            replace(each, devices=devices, shares=()) if each.devices == part.devices else each
            for each in plan.parts
        ]
        return replace(plan, parts=tuple(parts))

    return Idea(decision=decision, change=change, make=make)


def _with_part(plan: Plan, number: int, part: Part) -> Plan:
    parts = (*plan.parts[:number], part, *plan.parts[number + 1 :])
    return replace(plan, parts=parts)


def share_ideas(graph: Graph, cluster: Cluster, plan: Plan) -> list[Idea]:
    """A sample more on the fastest replica and one fewer on the slowest, and the other way; equal
    shares where they are not. Only where devices differ, or shares do."""
    ideas: list[Idea] = []
    for number, part in enumerate(plan.parts):
        types = [cluster.devices[cluster.index[name]].type for name in part.devices]
        if part.num_replicas < 2 or (len(set(types)) == 1 and not part.shares):
            continue
        shares = np.array([high - low for low, high in part.rows()])
        microbatches = plan.schedule.microbatches if plan.schedule else 1
        quantum = microbatches / graph.batch
        speed = [cluster.types[kind].peak_flops_per_second("bf16") for kind in types[:: part.width]]
        fast, slow = int(np.argmax(speed)), int(np.argmin(speed))
        if fast == slow:
            fast, slow = int(np.argmax(shares)), int(np.argmin(shares))
        if fast == slow:
            continue
        where = f"part {number + 1}: " if len(plan.parts) > 1 else ""
        for more, less in ((fast, slow), (slow, fast)):
            counts = shares[more] / quantum
            moved = shares.copy()
            moved[more], moved[less] = moved[more] + quantum, moved[less] - quantum
            name = part.devices[more * part.width]
            ideas.append(
                Idea(
                    decision=f"{where}{name} has {counts:g} samples of a microbatch",
                    change=f"one more, from {part.devices[less * part.width]}",
                    make=partial(_shared, plan, number, moved),
                )
            )
        if part.shares and np.ptp(shares) > 0:
            equal = replace(part, shares=())
            ideas.append(
                Idea(
                    decision=f"{where}shares from {shares.min():.3g} to {shares.max():.3g}",
                    change="equal shares",
                    make=partial(_with_part, plan, number, equal),
                )
            )
    return ideas


def _shared(plan: Plan, number: int, shares: Floats) -> Plan:
    if shares.min() <= 1e-12:
        raise InputError(f"part {number}: a replica must have at least one sample")
    part = replace(plan.parts[number], shares=tuple((shares / shares.sum()).tolist()))
    return _with_part(plan, number, part)
