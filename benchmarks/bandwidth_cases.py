"""Clusters of hosts with several network interfaces, what is sent between them, and steps on them.

Latency of links is what a transfer costs besides its bytes over bandwidth, from gloo to gloo. Time
is scaled: links of 100 to 1,000 Mbit/s and devices so slow that a step takes a second or so keep
the proportions of fast ones, and one machine can carry them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from execution_cases import make_type, with_path_latency
from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Allocation, Part, Plan, Schedule, ScheduleKind, Sync
from meshwright.source import zoo_graph
from meshwright.units import GIB, MIB

SIZES = tuple(2**power * MIB for power in range(5))
"""Of messages: 1 to 16 MiB."""


def make_rails(num_hosts: int, num_rails: int, megabits: float, device_type: DeviceType) -> Cluster:
    """Hosts of one device with a link to each of so many switches."""
    cluster = multi_rail(
        num_hosts=num_hosts,
        num_rails=num_rails,
        devices_per_host=1,
        rail_bytes_per_second=megabits * 1e6 / 8,
        device_type=device_type,
        device_bytes_per_second=1e12,
        name=f"rails-{num_hosts}x{num_rails}x{megabits:g}",
    )
    return with_path_latency(cluster)


IDLE = DeviceType(
    name="idle",
    flops_per_second={"fp32": 1e15},
    memory_bytes=256 * GIB,
    memory_bytes_per_second=1e15,
    is_asynchronous=False,
)
"""A device that takes no time, where only the network is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A plan that does nothing but send one message."""

    kind: str
    ways: str
    megabits: int
    num_bytes: int
    cluster: Cluster
    graph: Graph
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """An allocation of so many links' rate on two ways; without shares there is none."""

    name: str
    links: float = 1.0
    shares: tuple[float, ...] = ()


WAYS = (
    Ways(name="one way"),
    Ways(name="two ways", links=2.0, shares=(0.5, 0.5)),
    Ways(name="two ways, 3:1", links=1.2, shares=(0.75, 0.25)),
)


def transfer(megabits: int, num_bytes: int, ways: Ways) -> Message:
    """From the first host to the second."""
    cluster = make_rails(4, 2, megabits, IDLE)
    builder = GraphBuilder("transfer")
    ends = [builder.add_op(name, seconds={"any": 1e-3}) for name in ("source", "target")]
    builder.add_tensor(ends[0], num_bytes, [ends[1]])
    parts = tuple(
        Part(ops=(name,), devices=(cluster.devices[k].name,))
        for k, name in enumerate(("source", "target"))
    )
    return Message(
        kind="transfer",
        ways=ways.name,
        megabits=megabits,
        num_bytes=num_bytes,
        cluster=cluster,
        graph=builder.finish(),
        plan=Plan(parts=parts, allocations=_allocate(cluster, ((0, 1),), megabits, ways)),
    )


def all_reduce(megabits: int, num_bytes: int, ways: Ways) -> Message:
    """A gradient, added up over four hosts around a ring."""
    cluster = make_rails(4, 2, megabits, IDLE)
    builder = GraphBuilder("gradient", batch=4)
    forward = builder.add_op("forward", seconds={"any": 1e-3})
    backward = builder.add_op(
        "backward",
        phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 1e-3}, partner=forward,
    )  # fmt: skip
    update = builder.add_op("update", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 1e-3})
    builder.add_tensor(forward, 0, [backward])
    builder.add_tensor(backward, num_bytes, [update], partial=True, fixed_bytes=num_bytes)
    graph = builder.finish()
    names = tuple(device.name for device in cluster.devices)
    ring = tuple((k, (k + 1) % 4) for k in range(4))
    return Message(
        kind="all-reduce",
        ways=ways.name,
        megabits=megabits,
        num_bytes=num_bytes,
        cluster=cluster,
        graph=graph,
        plan=Plan(
            parts=(Part(ops=graph.op_names, devices=names, sync=Sync.RING),),
            schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=1),
            allocations=_allocate(cluster, ring, megabits, ways),
        ),
    )


def _allocate(
    cluster: Cluster, pairs: Sequence[tuple[int, int]], megabits: float, ways: Ways
) -> tuple[Allocation, ...]:
    return tuple(
        Allocation(
            source=cluster.hosts[one],
            target=cluster.hosts[other],
            bytes_per_second=megabits * ways.links * 1e6 / 8,
            shares=ways.shares,
        )
        for one, other in pairs
        if ways.shares
    )


def messages(megabits: Sequence[int]) -> Iterator[list[Message]]:
    """All that is sent; those of one list share a cluster and its allocations."""
    for rate in megabits:
        for make in (transfer, all_reduce):
            for ways in WAYS:
                yield [make(rate, size, ways) for size in SIZES]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A model on four hosts with two interfaces each, planned without and with allocations."""

    model: str
    batch: int
    seconds: float
    """Of a step on one device."""
    megabits: int
    """Of a link."""
    method: str

    def prepare(self) -> tuple[Graph, Cluster]:
        """The model's graph, and devices on which it takes its time."""
        graph = zoo_graph(self.model, self.batch, precision="fp32")
        return graph, make_rails(4, 2, self.megabits, make_type(graph, self.seconds))


STEPS = (
    Step(model="alexnet-32", batch=128, seconds=1.0, megabits=200, method="placement"),
    Step(model="vgg16-32", batch=64, seconds=1.0, megabits=200, method="placement"),
    Step(model="fnet-base", batch=2, seconds=1.5, megabits=200, method="placement"),
    Step(model="bert-base", batch=2, seconds=1.5, megabits=200, method="placement"),
    Step(model="bert-small", batch=8, seconds=1.5, megabits=200, method="pipeline"),
    Step(model="alexnet-32", batch=128, seconds=1.0, megabits=200, method="data"),
)
