"""Changes bandwidths and latencies of links."""

from dataclasses import replace

from meshwright.array import Ints
from meshwright.change.kind import LinkLatency, LinkRate
from meshwright.change.select import select_links
from meshwright.change.tier import INSIDE, find_tiers
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.part import CollectiveTable
from meshwright.errors import InputError, quoted


def change_rate(cluster: Cluster, change: LinkRate) -> Cluster:
    """The cluster with other bandwidths of some links.

    Where routes have rates by their number of links, all links are changed by a factor or none.
    """
    numbers = select_links(cluster, change.links)
    hops = cluster.hop_bytes_per_second
    if hops:
        if len(numbers) < len(cluster.links) or change.amount.factor is None:
            raise InputError(
                f"link {quoted(change.links)}: the rates of cluster {quoted(cluster.name)} are by "
                f"number of links of a route; must be all links by a factor, such as '*=2x'"
            )
        hops = tuple(map(change.amount.of, hops))
    links = list(cluster.links)
    for number in numbers.tolist():
        link = links[number]
        rate = change.amount.of(link.bytes_per_second)
        links[number] = replace(link, bytes_per_second=rate)
    return replace(
        cluster,
        links=tuple(links),
        hop_bytes_per_second=hops,
        tables=_still_true(cluster, numbers),
    )


def change_latency(cluster: Cluster, change: LinkLatency) -> Cluster:
    """The cluster with other latencies of some links."""
    numbers = select_links(cluster, change.links, "latency")
    links = list(cluster.links)
    for number in numbers.tolist():
        link = links[number]
        links[number] = replace(link, latency_seconds=change.amount.of(link.latency_seconds))
    return replace(cluster, links=tuple(links), tables=_still_true(cluster, numbers))


def _still_true(cluster: Cluster, numbers: Ints) -> tuple[CollectiveTable, ...]:
    """The measured collectives, less those of hosts inside which links have changed, and those
    between hosts, where links between them have: formulas time the changed links."""
    if not cluster.tables:
        return ()
    tiers = find_tiers(cluster)
    hosts = {
        tiers.host_of[cluster.links[number].source]
        for number in numbers.tolist()
        if tiers.of_link[number] == INSIDE
    }
    types = {each.type for each in cluster.devices if each.host in hosts}
    is_between = any(tiers.of_link[number] != INSIDE for number in numbers.tolist())
    return tuple(
        each
        for each in cluster.tables
        if each.device_type not in types and not (is_between and each.num_hosts > 1)
    )
