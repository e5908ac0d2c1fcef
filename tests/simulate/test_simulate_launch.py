"""Steps that wait for hosts to launch kernels, by hand."""

from dataclasses import replace

import numpy as np
import pytest

import meshwright as mw
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cost.compute import host_seconds
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.build import GraphBuilder
from meshwright.graph.fuse import fuse_elementwise
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, place_ops
from meshwright.program.lower import lower
from meshwright.program.program import freeze_order
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

MANY = 3e6
"""Calls of the forward op, so many that hosts take seconds."""


def pair(*types: str) -> Cluster:
    """Two devices of types "gpu" and "cpu"; only the first is launched on."""
    kinds = {
        name: DeviceType(
            name=name,
            flops_per_second={"fp32": 1.0},
            memory_bytes=1e12,
            memory_bytes_per_second=1e15,
            is_asynchronous=name == "gpu",
        )
        for name in types
    }
    devices = tuple(
        Device(name=f"d{number}", type=name, host=f"h{number}", memory_bytes=1e12)
        for number, name in enumerate(types)
    )
    links = tuple(
        Link(source=one, target=other, bytes_per_second=1.0)
        for one, other in (("d0", "d1"), ("d1", "d0"))
    )
    return Cluster(name="pair", types=kinds, devices=devices, links=links)


def step(seconds: float, calls: float) -> Graph:
    """Forward, backward and update; each takes as long and is called as often."""
    builder = GraphBuilder("step")
    forward = builder.add_op("f0", seconds={"any": seconds}, calls=calls)
    backward = builder.add_op(
        "b0", phase=Phase.BACKWARD, seconds={"any": seconds}, calls=calls, partner=forward
    )
    update = builder.add_op(
        "u0", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": seconds}, calls=calls
    )
    builder.add_tensor(forward, 0.0, [backward])
    builder.add_tensor(backward, 0.0, [update])
    return builder.finish()


def compiled(**changes: str | float) -> Graph:
    """A step whose forward ops a compiler has merged into one."""
    given = {"forward": "fused", "update": "_fused_adamw_", "calls": 1.0, **changes}
    builder = GraphBuilder("compiled")
    forward = builder.add_op("f0", kind=str(given["forward"]), calls=1.0)
    backward = builder.add_op(
        "b0", kind="mm", phase=Phase.BACKWARD, calls=float(given["calls"]), partner=forward
    )
    update = builder.add_op(
        "u0", kind=str(given["update"]), phase=Phase.UPDATE, split=Split.NONE, calls=1.0
    )
    builder.add_tensor(forward, 0.0, [backward])
    builder.add_tensor(backward, 0.0, [update])
    return replace(builder.finish(), seconds={"any": np.ones(3)})


def run(graph: Graph, cluster: Cluster) -> Timeline:
    """All on the first device."""
    return simulate(graph, cluster, place_ops(graph.op_names, [0] * graph.num_ops, ["d0"]))


def test_a_step_takes_as_long_as_its_host_where_that_is_slower() -> None:
    graph = step(1.0, MANY)
    launching = host_seconds(graph).sum()
    timeline = run(graph, pair("gpu", "gpu"))
    assert timeline.device_seconds == 3.0 < launching
    assert timeline.step_seconds == timeline.launch_seconds == launching
    assert timeline.is_launch_bound


def test_launches_are_hidden_behind_a_slower_device() -> None:
    timeline = run(step(100.0, MANY), pair("gpu", "gpu"))
    assert 0 < timeline.launch_seconds < 300.0
    assert timeline.step_seconds == timeline.device_seconds == 300.0
    assert not timeline.is_launch_bound


@pytest.mark.parametrize(("calls", "types"), [(0.0, ("gpu", "gpu")), (MANY, ("cpu", "gpu"))])
def test_hosts_launch_nothing_of_unknown_calls_nor_on_cpus(
    calls: float, types: tuple[str, ...]
) -> None:
    timeline = run(step(1.0, calls), pair(*types))
    assert timeline.launch_seconds == 0
    assert timeline.step_seconds == 3.0
    assert not timeline.is_launch_bound


def test_the_slowest_host_counts() -> None:
    graph = step(1.0, MANY)
    forward, backward, update = host_seconds(graph).tolist()
    plan = place_ops(graph.op_names, [0, 1, 1], ["d0", "d1"])
    timeline = simulate(graph, pair("gpu", "gpu"), plan)
    assert timeline.program.host_seconds.tolist() == pytest.approx([forward, backward + update])
    assert timeline.launch_seconds == pytest.approx(max(forward, backward + update))


