"""Which interface of which namespace carries what at which rate. Writes no commands.

Hosts hang on switches by one cable each. Where the cluster's switches form a tree each has its own
namespace; otherwise one switch stands for all. A flow's own cap is at its source; what several
flows share is at the place where they meet.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.cluster.cluster import Cluster
from meshwright.network.testbed_path import Pair, Path, SwitchTree
from meshwright.network.testbed_port import Flow, Lane, Port, first_lanes, later_lanes

INTERFACE = "eth0"
"""Every host's one interface."""
SUBNET = "10.77.0"
"""Only seen inside the namespaces: it cannot clash with the machine's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedHost:
    """One host of the cluster."""

    name: str
    """As in the cluster."""
    namespace: str
    address: str
    interface: str = INTERFACE


@dataclass(frozen=True, slots=True, kw_only=True)
class Wiring:
    """Hosts, switches and the cables between them."""

    hosts: tuple[EmulatedHost, ...]
    switches: tuple[str, ...]
    """Namespaces."""
    switch_of_host: tuple[int, ...]
    """A place in `switches` for each host."""
    trunks: tuple[Pair, ...]
    """Places of two switches that are joined."""
    place_of_switch: Mapping[int, int]
    """From the number of a switch in the cluster; empty where one switch stands for all."""


def wire_hosts(cluster: Cluster, name: str, tree: SwitchTree | None) -> Wiring:
    """Namespaces for hosts and switches: switches as the tree has them, or one for all."""
    hosts = tuple(
        EmulatedHost(
            name=host, namespace=f"meshwright-{name}-host{place}", address=f"{SUBNET}.{place + 1}"
        )
        for place, host in enumerate(cluster.hosts)
    )
    shape = tree or SwitchTree(switch_of_host=(0,) * len(hosts), edges=())
    numbers = sorted({*shape.switch_of_host, *(end for edge in shape.edges for end in edge)})
    place_of = {number: place for place, number in enumerate(numbers)}
    return Wiring(
        hosts=hosts,
        switches=tuple(f"meshwright-{name}-switch{place}" for place in range(len(numbers))),
        switch_of_host=tuple(place_of[number] for number in shape.switch_of_host),
        trunks=tuple((place_of[one], place_of[other]) for one, other in shape.edges),
        place_of_switch=place_of if tree else {},
    )


def host_port(place: int) -> str:
    """The switch's interface towards a host."""
    return f"host{place}"


def trunk_port(place: int) -> str:
    """A switch's interface towards another."""
    return f"switch{place}"


def find_ports(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Wiring) -> tuple[Port, ...]:
    """Every interface that something leaves, with its lanes."""
    return (
        *_leaving(cluster, paths, wiring),
        *_entering(cluster, paths, wiring),
        *_between(cluster, paths, wiring),
    )


def _leaving(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Wiring) -> Iterator[Port]:
    """Hosts' own interfaces: a flow to each other host, in lanes by the links they leave by."""
    for place, host in enumerate(wiring.hosts):
        flows = [
            (
                path.exits,
                Flow(bytes_per_second=path.bytes_per_second, target=wiring.hosts[target].address),
            )
            for (source, target), path in paths.items()
            if source == place
        ]
        lanes = first_lanes(join_lanes(cluster, flows))
        yield Port(namespace=host.namespace, interface=host.interface, lanes=lanes)


def _entering(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Wiring) -> Iterator[Port]:
    """Switches' interfaces towards hosts: a flow from each other host."""
    for place in range(len(wiring.hosts)):
        flows = [
            (
                path.entries,
                Flow(bytes_per_second=path.bytes_per_second, source=wiring.hosts[source].address),
            )
            for (source, target), path in paths.items()
            if target == place
        ]
        yield Port(
            namespace=wiring.switches[wiring.switch_of_host[place]],
            interface=host_port(place),
            lanes=later_lanes(join_lanes(cluster, flows)),
        )


def _between(cluster: Cluster, paths: Mapping[Pair, Path], wiring: Wiring) -> Iterator[Port]:
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
                Flow(
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


def join_lanes(cluster: Cluster, flows: Sequence[tuple[tuple[int, ...], Flow]]) -> list[Lane]:
    """A lane a link; the links that one flow may take are one lane, as wide as all together."""
    lanes: list[tuple[set[int], list[Flow]]] = []
    for links, flow in flows:
        apart = [lane for lane in lanes if lane[0].isdisjoint(links)]
        met = [lane for lane in lanes if not lane[0].isdisjoint(links)]
        joined = set(links).union(*(lane[0] for lane in met))
        lanes = [*apart, (joined, [*(each for lane in met for each in lane[1]), flow])]
    rates = cluster.link_bytes_per_second
    return [
        Lane(
            # A table of bandwidths by hops may give a flow more than its links have.
            bytes_per_second=max(
                float(rates[sorted(links)].sum()), *(flow.bytes_per_second for flow in members)
            ),
            flows=tuple(members),
        )
        for links, members in lanes
    ]
