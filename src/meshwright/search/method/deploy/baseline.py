"""What `deploy` is held against: FlexFlow's walk and a tree search that has learnt nothing.

Both look at the strategies of `deploy` and at no others, so that searches, not spaces, are
compared.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.search.bound.work import plan_bound
from meshwright.search.judge import judge, refuse, why_stopped
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.deploy import MAX_DEVICES
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.method.deploy.strategy_walk import walk_strategies
from meshwright.search.method.deploy.tree.prior import uniform_prior
from meshwright.search.method.deploy.tree.tree import Tree
from meshwright.search.method.mcmc.mcmc import no_device_message

_Found = tuple[Strategy, Stop, dict[str, float]]


def flexflow(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
    steps: int | None = None,
) -> Answer:
    """The best strategy of FlexFlow's walks within the budget, or of `steps` steps."""

    def find(evaluator: Evaluator, until: float) -> _Found:
        strategy, stop = walk_strategies(evaluator, until=until, seed=seed, steps=steps)
        return strategy, stop, {"first_seconds": evaluator.reference_seconds}

    return _answer("flexflow", find, graph, cluster, seed, budget_seconds, sharing)


def mcts(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
) -> Answer:
    """The best strategy of tree search alone: no network, no polish, no sufficient factors."""

    def find(evaluator: Evaluator, until: float) -> _Found:
        tree, is_interrupted = Tree(evaluator, uniform_prior, seed=seed), False
        try:
            tree.run(sys.maxsize, until=until)
        except KeyboardInterrupt:
            is_interrupted = True  # the root is a strategy, too
        stop = why_stopped(is_interrupted=is_interrupted, is_cut=not tree.is_exhausted)
        return tree.best[0], stop, {"iterations": float(tree.num_iterations)}

    return _answer("mcts", find, graph, cluster, seed, budget_seconds, sharing)


def _answer(
    method: str,
    find: Callable[[Evaluator, float], _Found],
    graph: Graph,
    cluster: Cluster,
    seed: int,
    budget_seconds: float,
    sharing: str,
) -> Answer:
    started = perf_counter()
    if cluster.num_devices > MAX_DEVICES:
        reason = f"{cluster.num_devices:,} devices are more than {MAX_DEVICES}; hybrid takes more"
        return refuse(method, f"not for this search: {reason}", 0.0, started)
    analysis = analyse(graph, cluster, seed=seed)
    bound = plan_bound(analysis.instance)
    if not analysis.allowed.any(axis=1).all():
        return refuse(method, _no_action_message(analysis), bound, started)
    evaluator = Evaluator(analysis, sharing)
    strategy, stop, statistics = find(evaluator, started + budget_seconds)
    statistics["evaluations"] = float(evaluator.num_evaluations)
    plan = make_plan(analysis, strategy)
    return judge(method, graph, cluster, plan, bound, started, statistics, sharing, stop=stop)


def _no_action_message(analysis: Analysis) -> str:
    if not np.isfinite(analysis.instance.unit_seconds).any(axis=1).all():
        return no_device_message(analysis.instance)
    return "no device type of the cluster can run a whole group of ops; place ops one by one"