@pytest.mark.parametrize("granularity", ["op", "part"])
def test_microbatches_are_launched_one_by_one_and_updates_once(granularity: str) -> None:
    graph = step(1.0, 3.0)
    forward, backward, update = host_seconds(graph).tolist()
    plan = Plan(
        parts=(Part(ops=graph.op_names, devices=("d0",)),),
        schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=4),
    )
    program = lower(graph, pair("gpu", "gpu"), plan, granularity)
    expected = [4 * (forward + backward) + update, 0.0]
    assert program.host_seconds.tolist() == pytest.approx(expected)
    zeros = [0.0] * program.num_instructions
    frozen = freeze_order(program, zeros, zeros)
    assert frozen.host_seconds.tolist() == program.host_seconds.tolist()


def test_replicas_launch_the_same_kernels_on_fewer_rows() -> None:
    graph = step(1.0, 3.0)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0", "d1")),))
    each = host_seconds(graph).sum()
    found = lower(graph, pair("gpu", "gpu"), plan, "op").host_seconds.tolist()
    assert found == pytest.approx([each, each])


@pytest.mark.parametrize("granularity", ["op", "part"])
def test_a_host_that_launches_slower_takes_as_much_longer(granularity: str) -> None:
    graph = step(1.0, MANY)
    plan = Plan(
        parts=(Part(ops=graph.op_names, devices=("d0",)),),
        schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=1),
    )
    usual = pair("gpu", "gpu")
    slow = replace(usual, types={"gpu": replace(usual.types["gpu"], launch_share=1.5)})
    found = [simulate(graph, each, plan, granularity=granularity) for each in (usual, slow)]
    assert found[1].launch_seconds == pytest.approx(1.5 * found[0].launch_seconds)
    assert found[1].step_seconds == found[1].launch_seconds


def test_layers_are_launched_as_slowly_as_their_ops() -> None:
    graph = gpt(hidden=64, heads=2, layers=2, sequence=16, vocabulary=64, batch=8)
    usual = find_cluster("h100-x1")
    slow = replace(usual, types={"h100": replace(usual.types["h100"], launch_share=1.5)})
    for granularity in ("op", "layer"):
        launched = [
            simulate(graph, each, Plan.from_degrees(graph, each), granularity=granularity)
            for each in (usual, slow)
        ]
        once, more = (each.launch_seconds for each in launched)
        assert once > 0
        assert more == pytest.approx(1.5 * once)


@pytest.mark.parametrize("granularity", ["op", "part"])
@pytest.mark.parametrize(
    ("changes", "launches"),
    [
        ({}, False),
        ({"update": "_fused_mixed-sgd_"}, False),
        ({"forward": "add", "calls": 0.0}, False),  # one of the ops is part of the other's call
        ({"update": "_fused_rmsprop_"}, True),  # takes its own steps
        ({"forward": "add"}, True),  # nothing is merged
        ({"calls": 2.0}, True),  # a view
    ],
)
def test_a_device_alone_replays_a_compiled_step(
    granularity: str, changes: dict[str, str | float], launches: bool
) -> None:
    graph = compiled(**changes)
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=2)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0",)),), schedule=schedule)
    program = lower(graph, pair("gpu", "gpu"), plan, granularity)
    assert program.host_seconds.any() == launches
    replicas = Plan(parts=(Part(ops=graph.op_names, devices=("d0", "d1")),))
    assert lower(graph, pair("gpu", "gpu"), replicas).host_seconds.all()


def test_layers_of_a_compiled_step_are_replayed_by_this_program_alone() -> None:
    graph = gpt(hidden=64, heads=2, layers=2, sequence=16, vocabulary=64, batch=8)
    merged, cluster = fuse_elementwise(graph), find_cluster("h100-x1")
    plan = Plan.from_degrees(merged, cluster)
    for granularity in ("op", "layer"):
        assert not simulate(merged, cluster, plan, granularity=granularity).launch_seconds
    assert simulate(merged, cluster, replace(plan, runtime="megatron")).launch_seconds
    assert simulate(graph, cluster, Plan.from_degrees(graph, cluster)).launch_seconds


@pytest.mark.parametrize("method", ["hybrid", "auto"])
def test_no_bound_counts_launches_that_are_replayed(method: str) -> None:
    graph = gpt(hidden=64, heads=2, layers=2, sequence=16, vocabulary=64, batch=8)
    for cluster in ("h100-x1", "h100-x2"):
        answer = mw.plan(fuse_elementwise(graph), cluster, method=method, budget_seconds=1)
        assert answer.bound_seconds <= answer.step_seconds * (1 + 1e-9)
