"""What `deploy` is held against: FlexFlow's walk and a tree search that has learnt nothing.

FlexFlow searches strategies by Metropolis walks (Jia et al., MLSys 2019, section 6.1).

A step proposes another allowed action of the menu for one random group. A strategy that is faster
is accepted, a slower one with the probability exp(-beta x its loss), the loss as a part of the time
of data parallelism. Walks start from data parallelism and from random strategies, and end when they
have not found anything better for half of their time. Memory is a wall: once a strategy fits none
is accepted that does not, and before that only those that lack less.

FlexFlow partitions any dimension of any tensor; here both look at the strategies of `deploy`, so
that the searches, not the spaces, are compared.
"""

import sys
from math import exp, inf

import numpy as np

from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import explain_nowhere
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.deploy import open_deployment
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.method.deploy.tree.tree import Tree, uniform_prior
from meshwright.search.problem import Problem


def flexflow(problem: Problem, attempt: Attempt, *, steps: int | None = None) -> None:
    """The best strategy of FlexFlow's walks within the budget, or of `steps` steps."""
    evaluator = _prepare(problem, attempt)
    if evaluator is not None:
        strategy = walk_strategies(evaluator, clock=problem.clock, seed=problem.seed, steps=steps)
        attempt.statistics["first_seconds"] = evaluator.reference_seconds
        _offer(problem, attempt, evaluator, strategy)


def mcts(problem: Problem, attempt: Attempt) -> None:
    """The best strategy of tree search alone: no network, no polish, no sufficient factors."""
    evaluator = _prepare(problem, attempt)
    if evaluator is not None:
        tree = Tree(evaluator, uniform_prior, seed=problem.seed)
        with problem.clock.heard():  # the root is a strategy, too
            tree.run(sys.maxsize, problem.clock)
        if not tree.is_exhausted:
            problem.clock.cut()
        attempt.statistics["iterations"] = float(tree.num_iterations)
        _offer(problem, attempt, evaluator, tree.best[0])


def _prepare(problem: Problem, attempt: Attempt) -> Evaluator | None:
    """What evaluates strategies; None: there are none, and the attempt says why."""
    if (analysis := open_deployment(problem, attempt)) is None:
        return None
    if not analysis.allowed.any(axis=1).all():
        whole = "no device type of the cluster can run a whole group of ops; place ops one by one"
        attempt.refuse(explain_nowhere(problem.instance) or whole)
        return None
    return Evaluator(analysis, problem.sharing)


def _offer(
    problem: Problem, attempt: Attempt, evaluator: Evaluator, strategy: Strategy | None
) -> None:
    attempt.statistics["evaluations"] = float(evaluator.num_evaluations)
    if strategy is not None:
        plan = make_plan(evaluator.analysis, strategy)
        attempt.offer(plan, problem.settle(plan))


BETA = 300.0
"""What is slower by a 300th of data parallelism's time is accepted once in e times. Of 10 to 1000,
walks of 600 steps for VGG-16 on TAG's testbed found most with 1000 (6% less time), 5% from 30 on
and nothing with 10 (2026-11-16)."""
_WALKS = 2
"""The time is shared out to: from data parallelism and from a random strategy. What a walk leaves
of its share goes to others from random strategies."""


def walk_strategies(
    evaluator: Evaluator,
    *,
    clock: Clock,
    seed: int = 0,
    steps: int | None = None,
    beta: float = BETA,
) -> Strategy | None:
    """The best strategy while there is time, or after so many steps; Ctrl-C ends it, too.

    A start is a step as well; None: it was interrupted before the first.
    """
    walk = _StrategyWalk(evaluator, seed, beta)
    left = inf if steps is None else steps
    number = 0
    with clock.heard():
        while number == 0 or (walk.has_choice and left > 0 and not clock.is_over):
            walks = max(1, _WALKS - number)
            part = clock.rest(1 / walks, tells=False)
            left -= walk.run(part, left / walks, is_random=number > 0)
            number += 1
    if walk.has_choice and left > 0:
        clock.cut()
    return None if walk.best is None else walk.best[1]


_Rank = tuple[float, float]
"""Missing bytes and seconds of a step."""


class _StrategyWalk:
    """The generator, and the best strategy of all walks."""

    def __init__(self, evaluator: Evaluator, seed: int, beta: float) -> None:
        self._evaluator, self._random = evaluator, np.random.default_rng(seed)
        self._scale = beta / max(evaluator.reference_seconds, 1e-300)
        self._choices = [np.flatnonzero(row) for row in evaluator.analysis.allowed]
        self.has_choice = any(len(row) > 1 for row in self._choices)
        self.best: tuple[_Rank, Strategy] | None = None

    def run(self, clock: Clock, steps: float, *, is_random: bool) -> int:
        """One walk; how many steps it took."""
        improved_at = clock.elapsed
        taken, improved_after = 1, 1
        strategy = self._start(is_random=is_random)
        now = self._look(strategy)
        while taken < steps and not clock.is_over:
            half_time = clock.elapsed - improved_at > clock.seconds / 2
            if half_time or taken - improved_after > steps / 2:
                break
            group, proposed = self._propose(strategy)
            if group < 0:
                break
            best_before = self.best
            seen = self._look(proposed)
            taken += 1
            if self.best is not best_before:
                improved_at, improved_after = clock.elapsed, taken
            if self._accepts(now, seen):
                strategy, now = proposed, seen
        return taken

    def _start(self, *, is_random: bool) -> Strategy:
        analysis = self._evaluator.analysis
        if not is_random and analysis.allowed[:, 0].all():
            return self._evaluator.data_parallel
        return tuple(analysis.actions[self._random.choice(row)] for row in self._choices)

    def _propose(self, strategy: Strategy) -> tuple[int, Strategy]:
        """Another action for a random group of those that have a choice; -1 where none has."""
        groups = [group for group, row in enumerate(self._choices) if len(row) > 1]
        if not groups:
            return -1, strategy
        group = int(self._random.choice(groups))
        actions = self._evaluator.analysis.actions
        others = [actions[each] for each in self._choices[group]]
        others = [each for each in others if each != strategy[group]]
        action = others[int(self._random.integers(len(others)))]
        return group, (*strategy[:group], action, *strategy[group + 1 :])

    def _look(self, strategy: Strategy) -> _Rank:
        seen = self._evaluator.rank(strategy)
        if self.best is None or seen < self.best[0]:
            self.best = seen, strategy
        return seen

    def _accepts(self, now: _Rank, seen: _Rank) -> bool:
        if seen[0] != now[0]:
            return seen[0] < now[0]
        loss = (seen[1] - now[1]) * self._scale
        return loss <= 0 or bool(self._random.random() < exp(-min(loss, 700.0)))
