"""Shares of steps whose times are worked out by hand. Bandwidth is one byte a second: bytes are
seconds."""

import pytest

import meshwright as mw
from meshwright.cluster.cluster import Cluster, Device, DeviceType
from meshwright.explain.cause import Cause
from meshwright.explain.path import tell_path
from meshwright.explain.share import StepSpans, difference, find_shares, sum_shares
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, place_ops
from meshwright.simulate.simulate import simulate
from small import connected, dag, layers, stages, star

Found = dict[tuple[str, str], float]


def shares(graph: Graph, cluster: Cluster, plan: Plan, sharing: str = "fair") -> Found:
    timeline = simulate(graph, cluster, plan, sharing=sharing)
    found = find_shares(graph, cluster, plan, timeline)
    assert sum_shares(found.shares) == pytest.approx(timeline.step_seconds, rel=1e-12)
    return {(str(each.cause), each.where): each.seconds for each in found.shares}


@pytest.mark.parametrize("sharing", ["none", "fair"])
def test_a_slow_link_has_the_seconds_of_its_transfer(sharing: str) -> None:
    # 3 s on d0, 9 bytes over the one link, 4 s on d1.
    graph = dag([3, 4], {(0, 1): 9})
    plan = place_ops(graph.op_names, [0, 1], ["d0", "d1"])
    assert shares(graph, connected(2), plan, sharing) == {
        ("transfers", "d0 -> d1"): 9.0,
        ("forward", "d1"): 4.0,
        ("forward", "d0"): 3.0,
    }


def test_a_transfer_is_as_slow_as_the_slowest_link_of_its_route() -> None:
    graph = dag([1, 1], {(0, 1): 6})
    plan = place_ops(graph.op_names, [0, 1], ["d0", "d1"])
    # Up from d0 at 3 bytes a second, down to d1 at 2: three seconds.
    assert shares(graph, star([3.0, 2.0]), plan)["transfers", "switch -> d1"] == 3.0
    assert shares(graph, star([2.0, 3.0]), plan)["transfers", "d0 -> switch"] == 3.0


def test_transfers_that_share_a_link_are_as_slow_as_that() -> None:
    # d0 sends 6 bytes to d1 and to d2, at 2 bytes a second together: each alone could have both
    # of its own link's 2. The whole step's traffic keeps the way up busy for 6 s, ways down for 3.
    graph = dag([1, 1, 1], [(0, 1, 6), (0, 2, 6)])
    plan = place_ops(graph.op_names, [0, 1, 2], ["d0", "d1", "d2"])
    assert shares(graph, star([2.0, 2.0, 2.0]), plan)["transfers", "d0 -> switch"] == 6.0


def unequal() -> tuple[Graph, Cluster]:
    """A step of 3 s forward and 6 s backward on a fast device, twice as long on a slow one."""
    builder = GraphBuilder("unequal", batch=2)
    times = {"fast": 3.0, "slow": 6.0}
    forward = builder.add_op("f", seconds=times)
    backward = builder.add_op(
        "b", phase=Phase.BACKWARD, seconds={k: 2 * v for k, v in times.items()}, partner=forward
    )
    update = builder.add_op("u", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.5})
    builder.add_tensor(forward, 0.0, [backward])
    builder.add_tensor(backward, 4.0, [update], partial=True, fixed_bytes=4.0)
    return builder.finish(), connected(2, types=["fast", "slow"])


def test_a_slow_device_is_what_the_step_waits_for() -> None:
    graph, cluster = unequal()
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0", "d1")),))
    # Half of the batch on the slow device: 3 s + 6 s; a ring of two moves 2 bytes twice, both
    # ways at once: 4 s; then 0.5 s of update.
    found = shares(graph, cluster, plan)
    assert found["backward", "d1"] == 6.0
    assert found["forward", "d1"] == 3.0
    assert sum(v for (cause, _), v in found.items() if cause == "gradient sync") == 4.0
    assert sum(v for (cause, _), v in found.items() if cause == "optimiser update") == 0.5
    assert len(found) == 4


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize("num_stages", [2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 4, 8])
def test_equal_stages_wait_for_one_less_than_their_number(
    kind: str, num_stages: int, microbatches: int
) -> None:
    # Each stage takes m microbatches of 1 + 2 seconds; filling and draining take those of one
    # microbatch for every other stage: (s - 1)(1 + 2), as both schedules' authors count it.
    graph = layers(num_stages, forward=microbatches, backward=2 * microbatches, batch=microbatches)
    plan = stages(graph, [[f"d{k}"] for k in range(num_stages)], kind, microbatches)
    found = shares(graph, connected(num_stages), plan)
    bubble = sum(v for (cause, _), v in found.items() if cause.startswith("pipeline"))
    compute = sum(v for (cause, _), v in found.items() if cause in ("forward", "backward"))
    assert compute == pytest.approx(3 * microbatches)
    assert bubble == pytest.approx(3 * (num_stages - 1))


