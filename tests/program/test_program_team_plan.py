"""Plans of real models with teams, ZeRO and recomputation, from the graph to the step."""

import io
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from link_use import link_utilisation
from meshwright.cli.gantt import draw_activities
from meshwright.cli.summary.answer import show_simulation
from meshwright.cluster.catalogue import find_cluster, load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cost.group_price import GroupPrices
from meshwright.errors import InputError
from meshwright.export.perfetto.trace import write_trace
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind, Sync
from meshwright.program.lower import choose_granularity, lower
from meshwright.program.program import Kind
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import team_stages
from meshwright.simulate.simulate import run_program, simulate
from meshwright.source import load_graph
from small import connected, layers, stages


@cache
def model() -> Stack:
    return find_layers(
        llama(
            hidden=512,
            heads=8,
            layers=6,
            sequence=256,
            intermediate=1024,
            vocabulary=8000,
            batch=32,
        )
    )


@cache
def tied_model() -> Stack:
    return find_layers(gpt(hidden=256, heads=4, layers=2, sequence=128, vocabulary=4096, batch=16))


@cache
def host() -> Cluster:
    return load_cluster("h100-x8")


def split_layers(
    stack: Stack,
    num_stages: int,
    replicas: int = 1,
    kind: str | None = "1f1b",
    microbatches: int = 4,
    cuts: Sequence[int] = (),
    **more: Any,
) -> Plan:
    """Stages of about as many layers, on the host's devices in order."""
    bounds = cuts or [round(k * stack.num_layers / num_stages) for k in range(num_stages + 1)]
    width = replicas * more.get("tensor", 1) * more.get("context", 1)
    names = [device.name for device in host().devices]
    layer = stack.layer_of_op.tolist()
    parts = tuple(
        Part(
            ops=tuple(
                name
                for name, number in zip(stack.graph.op_names, layer, strict=True)
                if bounds[s] <= number < bounds[s + 1]
            ),
            devices=tuple(names[s * width : (s + 1) * width]),
            **more,
        )
        for s in range(num_stages)
    )
    chosen = Schedule(kind=ScheduleKind(kind), microbatches=microbatches) if kind else None
    return Plan(parts=parts, schedule=chosen)


@pytest.mark.parametrize("sharing", ["none", "fair"])
@pytest.mark.parametrize(
    ("num_stages", "replicas", "kind", "microbatches"),
    [
        (1, 1, "gpipe", 1),
        (1, 4, "gpipe", 2),
        (2, 1, "gpipe", 4),
        (4, 2, "1f1b", 8),
    ],
)
def test_plain_plans_cost_what_they_cost_from_their_ops(
    num_stages: int, replicas: int, kind: str, microbatches: int, sharing: str
) -> None:
    stack = model()
    plan = split_layers(stack, num_stages, replicas, kind, microbatches)
    given = team_stages(stack, GroupPrices(host()), plan, resolve(stack.graph, host(), plan))
    program = lower_stages(stack.graph, host(), plan, given)
    timeline = run_program(program, host(), sharing=sharing)
    plain = simulate(stack.graph, host(), plan, sharing=sharing, granularity="part")
    assert timeline.device_seconds == pytest.approx(plain.device_seconds, rel=0.01)
    # Above it by what is held all the time: buffers of transfers and buckets, and gradients, which
    # op by op are there only once they are made.
    more = max(each.cost.memory.buffer_bytes + each.cost.memory.gradient_bytes for each in given)
    assert max(timeline.peak_bytes) >= max(plain.peak_bytes) * 0.99
    assert max(timeline.peak_bytes) <= max(plain.peak_bytes) * 1.01 + more


def test_such_plans_are_lowered_op_by_op_unless_they_have_too_many() -> None:
    stack, plan = model(), split_layers(model(), 2, tensor=2)
    assert choose_granularity(plan) == "op"
    by_op = simulate(stack.graph, host(), plan)
    assert by_op.step_seconds == simulate(stack.graph, host(), plan, granularity="op").step_seconds
    by_part, by_layer = (
        simulate(stack.graph, host(), plan, granularity=each) for each in ("part", "layer")
    )
    assert by_part.step_seconds == by_layer.step_seconds
    assert by_op.step_seconds == pytest.approx(by_layer.step_seconds, rel=0.1)
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=10**6)
    many = replace(plan, schedule=schedule)
    assert choose_granularity(many) == "part"


