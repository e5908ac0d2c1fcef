"""Monte-Carlo tree search over strategies, guided by a prior (after TAG, which is after AlphaZero).

A node at depth k has decided groups 0 to k - 1, the longest first; its children decide group k. It
is worth what the simulator says of the strategy that it is completed to. The search goes down from
the root by PUCT until it meets an action without a node, which it adds, evaluates, and tells all
nodes above. Where that is completed to a strategy that was seen before, as by the first group's
action, there is nothing to evaluate, and the same iteration goes on down.

A prior is what a search believes of the actions of a group before it has tried any; the belief of a
trained network and that of somebody who knows nothing are called alike.
"""

from collections.abc import Callable
from math import inf, sqrt
from typing import Protocol

import numpy as np

from meshwright.graph.graph import Bools, Floats, Ints
from meshwright.search.clock import Clock
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.evaluate import OUT_OF_MEMORY, Evaluator, StrategyEvaluation
from meshwright.search.method.deploy.option import Strategy

EXPLORATION = 0.15
"""PUCT's constant for each action of the menu, times how much the best reward so far is above the
root's: each action is looked at once, and whether strategies differ by a hundredth or a
hundredfold, as much is explored."""
_LEAST_RISE = 1e-3
"""As long as nothing is above the root: what is believed decides then, next to what was seen."""
BEST_WEIGHT = 1.0
"""Of the best below an action in its value; the mean has the rest. A simulation is no game: nothing
spoils what was found once, so a bad strategy below says nothing against a good one beside it."""
BEATEN = 1e-3
"""The least reward that counts as faster than data parallelism."""


class Prior(Protocol):
    """How likely each action is believed to be the best for a group."""

    def __call__(
        self, analysis: Analysis, prefix: Strategy, evaluation: StrategyEvaluation | None, /
    ) -> Floats:
        """A probability for each of `analysis.actions`, for group `len(prefix)`.

        They sum to one over the allowed ones and are zero elsewhere. `prefix`: what is decided for
        the groups before; `evaluation`: of the whole strategy that it is completed to.
        """


def uniform_prior(
    analysis: Analysis,
    prefix: Strategy,
    evaluation: StrategyEvaluation | None,  # noqa: ARG001 - all priors are called alike
) -> Floats:
    """All allowed actions are equally likely."""
    return spread_evenly(analysis, len(prefix))


def spread_evenly(analysis: Analysis, group: int) -> Floats:
    """One probability for all actions that a group is allowed."""
    allowed = analysis.allowed[group]
    return np.where(allowed, 1.0 / max(1, int(allowed.sum())), 0.0)


class TreeNode:
    """A strategy of which the first groups are decided."""

    __slots__ = (
        "best", "children", "evaluation", "is_open", "prefix", "prior", "reward", "total", "visits",
    )  # fmt: skip

    def __init__(self, prefix: Strategy, evaluation: StrategyEvaluation, reward: float) -> None:
        self.prefix, self.evaluation, self.reward = prefix, evaluation, reward
        self.children: dict[int, TreeNode] = {}
        self.prior: Floats | None = None
        """Asked for when a child is first looked for; the arrays below come with it."""
        self.visits: Ints
        self.total: Floats
        """By action: the sum of the rewards seen below it."""
        self.best: Floats
        """By action: the largest reward seen below it."""
        self.is_open: Bools
        """By action: whether there is anything below it that has not been tried."""