def test_a_pipeline_with_a_slow_link_waits_for_the_link() -> None:
    # Two stages of (1 + 2) s, 2 microbatches; every activation and gradient takes 10 s.
    graph = layers(2, forward=2, backward=4, activation=20, batch=2)
    plan = stages(graph, [["d0"], ["d1"]], "1f1b", 2)
    found = shares(graph, connected(2), plan)
    links = sum(v for (cause, _), v in found.items() if cause == "transfers")
    assert links > 20.0
    assert max(found, key=lambda each: found[each])[0] == "transfers"


def test_launches_have_what_hosts_take_longer_than_devices() -> None:
    kind = DeviceType(
        name="gpu", flops_per_second={"fp32": 1.0}, memory_bytes=1e12,
        memory_bytes_per_second=1e15, is_asynchronous=True,
    )  # fmt: skip
    device = Device(name="d0", type="gpu", host="h0", memory_bytes=1e12)
    cluster = Cluster(name="one", types={"gpu": kind}, devices=(device,), links=())
    builder, calls = GraphBuilder("calls"), 3e6  # so many that hosts take seconds
    forward = builder.add_op("f", seconds={"any": 1.0}, calls=calls)
    backward = builder.add_op(
        "b", phase=Phase.BACKWARD, seconds={"any": 1.0}, calls=calls, partner=forward
    )
    update = builder.add_op(
        "u", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 1.0}, calls=calls
    )
    builder.add_tensor(forward, 0.0, [backward])
    builder.add_tensor(backward, 0.0, [update])
    graph = builder.finish()
    plan = place_ops(graph.op_names, [0, 0, 0], ["d0"])
    timeline = simulate(graph, cluster, plan)
    assert timeline.is_launch_bound
    found = shares(graph, cluster, plan)
    for phase in ("forward", "backward", "optimiser update"):
        assert found[phase, "d0"] == 1.0
    assert found["kernel launches", "h0"] == pytest.approx(timeline.launch_seconds - 3.0)


def test_what_a_team_says_and_computes_again_is_the_same_by_op_and_by_layer() -> None:
    graph = mw.load_graph("gpt:hidden=256,heads=4,layers=4,sequence=128,batch=8,precision=bf16")
    cluster = mw.cluster("a100-80-x4")
    plan = Plan.from_degrees(
        graph, cluster, tensor=2, data=2, recompute="full", sequence_parallel=True
    )
    steps = []
    for granularity in ("op", "layer"):
        timeline = simulate(graph, cluster, plan, granularity=granularity)
        steps.append(find_shares(graph, cluster, plan, timeline))
    for cause in (Cause.RECOMPUTATION, Cause.TENSOR, Cause.FORWARD):
        one, other = (each.by_cause()[cause] for each in steps)
        # The two granularities differ by a few per cent of the step (benchmarks/granularity.py).
        assert abs(one - other) < 0.05 * steps[0].step_seconds
    assert steps[0].by_cause()[Cause.RECOMPUTATION] > 0


def test_differences_of_two_steps_add_up_to_that_of_their_times() -> None:
    graph = dag([3, 4], {(0, 1): 9})
    found = []
    for places in ([0, 1], [0, 0]):
        plan = place_ops(graph.op_names, places, ["d0", "d1"])
        timeline = simulate(graph, connected(2), plan)
        found.append(find_shares(graph, connected(2), plan, timeline))
    lost = difference(*found)
    assert lost == {Cause.TRANSFER: -9.0}
    assert sum(lost.values()) == found[1].step_seconds - found[0].step_seconds


def test_the_path_of_a_pipeline_is_told_by_stages_and_microbatches() -> None:
    graph = layers(2, forward=2, backward=4, batch=2)
    plan = stages(graph, [["d0"], ["d1"]], "gpipe", 2)
    timeline = simulate(graph, connected(2), plan)
    runs = tell_path(StepSpans(graph, connected(2), plan, timeline), connected(2), plan)
    # f(0,0) on d0 until 1 s, f(0,0) to b(0,0) on d1 until 5 s, b(0,0) and b(0,1) on d0 until 9 s.
    assert [(each.what, each.seconds) for each in runs] == [
        ("forward of stage 0, microbatch 0 on d0", 1.0),
        ("forward and backward of stage 1, microbatches 0 to 1 on d1", 4.0),
        ("backward of stage 0, microbatches 0 to 1 on d0", 4.0),
    ]
    assert timeline.step_seconds == 9.0
