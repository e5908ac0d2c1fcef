"""Legal steps that methods used to crash on: each is answered, or refused by name."""

import numpy as np
import pytest
from search_strategies import make_cluster

from meshwright.cluster.build import hierarchical
from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.part import Part
from meshwright.plan.plan import Plan
from meshwright.search.instance import make_instance, order_plan
from meshwright.search.method.name import LAYERED, METHODS
from meshwright.search.method.pipeline.consecutive import possible_microbatches
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import simulate

BUDGET_SECONDS = 0.2


def saved_pair() -> Graph:
    """A backward op that reads what its forward op saved: no tensor says that it comes after."""
    builder = GraphBuilder("saved", batch=1)
    forward = builder.add_op("forward", seconds={"any": 1.0}, saved_bytes=20.0, group=0)
    builder.add_op("backward", phase=Phase.BACKWARD, partner=forward, seconds={"any": 3.0}, group=0)
    builder.add_op("other", seconds={"any": 2.0})
    return builder.finish()


@pytest.mark.parametrize("method", METHODS)
def test_what_is_saved_comes_first_on_any_network(method: str) -> None:
    # At half a byte a second a byte less to move is two seconds: ranks fell below their readers.
    cluster = make_cluster(["fast", "fast"], rate=0.5)
    answer = find_plan(saved_pair(), cluster, method, budget_seconds=BUDGET_SECONDS)
    assert answer.plan is not None or method in (*LAYERED, "consecutive", "pipedream")


def test_an_order_that_forgets_what_is_saved_is_mended() -> None:
    graph = saved_pair()
    instance = make_instance(graph, make_cluster(["fast", "fast"]))
    on_one = order_plan(instance, [0, 0, 0], [1, 2, 0])
    assert simulate(graph, instance.cluster, on_one).step_seconds == 6.0
    names = [part.ops for part in on_one.parts]
    by_priority = sorted(zip(on_one.parts[0].priorities, names[0], strict=True), reverse=True)
    assert [name for _, name in by_priority] == ["other", "forward", "backward"]


def test_what_an_update_saves_is_held_once_under_microbatches() -> None:
    builder = GraphBuilder("update", batch=4)
    forward = builder.add_op("forward", seconds={"any": 1.0})
    update = builder.add_op(
        "update", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 1.0}, saved_bytes=8.0
    )
    builder.add_tensor(forward, 4.0, [update])
    graph, cluster = builder.finish(), make_cluster(["fast"])
    for method in ("pipeline", "consecutive"):
        answer = find_plan(graph, cluster, method, budget_seconds=BUDGET_SECONDS, microbatches=[4])
        assert answer.plan is not None
        assert answer.peak_bytes[0] >= 8.0


@pytest.mark.parametrize("method", METHODS)
def test_a_step_without_tensors_is_planned(method: str) -> None:
    builder = GraphBuilder("apart", batch=2)
    for number in range(3):
        builder.add_op(f"op{number}", seconds={"any": 1.0 + number})
    cluster = make_cluster(["fast", "fast", "fast"])
    answer = find_plan(builder.finish(), cluster, method, budget_seconds=BUDGET_SECONDS)
    assert answer.plan is not None or method in LAYERED


@pytest.mark.parametrize("phases", [(0, 2, 0, 1), (0, 1, 0, 1), (2, 0, 2, 0)])
@pytest.mark.parametrize("method", METHODS)
def test_phases_in_any_order_are_planned_or_refused(method: str, phases: tuple[int, ...]) -> None:
    builder = GraphBuilder("phases", batch=2)
    for number, phase in enumerate(phases):
        builder.add_op(
            f"layer.{number}/mm",
            kind="mm",
            module=f"layer.{number}",
            phase=Phase(phase),
            seconds={"any": 1.0},
            saved_bytes=4.0,
        )
    for number in range(len(phases) - 1):
        builder.add_tensor(number, 4.0, [number + 1])
    cluster = make_cluster(["fast", "fast"])
    answer = find_plan(builder.finish(), cluster, method, budget_seconds=BUDGET_SECONDS)
    assert answer.plan is not None or answer.binding


