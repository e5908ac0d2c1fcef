"""Strategies as plans, and what the evaluator says of them."""

from functools import partial

import numpy as np
import pytest
from deploy_cases import chain, hosts
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.check import resolve
from meshwright.plan.plan import Sync
from meshwright.search.judge import try_plan
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import GroupAction, GroupOption
from meshwright.search.portfolio import search_by
from meshwright.source import zoo_graph

data = partial(search_by, "data")

SMALL = analyse(
    chain([4.0, 8.0, 2.0], [3.0, 1.0, 2.0], activation=1.0), hosts([("fast", 2), ("slow", 2)])
)


def action(analysis: Analysis, option: GroupOption, places: tuple[int, ...]) -> GroupAction:
    return next(
        each for each in analysis.actions if each.option is option and each.places == places
    )


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_every_strategy_of_the_menu_is_a_legal_plan(draw: st.DataObject) -> None:
    strategy = tuple(draw.draw(st.sampled_from(SMALL.actions)) for _ in range(SMALL.num_groups))
    duplicated = draw.draw(st.sets(st.integers(0, SMALL.graph.num_ops - 1), max_size=3))
    duplicated = {op for op in duplicated if SMALL.graph.op_names[op][0] in "fbw"}
    plan = make_plan(SMALL, strategy, duplicated)
    placement = resolve(SMALL.graph, SMALL.cluster, plan)
    for op in range(SMALL.graph.num_ops):
        chosen = strategy[SMALL.group_of[op]]
        on = placement.replica_device[placement.replicas(int(placement.part_of_op[op]))].tolist()
        if chosen.option is GroupOption.MODEL or len(chosen.devices) == 1:
            assert len(on) == 1
            assert on[0] in chosen.devices
        else:
            assert tuple(on) == chosen.devices
            sync = plan.parts[placement.part_of_op[op]].sync
            assert (sync is Sync.DUPLICATE) == (
                chosen.option is GroupOption.DUPLICATE or op in duplicated
            )


def test_groups_that_run_alike_are_one_part() -> None:
    every = SMALL.actions[0]
    servers = action(SMALL, GroupOption.PARAMETER_SERVER, (0, 1))
    assert len(make_plan(SMALL, (every,) * 3).parts) == 1
    parts = make_plan(SMALL, (every, servers, every)).parts
    assert [part.sync for part in parts] in (
        [Sync.ALL_REDUCE, Sync.PARAMETER_SERVER],
        [Sync.PARAMETER_SERVER, Sync.ALL_REDUCE],
    )


def test_data_parallelism_is_the_reference_and_takes_what_the_method_says() -> None:
    graph, cluster = zoo_graph("bert-small"), find_cluster("tag-testbed")
    evaluator = Evaluator(analyse(graph, cluster))
    assert evaluator.reference_seconds == pytest.approx(data(graph, cluster).step_seconds, rel=1e-6)
    assert evaluator.reward(evaluator.evaluate(evaluator.data_parallel)) == 0.0


def test_an_evaluation_is_what_the_judge_says_of_the_plan_and_is_remembered() -> None:
    evaluator = Evaluator(SMALL)
    strategy = (action(SMALL, GroupOption.MODEL, (0,)), SMALL.actions[0], SMALL.actions[0])
    found = evaluator.evaluate(strategy)
    verdict = try_plan(SMALL.graph, SMALL.cluster, make_plan(SMALL, strategy))
    assert found.step_seconds == verdict.step_seconds
    assert found.fits == verdict.fits
    count = evaluator.num_evaluations
    assert evaluator.evaluate(strategy) is found
    assert evaluator.num_evaluations == count


def test_what_does_not_fit_is_rewarded_with_minus_one() -> None:
    graph = chain([4.0, 8.0], [1.0, 1.0], state=10.0)
    analysis = analyse(graph, hosts([("fast", 1), ("slow", 1)], memory_bytes=15.0))
    evaluator = Evaluator(analysis)
    found = evaluator.evaluate(evaluator.data_parallel)
    assert not found.fits
    assert evaluator.reward(found) == -1.0
    apart = tuple(
        next(each for each in analysis.actions if each.devices == (device,)) for device in (0, 1)
    )
    assert evaluator.evaluate(apart).fits
    assert evaluator.evaluate(apart).rank < found.rank


def test_undecided_groups_follow_the_first_where_they_can_run() -> None:
    evaluator = Evaluator(SMALL)
    one = action(SMALL, GroupOption.ALL_REDUCE, (1,))
    assert evaluator.complete(()) == evaluator.data_parallel
    assert evaluator.complete((one,)) == (one,) * 3
    assert evaluator.complete((one, SMALL.actions[0])) == (one, SMALL.actions[0], one)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_feedback_is_in_fractions(draw: st.DataObject) -> None:
    strategy = tuple(draw.draw(st.sampled_from(SMALL.actions)) for _ in range(SMALL.num_groups))
    feedback = Evaluator(SMALL).evaluate(strategy).feedback
    for values in (feedback.group_start, feedback.group_finish, feedback.place_idle):
        assert np.isfinite(values).all()
        assert (values >= 0).all()
        assert (values <= 1 + 1e-9).all()
    assert (feedback.group_start <= feedback.group_finish).all()
    assert feedback.link_idle.shape == (2, 2)
    assert (feedback.link_idle >= 0).all()


def test_feedback_by_hand() -> None:
    # One layer on two fast devices: 4 FLOP a phase at 2 a second and half the batch: 3 x 1 s, then
    # an all-reduce of 50 bytes over links of 100 bytes/s within the host: 0.5 s.
    analysis = analyse(chain([4.0], [50.0]), hosts([("fast", 2), ("slow", 1)]))
    both = action(analysis, GroupOption.ALL_REDUCE, (0,))
    evaluation = Evaluator(analysis).evaluate((both,))
    assert evaluation.step_seconds == pytest.approx(3.5)
    feedback = evaluation.feedback
    assert feedback.group_busy == pytest.approx([3.0 / 3.5])
    assert feedback.place_idle == pytest.approx([0.5 / 3.5, 1.0])
    assert feedback.link_idle == pytest.approx(np.array([[3.0 / 3.5, 1.0], [1.0, 1.0]]))
