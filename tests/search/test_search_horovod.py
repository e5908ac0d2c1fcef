"""Data parallelism as Horovod runs it."""

import math
from functools import partial

import pytest
from search_strategies import make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.build import GraphBuilder
from meshwright.plan.answer import Stop
from meshwright.search.portfolio import search_by
from meshwright.source import zoo_graph
from meshwright.units import MIB
from small import connected, layers

data = partial(search_by, "data")
horovod = partial(search_by, "horovod")


def test_all_reduce_runs_beside_backward() -> None:
    # On half of the batch two layers go forward until 1, backward until 2 and 3. Each has a buffer
    # of its own, which two devices add up in 1 s: from 2 to 3 beside backward, and from 3 to 4.
    graph = layers(2, forward=1.0, backward=2.0, gradient=30 * MIB, batch=2)
    answer = horovod(graph, connected(2, bandwidth=30 * MIB))
    assert answer.step_seconds == pytest.approx(4.0, rel=1e-6)
    assert answer.plan is not None
    assert answer.plan.schedule is None
    assert len(answer.plan.parts) == 1


def test_small_gradients_share_a_buffer() -> None:
    # 10 MiB each go together when both are there, at 3: 20 MiB take 2/3 s.
    graph = layers(2, forward=1.0, backward=2.0, gradient=10 * MIB, batch=2)
    answer = horovod(graph, connected(2, bandwidth=30 * MIB))
    assert answer.step_seconds == pytest.approx(3 + 2 / 3, rel=1e-6)


@pytest.mark.parametrize("name", ["vgg19", "bert-small"])
def test_it_is_no_slower_than_the_schedule_of_data(name: str) -> None:
    graph, cluster = zoo_graph(name, 32), find_cluster("tag-testbed")
    assert horovod(graph, cluster).step_seconds <= data(graph, cluster).step_seconds * (1 + 1e-9)


def test_only_devices_that_can_run_everything_are_replicas() -> None:
    builder = GraphBuilder("picky", 4)
    builder.add_op("only", seconds={"fast": 1.0, "slow": math.inf})
    answer = horovod(builder.finish(), make_cluster(["fast", "slow", "fast"]))
    assert answer.plan is not None
    assert answer.plan.parts[0].devices == ("d0", "d2")
    nowhere = horovod(builder.finish(), make_cluster(["slow"]))
    assert nowhere.stop is Stop.INFEASIBLE
    assert "no device type of the cluster can run every op" in nowhere.binding
