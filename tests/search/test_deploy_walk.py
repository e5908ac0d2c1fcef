"""FlexFlow-like walks over strategies: what they start from, keep to and never lose."""

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from search_strategies import make_cluster

from counted import counted_clock
from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.build import GraphBuilder
from meshwright.plan.answer import Stop
from meshwright.search.clock import Clock
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.baseline import walk_strategies
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.portfolio import search_by
from meshwright.search.warm import small_step
from meshwright.source import zoo_graph

flexflow = partial(search_by, "flexflow")
mcts = partial(search_by, "mcts")


def walk(analysis: Analysis, steps: int, seed: int = 0, beta: float = 300.0) -> Strategy:
    evaluator = Evaluator(analysis)
    found = walk_strategies(evaluator, clock=Clock(), seed=seed, steps=steps, beta=beta)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse(zoo_graph("alexnet-32", 32), find_cluster("mixed-s2"), max_groups=6)


def test_one_step_is_data_parallelism(analysis: Analysis) -> None:
    assert walk(analysis, 1) == Evaluator(analysis).data_parallel


def test_no_walk_is_slower_than_data_parallelism(analysis: Analysis) -> None:
    evaluator = Evaluator(analysis)
    for seed in range(2):
        found = walk(analysis, 20, seed)
        assert evaluator.rank(found) <= evaluator.rank(evaluator.data_parallel)


def test_the_same_seed_walks_the_same_way(analysis: Analysis) -> None:
    assert walk(analysis, 20, seed=1) == walk(analysis, 20, seed=1)


def test_all_actions_are_of_the_menu_and_allowed(analysis: Analysis) -> None:
    for group, action in enumerate(walk(analysis, 20, seed=2)):
        assert analysis.allowed[group, analysis.actions.index(action)]


def test_few_strategies_are_walked_to_the_best() -> None:
    # Two groups and a menu of a few actions: a long walk meets all strategies.
    graph, cluster = small_step(), make_cluster(["fast", "slow"], rate=1e9)
    analysis = analyse(graph, cluster, max_groups=2)
    evaluator = Evaluator(analysis)
    choices = [[analysis.actions[k] for k in np.flatnonzero(row)] for row in analysis.allowed]
    best = min(evaluator.rank(each) for each in product(*choices))
    assert evaluator.rank(walk(analysis, 2000, beta=1.0)) == best


def test_the_time_is_kept() -> None:
    graph, cluster = zoo_graph("vgg16-32", 32), find_cluster("tag-testbed")
    with counted_clock() as clock:
        answer = flexflow(graph, cluster, budget_seconds=50 * clock.tick_seconds)
    assert clock.looks <= 50 + 20  # what is begun ends, and has a look when it does
    assert (answer.method, answer.stop) == ("flexflow", Stop.LIMIT)
    assert answer.bound_seconds <= answer.step_seconds <= answer.statistics["first_seconds"]


def test_memory_is_a_wall() -> None:
    # Six ops that hold 10 bytes each on two devices of 40: data parallelism needs 60 on each, and
    # only strategies that place ops apart fit.
    builder = GraphBuilder("state", 4)
    for number in range(6):
        builder.add_op(f"op{number}", seconds={"any": 1.0}, state_bytes=10.0)
        if number:
            builder.add_tensor(number - 1, 1.0, [number])
    cluster = make_cluster(["fast"] * 2, memory_bytes=40.0)
    answer = flexflow(builder.finish(), cluster, budget_seconds=5.0, steps=300)
    assert answer.plan is not None
    assert max(answer.peak_bytes) <= 40.0


def test_what_no_device_runs_is_refused() -> None:
    builder = GraphBuilder("nowhere")
    builder.add_op("alien", seconds={"fast": math.inf})
    answer = flexflow(builder.finish(), make_cluster(["fast"] * 2), budget_seconds=1.0)
    assert answer.stop is Stop.INFEASIBLE
    assert "'alien'" in answer.binding


@pytest.mark.parametrize(("search", "name"), [(flexflow, "rank"), (mcts, "evaluate")])
def test_ctrl_c_ends_baselines_with_the_best_so_far(
    search: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, evaluate = 0, getattr(Evaluator, name)

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 12:
            raise KeyboardInterrupt
        return evaluate(*arguments)

    monkeypatch.setattr(Evaluator, name, interrupted)
    answer = search(small_step(), make_cluster(["fast", "slow"], rate=1e9))
    assert answer.plan is not None
    assert answer.stop is Stop.INTERRUPTED


def test_walks_and_trees_end_when_nothing_is_left_to_try() -> None:
    # One device: one strategy.
    for search in (flexflow, mcts):
        answer = search(small_step(), make_cluster(["fast"]), budget_seconds=1e6)
        assert answer.plan is not None
        assert answer.stop in (Stop.ENDED, Stop.PROVED)
