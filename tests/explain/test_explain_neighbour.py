"""What each decision is said to be worth is what simulating the other plan gives."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright.cluster.cluster import Cluster
from meshwright.explain.explain import explain_plan
from meshwright.explain.explanation import Explanation
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync, place_ops
from meshwright.plan.request import Request
from meshwright.search.judge import judge_timeline
from small import connected, dag, layers, stages

MODEL = "gpt:hidden=128,heads=4,layers=4,sequence=32,vocabulary=64,batch=8"


@cache
def case() -> tuple[Graph, Cluster]:
    return mw.load_graph(MODEL), mw.cluster("a100-80-x4")


def explained(graph: Graph, cluster: Cluster, plan: Plan, **more: Any) -> Explanation:
    """By layer where there are such, which takes milliseconds."""
    more = {"granularity": None if plan.is_plain else "layer", **more}
    found = explain_plan(Request(graph=graph, cluster=cluster), plan, rivals=0, **more)
    check(graph, cluster, plan, found)
    return found


def check(graph: Graph, cluster: Cluster, plan: Plan, found: Explanation) -> None:
    """Every neighbour is exactly what `simulate` and the judge of searches say of it."""
    step = mw.simulate(graph, cluster, plan, granularity=found.granularity).step_seconds
    assert found.step_seconds == step
    for each in found.neighbours:
        if each.plan is None:
            assert each.obstacle
            continue
        assert each.plan != plan
        alone = mw.simulate(graph, cluster, each.plan, granularity=found.granularity)
        assert each.step_seconds == alone.step_seconds
        assert each.slower == alone.step_seconds / step - 1
        verdict = judge_timeline(graph, cluster, alone)
        assert (each.missing_bytes, each.fits) == (verdict.missing_bytes, verdict.fits)


def decisions(found: Explanation) -> set[str]:
    return {f"{each.decision}; {each.change}" for each in found.neighbours}


def test_a_pipeline_is_held_against_one_layer_more_and_less_at_every_boundary() -> None:
    graph, cluster = case()
    plan = Plan.from_degrees(
        graph, cluster, tensor=2, pipeline=2, microbatches=4, layers=[3, 3],
        sequence_parallel=True, recompute="selective",
    )  # fmt: skip
    found = explained(graph, cluster, plan)
    told = decisions(found)
    assert "stage 1 has 3 layers (3 to head); one layer more, 2 from stage 0" in told
    assert "stage 0 has 3 layers (embedding to 2); one layer more, 3 from stage 1" in told
    more = next(each for each in found.neighbours if "2 from stage 0" in each.change)
    by_hand = Plan.from_degrees(
        graph, cluster, tensor=2, pipeline=2, microbatches=4, layers=[2, 4],
        sequence_parallel=True, recompute="selective",
    )  # fmt: skip
    assert more.plan == by_hand
    wanted = {
        "tensor 2, data 1; data doubled, tensor halved",
        "pipeline 2, tensor 2; tensor doubled, pipeline halved",
        "pipeline 2, tensor 2; pipeline doubled, tensor halved",
        "4 microbatches; doubled to 8",
        "4 microbatches; halved to 2",
        "schedule 1f1b; gpipe",
        "schedule 1f1b; zero-bubble",
        "recompute selective; none",
        "recompute selective; full",
        "sequence parallel; rows whole",
    }
    assert wanted <= told


def test_degrees_that_are_doubled_and_halved_are_those_of_from_degrees() -> None:
    graph, cluster = case()
    plan = Plan.from_degrees(graph, cluster, tensor=2, data=2)
    found = explained(graph, cluster, plan)
    by_change = {each.change: each.plan for each in found.neighbours}
    assert by_change["tensor doubled, data halved"] == Plan.from_degrees(
        graph, cluster, tensor=4, data=1
    )
    assert by_change["pipeline doubled, data halved"] == Plan.from_degrees(
        graph, cluster, tensor=2, pipeline=2, data=1
    )
    assert by_change["context doubled, data halved"] == Plan.from_degrees(
        graph, cluster, tensor=2, context=2, data=1
    )
    zeros = [each.plan for each in found.neighbours if each.decision == "zero 0"]
    assert zeros == [Plan.from_degrees(graph, cluster, tensor=2, data=2, zero=z) for z in (1, 2, 3)]


def chain(count: int) -> Graph:
    """Forward ops f0, f1, ... no two of which are alike, and their backward b0, b1, ..."""
    builder = GraphBuilder("chain", batch=2)
    f = [builder.add_op(f"f{i}", kind=f"f{i}", seconds={"any": 2.0}) for i in range(count)]
    b = [
        builder.add_op(
            f"b{i}", kind=f"b{i}", phase=Phase.BACKWARD, seconds={"any": 4.0}, partner=f[i]
        )
        for i in range(count)
    ]
    for i in range(count):
        output = builder.add_tensor(f[i], 0.5, [b[i]])
        if i + 1 < count:
            builder.add_use(output, f[i + 1])
        builder.add_tensor(b[i], 0.5, [b[i - 1]] if i else [])
    return builder.finish()


def test_stages_of_a_graph_without_layers_give_and_take_blocks() -> None:
    graph = chain(6)
    plan = stages(graph, [["d0"], ["d1"], ["d2"]], "1f1b", 2)
    found = explained(graph, connected(3), plan)
    moved = {
        each.change: [len(part.ops) for part in each.plan.parts]
        for each in found.neighbours
        if each.plan is not None and "ops more" in each.change
    }
    assert moved == {
        "2 ops more (f1 and its own) from stage 0": [2, 6, 4],
        "2 ops more (f2 and its own) from stage 1": [6, 2, 4],
        "2 ops more (f3 and its own) from stage 1": [4, 2, 6],
        "2 ops more (f4 and its own) from stage 2": [4, 6, 2],
    }


def test_a_placement_is_held_against_its_heaviest_ops_on_other_devices() -> None:
    graph = dag([5, 10, 5], {(0, 1): 5, (0, 2): 5})
    plan = place_ops(graph.op_names, [0, 0, 1], ["d0", "d1"])
    found = explained(graph, connected(2), plan)
    by_decision = {each.decision: each for each in found.neighbours}
    # QuickP's fork takes 15 s; with the long op on d1 5 + 5 + 10 + 5.
    assert found.step_seconds == 15
    assert by_decision["o1 on d0"].step_seconds == 25
    assert by_decision["o2 on d1"].step_seconds == 20
    assert by_decision["o2 on d1"].slower == pytest.approx(1 / 3)


def test_a_replicated_part_is_held_against_other_ways_to_add_up_gradients() -> None:
    graph = layers(2, forward=2, backward=4, gradient=3, batch=4)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0", "d1")),))
    found = explained(graph, connected(2), plan)
    told = decisions(found)
    others = [each for each in Sync if each is not Sync.ALL_REDUCE]
    assert {f"the step: gradients by all_reduce; {each}" for each in others} <= told
    assert "the step on 2 devices; not replicated, on d0" in told


def test_unequal_replicas_are_held_against_a_sample_more_and_less() -> None:
    graph = layers(1, forward=4, backward=8, gradient=1, batch=4)
    cluster = connected(2, types=["fast", "slow"])
    whole = Part(ops=graph.op_names, devices=("d0", "d1"), shares=(0.75, 0.25))
    found = explained(graph, cluster, Plan(parts=(whole,)))
    shares = [
        each.plan.parts[0].shares
        for each in found.neighbours
        if each.plan is not None and "one more" in each.change
    ]
    assert [tuple(np.round(each, 9)) for each in shares] == [(0.5, 0.5)]
    refused = [each for each in found.neighbours if "one more" in each.change and not each.plan]
    assert [each.obstacle for each in refused] == [
        "part 0: a replica must have at least one sample"
    ]
    assert "d1 has 1 samples of a microbatch; one more, from d0" in decisions(found)


def test_a_plan_that_is_slower_than_a_neighbour_says_so() -> None:
    graph = dag([5, 10, 5], {(0, 1): 5, (0, 2): 5})
    plan = place_ops(graph.op_names, [0, 1, 1], ["d0", "d1"])  # 25 s
    found = explained(graph, connected(2), plan)
    assert found.faster[0].slower == pytest.approx(15 / 25 - 1)
    assert found.faster[0].is_faster


@pytest.mark.parametrize("most", [0, 1, 5])
def test_simulations_are_counted(most: int) -> None:
    graph, cluster = case()
    plan = Plan.from_degrees(graph, cluster, tensor=2, data=2)
    found = explained(graph, cluster, plan, simulations=most)
    assert sum(each.plan is not None for each in found.neighbours) == most
    assert found.not_tried > 0


def test_what_does_not_fit_says_what_is_missing_and_what_memory_decides() -> None:
    graph, cluster = case()
    plan = Plan.from_degrees(graph, cluster, tensor=2, data=2, zero=1, recompute="full")
    peak = max(mw.simulate(graph, cluster, plan, granularity="layer").peak_bytes)
    devices = tuple(replace(each, memory_bytes=peak * 1.06) for each in cluster.devices)
    tight = replace(cluster, name="tight", devices=devices)
    found = explained(graph, tight, plan)
    plain = next(each for each in found.neighbours if each.decision == "recompute full")
    assert plain.change == "none"
    assert not plain.fits
    assert plain.missing_bytes > 0
    assert plain in found.forced
    assert plain.slower < 0


def test_memory_is_told_for_the_fullest_device_of_each_part() -> None:
    graph, cluster = case()
    plan = Plan.from_degrees(graph, cluster, tensor=2, pipeline=2, microbatches=2)
    found = explained(graph, cluster, plan, simulations=0)
    timeline = mw.simulate(graph, cluster, plan, granularity="layer")
    assert len(found.memory) == 2
    for held in found.memory:
        device = cluster.index[held.device]
        assert held.peak_bytes == timeline.peak_bytes[device]
        assert sum(held.items.values()) == pytest.approx(held.peak_bytes)
        when, size = timeline.memory(device)
        assert size[np.searchsorted(when, held.at_seconds, side="right") - 1] <= held.peak_bytes
        assert held.at_seconds == when[np.argmax(size)]


def rivals(found: Explanation) -> Sequence[str]:
    return [each.kind for each in found.rivals]


def test_rivals_lose_what_their_shares_differ_by() -> None:
    graph, cluster = case()
    plan = Plan.from_degrees(graph, cluster, tensor=2, data=2)
    found = explain_plan(
        Request(graph=graph, cluster=cluster), plan, simulations=0, rivals=2, granularity="layer"
    )
    assert rivals(found) == ["single", "data"]
    for each in found.rivals:
        if np.isfinite(each.step_seconds):
            lost = sum(each.because.values())
            assert lost == pytest.approx(each.step_seconds - found.step_seconds)
            assert each.slower == each.step_seconds / found.step_seconds - 1


def test_a_schedule_of_one_stage_has_no_boundaries() -> None:
    graph = layers(2, batch=2)
    part = Part(ops=graph.op_names, devices=("d0",))
    plan = Plan(parts=(part,), schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=2))
    found = explained(graph, connected(2), plan)
    assert not [each for each in found.neighbours if "stage" in each.decision]
