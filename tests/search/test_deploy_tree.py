"""The tree search: PUCT by hand, the optimum of small instances, priors, seeds, memory."""

import math
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from deploy_cases import chain, hosts

from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Floats
from meshwright.search.clock import Clock
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.evaluate import OUT_OF_MEMORY, Evaluator, StrategyEvaluation
from meshwright.search.method.deploy.option import GroupAction, GroupOption, Strategy
from meshwright.search.method.deploy.tree.tree import Prior, Tree, iterations_to_beat, uniform_prior

NO_FIT = -2.0


class Table:
    """An evaluator whose rewards are told, by the numbers of actions."""

    def __init__(
        self, rewards: Callable[[tuple[int, ...]], float], num_groups: int, num_actions: int
    ) -> None:
        self.actions = tuple(
            GroupAction(places=(k,), devices=(k,), option=GroupOption.ALL_REDUCE)
            for k in range(num_actions)
        )
        self.analysis = SimpleNamespace(
            actions=self.actions,
            allowed=np.ones((num_groups, num_actions), dtype=np.bool_),
            num_groups=num_groups,
        )
        self.rewards = rewards
        self.simulated: list[tuple[int, ...]] = []
        self.data_parallel = (self.actions[0],) * num_groups

    def evaluate(self, strategy: Strategy) -> StrategyEvaluation:
        numbers = tuple(action.places[0] for action in strategy)
        if numbers not in self.simulated:
            self.simulated.append(numbers)
        reward = self.rewards(numbers)
        return StrategyEvaluation(
            step_seconds=1.0 / (1.0 + reward) if reward > NO_FIT else 1.0,
            missing_bytes=0.0 if reward > NO_FIT else 1.0,
            feedback=cast(Any, None),
        )

    def reward(self, evaluation: StrategyEvaluation) -> float:
        return 1.0 / evaluation.step_seconds - 1.0 if evaluation.fits else OUT_OF_MEMORY

    def complete(self, prefix: Strategy) -> Strategy:
        first = prefix[0] if prefix else self.actions[0]
        return prefix + (first,) * (len(self.data_parallel) - len(prefix))


def make_tree(table: Table, prior: Prior, **options: Any) -> Tree:
    return Tree(cast(Evaluator, table), prior, **options)


def fixed(*beliefs: float) -> Prior:
    return lambda *_: np.array(beliefs)


TWO_LEVELS: dict[tuple[int, ...], float] = {(0, 0): 0.0, (0, 1): -0.5, (1, 1): 1.0, (1, 0): 2.0}


def test_puct_on_two_levels_is_as_by_hand() -> None:
    # c = 1, values are the best below, P = 0.4 and 0.6, and c is times the best speed-up so far.
    # 1: root 0.4 and 0.6: action 1, (1, 1) = 1.
    # 2: root 0 + 2 * 0.4 = 0.8 and 1 + 2 * 0.6 / 2 = 1.6; below 1 + 0.8 and 1 + 1.2: action 1
    #    again, which is the same strategy and the end: nothing is simulated.
    # 3: root 0 + 2 * 0.4 * sqrt(2) = 1.13 and 1 + 2 * 0.6 * sqrt(2) / 3 = 1.57; below, action 1 is
    #    done: (1, 0) = 2. All below action 1 is done.
    # 4: action 0 is the root's own strategy, so on down: 0.4 and 0.6: (0, 1).
    # 5: (0, 0), seen before. Then there is nothing left.
    table = Table(TWO_LEVELS.__getitem__, 2, 2)
    tree = make_tree(table, fixed(0.4, 0.6), exploration=1.0, best_weight=1.0)
    simulated = []
    for _ in range(5):
        assert not tree.is_exhausted
        tree.run(1)
        simulated.append(tuple(table.simulated))
    assert tree.is_exhausted
    assert [len(each) for each in simulated] == [2, 2, 3, 4, 4]
    assert table.simulated == [(0, 0), (1, 1), (1, 0), (0, 1)]
    assert tree.visits(tree.root).tolist() == [2, 3]
    tree.run(10)
    assert tree.num_iterations == 5
    assert tree.iterations_until() == 1
    assert tree.iterations_until(1.5) == 3
    assert tree.iterations_until(5.0) is None


