"""The clusters on which the papers that Meshwright builds on were evaluated.

The papers state bandwidths and no latencies, so latencies here are zero.
"""

from collections.abc import Sequence
from itertools import combinations

from meshwright.cluster.builder.draft import PCIE3_BYTES_PER_SECOND, Draft, check_counts
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cluster.kind import PLAIN

# NVLinks between each pair of a DGX-1V's eight V100 (NVIDIA's DGX-1 with V100 white paper, as
# `nvidia-smi topo -m` shows it): the hybrid cube mesh, six links a device.
CUBE_MESH = (
    (0, 1, 1, 2, 2, 0, 0, 0),
    (1, 0, 2, 1, 0, 2, 0, 0),
    (1, 2, 0, 2, 0, 0, 1, 0),
    (2, 1, 2, 0, 0, 0, 0, 1),
    (2, 0, 0, 0, 0, 1, 1, 2),
    (0, 2, 0, 0, 1, 0, 2, 1),
    (0, 0, 1, 0, 1, 2, 0, 2),
    (0, 0, 0, 1, 2, 1, 2, 0),
)
# Measured on DGX-1: a pair joined by one NVLink, by two, and over PCIe through the host.
_NVLINK_BYTES_PER_SECOND = {1: 21.4e9, 2: 43.2e9}
_DGX1_PCIE_BYTES_PER_SECOND = 10.1e9
_DGX1_ETHERNET_BYTES_PER_SECOND = 1.4e9


def dgx1(*, num_hosts: int = 1, device_type: DeviceType | str = "v100-32") -> Cluster:
    """DGX-1V hosts: NVLink cube mesh, PCIe to the host, Ethernet of 1.4 GB/s between hosts."""
    check_counts(num_hosts=num_hosts, devices_per_host=8)
    draft = Draft("dgx1" if num_hosts == 1 else f"dgx1-x{num_hosts}")
    hosts = _add_cube_hosts(draft, "host", num_hosts, device_type)
    _join_hosts(draft, hosts, _DGX1_ETHERNET_BYTES_PER_SECOND)
    return draft.finish()


def titan_v_hosts(*, num_hosts: int = 4, devices_per_host: int = 4) -> Cluster:
    """Hosts of Titan V: PCIe at 11 GB/s, Ethernet at 1.1 GB/s."""
    check_counts(num_hosts=num_hosts, devices_per_host=devices_per_host)
    draft = Draft(f"titan-v-{num_hosts}x{devices_per_host}")
    hosts = _add_pcie_hosts(draft, "host", num_hosts, "titan-v", devices_per_host)
    _join_hosts(draft, hosts, 1.1e9)
    return draft.finish()


def nvlink_pairs(*, num_hosts: int, device_type: DeviceType | str = "v100-32") -> Cluster:
    """Hosts of two devices joined by NVLink at 50 GB/s, Ethernet at 20 GB/s between hosts.

    The way from a device to its host is not stated; it is as fast as NVLink here, so that the
    Ethernet is the bottleneck.
    """
    check_counts(num_hosts=num_hosts, devices_per_host=2)
    draft = Draft(f"nvlink50-eth20-x{num_hosts}")
    hosts = [f"host{place}" for place in range(num_hosts)]
    for host in hosts:
        devices = draft.add_host(host, device_type, 2)
        draft.join(devices[0], devices[1], 50e9)
        draft.join_all(devices, host, 50e9)
    _join_hosts(draft, hosts, 20e9)
    return draft.finish()


def tag_testbed() -> Cluster:
    """TAG's testbed: 4 V100 on NVLink, 8 GTX 1080 Ti and 4 P100 on PCIe; one 100 Gbit/s switch.

    Four V100 on one board have two NVLinks between each pair.
    """
    draft = Draft("tag-testbed")
    devices = draft.add_host("v100-host0", "v100-32", 4)
    for one, other in combinations(devices, 2):
        draft.join(one, other, _NVLINK_BYTES_PER_SECOND[2])
    draft.join_all(devices, "v100-host0", PCIE3_BYTES_PER_SECOND)
    hosts = ["v100-host0"]
    hosts += _add_pcie_hosts(draft, "1080ti-host", 4, "1080ti", 2)
    hosts += _add_pcie_hosts(draft, "p100-host", 2, "p100", 2)
    _join_hosts(draft, hosts, 100e9 / 8)
    return draft.finish()


def tag_cloud() -> Cluster:
    """TAG's cloud: 2 hosts of 8 V100 (wired as a DGX-1V), 4 hosts of 4 T4, 10 Gbit/s."""
    draft = Draft("tag-cloud")
    hosts = _add_cube_hosts(draft, "v100-host", 2, "v100-16")
    hosts += _add_pcie_hosts(draft, "t4-host", 4, "t4", 4)
    _join_hosts(draft, hosts, 10e9 / 8)
    return draft.finish()


def join_cube_mesh(
    draft: Draft, devices: Sequence[str], latency_seconds: float = 0.0, kind: str = PLAIN
) -> None:
    """NVLinks between the first devices of a DGX-1V; two links of a pair are one of twice. Links of
    a kind have the rate of their data sheet, 25 GB/s."""
    for i, j in combinations(range(len(devices)), 2):
        num_links = CUBE_MESH[i][j]
        if num_links:
            rate = num_links * 25e9 if kind else _NVLINK_BYTES_PER_SECOND[num_links]
            draft.join(devices[i], devices[j], rate, latency_seconds, kind)


def _add_cube_hosts(
    draft: Draft, prefix: str, num_hosts: int, device_type: DeviceType | str
) -> list[str]:
    hosts = [f"{prefix}{place}" for place in range(num_hosts)]
    for host in hosts:
        devices = draft.add_host(host, device_type, 8)
        join_cube_mesh(draft, devices)
        draft.join_all(devices, host, _DGX1_PCIE_BYTES_PER_SECOND)
    return hosts


def _add_pcie_hosts(
    draft: Draft, prefix: str, num_hosts: int, device_type: str, devices_per_host: int
) -> list[str]:
    hosts = [f"{prefix}{place}" for place in range(num_hosts)]
    for host in hosts:
        names = draft.add_host(host, device_type, devices_per_host)
        draft.join_all(names, host, PCIE3_BYTES_PER_SECOND)
    return hosts


def _join_hosts(draft: Draft, hosts: Sequence[str], bytes_per_second: float) -> None:
    """All hosts on one switch; a single host needs none."""
    if len(hosts) > 1:
        draft.join_all(hosts, draft.add_switch("switch"), bytes_per_second)
