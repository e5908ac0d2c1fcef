"""Self-play: searches scenes and keeps what the searches came to as examples.

An example is what the network saw at a node of the tree, and how often the search went where from
there (AlphaZero's target). Decides how much a search explores; knows nothing of training.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.graph.graph import Floats
from meshwright.learn.scene import TrainingScene
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.evaluate import Evaluator, StrategyEvaluation
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.method.deploy.tree.features import FeatureMaker, Features, Singles
from meshwright.search.method.deploy.tree.tree import Prior, Tree, TreeNode

NOISE = 0.25
"""How much of the prior is noise (AlphaZero's)."""
_CONCENTRATION = 10.0
"""Of the noise, over all actions (AlphaZero: ten over the number of moves)."""
_WIDE = 2.0
"""PUCT's constant while a search is to see the whole menu; afterwards it is the usual one, which
follows the gains found: those of a thousandth, the most there is on equal devices, would drown."""
_MIN_VISITS = 8
_MAX_NODES = 8
"""Nodes of a tree that become examples: those visited most, and this often at least."""
_SURE_VISITS = 60
"""From so many visits on an example counts fully."""
_ROOT_WEIGHT = 2.0
"""Of the first decision of a tree, which is worth most."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Example:
    """What a decision looked like, and what a search made of it."""

    features: Features
    target: Singles
    """By action: the part of the visits."""
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What was found while one scene was played."""

    examples: tuple[Example, ...]
    reward: float
    """Of the best strategy."""
    iterations: int


class NoisyPrior:
    """Another prior, mixed with noise, so that a search tries what it would not."""

    def __init__(self, prior: Prior, generator: np.random.Generator) -> None:
        self._prior, self._generator = prior, generator

    def __call__(
        self, analysis: Analysis, prefix: Strategy, evaluation: StrategyEvaluation | None
    ) -> Floats:
        """A probability for each action."""
        belief = self._prior(analysis, prefix, evaluation)
        allowed = np.flatnonzero(analysis.allowed[len(prefix)])
        noise = np.zeros(len(belief))
        each = np.full(len(allowed), _CONCENTRATION / len(allowed))
        noise[allowed] = self._generator.dirichlet(each)
        return (1 - NOISE) * belief + NOISE * noise


def play(scene: TrainingScene, prior: Prior, *, iterations: int, seed: int) -> Episode | None:
    """Search a scene twice: widely, and then as usual.

    The second search remembers what the first simulated, and its visits are the targets. Beside
    `iterations` the first has one for each action, the second two. None: there is no choice.
    """
    analysis = scene.analyse()
    if not analysis.allowed.any(axis=1).all() or len(analysis.actions) < 2:
        return None
    evaluator = Evaluator(analysis)
    noisy = NoisyPrior(prior, np.random.default_rng(seed))
    wide = Tree(evaluator, noisy, seed=seed, exploration=_WIDE)
    num_actions = len(analysis.actions)
    wide.run(iterations + num_actions)
    tree = Tree(evaluator, noisy, seed=seed)
    tree.run(iterations + 2 * num_actions)
    maker = FeatureMaker(analysis)
    best = max((wide.best[1], tree.best[1]), key=evaluator.reward)
    return Episode(
        examples=tuple(_make_example(maker, node) for node in _busiest(tree.root)),
        reward=evaluator.reward(best),
        iterations=wide.num_iterations + tree.num_iterations,
    )


def _busiest(root: TreeNode) -> list[TreeNode]:
    """The nodes that chose most often, the root first."""
    found, waiting = [], [root]
    while waiting:
        node = waiting.pop()
        if node.prior is not None and (node is root or node.visits.sum() >= _MIN_VISITS):
            found.append(node)
            waiting += node.children.values()
    return sorted(found, key=lambda node: (-int(node.visits.sum()), len(node.prefix)))[:_MAX_NODES]


def _make_example(maker: FeatureMaker, node: TreeNode) -> Example:
    visits = node.visits.astype(np.float32)
    total = float(visits.sum())
    return Example(
        features=maker.make(node.prefix, node.evaluation),
        target=visits / np.float32(max(1.0, total)),
        weight=min(1.0, total / _SURE_VISITS) * (1.0 if node.prefix else _ROOT_WEIGHT),
    )
