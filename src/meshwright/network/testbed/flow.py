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
            (path.exits, ShapedFlow(path.bytes_per_second, target=wiring.hosts[target].address))
            for (source, target), path in paths.items()
            if source == place
        ]
        lanes = first_lanes(join_lanes(cluster, flows))
        yield Port(namespace=host.namespace, interface=host.interfaces[0].wire, lanes=lanes)


def _entering(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Cabling) -> Iterator[Port]:
    """Switches' interfaces towards hosts: a flow from each other host."""
    for place in range(len(wiring.hosts)):
        flows = [
            (path.entries, ShapedFlow(path.bytes_per_second, wiring.hosts[source].address))
            for (source, target), path in paths.items()
            if target == place
        ]
        lanes = later_lanes(join_lanes(cluster, flows))
        switch = wiring.switches[wiring.cables[place].switch]
        yield Port(namespace=switch, interface=host_port(place), lanes=lanes)


def _between(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Cabling) -> Iterator[Port]:
    """Links between switches: a flow for each pair of hosts whose path runs over the link."""
    if not wiring.place_of_switch:
        return
    flows_of_link: dict[int, list[tuple[tuple[int, ...], ShapedFlow]]] = {}
    for pair, path in paths.items():
        flow = ShapedFlow(path.bytes_per_second, *(wiring.hosts[end].address for end in pair))
        for link in path.inner:
            flows_of_link.setdefault(link, []).append(((link,), flow))
    first = len(cluster.nodes) - len(cluster.switches)
    for link, flows in sorted(flows_of_link.items(), key=lambda each: each[0]):
        near = wiring.place_of_switch[int(cluster.network.sources[link]) - first]
        far = wiring.place_of_switch[int(cluster.network.targets[link]) - first]
        lanes = later_lanes(join_lanes(cluster, flows))
        yield Port(namespace=wiring.switches[near], interface=trunk_port(far), lanes=lanes)


def _leaving_rails(cluster: Cluster, wiring: Cabling, rails: Sequence[Rail]) -> Iterator[Port]:
    """Hosts' interfaces to rails: a flow to each other host on the rail."""
    rates = cluster.link_bytes_per_second
    for cable in wiring.cables:
        rail = rails[cable.switch]
        link = rail.exits[cable.host]
        flows = [
            ((link,), ShapedFlow(min(rates[link], rates[entry]), target=wiring.end(other).address))
            for other in wiring.peers(cable)
            if (entry := rail.entries.get(other.host)) is not None
        ]
        lanes = first_lanes(join_lanes(cluster, flows))
        host = wiring.hosts[cable.host].namespace
        yield Port(namespace=host, interface=wiring.end(cable).wire, lanes=lanes)


def _entering_rails(cluster: Cluster, wiring: Cabling, rails: Sequence[Rail]) -> Iterator[Port]:
    """Rails' interfaces towards hosts: a flow from each other host on the rail."""
    rates = cluster.link_bytes_per_second
    for cable in wiring.cables:
        rail = rails[cable.switch]
        link = rail.entries.get(cable.host)
        if link is None:
            continue
        flows = []
        for other in wiring.peers(cable):
            rate = min(rates[rail.exits[other.host]], rates[link])
            flows.append(((link,), ShapedFlow(rate, wiring.end(other).address)))
        lanes = later_lanes(join_lanes(cluster, flows))
        switch = wiring.switches[cable.switch]
        yield Port(namespace=switch, interface=host_port(cable.host), lanes=lanes)


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
