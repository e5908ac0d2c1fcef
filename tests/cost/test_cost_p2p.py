"""One transfer alone on the network, by hand."""

import numpy as np
import pytest

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cost.p2p import transfer_seconds

CHIP = DeviceType(
    name="chip", flops_per_second={"fp32": 1e12}, memory_bytes=1e9, memory_bytes_per_second=1e9
)


@pytest.fixture
def pair() -> Cluster:
    """Two devices: 100 bytes a second and 2 s one way, 50 and 3 s the other."""
    return Cluster(
        name="pair",
        types={"chip": CHIP},
        devices=tuple(
            Device(name=f"d{i}", type="chip", host="h", memory_bytes=1e9) for i in range(2)
        ),
        links=(
            Link(source="d0", target="d1", bytes_per_second=100, latency_seconds=2),
            Link(source="d1", target="d0", bytes_per_second=50, latency_seconds=3),
        ),
    )


def test_a_transfer_takes_latency_and_bytes_over_bandwidth(pair: Cluster) -> None:
    assert transfer_seconds(pair, 0, 1, 1000) == 12.0
    assert transfer_seconds(pair, 1, 0, 1000) == 23.0
    assert transfer_seconds(pair, 0, 1, 0) == 2.0


def test_a_device_reaches_itself_at_once(pair: Cluster) -> None:
    assert transfer_seconds(pair, 1, 1, 1e12) == 0.0


def test_arrays_broadcast(pair: Cluster) -> None:
    seconds = transfer_seconds(pair, np.array([0, 1, 1]), np.array([1, 0, 1]), 100.0)
    assert np.asarray(seconds).tolist() == [3.0, 5.0, 0.0]
    grid = transfer_seconds(pair, np.array([[0], [1]]), 0, np.array([0.0, 50.0]))
    assert np.asarray(grid).tolist() == [[0.0, 0.0], [3.0, 4.0]]
