"""The compiled evaluators against the simulator, and changes against schedules from nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.graph.transformer import synthetic_transformer
from meshwright.plan.plan import Discipline
from meshwright.search.heft import schedule_heft
from meshwright.search.instance import Instance, Ints, make_instance, placement_plan
from meshwright.search.list_schedule import fifo_seconds, longest_path, order_seconds
from meshwright.search.mcmc import Walk
from meshwright.simulate.simulate import simulate


def random_placement(instance: Instance, seed: int) -> Ints:
    generator = np.random.default_rng(seed)
    units = generator.integers(0, instance.num_devices, instance.num_units).astype(np.int32)
    return units[instance.unit_of]


@given(graphs(), clusters(), st.integers(0, 2**32))
@settings(max_examples=150)
def test_fifo_is_what_the_simulator_gives(graph: Graph, cluster: Cluster, seed: int) -> None:
    instance = make_instance(graph, cluster)
    devices = random_placement(instance, seed)
    plan = placement_plan(instance, devices, discipline=Discipline.FIFO)
    simulated = simulate(graph, cluster, plan, sharing="none").step_seconds
    assert np.isclose(fifo_seconds(instance, devices), simulated, rtol=1e-9, atol=0)


@given(graphs(), clusters(), st.integers(0, 2**32))
@settings(max_examples=150)
def test_order_is_what_the_simulator_gives(graph: Graph, cluster: Cluster, seed: int) -> None:
    instance = make_instance(graph, cluster)
    devices = random_placement(instance, seed)
    order = random_order(graph, seed)
    priorities = np.empty(graph.num_ops)
    priorities[order] = -np.arange(graph.num_ops, dtype=np.float64)
    plan = placement_plan(instance, devices, priorities, Discipline.ORDER)
    simulated = simulate(graph, cluster, plan, sharing="none").step_seconds
    assert np.isclose(order_seconds(instance, devices, order), simulated, rtol=1e-9, atol=0)


def random_order(graph: Graph, seed: int) -> Ints:
    """A random topological order."""
    generator = np.random.default_rng(seed)
    waits = np.bincount(graph.edges[1], minlength=graph.num_ops)
    ready = [op for op in range(graph.num_ops) if waits[op] == 0]
    order = []
    while ready:
        op = ready.pop(int(generator.integers(len(ready))))
        order.append(op)
        for reader in graph.successors[op].tolist():
            waits[reader] -= 1
            if waits[reader] == 0:
                ready.append(reader)
    return np.array(order, dtype=np.int32)


@given(graphs(max_ops=20), clusters(), st.integers(0, 2**32))
@settings(max_examples=100)
def test_a_walk_keeps_the_time_of_its_placement(graph: Graph, cluster: Cluster, seed: int) -> None:
    # 60 steps, most accepted at this temperature: 60 changes of one schedule.
    instance = make_instance(graph, cluster)
    walk = Walk(instance, np.zeros(instance.num_units, dtype=np.int32), seed, beta=0.01)
    for _ in range(60):
        walk.run(1, np.inf)
        devices = walk.device_of_op
        assert np.isclose(walk.now_seconds, fifo_seconds(instance, devices), rtol=1e-12, atol=0)
    assert walk.best_seconds <= walk.first_seconds


def test_a_walk_over_many_checkpoints_keeps_the_time_of_its_placement() -> None:
    # 600 ops are ten spacings of the places from which tries begin.
    graph = synthetic_transformer(600)
    instance = make_instance(graph, make_cluster(["fast", "slow", "fast"], rate=1e3))
    walk = Walk(instance, np.zeros(instance.num_units, dtype=np.int32), 3, beta=1.0)
    for _ in range(40):
        walk.run(5, np.inf)
        devices = walk.device_of_op
        assert np.isclose(walk.now_seconds, fifo_seconds(instance, devices), rtol=1e-12, atol=0)
    assert walk.statistics["accepted"] > 20
    devices = walk.best_device_of_op
    assert np.isclose(walk.best_seconds, fifo_seconds(instance, devices), rtol=1e-12, atol=0)


@given(graphs(max_ops=20), clusters())
def test_heft_starts_ops_when_the_simulator_does(graph: Graph, cluster: Cluster) -> None:
    instance = make_instance(graph, cluster)
    devices, order, seconds = schedule_heft(instance)
    assert np.isclose(order_seconds(instance, devices, order), seconds, rtol=1e-12, atol=0)
    priorities = np.empty(graph.num_ops)
    priorities[order] = -np.arange(graph.num_ops, dtype=np.float64)
    plan = placement_plan(instance, devices, priorities, Discipline.ORDER)
    simulated = simulate(graph, cluster, plan, sharing="none").step_seconds
    assert np.isclose(simulated, seconds, rtol=1e-9, atol=0)


def test_heft_uses_a_gap() -> None:
    # Ranks (mean transfer 4): a 1 + 4 + 5 = 10, b 5, c 3. On one slow link a's tensor would reach
    # the other device at 5. a [0,1] and b [1,6] stay on d0; c (3, independent) goes to d1 at 0.
    builder = GraphBuilder("gap")
    first = builder.add_op("a", seconds={"any": 1.0})
    second = builder.add_op("b", seconds={"any": 5.0})
    builder.add_op("c", seconds={"any": 3.0})
    builder.add_tensor(first, 4.0, [second])
    instance = make_instance(builder.finish(), make_cluster(["fast", "fast"]))
    devices, _, seconds = schedule_heft(instance)
    assert seconds == 6.0
    assert devices.tolist() == [0, 0, 1]


def test_the_longest_path_is_that_of_the_diamond() -> None:
    # 1 -> (2 | 5) -> 1: 1 + 5 + 1 = 7.
    builder = GraphBuilder("diamond")
    ops = [builder.add_op(f"op{i}", seconds={"any": s}) for i, s in enumerate([1.0, 2.0, 5.0, 1.0])]
    for source, target in ((0, 1), (0, 2), (1, 3), (2, 3)):
        builder.add_tensor(ops[source], 1.0, [ops[target]])
    instance = make_instance(builder.finish(), make_cluster(["fast"]))
    assert longest_path(instance, instance.seconds[:, 0]) == 7.0
