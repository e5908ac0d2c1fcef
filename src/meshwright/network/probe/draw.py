"""Draws the cluster that was measured: links of no kind, at the rates that messages reached."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.network.probe.collect import Inside, Measured
from meshwright.network.probe.probe import Findings
from meshwright.units import format_rate

ALONE_BYTES_PER_SECOND = 1e12
"""Between a host and its only device, which nothing was measured of but what leaves the host."""
SLOW = 0.8
"""Below this share of the middle host's rate a host is called slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedHost:
    """A host that was measured."""

    name: str
    devices: tuple[str, ...]
    """The names of its devices."""
    type: str
    memory_bytes: float
    """Of each device."""


def draw_measured(
    hosts: Sequence[ProbedHost], types: Mapping[str, DeviceType], measured: Measured, name: str
) -> Cluster:
    """The cluster of hosts in the order in which they were measured."""
    links = [
        link
        for number, host in enumerate(hosts)
        for link in _inside_links(host, measured.inside.get(number))
    ]
    switches: tuple[str, ...] = ()
    if measured.between is not None:
        names = [host.name for host in hosts]
        switches, between = _network_links(names, measured.between)
        links += between
    return Cluster(
        name=name,
        types=types,
        devices=tuple(
            Device(name=device, type=host.type, host=host.name, memory_bytes=host.memory_bytes)
            for host in hosts
            for device in host.devices
        ),
        switches=switches,
        links=tuple(links),
        tables=tuple(measured.tables),
    )


def _inside_links(host: ProbedHost, inside: Inside | None) -> Iterator[Link]:
    """A link each way between a device and its host; a host of one device keeps nothing back."""
    rate = inside.bytes_per_second if inside is not None else ALONE_BYTES_PER_SECOND
    delay = inside.latency_seconds / 2 if inside is not None else 0.0
    for device in host.devices:
        yield from _both(device, host.name, rate, rate, delay)


def _both(one: str, other: str, there: float, back: float, delay: float) -> Iterator[Link]:
    yield Link(source=one, target=other, bytes_per_second=there, latency_seconds=delay)
    yield Link(source=other, target=one, bytes_per_second=back, latency_seconds=delay)


def _network_links(names: Sequence[str], found: Findings) -> tuple[tuple[str, ...], list[Link]]:
    network = found.network
    own, further = split_latency(found.latency_seconds, network.rack_of.tolist())
    racks = [_free(f"rack{rack}", names) for rack in range(network.num_racks)]
    links: list[Link] = []
    for host, name in enumerate(names):
        rack = racks[int(network.rack_of[host])]
        links += _both(name, rack, float(network.out[host]), float(network.into[host]), own[host])
    if len(racks) == 1:
        return tuple(racks), links
    spine = _free("spine", names)
    for number, switch in enumerate(racks):
        inside = network.rack_of == number
        ends = (network.up[number], network.out[inside].sum()), (
            network.down[number], network.into[inside].sum(),
        )  # fmt: skip
        up, down = (float(cap if np.isfinite(cap) else total) for cap, total in ends)
        links += _both(switch, spine, up, down, further / 2)
    return (*racks, spine), links


def _free(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "-"
    return name


def split_latency(latency: Floats, rack_of: Sequence[int]) -> tuple[list[float], float]:
    """Of each host its part of the latency of its pairs, and what pairs of different racks have
    more; by medians, so that single pairs that stalled say nothing."""
    count = len(latency)
    same = np.array(rack_of)[:, None] == np.array(rack_of)[None, :]
    off = ~np.eye(count, dtype=bool) & ~np.isnan(latency)
    near, far = latency[off & same], latency[off & ~same]
    further = 0.0
    if len(near) and len(far):
        further = max(0.0, float(np.median(far) - np.median(near)))
    left = np.where(same, latency, latency - further)
    if not off.any():
        return [0.0] * count, further
    whole = float(np.median(left[off]))
    own = [
        float(np.median(left[host][off[host]])) - whole / 2 if off[host].any() else whole / 2
        for host in range(count)
    ]
    return [max(0.0, each) for each in own], further


def find_slow(names: Sequence[str], found: Findings) -> list[str]:
    """One line for each host that sends or receives less than most do."""
    lines = []
    for word, rates in (("sends", found.network.out), ("receives", found.network.into)):
        middle = float(np.median(rates))
        lines += [
            f"host {names[host]}: {word} {format_rate(float(rates[host]))}, "
            f"the middle one {format_rate(middle)}"
            for host in np.flatnonzero(rates < SLOW * middle).tolist()
        ]
    return lines


def describe_racks(names: Sequence[str], found: Findings) -> list[str]:
    """One line for each link that hosts share."""
    network = found.network
    lines = []
    for rack in range(network.num_racks):
        if np.isfinite(network.up[rack]) or np.isfinite(network.down[rack]):
            inside = [names[host] for host in np.flatnonzero(network.rack_of == rack).tolist()]
            shown = ", ".join(inside[:8]) + (", ..." if len(inside) > 8 else "")
            rates = (
                format_rate(float(cap)) if np.isfinite(cap) else "all that they can"
                for cap in (network.up[rack], network.down[rack])
            )
            lines.append(f"{shown} share a link: {' out, '.join(rates)} in")
    return lines


_SHADES = " ░▒▓█"


def draw_matrix(names: Sequence[str], found: Findings) -> list[str]:
    """A picture of what pairs get: senders are rows, the fastest pairs are full."""
    rates = found.pair_bytes_per_second
    off = ~np.eye(len(names), dtype=bool)
    low, high = float(rates[off].min()), float(rates[off].max())
    width = max(map(len, names))
    lines = []
    for host, name in enumerate(names):
        shares = np.log(rates[host] / low) / max(np.log(high / low), 1e-9)
        cells = [
            "·" if other == host else _SHADES[1 + min(3, int(4 * shares[other]))]
            for other in range(len(names))
        ]
        lines.append(f"{name:{width}} " + "".join(each * 2 for each in cells))
    return [*lines, f"░ {format_rate(low)} to █ {format_rate(high)}, rows send"]
