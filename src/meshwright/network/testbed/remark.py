"""Says where a testbed differs from its cluster, each in one line. Knows no namespaces."""

from collections import Counter
from collections.abc import Iterator, Mapping

from meshwright.cluster.cluster import Cluster
from meshwright.errors import quoted
from meshwright.network.testbed.path import Pair, Path
from meshwright.network.testbed.port import wire_kbit_per_second
from meshwright.units import format_rate, format_seconds

MOST_GBIT_PER_SECOND = {"tc": 5.0, "ovs": 1.0}
"""Shaped veth pairs hold their rates up to this, Open vSwitch in user space to a fifth; above,
cores decide."""
MOST_LATENCY_SECONDS = 1e-3
"""Of the order of what the kernel and the processes themselves take on a busy machine."""
LEAST_LOOPBACK_BYTES_PER_SECOND = 1e9


def find_remarks(
    cluster: Cluster,
    paths: Mapping[Pair, Path],
    *,
    is_tree: bool,
    has_rails: bool = False,
    kind: str = "tc",
) -> tuple[str, ...]:
    """All remarks on a cluster's testbed.

    `is_tree` when its switches are built one by one, `has_rails` when hosts have a cable to each.
    """
    latency = float(cluster.latency.max())
    delay = f"latencies (up to {format_seconds(latency)}) are not emulated, only bandwidths"
    return (
        *_fast(paths, MOST_GBIT_PER_SECOND[kind]),
        *([delay] if latency > MOST_LATENCY_SECONDS else ()),
        *_loopback(cluster),
        *(() if has_rails else _several_links(cluster, paths)),
        *(() if is_tree or has_rails else _shared_inner(paths)),
    )


def _fast(paths: Mapping[Pair, Path], most: float) -> Iterator[str]:
    rates = [path.bytes_per_second for path in paths.values()]
    num_fast = sum(wire_kbit_per_second(rate) > 1e6 * most for rate in rates)
    if num_fast:
        yield (
            f"{num_fast} of {len(rates)} pairs of hosts are faster than {most:.0f} Gbit/s (up to "
            f"{format_rate(max(rates))}), which namespaces of one machine may not reach"
        )


def _loopback(cluster: Cluster) -> Iterator[str]:
    is_local = cluster.host_of[:, None] == cluster.host_of[None, :]
    slowest = float(cluster.bandwidth[is_local].min())  # infinite from a device to itself
    if slowest < LEAST_LOOPBACK_BYTES_PER_SECOND:
        yield (
            f"devices of one host reach each other over its loopback, which is not shaped; the "
            f"cluster has {format_rate(slowest)} there"
        )


def _several_links(cluster: Cluster, paths: Mapping[Pair, Path]) -> Iterator[str]:
    for (source, target), path in paths.items():
        num_links = min(len(path.exits), len(path.entries))
        if num_links > 1:
            yield (
                f"devices of host {quoted(cluster.hosts[source])} have {num_links} ways to host "
                f"{quoted(cluster.hosts[target])}; all their transfers together get the bandwidth "
                f"of one, {format_rate(path.bytes_per_second)} (so do other pairs of hosts)"
            )
            return


def _shared_inner(paths: Mapping[Pair, Path]) -> Iterator[str]:
    """A link that is inner to some pair and carries another pair, too."""
    users = Counter(
        link for path in paths.values() for link in {*path.exits, *path.inner, *path.entries}
    )
    inner = {link for path in paths.values() for link in path.inner}
    num_shared = sum(users[link] > 1 for link in inner)
    if num_shared:
        yield (
            f"the network is no tree of switches: all hosts are on one switch, and {num_shared} "
            f"inner links that several pairs of hosts share are not emulated"
        )
