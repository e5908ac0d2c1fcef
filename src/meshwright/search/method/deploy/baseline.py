"""What `deploy` is held against: FlexFlow's walk and a tree search that has learnt nothing.

Both look at the strategies of `deploy` and at no others, so that searches, not spaces, are
compared.
"""

import sys

from meshwright.search.incumbent import Attempt
from meshwright.search.instance import explain_nowhere
from meshwright.search.method.deploy.analysis import analyse
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.deploy import MAX_DEVICES
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.option import Strategy
from meshwright.search.method.deploy.strategy_walk import walk_strategies
from meshwright.search.method.deploy.tree.prior import uniform_prior
from meshwright.search.method.deploy.tree.tree import Tree
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
    num_devices = problem.cluster.num_devices
    if num_devices > MAX_DEVICES:
        reason = f"{num_devices:,} devices are more than {MAX_DEVICES}; hybrid takes more"
        attempt.refuse(f"not for this search: {reason}")
        return None
    analysis = analyse(problem.graph, problem.cluster, seed=problem.seed)
    attempt.raise_bound(problem.plan_bound)
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