def test_without_a_schedule_the_batch_is_one_microbatch() -> None:
    stack = model()
    plan = split_layers(stack, 1, kind=None, tensor=4)
    scheduled = split_layers(stack, 1, kind="gpipe", microbatches=1, tensor=4)
    one, two = (
        simulate(stack.graph, host(), each, granularity="layer") for each in (plan, scheduled)
    )
    assert one.step_seconds == two.step_seconds


def test_a_wider_team_takes_less_time_and_memory_and_talks_more() -> None:
    graph = model().graph
    plans = [split_layers(model(), 1, tensor=width, zero=1) for width in (1, 2, 4, 8)]
    # Links of no kind: calls that run beside weight gradients are short enough to be hidden.
    timelines = [simulate(graph, host().plain, plan) for plan in plans]
    seconds = [each.device_seconds for each in timelines]
    peaks = [max(each.peak_bytes) for each in timelines]
    calls = [float(each.call_seconds.max()) for each in timelines]
    assert seconds == sorted(seconds, reverse=True)
    assert peaks == sorted(peaks, reverse=True)
    assert calls == sorted(calls)
    assert calls[0] == 0
    assert timelines[2].attribution["collective"] == pytest.approx(calls[2], rel=1e-6)


def test_recomputation_takes_longer_and_holds_less() -> None:
    plans = [split_layers(model(), 2, microbatches=4, recompute=each, zero=1) for each in Recompute]
    timelines = [simulate(model().graph, host(), plan) for plan in plans]
    assert timelines[0].device_seconds < timelines[1].device_seconds < timelines[2].device_seconds
    assert timelines[0].peak_bytes[0] > timelines[1].peak_bytes[0] > timelines[2].peak_bytes[0]


def test_zero_divides_what_is_held() -> None:
    plans = [split_layers(model(), 1, 8, "gpipe", 2, zero=stage) for stage in (1, 2, 3)]
    held = [float(lower(model().graph, host(), each, "part").state_bytes[0]) for each in plans]
    assert held[0] > held[1]
    kinds = [set(lower(model().graph, host(), each, "part").instructions["kind"]) for each in plans]
    assert {Kind.REDUCE_SCATTER, Kind.ALL_GATHER} <= kinds[0]
    assert all({Kind.REDUCE_SCATTER, Kind.ALL_GATHER} <= each for each in kinds[1:])


def test_tied_weights_are_kept_equal_by_their_gradients() -> None:
    stack = tied_model()
    assert stack.tied_bytes > 0
    plan = split_layers(stack, 2, 2, tensor=2, recompute=Recompute.FULL)
    rows = lower(stack.graph, host(), plan, "part").instructions
    tied = rows[(rows["kind"] == Kind.SEND) & (rows["tensor"] < 0)]
    assert len(tied) == 4  # two pairs of teams, both ways
    assert tied["bytes"].tolist() == [stack.tied_bytes] * 4
    alone = split_layers(stack, 1, 2, tensor=2)
    rows = lower(stack.graph, host(), alone, "part").instructions
    assert not (rows["kind"] == Kind.SEND).any()


@pytest.mark.parametrize("zero", [1, 3])
def test_tied_weights_take_by_layer_what_they_take_op_by_op(zero: int) -> None:
    """Of BERT on two hosts: eight replicas send their gradients of the words over one link."""
    graph, cluster = load_graph("bert-base"), find_cluster("dgx1-x2")
    plan = Plan.from_degrees(graph, cluster, pipeline=2, data=8, microbatches=2, zero=zero)
    layer, op = (
        simulate(graph, cluster, plan, granularity=each).step_seconds for each in ("layer", "op")
    )
    assert layer == pytest.approx(op, rel=0.01)


def test_a_layer_must_not_be_divided_between_parts() -> None:
    stack, plan = model(), split_layers(model(), 2, tensor=2)
    moved = plan.parts[0].ops[-1]
    parts = (
        replace(plan.parts[0], ops=plan.parts[0].ops[:-1]),
        replace(plan.parts[1], ops=(*plan.parts[1].ops, moved)),
    )
    with pytest.raises(InputError, match=r"a part must hold whole layers, but layer . is in part"):
        lower(stack.graph, host(), Plan(parts=parts), "part")


