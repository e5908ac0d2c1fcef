"""Links as slow as a plan makes them."""

from functools import partial

import numpy as np
import pytest

from meshwright.cluster.build import nvlink_pairs
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.search.instance import make_instance, placement_plan
from meshwright.search.method.placement.contend import contend
from meshwright.search.portfolio import search_by

placement = partial(search_by, "placement")


def two_senders(num_bytes: float) -> Graph:
    builder = GraphBuilder("senders", batch=1)
    for number in range(2):
        source = builder.add_op(f"source{number}", seconds={"any": 1.0})
        reader = builder.add_op(f"reader{number}", seconds={"any": 1.0})
        builder.add_tensor(source, num_bytes, [reader])
    return builder.finish()


def test_two_transfers_at_once_halve_the_link_between_their_hosts() -> None:
    # Devices 0, 1 on one host and 2, 3 on the other; 20 GB/s between the hosts. Both sources end at
    # 1 s and send 20 GB: 2 s each instead of 1.
    instance = make_instance(two_senders(20e9), nvlink_pairs(num_hosts=2))
    order = {name: place for place, name in enumerate(instance.graph.op_names)}
    devices = np.zeros(4, np.int32)
    for name, device in (("source0", 0), ("source1", 1), ("reader0", 2), ("reader1", 3)):
        devices[order[name]] = device
    slowed = contend(instance, placement_plan(instance, devices))
    assert slowed is not None
    assert slowed.bandwidth[0, 2] == pytest.approx(instance.bandwidth[0, 2] / 2)
    assert slowed.bandwidth[1, 3] == slowed.bandwidth[0, 3] == slowed.bandwidth[0, 2]
    assert slowed.bandwidth[2, 0] == instance.bandwidth[2, 0]  # nothing goes back
    assert slowed.bandwidth[0, 1] == instance.bandwidth[0, 1]  # nor within a host
    twice = contend(instance, placement_plan(instance, devices), weight=2.0)
    assert twice is not None
    assert twice.bandwidth[0, 2] == pytest.approx(instance.bandwidth[0, 2] / 4)


def test_one_transfer_at_a_time_slows_nothing() -> None:
    instance = make_instance(two_senders(20e9), nvlink_pairs(num_hosts=2))
    assert contend(instance, placement_plan(instance, np.zeros(4, np.int32))) is None


def test_shared_links_are_searched_with_what_they_give() -> None:
    # Whatever the walk does, the answer is no slower than the plan that sends nothing.
    graph, cluster = two_senders(20e9), nvlink_pairs(num_hosts=2)
    answer = placement(graph, cluster, sharing="fair", budget_seconds=5.0)
    assert answer.step_seconds == pytest.approx(2.0)
