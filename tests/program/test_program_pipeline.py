"""Pipelines: known bubbles, legal orders, and agreement of the two granularities."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync
from meshwright.program.schedule import Action, Turn, order_steps
from meshwright.simulate.simulate import simulate
from small import connected, layers, stages, star

FREE = 1e30
"""Bytes a second that cost nothing."""


@pytest.mark.parametrize("granularity", ["op", "part"])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("num_stages", "microbatches"), [(1, 1), (2, 4), (4, 8), (4, 4), (3, 7)])
def test_bubble_fraction_of_balanced_stages(
    num_stages: int, microbatches: int, kind: str, granularity: str
) -> None:
    graph = layers(num_stages, activation=1)
    plan = stages(graph, [[f"d{i}"] for i in range(num_stages)], kind, microbatches)
    cluster = connected(num_stages, bandwidth=FREE)
    timeline = simulate(graph, cluster, plan, granularity=granularity)
    bubble = 1 - timeline.device_utilisation
    expected = (num_stages - 1) / (microbatches + num_stages - 1)
    np.testing.assert_allclose(bubble, expected, atol=1e-12)


def test_interleaving_divides_the_bubble() -> None:
    # Megatron-LM: with v stages a device the bubble is (D - 1) (tf + tb) / v. 4 devices, v = 2,
    # 8 microbatches of 8 layers: work 2 x 3 a microbatch, so 8 x 6 + 3 x 3 = 57, in eighths.
    graph = layers(8)
    devices = [[f"d{i % 4}"] for i in range(8)]
    plan = stages(graph, devices, "interleaved-1f1b", 8)
    timeline = simulate(graph, connected(4, bandwidth=FREE), plan)
    assert timeline.step_seconds == pytest.approx(57 / 8)


@pytest.mark.parametrize(("num_stages", "microbatches"), [(2, 4), (3, 3), (4, 8), (4, 12)])
def test_zero_bubble_leaves_a_third_of_the_bubble(num_stages: int, microbatches: int) -> None:
    # ZB-H1 with tf = tb = tw: bubble (S - 1)(tf + tb - tw), where 1F1B has (S - 1)(tf + tb + tw).
    graph = layers(num_stages, forward=1, backward=1, weight=1)
    devices = [[f"d{i}"] for i in range(num_stages)]
    cluster = connected(num_stages, bandwidth=FREE)
    for kind, bubble in (("1f1b", 3 * (num_stages - 1)), ("zero-bubble", num_stages - 1)):
        timeline = simulate(graph, cluster, stages(graph, devices, kind, microbatches))
        assert timeline.step_seconds * microbatches == pytest.approx(3 * microbatches + bubble)


def test_one_f_one_b_holds_fewer_microbatches_than_gpipe() -> None:
    # 4 stages, 8 microbatches of one byte each way: the first stage holds 8 activations under
    # GPipe and 4 under 1F1B.
    graph = layers(4, activation=8)
    devices = [[f"d{i}"] for i in range(4)]
    cluster = connected(4, bandwidth=FREE)
    peaks = [
        simulate(graph, cluster, stages(graph, devices, kind, 8)).peak_bytes[0]
        for kind in ("gpipe", "1f1b")
    ]
    assert peaks == [8 + 2, 4 + 2]  # and, in backward, the gradient that came and the one it makes


@given(
    kind=st.sampled_from(list(ScheduleKind)),
    width=st.integers(1, 5),
    per_device=st.integers(1, 3),
    microbatches=st.integers(1, 12),
)
def test_schedules_take_every_step_once_and_never_wait_in_a_circle(
    kind: ScheduleKind, width: int, per_device: int, microbatches: int
) -> None:
    if kind in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE):
        per_device = 1
    num_stages = width * per_device
    stages_of = [tuple(range(d, num_stages, width)) for d in range(width)]
    schedule = Schedule(kind=kind, microbatches=microbatches)
    times = [(1.0, 1.0, 1.0)] * num_stages
    if kind is ScheduleKind.INTERLEAVED and microbatches % max(1, microbatches // width):
        with pytest.raises(InputError, match="must be a multiple of"):
            order_steps(schedule, stages_of, times)
        return
    orders = order_steps(schedule, stages_of, times)
    counts = Counter(step for steps in orders for step in steps)
    actions = [Action.FORWARD, Action.BACKWARD]
    if kind is ScheduleKind.ZERO_BUBBLE:
        actions.append(Action.WEIGHT)
    assert set(counts) == {
        Turn(action, stage, m)
        for action in actions
        for stage in range(num_stages)
        for m in range(microbatches)
    }
    assert set(counts.values()) == {1}
    _run_through(orders, num_stages)


def _run_through(orders: list[list[Turn]], num_stages: int) -> None:
    """Take steps in order on every device until all are done."""
    done: set[Turn] = set()
    heads = [0] * len(orders)
    while any(head < len(steps) for head, steps in zip(heads, orders, strict=True)):
        before = len(done)
        for device, steps in enumerate(orders):
            while heads[device] < len(steps) and _needs(steps[heads[device]], num_stages) <= done:
                done.add(steps[heads[device]])
                heads[device] += 1
        assert len(done) > before, "the schedule waits in a circle"


def _needs(step: Turn, num_stages: int) -> set[Turn]:
    action, stage, m = step
    if action is Action.FORWARD:
        return {Turn(action, stage - 1, m)} if stage else set()
    if action is Action.WEIGHT:
        return {Turn(Action.BACKWARD, stage, m)}
    if stage + 1 < num_stages:
        return {Turn(action, stage + 1, m), Turn(Action.FORWARD, stage, m)}
    return {Turn(Action.FORWARD, stage, m)}


@st.composite
def deep_graphs(draw: st.DrawFn, num_stages: int) -> Graph:
    """Layers of a few ops a stage, with skips between stages, weight gradients and updates."""
    builder = GraphBuilder("deep", batch=64)
    times = st.integers(1, 20).map(lambda n: n * 1e-3)
    backward = []
    count = num_stages * draw(st.integers(1, 3))
    forward = [builder.add_op(f"f{i}", seconds={"any": draw(times)}) for i in range(count)]
    for i in reversed(range(count)):
        partner = forward[i]
        backward.append(
            builder.add_op(
                f"b{i}", phase=Phase.BACKWARD, seconds={"any": draw(times)}, partner=partner
            )
        )
        weight = builder.add_op(
            f"w{i}",
            phase=Phase.BACKWARD,
            split=Split.SUM,
            seconds={"any": draw(times)},
            partner=partner,
        )
        update = builder.add_op(
            f"u{i}", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 1e-4}, state_bytes=1e6
        )
        size = draw(st.sampled_from([1e6, 4e7]))
        builder.add_tensor(weight, size, [update], fixed_bytes=size)
        builder.add_tensor(backward[-1], 1e5, [weight])
    backward.reverse()
    layer = st.integers(0, count - 1)
    skips = draw(st.lists(st.tuples(layer, layer), max_size=3))
    for i in range(count):
        later = {j for a, j in skips if a == i and j > i + 1}
        following = [forward[j] for j in sorted(later | ({i + 1} & set(range(count))))]
        size = draw(st.sampled_from([1e5, 1e6, 1e7]))
        fixed = size * draw(st.sampled_from([0, 0, 0.3, 1]))
        readers = [*following, backward[i], backward[i] + 1]
        builder.add_tensor(forward[i], size, readers, fixed_bytes=fixed)
        for j in sorted(later | ({i + 1} & set(range(count)))):
            builder.add_tensor(backward[j], size, [backward[i]], fixed_bytes=fixed)
    return builder.finish()


@st.composite
def pipelines(draw: st.DrawFn, graph: Graph, num_stages: int) -> tuple[Plan, int]:
    """Stages of equally many layers on any numbers of replicas, and how many devices these are."""
    kinds = [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE]
    kind = draw(st.sampled_from([*kinds, ScheduleKind.INTERLEAVED]))
    width = num_stages
    if kind is ScheduleKind.INTERLEAVED and num_stages % 2 == 0:
        width = num_stages // 2
    replicas = [draw(st.integers(1, 3)) for _ in range(width)]
    first = [sum(replicas[:column]) for column in range(width)]
    devices = [
        [f"d{first[stage % width] + r}" for r in range(replicas[stage % width])]
        for stage in range(num_stages)
    ]
    sync = draw(st.sampled_from([Sync.ALL_REDUCE, Sync.RING, Sync.PARAMETER_SERVER]))
    microbatches = draw(st.sampled_from([1, 2, 4]))
    if kind is ScheduleKind.INTERLEAVED:  # takes only multiples of its rounds
        microbatches -= microbatches % max(1, microbatches // width)
    return stages(graph, devices, kind, microbatches, sync=sync), sum(replicas)


@given(st.data())
@settings(max_examples=60)
def test_op_and_part_granularity_agree(data: st.DataObject) -> None:
    # The product promises 1%; where copies are free, as here, only rounding is left.
    num_stages = data.draw(st.integers(1, 4))
    graph = data.draw(deep_graphs(num_stages))
    plan, num_devices = data.draw(pipelines(graph, num_stages))
    cluster = data.draw(
        st.sampled_from([connected(num_devices, 1e9, 1e-6), star([1e9] * num_devices, 1e-5)])
    )
    for sharing in ("none", "fair"):
        by_op = simulate(graph, cluster, plan, sharing=sharing)
        by_part = simulate(graph, cluster, plan, sharing=sharing, granularity="part")
        assert by_part.step_seconds == pytest.approx(by_op.step_seconds, rel=1e-6)
        # Units hold all they make from their start on, so their memory is an upper bound.
        assert all(
            part >= op * (1 - 1e-9)
            for part, op in zip(by_part.peak_bytes, by_op.peak_bytes, strict=True)
        )


def test_part_granularity_needs_a_schedule() -> None:
    graph = layers(1)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0",)),))
    with pytest.raises(InputError, match="must have a schedule"):
        simulate(graph, connected(1), plan, granularity="part")


def test_unknown_granularity_and_sharing_are_refused() -> None:
    graph = layers(1)
    plan = stages(graph, [["d0"]])
    with pytest.raises(InputError, match="granularity: must be one of op, part, layer, got 'unit'"):
        simulate(graph, connected(1), plan, granularity="unit")
    with pytest.raises(InputError, match="sharing: must be one of none, fair, got 'some'"):
        simulate(graph, connected(1), plan, sharing="some")


def test_two_stages_on_one_device_need_an_interleaved_schedule() -> None:
    graph = layers(2)
    plan = stages(graph, [["d0"], ["d0"]], "1f1b", 2)
    with pytest.raises(InputError, match="must have one stage a device"):
        simulate(graph, connected(1), plan)


def test_gradients_are_synchronised_once_after_all_microbatches() -> None:
    # Two replicas, four microbatches: compute 3 / 2, then one ring of 6 bytes.
    graph = layers(1, gradient=6)
    plan = stages(graph, [["d0", "d1"]], "gpipe", 4, sync=Sync.RING)
    assert simulate(graph, connected(2), plan).step_seconds == pytest.approx(1.5 + 6)


def test_collectives_follow_the_graph_whatever_the_priorities() -> None:
    # Two ops that need the whole batch, one after the other, with priorities against the graph:
    # each is gathered in its turn, and nobody waits in a circle.
    builder = GraphBuilder("gathers")
    ops = []
    for name, split in (
        ("a", Split.BATCH),
        ("b", Split.NONE),
        ("c", Split.BATCH),
        ("d", Split.NONE),
    ):
        ops.append(builder.add_op(name, split=split, seconds={"any": 1.0}))
        if len(ops) > 1:
            builder.add_tensor(ops[-2], 2.0, [ops[-1]])
    graph = builder.finish()
    part = Part(ops=graph.op_names, devices=("d0", "d1"), priorities=(1, 2, 3, 4))
    timeline = simulate(graph, connected(2), Plan(parts=(part,)), sharing="none")
    # a 1/2, gather of the other's byte 1, b whole 1, c 1/2, gather 1, d whole 1
    assert timeline.step_seconds == pytest.approx(0.5 + 1 + 1 + 0.5 + 1 + 1)


def test_a_parameter_server_goes_on_with_backward_while_gradients_travel() -> None:
    # Two layers, 40 MB of gradient each (a bucket each). Backward of layer 1 ends at 1 s, of layer
    # 0 at 2 s; the first bucket's gradients arrive at 1 + 4 s and must not hold up layer 0.
    graph = layers(2, forward=0.0, backward=2.0, gradient=4e7)
    plan = stages(graph, [["d0", "d1"]], sync=Sync.PARAMETER_SERVER)
    timeline = simulate(graph, connected(2, bandwidth=1e7), plan, sharing="none")
    finish = dict(zip(graph.op_names, timeline.finish[::2], strict=False))
    assert finish["b1"] == 1
    assert finish["b0"] == 2


def test_a_replicated_stage_may_gather_in_the_middle_of_an_action() -> None:
    # f0 on half the rows 1/2, gather 2 bytes of 4, f1 on all of them 1, f2 on half 1/2.
    builder = GraphBuilder("middle")
    f0 = builder.add_op("f0", seconds={"any": 1.0})
    f1 = builder.add_op("f1", split=Split.NONE, seconds={"any": 1.0})
    f2 = builder.add_op("f2", seconds={"any": 1.0})
    builder.add_tensor(f0, 4.0, [f1])
    builder.add_tensor(f1, 4.0, [f2])
    graph = builder.finish()
    part = Part(ops=graph.op_names, devices=("d0", "d1"))
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=1)
    plan = Plan(parts=(part,), schedule=schedule)
    assert simulate(graph, connected(2), plan).step_seconds == pytest.approx(0.5 + 2 + 1 + 0.5)
    with pytest.raises(InputError, match="op 'f1' needs the whole batch in the middle"):
        simulate(graph, connected(2), plan, granularity="part")