def test_layers_must_stand_in_order() -> None:
    plan = split_layers(model(), 2, tensor=2, kind=None)
    with pytest.raises(InputError) as caught:
        lower(model().graph, host(), Plan(parts=plan.parts[::-1]), "part")
    assert str(caught.value) == (
        "part 1: with tensor, context or expert parallelism, ZeRO or recomputation parts must hold "
        "the layers in order, but layer 4 is in part 0"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tensor": 3}, "part 0: tensor must divide heads of .*, got 3"),
        (
            {"tensor": 2, "sync": Sync.RING},
            "part 0: with tensor, context or expert parallelism, ZeRO or recomputation sync must "
            "be all_reduce, got ring",
        ),
    ],
)
def test_what_stages_cannot_be_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        lower(model().graph, host(), split_layers(model(), 2, **change), "part")


def test_a_model_without_layers_cannot_have_teams() -> None:
    graph: Graph = layers(1)
    plan = stages(graph, [["d0", "d1"]], tensor=2)
    with pytest.raises(InputError, match="graph layers: "):
        simulate(graph, connected(2), plan)


def test_people_see_every_member(tmp_path: Path) -> None:
    graph, plan = model().graph, split_layers(model(), 2, tensor=2)
    timeline = simulate(graph, host(), plan, granularity="layer", with_links=True)
    lines = draw_activities(timeline, range(8), 40)
    assert lines[0] == lines[1] != lines[2] == lines[3]
    text = io.StringIO()
    show_simulation(Console(file=text, width=120), graph, host(), plan, timeline)
    assert text.getvalue().count("stage 1") == 1
    assert "host0.2-host0.3 (2)" in text.getvalue()
    write_trace(timeline, host(), tmp_path / "trace.json")
    assert "host0.0 (group of 2)" in (tmp_path / "trace.json").read_text()


def test_pairs_that_are_listed_take_what_tables_say() -> None:
    graph = layers(4, activation=3.0, gradient=2.0, batch=8)
    cluster = load_cluster("spine-leaf-2x2x2x4-o2")
    names = [device.name for device in cluster.devices]
    plan = stages(graph, [names[4 * s : 4 * s + 4 - s] for s in range(4)], "1f1b", 4)
    program = lower(graph, cluster, plan, "part")
    listed = replace(program, teams=tuple((number,) for number in range(cluster.num_devices)))
    for sharing in ("none", "fair"):
        one, two = (
            run_program(each, cluster, sharing=sharing, with_links=True)
            for each in (program, listed)
        )
        assert np.allclose(one.finish, two.finish)
        if sharing == "fair":
            assert np.allclose(link_utilisation(one), link_utilisation(two))


def test_thousands_of_devices_need_no_tables_of_pairs() -> None:
    cluster = load_cluster("h100-spineleaf-2048")
    names = tuple(device.name for device in cluster.devices)
    plan = split_layers(model(), 2, microbatches=2)
    parts = tuple(
        replace(part, devices=names[1024 * s : 1024 * (s + 1)], tensor=8, context=8)
        for s, part in enumerate(plan.parts)
    )
    timeline = simulate(
        model().graph, cluster, Plan(parts=parts, schedule=plan.schedule), granularity="layer"
    )
    assert timeline.step_seconds > 0
    assert len(timeline.peak_bytes) == 2048
    assert "routing" not in cluster.__dict__


def test_zero_bubble_holds_what_it_holds_from_its_ops() -> None:
    # Not to a percent: plain plans postpone all that no other stage waits for, on the first stage
    # all of backward.
    stack = model()
    plan = split_layers(stack, 4, 1, "zero-bubble", 8)
    given = team_stages(stack, GroupPrices(host()), plan, resolve(stack.graph, host(), plan))
    timeline = run_program(lower_stages(stack.graph, host(), plan, given), host())
    plain = simulate(stack.graph, host(), plan, granularity="part")
    assert timeline.device_seconds == pytest.approx(plain.device_seconds, rel=0.06)
    ratio = np.array(timeline.peak_bytes[:4]) / np.array(plain.peak_bytes[:4])
    assert ratio.min() > 0.95
    assert ratio.max() < 1.2


def test_recomputation_does_not_shrink_what_weight_gradients_read() -> None:
    peaks = [
        simulate(
            model().graph, host(), split_layers(model(), 4, 1, kind, 8, recompute=Recompute.FULL)
        ).peak_bytes[1]
        for kind in ("1f1b", "zero-bubble")
    ]
    assert peaks[1] > 1.2 * peaks[0]


def test_zero_bubble_is_no_slower_than_1f1b() -> None:
    # What is weight gradient differs from what no other stage waits for, which plain plans go by.
    times = [
        simulate(model().graph, host(), split_layers(model(), 4, 1, kind, 8, tensor=2))
        for kind in ("1f1b", "zero-bubble")
    ]
    assert times[1].device_seconds < times[0].device_seconds
