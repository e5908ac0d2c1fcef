"""Switched networks between hosts: trees, fat trees, spine-leaf, several rails.

A host forwards for its devices, each of which has a link to it.
"""

from collections.abc import Sequence

from meshwright.cluster.builder.draft import (
    NETWORK_SECONDS,
    NVLINK_SECONDS,
    SWITCH_LINK_SECONDS,
    Draft,
    check_counts,
    check_joined,
    check_positive,
)
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.errors import InputError

# Half of each hop: a path leaves one node and enters another.
_DEVICE_LATENCY = NVLINK_SECONDS / 2
_HOST_LATENCY = NETWORK_SECONDS / 2


def hierarchical(
    *,
    devices_per_host: int,
    branching: Sequence[int],
    oversubscription: Sequence[float] | None = None,
    device_type: DeviceType | str = "h100",
    device_bytes_per_second: float = 450e9,
    host_bytes_per_second: float = 50e9,
    name: str = "hierarchical",
) -> Cluster:
    """A tree: devices on hosts, `branching[0]` hosts on a switch, `branching[1]` of these on one.

    A switch's link upwards carries what all links below it carry together, divided by that
    tier's oversubscription (one number a tier below the root; 1 when not given). The default
    rates: NVLink of an H100, 450 GB/s, and one NIC of 400 Gbit/s a host.
    """
    if not 1 <= len(branching) <= 8:
        raise InputError(f"branching must have one to eight tiers, got {len(branching):,}")
    counts = {f"branching[{tier}]": count for tier, count in enumerate(branching)}
    check_counts(devices_per_host=devices_per_host, **counts)
    ratios = tuple(oversubscription if oversubscription is not None else [1] * len(branching[1:]))
    if len(ratios) != len(branching) - 1:
        raise InputError(
            f"oversubscription must have one ratio for each of the {len(branching) - 1} tiers "
            f"below the root, got {len(ratios):,}"
        )
    check_positive(**{f"oversubscription[{tier}]": ratio for tier, ratio in enumerate(ratios)})
    draft = Draft(name)
    num_hosts = 1
    for count in branching:
        num_hosts *= count
    children = _add_hosts(draft, num_hosts, devices_per_host, device_type, device_bytes_per_second)
    rate, latency = host_bytes_per_second, _HOST_LATENCY
    for tier, count in enumerate(branching):
        parents = []
        for start in range(0, len(children), count):
            parents.append(draft.add_switch(f"tier{tier + 1}-{start // count}"))
            draft.join_all(children[start : start + count], parents[-1], rate, latency)
        children, latency = parents, SWITCH_LINK_SECONDS
        if tier < len(ratios):
            rate = count * rate / ratios[tier]
    return draft.finish()


def fat_tree(
    *,
    k: int,
    devices_per_host: int = 1,
    device_type: DeviceType | str = "h100",
    device_bytes_per_second: float = 450e9,
    bytes_per_second: float = 50e9,
    name: str | None = None,
) -> Cluster:
    """Al-Fares et al. (SIGCOMM 2008): k pods of k/2 edge and k/2 aggregation switches.

    (k/2)^2 core switches, k^3/4 hosts; every link between hosts and switches is alike.
    """
    if k < 2 or k % 2:
        raise InputError(f"k must be even and at least 2, got {k}")
    check_counts(k=k)
    check_counts(num_hosts=k**3 // 4, devices_per_host=devices_per_host)
    draft, half = Draft(name or f"fat-tree-k{k}"), k // 2
    num_hosts = k * half * half
    hosts = _add_hosts(draft, num_hosts, devices_per_host, device_type, device_bytes_per_second)
    cores = [draft.add_switch(f"core{place}") for place in range(half * half)]
    for pod in range(k):
        edges = [draft.add_switch(f"pod{pod}-edge{place}") for place in range(half)]
        for place, edge in enumerate(edges):
            first = (pod * half + place) * half
            draft.join_all(hosts[first : first + half], edge, bytes_per_second, _HOST_LATENCY)
        for place in range(half):
            upper = draft.add_switch(f"pod{pod}-aggregation{place}")
            draft.join_all(edges, upper, bytes_per_second, SWITCH_LINK_SECONDS)
            above = cores[place * half : (place + 1) * half]
            draft.join_all(above, upper, bytes_per_second, SWITCH_LINK_SECONDS)
    return draft.finish()


def spine_leaf(
    *,
    num_spines: int,
    num_leaves: int,
    hosts_per_leaf: int,
    devices_per_host: int = 8,
    oversubscription: float = 1.0,
    device_type: DeviceType | str = "h100",
    device_bytes_per_second: float = 450e9,
    host_bytes_per_second: float = 50e9,
    name: str = "spine-leaf",
) -> Cluster:
    """Hosts on leaves, every leaf joined to every spine.

    A leaf's links to the spines carry together what its hosts' links carry, divided by the
    oversubscription. Default rates as in `hierarchical`.
    """
    check_counts(
        num_leaves=num_leaves, hosts_per_leaf=hosts_per_leaf, devices_per_host=devices_per_host
    )
    check_counts(num_spines=num_spines, most_devices=1024)
    check_joined(num_spines=num_spines, num_leaves=num_leaves)
    check_positive(oversubscription=oversubscription)
    draft = Draft(name)
    num_hosts = num_leaves * hosts_per_leaf
    hosts = _add_hosts(draft, num_hosts, devices_per_host, device_type, device_bytes_per_second)
    spines = [draft.add_switch(f"spine{place}") for place in range(num_spines)]
    up_rate = hosts_per_leaf * host_bytes_per_second / num_spines / oversubscription
    for place in range(num_leaves):
        leaf = draft.add_switch(f"leaf{place}")
        below = hosts[place * hosts_per_leaf : (place + 1) * hosts_per_leaf]
        draft.join_all(below, leaf, host_bytes_per_second, _HOST_LATENCY)
        draft.join_all(spines, leaf, up_rate, SWITCH_LINK_SECONDS)
    return draft.finish()


def multi_rail(
    *,
    num_hosts: int,
    num_rails: int,
    devices_per_host: int = 8,
    rail_bytes_per_second: float = 25e9,
    device_type: DeviceType | str = "a100-80",
    device_bytes_per_second: float = 300e9,
    name: str = "multi-rail",
) -> Cluster:
    """Hosts with a NIC to each of `num_rails` parallel switches, which are not joined.

    One transfer takes one rail; transfers to different devices spread over the rails.
    """
    check_counts(num_hosts=num_hosts, devices_per_host=devices_per_host)
    check_counts(num_rails=num_rails, most_devices=1024)
    check_joined(num_rails=num_rails, num_hosts=num_hosts)
    draft = Draft(name)
    hosts = _add_hosts(draft, num_hosts, devices_per_host, device_type, device_bytes_per_second)
    for rail in range(num_rails):
        switch = draft.add_switch(f"rail{rail}")
        draft.join_all(hosts, switch, rail_bytes_per_second, _HOST_LATENCY)
    return draft.finish()


def _add_hosts(
    draft: Draft,
    num_hosts: int,
    devices_per_host: int,
    device_type: DeviceType | str,
    bytes_per_second: float,
) -> list[str]:
    """Hosts whose devices each have a link to them."""
    hosts = [f"host{place}" for place in range(num_hosts)]
    for host in hosts:
        names = draft.add_host(host, device_type, devices_per_host)
        draft.join_all(names, host, bytes_per_second, _DEVICE_LATENCY)
    return hosts
