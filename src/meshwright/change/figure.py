"""Changes what devices are: their memory, their speed, their type."""

from collections.abc import Mapping
from dataclasses import replace

from meshwright.change.amount import Amount
from meshwright.change.kind import DeviceFigure, Figure, TypeSwap
from meshwright.change.select import select_types
from meshwright.change.tier import INSIDE, find_tiers
from meshwright.cluster.builder.inside import INSIDE as SOLD
from meshwright.cluster.builder.inside import Inside
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import find_type
from meshwright.cluster.part import DeviceType, Link

_WIDE = ("bf16", "fp16", "tf32", "fp32", "fp64")
"""Precisions of 16 bits or more."""


def change_figure(cluster: Cluster, change: DeviceFigure) -> Cluster:
    """The cluster with another figure of some types of devices; all else of them stays.

    Measured collectives stay, too: they are of the links.
    """
    names = select_types(cluster, change.types, str(change.figure))
    types = dict(cluster.types)
    for name in names:
        types[name] = _changed(types[name], change.figure, change.amount)
    if change.figure is not Figure.MEMORY:
        return replace(cluster, types=types)
    devices = tuple(
        replace(each, memory_bytes=change.amount.of(each.memory_bytes))
        if each.type in names
        else each
        for each in cluster.devices
    )
    return replace(cluster, types=types, devices=devices)


def _changed(kind: DeviceType, figure: Figure, amount: Amount) -> DeviceType:
    if figure is Figure.MEMORY:
        return replace(kind, memory_bytes=amount.of(kind.memory_bytes))
    if figure is Figure.MEMORY_RATE:
        return replace(kind, memory_bytes_per_second=amount.of(kind.memory_bytes_per_second))
    factor = amount.factor
    if factor is None:
        fastest = max(kind.flops_per_second.get(each, 0.0) for each in _WIDE)
        factor = amount.of(fastest) / fastest
    rates = {name: rate * factor for name, rate in kind.flops_per_second.items()}
    return replace(kind, flops_per_second=rates)


def swap_type(cluster: Cluster, change: TypeSwap) -> Cluster:
    """The cluster with devices of another type in the place of those of some types.

    A new device has its type's memory. Links inside hosts that are as the old type is sold with
    become as the new type is sold with; the network stays as it is. Measured collectives of the old
    type are left out.
    """
    new = find_type(change.new, cluster.types)
    names = select_types(cluster, change.old, "type")
    devices = tuple(
        replace(each, type=new.name, memory_bytes=new.memory_bytes) if each.type in names else each
        for each in cluster.devices
    )
    present = {each.type for each in devices}
    types = {name: kind for name, kind in cluster.types.items() if name in present}
    return replace(
        cluster,
        types={**types, new.name: new},
        devices=devices,
        links=_rejoined(cluster, names, new),
        tables=tuple(each for each in cluster.tables if each.device_type not in names),
    )


def _rejoined(cluster: Cluster, old: tuple[str, ...], new: DeviceType) -> tuple[Link, ...]:
    """The links, those inside hosts as the new type is sold with them."""
    after = SOLD.get(new.name)
    before = {device.name: SOLD.get(device.type) for device in cluster.devices}
    swapped = {device.name for device in cluster.devices if device.type in old}
    if after is None:
        return cluster.links
    found = []
    for link, level in zip(cluster.links, find_tiers(cluster).of_link, strict=True):
        ends = [each for each in (link.source, link.target) if each in swapped]
        sold = before[ends[0]] if ends else None
        if sold is not None and level == INSIDE:
            found.append(_sold_link(link, sold, after, num_devices=len(ends)))
        else:
            found.append(link)
    return tuple(found)


def _sold_link(link: Link, before: Inside, after: Inside, *, num_devices: int) -> Link:
    """A link that is as one type is sold with, as another is; any other link as it is."""
    roles: Mapping[str, tuple[float, str]] = {
        "switch": (before.switch, before.kind),
        "pair": (before.pair, before.kind),
        "pcie": (before.pcie, before.pcie_kind),
    }
    is_pair = num_devices == 2
    for role, known in roles.items():
        rate = getattr(after, role)
        if (link.bytes_per_second, link.kind) == known and is_pair == (role == "pair") and rate:
            kind = after.pcie_kind if role == "pcie" else after.kind
            return replace(link, bytes_per_second=rate, kind=kind)
    return link