@pytest.mark.parametrize(("weight", "value"), [(0.0, -0.25), (0.5, 0.375), (1.0, 1.0)])
def test_the_value_of_an_action_is_between_the_mean_and_the_best_below(
    weight: float, value: float
) -> None:
    # Rewards of 1 and of -1.5 below action 1, a mean of -0.25; the score has no bonus.
    table = Table(TWO_LEVELS.__getitem__, 2, 2)
    tree = make_tree(table, fixed(0.4, 0.6), exploration=0.0, best_weight=weight)
    tree.run(1)
    tree.root.total[1], tree.root.best[1], tree.root.visits[1] = -0.5, 1.0, 2
    assert tree._scores(tree.root)[1] == pytest.approx(value)


def test_the_best_below_keeps_a_good_action_among_bad_ones() -> None:
    # Below action 1 all but one strategy are bad, but it is the best of all: by means the search
    # leaves it for action 2, which is good on average.
    def rewards(numbers: tuple[int, ...]) -> float:
        if numbers[0] == 1:
            return 1.0 + sum(each == 1 for each in numbers[1:]) if 3 not in numbers else -0.9
        return 0.8 if numbers[0] == 2 else 0.0

    by_best = make_tree(Table(rewards, 4, 4), fixed(*[0.25] * 4), best_weight=1.0)
    by_best.run(60)
    visits = by_best.visits(by_best.root)
    assert visits.argmax() == 1


def test_nobody_is_favoured_among_equal_actions() -> None:
    # No reward differs: the first action that is tried is each of 5 about equally often.
    firsts = []
    for seed in range(200):
        tree = make_tree(Table(lambda _: 0.0, 2, 5), fixed(*[0.2] * 5), seed=seed)
        tree.run(1)
        firsts.append(int(np.argmax(tree.visits(tree.root))))
    assert np.bincount(firsts, minlength=5).min() >= 20


def test_a_strategy_that_does_not_fit_is_worse_than_a_slow_one_and_never_the_best() -> None:
    rewards: dict[tuple[int, ...], float] = {(0,): 0.0, (1,): NO_FIT, (2,): -0.9}
    tree = make_tree(Table(rewards.__getitem__, 1, 3), fixed(0.2, 0.6, 0.2))
    tree.run(10)
    assert tree.is_exhausted
    assert tree.root.children[1].reward == OUT_OF_MEMORY
    assert tree.best[0] == tree.evaluator.data_parallel
    assert tree.iterations_until() is None


def test_where_data_parallelism_does_not_fit_whatever_fits_beats_it() -> None:
    rewards: dict[tuple[int, ...], float] = {(0,): NO_FIT, (1,): NO_FIT, (2,): -0.9}
    tree = make_tree(Table(rewards.__getitem__, 1, 3), fixed(0.1, 0.6, 0.3))
    tree.run(10)
    assert tree.iterations_until() == 2
    assert tree.best[1].fits


def test_a_belief_that_is_none_counts_as_uniform() -> None:
    for beliefs in ([0.0, 0.0], [math.nan, 1.0], [-1.0, 2.0]):
        tree = make_tree(Table(TWO_LEVELS.__getitem__, 2, 2), fixed(*beliefs))
        tree.run(20)
        assert tree.is_exhausted
        assert tree.root.prior is not None
        assert tree.root.prior.tolist() == [0.5, 0.5]


def test_the_prior_is_asked_once_a_node_and_only_where_a_child_is_looked_for() -> None:
    asked: list[Strategy] = []

    def prior(_: Analysis, prefix: Strategy, evaluation: StrategyEvaluation | None) -> Floats:
        assert evaluation is not None
        asked.append(prefix)
        return np.full(3, 1 / 3)

    tree = make_tree(Table(lambda numbers: -0.1 * sum(numbers), 3, 3), prior)
    tree.run(12)
    assert len(asked) == len(set(asked))
    assert len(asked) < tree.num_iterations


