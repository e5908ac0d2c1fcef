"""Random graphs and clusters for the tests of the search layer."""

import numpy as np
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split

TYPES = ("fast", "slow")


def device_type(name: str, memory_bytes: float = 1e12) -> DeviceType:
    return DeviceType(
        name=name,
        flops_per_second={"fp32": 1.0 if name == "slow" else 2.0},
        memory_bytes=memory_bytes,
        memory_bytes_per_second=1.0,
    )


def make_cluster(
    kinds: list[str],
    rate: float = 1.0,
    latency: float = 0.0,
    memory_bytes: float = 1e12,
    rates: np.ndarray | None = None,
) -> Cluster:
    """Fully connected devices of these types."""
    names = [f"d{place}" for place in range(len(kinds))]
    return Cluster(
        name="test",
        types={kind: device_type(kind, memory_bytes) for kind in dict.fromkeys(kinds)},
        devices=tuple(
            Device(name=name, type=kind, host=f"h{name}", memory_bytes=memory_bytes)
            for name, kind in zip(names, kinds, strict=True)
        ),
        links=tuple(
            Link(
                source=a,
                target=b,
                bytes_per_second=rate if rates is None else float(rates[i, j]),
                latency_seconds=latency,
            )
            for i, a in enumerate(names)
            for j, b in enumerate(names)
            if i != j
        ),
    )


@st.composite
def clusters(draw: st.DrawFn, max_devices: int = 4) -> Cluster:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=max_devices))
    rate = st.sampled_from([0.5, 1.0, 3.0, 100.0])
    rates = np.array([[draw(rate) for _ in kinds] for _ in kinds])
    return make_cluster(kinds, latency=draw(st.sampled_from([0.01, 1.0])), rates=rates)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 12) -> Graph:
    """Ops with times by type (sometimes the roofline's), ties on purpose, groups, phases in order.

    Every op takes time: among ops of no time that hand on at once the simulator's order is another.
    """
    num_ops = draw(st.integers(1, max_ops))
    builder = GraphBuilder("random", 4)
    phases = sorted(draw(st.sampled_from(Phase)) for _ in range(num_ops))
    times = st.sampled_from([1.0, 2.0, 2.5, 7.0])
    for number, phase in enumerate(phases):
        is_measured = draw(st.booleans())
        forward = [i for i in range(number) if phases[i] == Phase.FORWARD]
        has_partner = phase == Phase.BACKWARD and forward and draw(st.booleans())
        flops, fixed = draw(times), draw(st.sampled_from([0.0, 0.25, 1.0]))
        is_update = phase == Phase.UPDATE
        builder.add_op(
            f"op{number}",
            phase=phase,
            split=Split.NONE if is_update else draw(st.sampled_from(Split)),
            group=draw(st.sampled_from([-1, -1, -1, 0, 1])),
            partner=draw(st.sampled_from(forward)) if has_partner else -1,
            seconds={kind: draw(times) for kind in TYPES} if is_measured else None,
            flops=flops,
            fixed_flops=flops if is_update else fixed,
            state_bytes=draw(st.sampled_from([0.0, 10.0])),
            parameter_bytes=draw(st.sampled_from([0.0, 5.0])),
        )
    for source in range(num_ops - 1):
        later = st.sampled_from(range(source + 1, num_ops))
        for _ in range(draw(st.integers(0, 2))):
            size = draw(st.sampled_from([0.0, 1.0, 4.0]))
            builder.add_tensor(source, size, draw(st.lists(later, max_size=3)))
    return builder.finish()
