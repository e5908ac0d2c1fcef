"""Small clusters, graphs and plans whose times can be worked out by hand."""

from collections.abc import Mapping, Sequence

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind

TYPE = DeviceType(
    name="unit",
    flops_per_second={"fp32": 1.0},
    memory_bytes=1e12,
    memory_bytes_per_second=1e15,
)
"""Copies are practically free on it, so that only what a test is about takes time."""


def connected(
    num_devices: int, bandwidth: float = 1.0, latency: float = 0.0, types: Sequence[str] = ()
) -> Cluster:
    """Devices d0, d1, ... on hosts of their own, with a link for every ordered pair."""
    names = types or ["unit"] * num_devices
    kinds = {
        name: DeviceType(
            name=name,
            flops_per_second=TYPE.flops_per_second,
            memory_bytes=TYPE.memory_bytes,
            memory_bytes_per_second=TYPE.memory_bytes_per_second,
        )
        for name in names
    }
    devices = [
        Device(name=f"d{i}", type=names[i], host=f"h{i}", memory_bytes=1e12)
        for i in range(num_devices)
    ]
    links = [
        Link(source=a.name, target=b.name, bytes_per_second=bandwidth, latency_seconds=latency)
        for a in devices
        for b in devices
        if a is not b
    ]
    return Cluster(name="connected", types=kinds, devices=tuple(devices), links=tuple(links))


def star(rates: Sequence[float], latency: float = 0.0) -> Cluster:
    """Devices d0, d1, ... around one switch, each with its own bandwidth up and down."""
    devices = [
        Device(name=f"d{i}", type="unit", host=f"h{i}", memory_bytes=1e12)
        for i in range(len(rates))
    ]
    links = []
    for device, rate in zip(devices, rates, strict=True):
        for source, target in ((device.name, "switch"), ("switch", device.name)):
            links.append(
                Link(
                    source=source, target=target, bytes_per_second=rate, latency_seconds=latency / 2
                )
            )
    return Cluster(
        name="star",
        types={"unit": TYPE},
        devices=tuple(devices),
        switches=("switch",),
        links=tuple(links),
    )


def rails(
    num_hosts: int,
    *,
    num_rails: int = 2,
    per_host: int = 1,
    rail: float = 1.0,
    device: float = 100.0,
    latency: float = 0.0,
) -> Cluster:
    """Devices d0, d1, ... on hosts h0, h1, ... with a link to each of several switches."""
    devices = [
        Device(name=f"d{k}", type="unit", host=f"h{k // per_host}", memory_bytes=1e12)
        for k in range(num_hosts * per_host)
    ]
    ends = [(each.name, each.host, device) for each in devices]
    ends += [(f"h{host}", f"s{k}", rail) for k in range(num_rails) for host in range(num_hosts)]
    links = [
        Link(source=source, target=target, bytes_per_second=rate, latency_seconds=latency)
        for one, other, rate in ends
        for source, target in ((one, other), (other, one))
    ]
    return Cluster(
        name="rails",
        types={"unit": TYPE},
        devices=tuple(devices),
        switches=tuple(f"s{k}" for k in range(num_rails)),
        links=tuple(links),
    )


def dag(
    seconds: Sequence[float],
    edges: Mapping[tuple[int, int], float] | Sequence[tuple[int, int, float]],
) -> Graph:
    """Ops o0, o1, ... and one tensor for each edge (source, target) of so many bytes."""
    builder = GraphBuilder("dag")
    for number, each in enumerate(seconds):
        builder.add_op(f"o{number}", seconds={"any": each})
    listed = (
        [(*pair, size) for pair, size in edges.items()] if isinstance(edges, Mapping) else edges
    )
    for source, target, size in listed:
        builder.add_tensor(source, size, [target])
    return builder.finish()


def layers(
    count: int,
    *,
    forward: float = 1.0,
    backward: float = 2.0,
    weight: float = 0.0,
    activation: float = 0.0,
    gradient: float = 0.0,
    batch: float = 1.0,
) -> Graph:
    """A chain of layers f0, f1, ..., their backward b0, ..., weight gradients w0, ..., updates u0.

    `weight` 0: backward makes the weight gradients itself.
    """
    builder = GraphBuilder("layers", batch=batch)
    f = [builder.add_op(f"f{i}", seconds={"any": forward}) for i in range(count)]
    b = [
        builder.add_op(f"b{i}", phase=Phase.BACKWARD, seconds={"any": backward}, partner=f[i])
        for i in range(count)
    ]
    makers = b
    if weight:
        makers = [
            builder.add_op(
                f"w{i}",
                phase=Phase.BACKWARD,
                split=Split.SUM,
                seconds={"any": weight},
                partner=f[i],
            )
            for i in range(count)
        ]
    for i in range(count):
        output = builder.add_tensor(f[i], activation, [b[i]])
        if i + 1 < count:
            builder.add_use(output, f[i + 1])
        arriving = builder.add_tensor(b[i], activation, [b[i - 1]] if i else [])
        if weight:
            builder.add_use(output, makers[i])
            builder.add_use(arriving, makers[i])
        if gradient:
            update = builder.add_op(
                f"u{i}", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.0}
            )
            builder.add_tensor(makers[i], gradient, [update], partial=True, fixed_bytes=gradient)
    return builder.finish()


def stages(
    graph: Graph,
    devices: Sequence[Sequence[str]],
    kind: str = "1f1b",
    microbatches: int = 1,
    **more: object,
) -> Plan:
    """The pipeline whose stage k holds layer k of `layers`, on `devices[k]`."""
    members: list[list[str]] = [[] for _ in devices]
    num_layers = 1 + max(int(name[1:]) for name in graph.op_names)
    for name in graph.op_names:
        members[int(name[1:]) * len(devices) // num_layers].append(name)
    parts = tuple(
        Part(ops=tuple(ops), devices=tuple(on), **more)  # type: ignore[arg-type]
        for ops, on in zip(members, devices, strict=True)
    )
    return Plan(parts=parts, schedule=Schedule(kind=ScheduleKind(kind), microbatches=microbatches))
