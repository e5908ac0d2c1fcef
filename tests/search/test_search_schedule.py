"""The compiled evaluators against the simulator, and changes against schedules from nothing."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Discipline
from meshwright.search.bound.window import longest_path
from meshwright.search.clock import Clock
from meshwright.search.instance import (
    Instance,
    make_instance,
    mean_device_seconds,
    mean_transfer,
    mean_type_seconds,
    placement_plan,
)
from meshwright.search.method.mcmc import MetropolisWalk
from meshwright.search.order.heft import schedule_heft
from meshwright.search.order.list_schedule import ListSchedule, order_seconds
from meshwright.simulate.simulate import simulate
from synthetic import synthetic_gpt


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
    assert np.isclose(ListSchedule(instance, devices).seconds, simulated, rtol=1e-9, atol=0)


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
    walk = MetropolisWalk(instance, np.zeros(instance.num_units, dtype=np.int32), seed, beta=0.01)
    for _ in range(60):
        walk.run(1, Clock())
        devices = walk.device_of_op
        assert np.isclose(
            walk.now_seconds, ListSchedule(instance, devices).seconds, rtol=1e-12, atol=0
        )
    assert walk.best_seconds <= walk.first_seconds


def test_a_walk_over_many_checkpoints_keeps_the_time_of_its_placement() -> None:
    # 600 ops are ten spacings of the places from which tries begin.
    graph = synthetic_gpt(600)
    instance = make_instance(graph, make_cluster(["fast", "slow", "fast"], rate=1e3))
    walk = MetropolisWalk(instance, np.zeros(instance.num_units, dtype=np.int32), 3, beta=1.0)
    for _ in range(40):
        walk.run(5, Clock())
        devices = walk.device_of_op
        assert np.isclose(
            walk.now_seconds, ListSchedule(instance, devices).seconds, rtol=1e-12, atol=0
        )
    assert walk.statistics["accepted"] > 20
    devices = walk.best_device_of_op
    assert np.isclose(
        walk.best_seconds, ListSchedule(instance, devices).seconds, rtol=1e-12, atol=0
    )


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


@given(st.integers(0, 2**32), st.sampled_from([40, 150, 600]), clusters())
@settings(max_examples=30)
def test_heft_takes_the_first_gap_of_all(seed: int, num_ops: int, cluster: Cluster) -> None:
    # Blocks hold 32 spans or the root of the ops: most examples divide several.
    instance = make_instance(wide_graph(seed, num_ops), cluster)
    devices, order, seconds = schedule_heft(instance)
    expected = schedule_plainly(instance)
    starts = np.array([start for _, start, _ in expected])
    finishes = np.array([finish for _, _, finish in expected])
    assert devices.tolist() == [device for device, _, _ in expected]
    assert order.tolist() == np.lexsort((np.arange(num_ops), finishes, starts)).tolist()
    assert seconds == finishes.max()


def wide_graph(seed: int, num_ops: int) -> Graph:
    """Ops of very unequal times, many of none, that read others from long before."""
    generator = np.random.default_rng(seed)
    builder = GraphBuilder("wide")
    for op in range(num_ops):
        times = generator.choice([0.0, 0.1, 0.3, 1.0, 20.0], 2).tolist()
        builder.add_op(f"op{op}", seconds=dict(zip(("fast", "slow"), times, strict=True)))
        for source in generator.integers(0, max(1, op), 2 if op else 0).tolist():
            if generator.random() < 0.6:
                builder.add_tensor(source, float(generator.random()), [op])
    return builder.finish()


def schedule_plainly(instance: Instance) -> list[tuple[int, float, float]]:
    """HEFT with lists: device, start and finish of each op, each in the first gap that holds it."""
    latency, per_byte = mean_transfer(instance)
    num_ops, edges, first = instance.num_ops, instance.in_edges, instance.in_start
    rank, own = np.zeros(num_ops), mean_device_seconds(instance)
    for op in reversed(range(num_ops)):
        rank[op] += own[op]
        for edge in edges[first[op] : first[op + 1]]:
            way = rank[op] + latency + edge["bytes"] * per_byte
            rank[edge["op"]] = max(rank[edge["op"]], way)
    busy: list[list[tuple[float, float]]] = [[] for _ in range(instance.num_devices)]
    found: dict[int, tuple[int, float, float]] = {}
    for op in sorted(range(num_ops), key=lambda op: (-rank[op], op)):
        tries = []
        for device, kind in enumerate(instance.type_of.tolist()):
            ready, needed = 0.0, float(instance.seconds[op, kind])
            for edge in edges[first[op] : first[op + 1]]:
                source, _, finish = found[int(edge["op"])]
                if source != device:
                    moved = edge["bytes"] / instance.bandwidth[source, device]
                    finish = finish + (instance.latency[source, device] + moved)
                ready = max(ready, float(finish))
            start = ready
            for begin, end in busy[device]:
                if end > ready and start + needed > begin:
                    start = max(start, end)
                elif end > ready:
                    break
            tries.append((start + needed, device, start))
        finish, device, start = min(tries)
        found[op] = device, start, finish
        busy[device] = sorted([*busy[device], (start, finish)])
    return [found[op] for op in range(num_ops)]


def test_means_count_devices_or_types_that_can_run_an_op() -> None:
    # Two fast devices at 1 s and a slow one at 4 s: (1 + 1 + 4) / 3 = 2, over types (1 + 4) / 2.
    builder = GraphBuilder("mean")
    builder.add_op("op", seconds={"fast": 1.0, "slow": 4.0})
    cluster = make_cluster(["fast", "slow", "fast"], rate=4.0, latency=0.5)
    instance = make_instance(builder.finish(), cluster)
    assert mean_device_seconds(instance).tolist() == [2.0]
    assert mean_type_seconds(instance.seconds).tolist() == [2.5]
    assert mean_type_seconds(np.array([[3.0, np.inf], [np.inf, np.inf]])).tolist() == [3.0, 0.0]
    assert mean_transfer(instance) == (0.5, 0.25)


def test_one_device_has_no_transfers() -> None:
    builder = GraphBuilder("alone")
    builder.add_op("op", seconds={"any": 1.0})
    assert mean_transfer(make_instance(builder.finish(), make_cluster(["fast"]))) == (0.0, 0.0)


def test_the_longest_path_is_that_of_the_diamond() -> None:
    # 1 -> (2 | 5) -> 1: 1 + 5 + 1 = 7.
    builder = GraphBuilder("diamond")
    ops = [builder.add_op(f"op{i}", seconds={"any": s}) for i, s in enumerate([1.0, 2.0, 5.0, 1.0])]
    for source, target in ((0, 1), (0, 2), (1, 3), (2, 3)):
        builder.add_tensor(ops[source], 1.0, [ops[target]])
    instance = make_instance(builder.finish(), make_cluster(["fast"]))
    assert longest_path(instance, instance.seconds[:, 0]) == 7.0
