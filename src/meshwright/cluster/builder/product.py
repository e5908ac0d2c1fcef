"""Hosts as they are sold: NVLink boards, NVSwitch, PCIe; and pods of NVSwitch hosts on rails."""

from meshwright.cluster.builder.draft import (
    NETWORK_SECONDS,
    SWITCH_LINK_SECONDS,
    Draft,
    check_counts,
)
from meshwright.cluster.builder.grid import link_torus
from meshwright.cluster.builder.inside import INSIDE, UNKNOWN, join_inside
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import find_type
from meshwright.errors import InputError, quoted

MAX_HOST_DEVICES = 16
"""The most devices a host is sold with (DGX-2, HGX A100 16)."""

# One ConnectX a device: 6 (200 Gbit/s) in DGX A100, 7 (400 Gbit/s) in DGX H100, H200 and B200, 8
# (800 Gbit/s) in DGX B300.
NIC_BYTES_PER_SECOND = {
    "a100-40": 200e9 / 8, "a100-80": 200e9 / 8,
    "h100": 400e9 / 8, "h200": 400e9 / 8, "b200": 400e9 / 8, "b300": 800e9 / 8,
}  # fmt: skip
HOSTS_PER_UNIT = 32
"""Hosts that share eight leaves, as in the DGX SuperPOD reference architecture (H100, 2023)."""


def one_host(*, device_type: str, num_devices: int) -> Cluster:
    """One host whose devices are joined as that type's are: NVLink, NVSwitch, ICI or PCIe."""
    kind = find_type(device_type)
    name = f"{kind.name}-x{num_devices}"
    if num_devices > MAX_HOST_DEVICES:
        hint = f"{kind.name}-x8x<hosts>" if kind.name in NIC_BYTES_PER_SECOND else "a cluster file"
        raise InputError(
            f"one host holds at most {MAX_HOST_DEVICES:,} devices, "
            f"got {num_devices:,}; for more use {hint}"
        )
    check_counts(num_devices=num_devices)
    inside = INSIDE.get(kind.name, UNKNOWN)
    if inside.has_ring:
        return link_torus(
            shape=(num_devices,),
            device_type=kind,
            bytes_per_second=inside.switch,
            devices_per_host=num_devices,
            name=name,
        )
    draft = Draft(name)
    join_inside(draft, "host0", draft.add_host("host0", kind, num_devices), inside)
    return draft.finish()


def rail_pod(
    *,
    device_type: str,
    num_hosts: int,
    devices_per_host: int = 8,
    num_spines: int = 16,
    name: str | None = None,
) -> Cluster:
    """NVSwitch hosts on a rail-optimised leaf-spine network.

    Device k of every host of a unit of 32 has its NIC on leaf k, so that equal ranks of two hosts
    are two links apart; other pairs pass a spine. A host is its NVSwitch. Leaves have as many
    ports up as down; each link to a spine is a bundle of whole ports.
    """
    kind = find_type(device_type)
    if kind.name not in NIC_BYTES_PER_SECOND:
        raise InputError(
            f"device_type must be one of {', '.join(NIC_BYTES_PER_SECOND)} for a rail-optimised "
            f"pod, got {quoted(kind.name)}"
        )
    check_counts(num_hosts=num_hosts, devices_per_host=devices_per_host)
    check_counts(devices_per_host=devices_per_host, most_devices=MAX_HOST_DEVICES)
    check_counts(num_spines=num_spines, most_devices=1024)
    draft = Draft(name or f"{kind.name}-x{devices_per_host}x{num_hosts}")
    hosts = []
    for place in range(num_hosts):
        hosts.append(draft.add_host(f"host{place}", kind, devices_per_host))
        join_inside(draft, f"host{place}", hosts[-1], INSIDE[kind.name])
    if num_hosts > 1:
        _join_rails(draft, hosts, NIC_BYTES_PER_SECOND[kind.name], num_spines)
    return draft.finish()


def _join_rails(draft: Draft, hosts: list[list[str]], nic_rate: float, num_spines: int) -> None:
    """Leaves, one a rail and unit, and spines above them."""
    num_ports = min(len(hosts), HOSTS_PER_UNIT)  # of a leaf, downwards
    spines = [draft.add_switch(f"spine{place}") for place in range(min(num_spines, num_ports))]
    ports_per_spine = -(-num_ports // len(spines))
    for start in range(0, len(hosts), HOSTS_PER_UNIT):
        unit = hosts[start : start + HOSTS_PER_UNIT]
        for rail in range(len(unit[0])):
            leaf = draft.add_switch(f"unit{start // HOSTS_PER_UNIT}-leaf{rail}")
            below = [devices[rail] for devices in unit]
            draft.join_all(below, leaf, nic_rate, NETWORK_SECONDS / 2, "network")
            # Of no kind: what NICs reach does not fill them, and a port is as slow for anyone.
            draft.join_all(spines, leaf, ports_per_spine * nic_rate, SWITCH_LINK_SECONDS)