def test_hybrid_says_what_the_simulator_says_on_a_link_that_crawls() -> None:
    cluster = hierarchical(
        devices_per_host=2, branching=[2], device_bytes_per_second=3e11, host_bytes_per_second=7.0
    )
    graph = gpt(
        hidden=64, heads=4, layers=2, sequence=32, vocabulary=128, positions=64, batch=12,
        precision="bf16", name="small",
    )  # fmt: skip
    answer = find_plan(graph, cluster, "hybrid", budget_seconds=0.03)
    assert answer.plan is not None
    assert answer.step_seconds == simulate(graph, cluster, answer.plan).step_seconds
    for other in answer.runner_ups:
        assert other.step_seconds == simulate(graph, cluster, other.plan).step_seconds


def test_no_answer_leaves_with_a_bound_above_its_step() -> None:
    plan = Plan(parts=(Part(ops=("a",), devices=("d",)),))
    Answer(method="m", plan=plan, step_seconds=1.0, bound_seconds=1.0, stop=Stop.PROVED)
    Answer(method="m", plan=None, step_seconds=np.inf, bound_seconds=1.0, stop=Stop.INFEASIBLE)
    for bound in (1.001, np.inf, np.nan):
        with pytest.raises(
            AssertionError, match=r"m: a plan of 1\.0 s is faster than what was pro"
        ):
            Answer(method="m", plan=plan, step_seconds=1.0, bound_seconds=bound, stop=Stop.PROVED)


def test_microbatches_are_refused_where_samples_are_mixed() -> None:
    builder = GraphBuilder("mixed", batch=4)
    builder.add_op("gram", split=Split.NONE, mixes=True, seconds={"any": 1.0})
    cluster = make_cluster(["fast"])
    with pytest.raises(InputError, match="microbatches: must be 1, because op 'gram' of graph mix"):
        find_plan(builder.finish(), cluster, "pipeline", microbatches=[1, 2])


def test_numbers_of_microbatches_are_found_for_a_batch_of_billions() -> None:
    builder = GraphBuilder("billions", batch=2**31)
    builder.add_op("a", seconds={"any": 1.0})
    found = possible_microbatches(builder.finish(), 4)
    assert found == [2**power for power in range(20)]  # a schedule has a million at the most


@pytest.mark.parametrize("method", ["data", "data-proportional", "horovod"])
def test_a_gradient_after_an_update_is_not_synchronised_with_one_before(method: str) -> None:
    builder = GraphBuilder("twice", batch=4)
    tick = {"any": 1.0}
    first = builder.add_op("w0", phase=Phase.BACKWARD, split=Split.SUM, seconds=tick)
    update = builder.add_op("u0", phase=Phase.UPDATE, split=Split.NONE, seconds=tick)
    second = builder.add_op("w1", phase=Phase.BACKWARD, split=Split.SUM, seconds=tick)
    last = builder.add_op("u1", phase=Phase.UPDATE, split=Split.NONE, seconds=tick)
    builder.add_tensor(first, 1.0, [update], fixed_bytes=1.0, partial=True)
    builder.add_tensor(update, 1.0, [second], fixed_bytes=1.0)
    builder.add_tensor(second, 1.0, [last], fixed_bytes=1.0, partial=True)
    answer = find_plan(builder.finish(), make_cluster(["fast", "fast"]), method)
    assert np.isfinite(answer.step_seconds)


def test_devices_that_take_the_least_of_times_share_alike() -> None:
    builder = GraphBuilder("denormal", batch=4)
    builder.add_op("a", seconds={"any": 5e-324})
    answer = find_plan(builder.finish(), make_cluster(["fast", "fast"]), "data-proportional")
    assert answer.statistics["replicas"] == 2
