"""Which interface of a testbed carries what at which rate. Writes no commands.

A flow's own cap is at its source; what several flows share is at the place where they meet.
"""

from collections.abc import Iterator, Mapping, Sequence

from meshwright.cluster.cluster import Cluster
from meshwright.network.testbed.path import Pair, Path
from meshwright.network.testbed.port import FlowLane, Port, ShapedFlow, first_lanes, later_lanes
from meshwright.network.testbed.rail import Rail
from meshwright.network.testbed.wiring import Cabling, host_port, trunk_port


def find_ports(
    cluster: Cluster, paths: Mapping[Pair, Path], wiring: Cabling, rails: Sequence[Rail] = ()
) -> tuple[tuple[Port, ...], tuple[Port, ...]]:
    """Every interface that something leaves, with its lanes: hosts' own, then switches'."""
    if rails:
        return tuple(_leaving_rails(cluster, wiring, rails)), tuple(
            _entering_rails(cluster, wiring, rails)
        )
    return (
        tuple(_leaving(cluster, paths, wiring)),
        (*_entering(cluster, paths, wiring), *_between(cluster, paths, wiring)),
    )


def _leaving(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Cabling) -> Iterator[Port]:
    """Hosts' own interfaces: a flow to each other host, in lanes by the links they leave by."""
    for place, host in enumerate(wiring.hosts):
        flows = [
            (
                path.exits,
                ShapedFlow(
                    bytes_per_second=path.bytes_per_second, target=wiring.hosts[target].address
                ),
            )
            for (source, target), path in paths.items()
            if source == place
        ]
        lanes = first_lanes(join_lanes(cluster, flows))
        yield Port(namespace=host.namespace, interface=host.interfaces[0].wire, lanes=lanes)


def _entering(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Cabling) -> Iterator[Port]:
    """Switches' interfaces towards hosts: a flow from each other host."""
    for place in range(len(wiring.hosts)):
        flows = [
            (
                path.entries,
                ShapedFlow(
                    bytes_per_second=path.bytes_per_second, source=wiring.hosts[source].address
                ),
            )
            for (source, target), path in paths.items()
            if target == place
        ]
        yield Port(
            namespace=wiring.switches[wiring.cables[place].switch],
            interface=host_port(place),
            lanes=later_lanes(join_lanes(cluster, flows)),
        )


def _between(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Cabling) -> Iterator[Port]:
    """Links between switches: a flow for each pair of hosts whose path runs over the link."""
    if not wiring.place_of_switch:
        return
    pairs_of_link: dict[int, list[Pair]] = {}
    for pair, path in paths.items():
        for link in path.inner:
            pairs_of_link.setdefault(link, []).append(pair)
    first = len(cluster.nodes) - len(cluster.switches)
    for link, pairs in sorted(pairs_of_link.items()):
        near = wiring.place_of_switch[int(cluster.network.sources[link]) - first]
        far = wiring.place_of_switch[int(cluster.network.targets[link]) - first]
        flows = [
            (
                (link,),
                ShapedFlow(
                    bytes_per_second=paths[source, target].bytes_per_second,
                    source=wiring.hosts[source].address,
                    target=wiring.hosts[target].address,
                ),
            )
            for source, target in pairs
        ]
        yield Port(
            namespace=wiring.switches[near],
            interface=trunk_port(far),
            lanes=later_lanes(join_lanes(cluster, flows)),
        )


def _leaving_rails(cluster: Cluster, wiring: Cabling, rails: Sequence[Rail]) -> Iterator[Port]:
    """Hosts' interfaces to rails: a flow to each other host on the rail."""
    rates = cluster.link_bytes_per_second
    for cable in wiring.cables:
        rail = rails[cable.switch]
        link = rail.exits[cable.host]
        flows = [
            (
                (link,),
                ShapedFlow(
                    bytes_per_second=min(rates[link], rates[rail.entries[other.host]]),
                    target=wiring.end(other).address,
                ),
            )
            for other in wiring.peers(cable)
            if other.host in rail.entries
        ]
        yield Port(
            namespace=wiring.hosts[cable.host].namespace,
            interface=wiring.end(cable).wire,
            lanes=first_lanes(join_lanes(cluster, flows)),
        )


def _entering_rails(cluster: Cluster, wiring: Cabling, rails: Sequence[Rail]) -> Iterator[Port]:
    """Rails' interfaces towards hosts: a flow from each other host on the rail."""
    rates = cluster.link_bytes_per_second
    for cable in wiring.cables:
        rail = rails[cable.switch]
        link = rail.entries.get(cable.host)
        if link is None:
            continue
        flows = [
            (
                (link,),
                ShapedFlow(
                    bytes_per_second=min(rates[rail.exits[other.host]], rates[link]),
                    source=wiring.end(other).address,
                ),
            )
            for other in wiring.peers(cable)
        ]
        yield Port(
            namespace=wiring.switches[cable.switch],
            interface=host_port(cable.host),
            lanes=later_lanes(join_lanes(cluster, flows)),
        )


def join_lanes(
    cluster: Cluster, flows: Sequence[tuple[tuple[int, ...], ShapedFlow]]
) -> list[FlowLane]:
    """A lane a link; the links that one flow may take are one lane, as wide as all together."""
    lanes: list[tuple[set[int], list[ShapedFlow]]] = []
    for links, flow in flows:
        apart = [lane for lane in lanes if lane[0].isdisjoint(links)]
        met = [lane for lane in lanes if not lane[0].isdisjoint(links)]
        joined = set(links).union(*(lane[0] for lane in met))
        lanes = [*apart, (joined, [*(each for lane in met for each in lane[1]), flow])]
    rates = cluster.link_bytes_per_second
    return [
        FlowLane(
            # A table of bandwidths by hops may give a flow more than its links have.
            bytes_per_second=max(
                float(rates[sorted(links)].sum()), *(flow.bytes_per_second for flow in members)
            ),
            flows=tuple(members),
        )
        for links, members in lanes
    ]
