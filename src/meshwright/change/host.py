"""Adds copies of hosts to a cluster, and takes hosts from it, link by link.

A copy hangs from the switches that its model hangs from, by links of the same rates; no other link
changes, so that links further up carry more hosts than before.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshwright.change.tier import find_tiers
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.part import Device, Link
from meshwright.errors import InputError, quoted

Make = tuple[tuple[str, float], ...]
"""The type and memory of each device of a host."""


def makes_of(cluster: Cluster) -> dict[str, Make]:
    """What each host holds: hosts are alike that hold the same."""
    found: dict[str, list[tuple[str, float]]] = {host: [] for host in cluster.hosts}
    for device in cluster.devices:
        found[device.host].append((device.type, device.memory_bytes))
    return {host: tuple(devices) for host, devices in found.items()}


def drop_hosts(cluster: Cluster, hosts: Sequence[str], what: str) -> Cluster:
    """The cluster without some hosts, their links, and the switches that led only to them."""
    gone = set(hosts)
    if gone >= set(cluster.hosts):
        raise InputError(f"{what}: must leave a host, got all {len(cluster.hosts):,}")
    owner = find_tiers(cluster).host_of
    lost = {node for node, host in owner.items() if host in gone}
    return _without_nodes(cluster, lost)


def keep_devices(cluster: Cluster, count: int) -> Cluster:
    """The cluster with the first devices of one host alone."""
    host = cluster.hosts[0]
    alone = cluster
    if len(cluster.hosts) > 1:
        alone = drop_hosts(cluster, cluster.hosts[1:], "devices")
    own = [device.name for device in alone.devices if device.host == host]
    return _without_nodes(alone, set(own[count:]))


def _without_nodes(cluster: Cluster, lost: set[str]) -> Cluster:
    """The cluster without some nodes and their links, and without switches that no link is left
    at or that lead from a single node on to nothing."""
    links = [each for each in cluster.links if not {each.source, each.target} & lost]
    switches = [each for each in cluster.switches if each not in lost]
    while True:
        near: dict[str, set[str]] = {each: set() for each in switches}
        for link in links:
            if link.source in near:
                near[link.source].add(link.target)
            if link.target in near:
                near[link.target].add(link.source)
        dead = {each for each, others in near.items() if len(others) < 2}
        if not dead:
            break
        switches = [each for each in switches if each not in dead]
        links = [each for each in links if not {each.source, each.target} & dead]
    devices = tuple(each for each in cluster.devices if each.name not in lost)
    present = {each.type for each in devices}
    left = {each.host for each in devices}
    return replace(
        cluster,
        types={name: kind for name, kind in cluster.types.items() if name in present},
        devices=devices,
        switches=tuple(switches),
        links=tuple(links),
        interfaces=tuple(
            each
            for each in cluster.interfaces
            if each.host in left and (each.switch in switches or each.switch in left)
        ),
    )


def add_host(cluster: Cluster, model: str) -> Cluster:
    """The cluster with a copy of a host, or of the host like it whose switches have the fewest
    hosts; names of interfaces are left out, since nobody has named the new ones."""
    where = f"hosts: a copy of {quoted(model)}"
    if cluster.devices_relay or cluster.hop_bytes_per_second:
        raise InputError(
            f"{where} cannot be added to a mesh or torus, whose devices pass traffic on; plan for "
            f"one of another shape"
        )
    owner = find_tiers(cluster).host_of
    model = _least_crowded(cluster, model, owner)
    own = [node for node in cluster.nodes if owner.get(node) == model]
    ends = [
        each for each in cluster.links if model in (owner.get(each.source), owner.get(each.target))
    ]
    if all(owner.get(each.source) == owner.get(each.target) for each in ends):
        raise InputError(
            f"{where} cannot be added: the cluster has no network between hosts; plan for a "
            f"cluster that has one, such as h100-x8x2"
        )
    names = _new_names(cluster, model, own)
    direct = [
        each
        for each in ends
        if owner.get(each.source, "") != owner.get(each.target, "")
        and each.source in owner
        and each.target in owner
    ]
    devices = [
        replace(each, name=names[each.name], host=names[model])
        for each in cluster.devices
        if each.host == model
    ]
    copies = [
        replace(
            each,
            source=names.get(each.source, each.source),
            target=names.get(each.target, each.target),
        )
        for each in ends
    ]
    return replace(
        cluster,
        devices=(*cluster.devices, *devices),
        switches=(*cluster.switches, *(names[each] for each in own if each in cluster.switches)),
        links=(*cluster.links, *copies, *_to_model(cluster, where, direct, devices, model)),
        interfaces=(),
    )


def _to_model(
    cluster: Cluster, where: str, direct: Sequence[Link], devices: Sequence[Device], model: str
) -> list[Link]:
    """The links between a copy and its model where hosts are joined to each other: as all others
    are, if they are all alike."""
    if not direct:
        return []
    alike = {(each.bytes_per_second, each.latency_seconds, each.kind) for each in direct}
    own = [each.name for each in cluster.devices if each.host == model]
    others = cluster.num_devices - len(own)
    if len(alike) > 1 or len(direct) != 2 * len(own) * others:
        raise InputError(
            f"{where} cannot be added: its links to other hosts differ, so that nothing says what "
            f"a new host's would be"
        )
    return [
        replace(direct[0], source=source, target=target)
        for device in devices
        for other in own
        for source, target in ((device.name, other), (other, device.name))
    ]


def _least_crowded(cluster: Cluster, model: str, owner: Mapping[str, str]) -> str:
    """The last of the hosts like the model whose switches have the fewest hosts."""
    makes = makes_of(cluster)
    switches: dict[str, set[str]] = {host: set() for host in cluster.hosts}
    for link in cluster.links:
        if link.source in owner and link.target not in owner:
            switches[owner[link.source]].add(link.target)
    crowd = Counter(frozenset(each) for each in switches.values())
    like = [host for host in cluster.hosts if makes[host] == makes[model]]
    fewest = min(crowd[frozenset(switches[host])] for host in like)
    return [host for host in like if crowd[frozenset(switches[host])] == fewest][-1]


def _new_names(cluster: Cluster, model: str, own: Sequence[str]) -> dict[str, str]:
    """New names for a host's nodes: the next number that no node has, in place of the host's."""
    stem = re.sub(r"[0-9]+$", "", model) or model
    numbers = [
        int(host.removeprefix(stem)[:9])
        for host in cluster.hosts
        if host.startswith(stem) and host.removeprefix(stem).isdecimal()
    ]
    number, taken = max(numbers, default=0) + 1, set(cluster.nodes)
    while True:
        host = f"{stem}{number}"
        names = {model: host}
        for place, node in enumerate(each for each in own if each != model):
            rest = node.removeprefix(f"{model}.")
            names[node] = f"{host}.{rest if rest != node else place}"
        if not taken & set(names.values()) and len(set(names.values())) == len(names):
            return names
        number += 1