class Tree:
    """A search that can be continued."""

    def __init__(
        self,
        evaluator: Evaluator,
        prior: Prior,
        *,
        seed: int = 0,
        exploration: float | None = None,
        best_weight: float = BEST_WEIGHT,
    ) -> None:
        """Every group must be allowed an action.

        `exploration`: PUCT's constant, times the best speed-up so far; None: see `EXPLORATION`.
        """
        self.evaluator, self.analysis, self._prior = evaluator, evaluator.analysis, prior
        self._exploration, self._best_weight = exploration, best_weight
        self._random = np.random.default_rng(seed)
        self.num_iterations = 0
        self.root = self._make_node(())
        """Data parallelism, which no iteration is counted for."""
        self.best: tuple[Strategy, StrategyEvaluation] = (
            evaluator.data_parallel,
            self.root.evaluation,
        )
        """Of all that was tried: what fits, or lacks least; of these the fastest."""
        self.improved_at = 0
        """The last iteration that found something better."""
        self._seen: dict[Strategy, StrategyEvaluation] = {}
        self._rises: list[tuple[int, float]] = []
        """Iterations, counted from 1, with a reward above all before."""
        self._note(self.root)

    def best_few(self, count: int) -> list[tuple[Strategy, StrategyEvaluation]]:
        """The best strategies, no two alike, the best first."""
        return sorted(self._seen.items(), key=lambda each: each[1].rank)[:count]

    def iterations_until(self, threshold: float | None = None) -> int | None:
        """At which iteration, counted from 1, a reward above this was first seen; 0: at the root.

        None: what beats data parallelism, which everything does that fits where that does not.
        """
        if threshold is None:
            threshold = BEATEN if self.root.evaluation.fits else OUT_OF_MEMORY
        for iteration, reward in self._rises:
            if reward > threshold:
                return iteration
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether every strategy of the menu has been tried."""
        return self.root.prior is not None and not self.root.is_open.any()

    def run(
        self,
        iterations: int,
        clock: Clock | None = None,
        stop: Callable[["Tree"], bool] = lambda _: False,
    ) -> None:
        """So many more iterations, while there is time, or till `stop` says so."""
        for _ in range(iterations):
            if (clock and clock.is_over) or stop(self) or self.is_exhausted:
                return
            self._iterate()

    def visits(self, node: TreeNode) -> Ints:
        """How often each action of a node was chosen."""
        if node.prior is None:
            return np.zeros(len(self.analysis.actions), dtype=np.int32)
        return node.visits.copy()

    def _iterate(self) -> None:
        self.num_iterations += 1
        path: list[tuple[TreeNode, int]] = []
        node, is_new = self.root, False
        while not is_new and len(node.prefix) < self.analysis.num_groups:
            action = self._select(node)
            path.append((node, action))
            if action not in node.children:
                child = self._make_node((*node.prefix, self.analysis.actions[action]))
                node.children[action] = child
                is_new = self._note(child)
            node = node.children[action]
        self._back_up(path, node)

    def _select(self, node: TreeNode) -> int:
        """The action with the most promise; among equals one at random."""
        if node.prior is None:
            self._expand(node)
        ties = np.flatnonzero((scores := self._scores(node)) == scores.max())
        return int(ties[0] if len(ties) == 1 else ties[self._random.integers(len(ties))])

    def _expand(self, node: TreeNode) -> None:
        num_actions = len(self.analysis.actions)
        group = len(node.prefix)
        allowed = self.analysis.allowed[group]
        prior = np.where(allowed, self._prior(self.analysis, node.prefix, node.evaluation), 0.0)
        total = prior.sum()
        is_belief = np.isfinite(total) and total > 0 and (prior >= 0).all()
        node.prior = prior / total if is_belief else spread_evenly(self.analysis, group)
        node.visits = np.zeros(num_actions, dtype=np.int32)
        node.total = np.zeros(num_actions)
        node.best = np.full(num_actions, -inf)
        node.is_open = allowed.copy()

    def _scores(self, node: TreeNode) -> Floats:
        """Q + c P sqrt(N) / (1 + n); Q of what was not tried is the reward of its node itself."""
        assert node.prior is not None
        tried = node.visits > 0
        mean = node.total / np.maximum(node.visits, 1)
        mixed = mean + self._best_weight * (np.where(tried, node.best, 0.0) - mean)
        value = np.where(tried, mixed, node.reward)
        bonus = (
            self._width() * node.prior * sqrt(max(1, int(node.visits.sum()))) / (1 + node.visits)
        )
        return np.where(node.is_open, value + bonus, -inf)

    def _width(self) -> float:
        best = self._rises[-1][1]
        if self._exploration is not None:
            return self._exploration * max(1.0, 1.0 + best)
        rise = max(_LEAST_RISE, best - self.root.reward)
        return EXPLORATION * len(self.analysis.actions) * rise

    def _make_node(self, prefix: Strategy) -> TreeNode:
        evaluation = self.evaluator.evaluate(self.evaluator.complete(prefix))
        return TreeNode(prefix, evaluation, self.evaluator.reward(evaluation))

    def _note(self, node: TreeNode) -> bool:
        """Remember a node's strategy; whether it was not seen before."""
        strategy = self.evaluator.complete(node.prefix)
        if strategy in self._seen:
            return False
        self._seen[strategy] = node.evaluation
        if not self._rises or node.reward > self._rises[-1][1]:
            self._rises.append((self.num_iterations, node.reward))
        if node.evaluation.rank < self.best[1].rank:
            self.best = strategy, node.evaluation
            self.improved_at = self.num_iterations
        return True

    def _back_up(self, path: list[tuple[TreeNode, int]], child: TreeNode) -> None:
        is_done = len(child.prefix) == self.analysis.num_groups
        for node, action in reversed(path):
            node.visits[action] += 1
            node.total[action] += child.reward
            node.best[action] = max(node.best[action], child.reward)
            if is_done:  # nothing below is left to be tried, and so perhaps nothing above
                node.is_open[action] = False
                is_done = not node.is_open.any()


def iterations_to_beat(
    analysis: Analysis,
    prior: Prior,
    *,
    seed: int = 0,
    cap: int = 1000,
    sharing: str = "fair",
) -> int | None:
    """How many iterations a search needs till it has a strategy that fits and is faster than data
    parallelism (see `Tree.iterations_until`); None: not within `cap`."""
    tree = Tree(Evaluator(analysis, sharing), prior, seed=seed)
    tree.run(cap, stop=lambda each: each.iterations_until() is not None)
    return tree.iterations_until()
