"""Small steps and clusters for the tests of deployments."""

from collections.abc import Sequence

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split


def hosts(
    devices: Sequence[tuple[str, int]],
    *,
    speeds: dict[str, float] | None = None,
    inside: float = 100.0,
    outside: float = 1.0,
    memory_bytes: float = 1e12,
) -> Cluster:
    """Hosts h0, h1, ... with so many devices of a type each, around one switch."""
    rates = speeds or {"fast": 2.0, "slow": 1.0}
    made = [
        Device(name=f"h{host}.d{k}", type=kind, host=f"h{host}", memory_bytes=memory_bytes)
        for host, (kind, count) in enumerate(devices)
        for k in range(count)
    ]
    ends = [(each.name, each.host, inside) for each in made]
    ends += [(f"h{host}", "switch", outside) for host in range(len(devices))]
    return Cluster(
        name="hosts",
        types={
            name: DeviceType(
                name=name,
                flops_per_second={"fp32": rates[name]},
                memory_bytes=memory_bytes,
                memory_bytes_per_second=1e15,
            )
            for name, _ in devices
        },
        devices=tuple(made),
        switches=("switch",),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=rate, latency_seconds=0.0)
            for one, other, rate in ends
            for source, target in ((one, other), (other, one))
        ),
    )


def chain(
    flops: Sequence[float],
    gradients: Sequence[float],
    *,
    activation: float = 0.0,
    batch: float = 8.0,
    state: float = 0.0,
) -> Graph:
    """A chain of layers f0, ..., backward b0, ..., weight gradients w0, ... and updates u0, ...;
    each layer is a co-location group."""
    builder = GraphBuilder("chain", batch=batch)
    layers = range(len(flops))
    f = [
        builder.add_op(f"f{k}", flops=flops[k], group=k, state_bytes=state, kind="mm")
        for k in layers
    ]
    b = [
        builder.add_op(
            f"b{k}", phase=Phase.BACKWARD, flops=flops[k], partner=f[k], group=k, kind="mm"
        )
        for k in layers
    ]
    w = [
        builder.add_op(
            f"w{k}",
            phase=Phase.BACKWARD,
            split=Split.SUM,
            flops=flops[k],
            partner=f[k],
            group=k,
            kind="mm",
        )
        for k in layers
    ]
    for k in layers:
        output = builder.add_tensor(f[k], activation, [b[k], w[k]])
        if k + 1 < len(flops):
            builder.add_use(output, f[k + 1])
        arriving = builder.add_tensor(b[k], activation, [w[k]])
        if k:
            builder.add_use(arriving, b[k - 1])
        update = builder.add_op(
            f"u{k}", phase=Phase.UPDATE, split=Split.NONE, group=k, kind="update"
        )
        builder.add_tensor(w[k], gradients[k], [update], partial=True, fixed_bytes=gradients[k])
    return builder.finish()
