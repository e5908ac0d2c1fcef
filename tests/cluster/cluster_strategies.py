"""Clusters for tests: small ones of every builder, and random networks with ties."""

from hypothesis import assume
from hypothesis import strategies as st

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.errors import InputError

SMALL_NAMES = (
    "h100-x8", "h100-x2x5", "h100-x4x40", "tpuv4-3x4", "tpuv4-4x2x2", "dgx1-x3", "titan-v-3x2",
    "nvlink50-eth20-x4", "tag-testbed", "tag-cloud", "mesh2d-4x3", "torus3d-3x2x3",
    "random-blk1-20", "random-blk2-20", "uniform-9", "fat-tree-k4", "spine-leaf-3x4x2x3",
    "spine-leaf-2x3x2x2-o9", "multi-rail-3x4x3", "hierarchical-2x2x3-o2", "hierarchical-2x3x2x2",
    "h100-spineleaf-136", "h100-spineleaf-264-o200", "tpuv4-fattree-72",
)  # fmt: skip


def small_clusters() -> st.SearchStrategy[Cluster]:
    """One of each builder."""
    return st.sampled_from(SMALL_NAMES).map(find_cluster)


@st.composite
def networks(draw: st.DrawFn) -> Cluster:
    """Random networks of few rates and latencies, so that ties occur; some links are parallel."""
    num_devices, num_hosts = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    switches = tuple(f"s{i}" for i in range(draw(st.integers(0, 5))))
    devices = tuple(
        Device(name=f"d{i}", type="t4", host=f"h{i % num_hosts}", memory_bytes=1.0)
        for i in range(num_devices)
    )
    hosts = dict.fromkeys(each.host for each in devices)
    nodes = st.sampled_from([*(each.name for each in devices), *hosts, *switches])
    numbers = st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.25, 0.5]))
    links = []
    for one, other, (rate, latency) in draw(
        st.lists(st.tuples(nodes, nodes, numbers), min_size=num_devices, max_size=30)
    ):
        for source, target in ((one, other), (other, one)):
            if source != target and draw(st.integers(0, 9)):
                links.append(
                    Link(
                        source=source,
                        target=target,
                        bytes_per_second=rate,
                        latency_seconds=latency,
                    )
                )
    try:
        return Cluster(
            name="random",
            types=DEVICE_TYPES,
            devices=devices,
            switches=switches,
            links=tuple(links),
            devices_relay=draw(st.booleans()),
            hop_bytes_per_second=draw(st.sampled_from([(), (9.0, 4.0)])),
        )
    except InputError:
        assume(False)
        raise
