"""Hosts as they are sold: NVLink boards, NVSwitch, PCIe; and pods of NVSwitch hosts on rails."""

from meshwright.cluster.builder.draft import (
    NETWORK_SECONDS,
    NVLINK_SECONDS,
    PCIE3_BYTES_PER_SECOND,
    PCIE_SECONDS,
    SWITCH_LINK_SECONDS,
    Draft,
    check_counts,
    find_type,
)
from meshwright.cluster.builder.grid import TPUV4_LINK_BYTES_PER_SECOND, link_torus
from meshwright.cluster.builder.paper import CUBE_MESH, join_cube_mesh
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted

MAX_HOST_DEVICES = 16
"""The most devices a host is sold with (DGX-2, HGX A100 16)."""

# Each way, by the data sheets: 12 and 18 links of 25 GB/s, 18 of 50 GB/s. A V100 behind
# NVSwitch (DGX-2) has 6 of 25 GB/s.
NVSWITCH_BYTES_PER_SECOND = {
    "v100-16": 150e9, "v100-32": 150e9,
    "a100-40": 300e9, "a100-80": 300e9, "h100": 450e9, "h200": 450e9, "b200": 900e9,
}  # fmt: skip
# One ConnectX a device: 6 (200 Gbit/s) in DGX A100, 7 (400 Gbit/s) in DGX H100, H200 and B200.
NIC_BYTES_PER_SECOND = {
    "a100-40": 200e9 / 8, "a100-80": 200e9 / 8,
    "h100": 400e9 / 8, "h200": 400e9 / 8, "b200": 400e9 / 8,
}  # fmt: skip
# Each way between a device and its host. Generation 4 cards get twice generation 3. Two sockets
# of a server: three UPI links of 16 GT/s move 96 GB/s raw each way, about half of it in copies.
HOST_BYTES_PER_SECOND = {
    "p100": PCIE3_BYTES_PER_SECOND, "1080ti": PCIE3_BYTES_PER_SECOND,
    "titan-v": PCIE3_BYTES_PER_SECOND, "t4": PCIE3_BYTES_PER_SECOND,
    "rtx3070": 2 * PCIE3_BYTES_PER_SECOND, "rtx4080s": 2 * PCIE3_BYTES_PER_SECOND,
    "cpu": 48e9,
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
            f"one host holds at most {MAX_HOST_DEVICES} devices, "
            f"got {num_devices}; for more use {hint}"
        )
    check_counts(num_devices=num_devices)
    if kind.name == "tpuv4":
        return link_torus(
            shape=(num_devices,),
            bytes_per_second=TPUV4_LINK_BYTES_PER_SECOND,
            devices_per_host=num_devices,
            name=name,
        )
    draft = Draft(name)
    devices = draft.add_host("host0", kind, num_devices)
    if kind.name.startswith("v100") and num_devices <= len(CUBE_MESH):
        join_cube_mesh(draft, devices, NVLINK_SECONDS)
        draft.join_all(devices, "host0", PCIE3_BYTES_PER_SECOND, PCIE_SECONDS / 2)
    elif kind.name in NVSWITCH_BYTES_PER_SECOND:
        rate = NVSWITCH_BYTES_PER_SECOND[kind.name]
        draft.join_all(devices, "host0", rate, NVLINK_SECONDS / 2)
    else:
        rate = HOST_BYTES_PER_SECOND[kind.name]
        draft.join_all(devices, "host0", rate, PCIE_SECONDS / 2)
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
        rate = NVSWITCH_BYTES_PER_SECOND[kind.name]
        draft.join_all(hosts[-1], f"host{place}", rate, NVLINK_SECONDS / 2)
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
            draft.join_all(below, leaf, nic_rate, NETWORK_SECONDS / 2)
            draft.join_all(spines, leaf, ports_per_spine * nic_rate, SWITCH_LINK_SECONDS)
