"""The allocations of a program as limits between the hosts of its cluster."""

from collections.abc import Sequence

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cost.limit import HostLimit, Limits, spread_transfers
from meshwright.plan.part import Allocation

Pair = tuple[int, int]
"""Device numbers: from the first to the second."""


def find_limits(allocations: Sequence[Allocation], cluster: Cluster) -> Limits | None:
    """One limit an allocation, in their order; None: there is none."""
    if not allocations:
        return None
    number = cluster.host_index
    return Limits(
        cluster=cluster,
        limits=tuple(
            HostLimit(
                source=number[each.source],
                target=number[each.target],
                bytes_per_second=each.bytes_per_second,
                shares=each.shares,
            )
            for each in allocations
        ),
    )


def crossed_links(
    cluster: Cluster, allocations: Sequence[Allocation], pairs: Sequence[Pair]
) -> dict[Pair, tuple[int, ...]]:
    """The cluster's links that transfers between these devices cross: of their route, or of all
    ways that an allocation is divided over."""
    ends = [source for source, _ in pairs], [target for _, target in pairs]
    limits = find_limits(allocations, cluster)
    if limits is None:
        routes = cluster.routes_between(*ends)
        return {pair: tuple(routes.links_of(k).tolist()) for k, pair in enumerate(pairs)}
    found = spread_transfers(limits, *ends).by_transfer()
    num_links = len(cluster.links)
    return {
        pair: tuple(np.unique(links[links < num_links]).tolist())
        for pair, (links, _) in zip(pairs, found, strict=True)
    }