@pytest.fixture(scope="module")
def small() -> Analysis:
    # Two layers, the second with a large gradient, on a fast and two slow devices.
    graph = chain([8.0, 4.0], [0.1, 40.0], activation=0.5)
    return analyse(graph, hosts([("fast", 1), ("slow", 2)]))


def all_strategies(analysis: Analysis) -> list[Strategy]:
    choices = [[analysis.actions[k] for k in np.flatnonzero(row)] for row in analysis.allowed]
    return list(product(*choices))


def test_enough_iterations_find_the_best_of_all_strategies(small: Analysis) -> None:
    evaluator = Evaluator(small)
    assert small.num_groups == 2
    every = all_strategies(small)
    best = min(evaluator.rank(each) for each in every)
    assert best < evaluator.rank(evaluator.data_parallel)
    for seed in range(3):
        tree = Tree(evaluator, uniform_prior, seed=seed)
        tree.run(10 * len(every))
        assert tree.is_exhausted
        assert tree.best[1].rank == best
        assert tree.num_iterations <= 2 * len(every)


def test_a_perfect_prior_finds_the_best_at_once(small: Analysis) -> None:
    evaluator = Evaluator(small)
    best = min(all_strategies(small), key=evaluator.rank)

    def perfect(analysis: Analysis, prefix: Strategy, _: StrategyEvaluation | None) -> Floats:
        found = np.zeros(len(analysis.actions))
        found[analysis.actions.index(best[len(prefix)])] = 1.0
        return found

    tree = Tree(evaluator, perfect)
    tree.run(2)
    assert tree.best[1].rank == evaluator.rank(best)
    found = iterations_to_beat(small, perfect)
    assert found is not None
    assert found <= 2


def test_the_same_seed_searches_the_same_way(small: Analysis) -> None:
    runs = []
    for seed in (3, 3, 4):
        tree = Tree(Evaluator(small), uniform_prior, seed=seed)
        tree.run(25)
        runs.append(list(tree._seen))
    assert runs[0] == runs[1] != runs[2]
    assert iterations_to_beat(small, uniform_prior, seed=3) == iterations_to_beat(
        small, uniform_prior, seed=3
    )


def test_every_action_is_allowed_and_the_best_few_are_distinct() -> None:
    # One op can run on the slow devices only, data parallelism is not for it.
    builder = GraphBuilder("picky", batch=8)
    builder.add_op("any", seconds={"any": 8.0})
    builder.add_op("slow", seconds={"slow": 4.0, "fast": math.inf})
    builder.add_tensor(0, 1.0, [1])
    analysis = analyse(builder.finish(), hosts([("fast", 2), ("slow", 2)]))
    tree = Tree(Evaluator(analysis), uniform_prior)
    tree.run(60)
    few = tree.best_few(10)
    assert len({strategy for strategy, _ in few}) == len(few) == 10
    assert [each.rank for _, each in few] == sorted(each.rank for _, each in few)
    for strategy, _ in few:
        for group, action in enumerate(strategy):
            assert analysis.allowed[group, analysis.actions.index(action)]


def test_a_time_that_is_over_ends_the_search(small: Analysis) -> None:
    tree = Tree(Evaluator(small), uniform_prior)
    tree.run(1000, Clock(0.0))
    assert tree.num_iterations == 0
    tree.run(1000, stop=lambda each: each.num_iterations >= 7)
    assert tree.num_iterations == 7


def test_one_group_on_one_device_is_exhausted_at_once() -> None:
    analysis = analyse(chain([1.0], [1.0]), hosts([("fast", 1)]))
    tree = Tree(Evaluator(analysis), uniform_prior)
    tree.run(100)
    assert tree.is_exhausted
    assert tree.num_iterations == 1
    assert iterations_to_beat(analysis, uniform_prior) is None
