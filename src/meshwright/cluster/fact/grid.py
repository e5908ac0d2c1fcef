"""Draws the network of dimensions that ASTRA-sim has: each device is in one group of each."""

from math import prod

from meshwright.cluster.builder.draft import Draft
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.fact.fact import Dimension
from meshwright.cluster.part import DeviceType


def draw_dimensions(
    dimensions: tuple[Dimension, ...], device_type: DeviceType, name: str
) -> Cluster:
    """Hosts are the groups of the first dimension, the innermost."""
    draft = Draft(name)
    inner = dimensions[0].size
    total = prod(each.size for each in dimensions)
    names = []
    for host in range(total // inner):
        names += draft.add_host(f"host{host}", device_type, inner)
    stride = 1
    for number, dimension in enumerate(dimensions):
        size = dimension.size
        for first in range(total):
            if first // stride % size == 0:
                group = [names[first + step * stride] for step in range(size)]
                _join_group(draft, group, dimension, f"dim{number}-{first}")
        stride *= size
    relays = len(dimensions) > 1 or dimensions[0].shape == "ring"
    return draft.finish(devices_relay=relays)


def _join_group(draft: Draft, group: list[str], dimension: Dimension, switch: str) -> None:
    rate, delay = dimension.bytes_per_second, dimension.latency_seconds
    if len(group) == 1:
        return
    if dimension.shape == "switch":
        draft.join_all(group, draft.add_switch(switch), rate, delay)
    elif dimension.shape == "fullyconnected":
        for place, one in enumerate(group):
            draft.join_all(group[place + 1 :], one, rate, delay)
    else:
        ends = zip(group, group[1:] + group[:1] * (len(group) > 2), strict=False)
        for one, other in ends:
            draft.join(one, other, rate, delay)
