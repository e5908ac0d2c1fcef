"""The type `cpu` as one machine's, in place of the catalogue's server, which stands for no product.

What was measured on a machine is itself a cluster: a host with one device, whose memory is all of
the machine's, and whose link to the host is what two ranks on it send each other. Knows nothing of
how it was measured, and where it is kept.
"""

from collections import Counter
from dataclasses import replace

from meshwright.cluster.build import one_host
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.part import Device, DeviceType, Link

CPU = "cpu"


def make_machine(kind: DeviceType, *, bytes_per_second: float, latency_seconds: float) -> Cluster:
    """A machine as a cluster: what one device of it is, and the transfers between two of them."""
    usual = one_host(device_type=CPU, num_devices=1)
    half = latency_seconds / 2  # from a device to its host, and on to the other device
    links = [
        replace(link, bytes_per_second=bytes_per_second, latency_seconds=half)
        for link in usual.links
    ]
    devices = [replace(each, memory_bytes=kind.memory_bytes) for each in usual.devices]
    return replace(usual, types={CPU: kind}, devices=tuple(devices), links=tuple(links))


def has_usual_cpu(cluster: Cluster) -> bool:
    """Whether devices of the cluster are the catalogue's `cpu`, not one that a file describes."""
    return cluster.types.get(CPU) == DEVICE_TYPES[CPU]


def on_machine(cluster: Cluster, machine: Cluster, ranks_at_once: float) -> Cluster:
    """The cluster whose hosts of `cpu` are each such a machine.

    All that has the catalogue's figures gets the machine's; what a file says otherwise stays.
    Devices of a host share its memory and, where more than `ranks_at_once` ranks are on it, its
    cores: each is slower by as much, on all hosts as on the fullest.
    """
    if not has_usual_cpu(cluster):
        return cluster
    count = Counter(device.host for device in cluster.devices if device.type == CPU)
    crowd = max(1.0, max(count.values(), default=1) / ranks_at_once)
    kind, fullest = machine.types[CPU], max(count.values(), default=1)
    shared = replace(
        kind,
        flops_per_second={name: rate / crowd for name, rate in kind.flops_per_second.items()},
        memory_bytes=kind.memory_bytes / fullest,
        memory_bytes_per_second=kind.memory_bytes_per_second / crowd,
        call_seconds=kind.call_seconds * crowd,
    )
    usual = one_host(device_type=CPU, num_devices=1).links[0]
    own = {device.name: device.host for device in cluster.devices if device.type == CPU}
    return replace(
        cluster,
        types={**cluster.types, CPU: shared},
        devices=tuple(_share(each, kind.memory_bytes, count) for each in cluster.devices),
        links=tuple(_relink(each, usual, machine.links[0], own) for each in cluster.links),
    )


def _share(device: Device, total: float, count: Counter[str]) -> Device:
    """The device with its part of its host's memory, unless a file gives it another."""
    if device.type != CPU or device.memory_bytes != DEVICE_TYPES[CPU].memory_bytes:
        return device
    return replace(device, memory_bytes=total / count[device.host])


def _relink(link: Link, usual: Link, measured: Link, own: dict[str, str]) -> Link:
    """A link of a device to its own host as measured, where it is as the catalogue has it."""
    rate, delay = usual.bytes_per_second, usual.latency_seconds
    is_own = own.get(link.source) == link.target or own.get(link.target) == link.source
    if not is_own or (link.bytes_per_second, link.latency_seconds) != (rate, delay):
        return link
    return replace(
        link,
        bytes_per_second=measured.bytes_per_second,
        latency_seconds=measured.latency_seconds,
    )
