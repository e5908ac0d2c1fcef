"""Data-centre networks of up to 16,384 devices, by their number alone: spine-leaf and fat tree."""

from dataclasses import replace

from meshwright.cluster.builder.draft import (
    NETWORK_SECONDS,
    NVLINK_SECONDS,
    SWITCH_LINK_SECONDS,
    Draft,
    check_counts,
    check_positive,
)
from meshwright.cluster.builder.inside import INSIDE
from meshwright.cluster.builder.product import NIC_BYTES_PER_SECOND
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cluster.devices import DEVICE_TYPES, find_type
from meshwright.errors import InputError

DEVICES_PER_HOST = 8
HOSTS_PER_LEAF = 16
"""128 NICs of 400 Gbit/s: half of a switch of 102.4 Tbit/s, which has 256 such ports."""
MAX_SPINES = 32
"""At 2:1 a leaf has 64 ports upwards, two for each spine; 128 leaves then fill a spine's 256."""

# TPU v4 as studies of placement model it (8 x 4 x n devices of 64 GB, bandwidths by level); the
# product has 32 GiB and a torus.
TPU_TYPE = replace(DEVICE_TYPES["tpuv4"], name="tpuv4-64", memory_bytes=64e9)
TPU_DEVICE_BYTES_PER_SECOND = 900e9
TPU_HOST_BYTES_PER_SECOND = 100e9
TPU_HOSTS_PER_RACK = 4


def h100_spine_leaf(
    *, num_devices: int, oversubscription: float = 2.0, name: str | None = None
) -> Cluster:
    """Hosts of 8 H100 on NVSwitch, a NIC for each device, 16 hosts a leaf, leaves on spines.

    All NICs of a host are on its leaf. A full leaf's ports downwards carry together what those
    upwards carry times the oversubscription; these are shared evenly by up to 32 spines, with a
    whole port or more each, so that a transfer alone has its NIC's rate to any device. The last
    leaf may be partly filled; one leaf alone needs no spine.
    """
    _check_devices(num_devices)
    check_positive(oversubscription=oversubscription)
    draft = Draft(name or f"h100-spineleaf-{num_devices}")
    hosts = _add_hosts(draft, find_type("h100"), num_devices, INSIDE["h100"].switch)
    nic_rate = NIC_BYTES_PER_SECOND["h100"]
    num_ports = HOSTS_PER_LEAF * DEVICES_PER_HOST / oversubscription
    num_spines = max(1, min(MAX_SPINES, int(num_ports))) if len(hosts) > HOSTS_PER_LEAF else 0
    spines = [draft.add_switch(f"spine{place}") for place in range(num_spines)]
    for start in range(0, len(hosts) if len(hosts) > 1 else 0, HOSTS_PER_LEAF):
        leaf = draft.add_switch(f"leaf{start // HOSTS_PER_LEAF}")
        for devices in hosts[start : start + HOSTS_PER_LEAF]:
            draft.join_all(devices, leaf, nic_rate, NETWORK_SECONDS / 2)
        if spines:
            rate = num_ports * nic_rate / num_spines
            draft.join_all(spines, leaf, rate, SWITCH_LINK_SECONDS)
    return draft.finish()


def tpu_fat_tree(*, num_devices: int, name: str | None = None) -> Cluster:
    """Hosts of 8 TPU v4 at 900 GB/s each, 4 hosts a rack at 100 GB/s each, racks at 400 GB/s.

    The tree's root stands for a core that is not oversubscribed: a rack's link upwards carries
    what its four hosts' links carry. The last rack may be partly filled; one rack needs no core.
    """
    _check_devices(num_devices)
    draft = Draft(name or f"tpuv4-fattree-{num_devices}")
    hosts = _add_hosts(draft, TPU_TYPE, num_devices, TPU_DEVICE_BYTES_PER_SECOND)
    num_racks = -(-len(hosts) // TPU_HOSTS_PER_RACK) if len(hosts) > 1 else 0
    racks = [draft.add_switch(f"rack{place}") for place in range(num_racks)]
    for place, rack in enumerate(racks):
        below = range(place * TPU_HOSTS_PER_RACK, min((place + 1) * TPU_HOSTS_PER_RACK, len(hosts)))
        names = [f"host{host}" for host in below]
        draft.join_all(names, rack, TPU_HOST_BYTES_PER_SECOND, NETWORK_SECONDS / 2)
    if num_racks > 1:
        rate = TPU_HOSTS_PER_RACK * TPU_HOST_BYTES_PER_SECOND
        draft.join_all(racks, draft.add_switch("core"), rate, SWITCH_LINK_SECONDS)
    return draft.finish()


def _check_devices(num_devices: int) -> None:
    check_counts(num_devices=num_devices)
    if num_devices % DEVICES_PER_HOST:
        raise InputError(
            f"num_devices must be a multiple of {DEVICES_PER_HOST}, the devices of a host, "
            f"got {num_devices:,}"
        )


def _add_hosts(
    draft: Draft, device_type: DeviceType, num_devices: int, bytes_per_second: float
) -> list[list[str]]:
    """Hosts of eight devices, each with a link to its host; the devices' names by host."""
    hosts = []
    for place in range(num_devices // DEVICES_PER_HOST):
        hosts.append(draft.add_host(f"host{place}", device_type, DEVICES_PER_HOST))
        draft.join_all(hosts[-1], f"host{place}", bytes_per_second, NVLINK_SECONDS / 2)
    return hosts
