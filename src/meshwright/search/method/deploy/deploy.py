"""Finds how groups of ops are replicated, placed and synchronised on unequal devices (after TAG).

A tree search guided by a trained prior, then a local search from the best it found; the simulator
evaluates all. Plans that need no search come first, so that none of them is faster than the answer.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain
from types import MappingProxyType

import numpy as np

from meshwright.message import say
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.instance import explain_nowhere
from meshwright.search.method.baseline import data, data_proportional, horovod, single
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.evaluate import Evaluator, StrategyEvaluation
from meshwright.search.method.deploy.fit import fitting_strategies
from meshwright.search.method.deploy.menu import share_out
from meshwright.search.method.deploy.near import read_strategy
from meshwright.search.method.deploy.option import GroupOption, Strategy
from meshwright.search.method.deploy.polish.polish import PolishLayout, polish
from meshwright.search.method.deploy.tree.net import load_prior
from meshwright.search.method.deploy.tree.tree import Prior, Tree, uniform_prior
from meshwright.search.method.heft import heft
from meshwright.search.method.metis import metis
from meshwright.search.method.msct.msct import msct
from meshwright.search.method.name import ENTRIES
from meshwright.search.problem import Problem
from meshwright.search.relief import Reliever

MAX_DEVICES = 2048
"""Tables of pairs of 4,096 devices take 10 s to make, of 16,384 a minute and 11 GB (2026-11-16)."""
_MAX_REPLICAS = 2_000_000
"""Of ops, in data parallelism; beyond, one simulation op by op takes seconds."""
_MAX_QUICK_REPLICAS = 500_000
"""Up to which Horovod's plan is tried, two simulations op by op."""
_MAX_PLACED = 512
"""Devices on which placements are looked for; their bound takes 0.3 s there, 23 s on 4,096."""
_MAX_PLACED_OPS = 10_000

_QUICK_SHARE = 0.5
"""Of the budget, after which no more plans are made that need no search; they take a hundredth of
it unless the step is large."""
_TREE_SHARE = 0.15
"""Of the time after these; the local search gets the rest."""
_MSCT_SHARE = 0.15
"""Of the budget, where a placement may be faster than all that was found."""
_END = 0.97
"""Of the budget: then a last simulation makes the answer."""
_MAX_ITERATIONS, _PATIENCE = 1000, 250
"""Of the tree search: iterations, and how many of them without anything better end it, or as many
as it took to find the best, if that is more ..."""
_MAX_POLISHED = 2000
"""... and simulations of the local search. Of small steps ..."""
_LOOKS, _LEAST_LOOKS = 1, 50
"""... not more of either than so many for each action of each group, and at least so many."""
_NEAR_FEWER = 6
"""Near a plan that is there it is so many times fewer."""
_STARTS = 6
"""Of the local search: so many of the tree's best strategies."""
_ROUNDING = 1e-9


_Method = Callable[[Problem, Attempt], None]

_REPLICATED: Mapping[str, _Method] = MappingProxyType(
    {"data": data, "data-proportional": data_proportional, "horovod": horovod}
)
_PLACED: Mapping[str, _Method] = MappingProxyType({"single": single, "metis": metis, "heft": heft})
"""Every op whole on one device: not tried where it is proven that none can be faster."""


def deploy(problem: Problem, attempt: Attempt, *, polishes: bool = True) -> None:
    """The best deployment found; see this module's docstring.

    Without `polishes` the tree search has all the time. Large steps on many devices get fewer
    simulations, and what was left out is said in the notes.
    """
    if (analysis := open_deployment(problem, attempt)) is None:
        return
    if reason := explain_nowhere(problem.instance):
        attempt.refuse(reason)
        return
    search = _DeploySearch(problem, attempt, analysis)
    with problem.clock.heard():
        search.try_quick()
        if problem.starts:
            search.polish_starts()
            polishes = False
        elif search.can_deploy:
            prior = _find_prior() if problem.prior is None else problem.prior
            search.grow(prior, _TREE_SHARE if polishes else 1.0)
        search.relieve()
        if not problem.starts:
            search.try_msct()
        if search.can_deploy and polishes:
            search.polish()
    search.conclude()


def open_deployment(problem: Problem, attempt: Attempt) -> Analysis | None:
    """Offer the bound of all deployments; what they are decided on, None: of too many devices."""
    num_devices = problem.cluster.num_devices
    if num_devices > MAX_DEVICES:
        reason = f"{num_devices:,} devices are more than {MAX_DEVICES}; hybrid takes more"
        attempt.refuse(f"not for this search: {reason}")
        return None
    analysis = analyse(problem.graph, problem.cluster, seed=problem.seed)
    attempt.raise_bound(problem.plan_bound)
    return analysis


@lru_cache(maxsize=1)
def _find_prior() -> Prior:
    """The package's network, read once; where it cannot be, that is said once."""
    return load_prior(warn=say)


class _DeploySearch:
    """What is found, step by step, so that an interrupt loses nothing."""

    def __init__(self, problem: Problem, attempt: Attempt, analysis: Analysis) -> None:
        self._problem, self._attempt, self._analysis = problem, attempt, analysis
        self._clock = problem.clock.first(_END)
        self._quick_clock = problem.clock.first(_QUICK_SHARE)
        self._placement_bound = math.inf
        self._beside = Incumbent(problem.clock)
        """What methods without a search have found that nobody has tried before."""
        self._others: dict[str, Attempt] = {}
        self._found: tuple[Plan, int, StrategyEvaluation] | None = None
        """The plan, how many of its ops are duplicated, and what the simulator says."""
        self._evaluator: Evaluator | None = None
        self._starts: list[Strategy] = []
        self._layouts: tuple[PolishLayout, ...] = ()
        self._notes: list[str] = []
        self._statistics = attempt.statistics
        self._statistics |= {
            "groups": float(analysis.num_groups),
            "device_groups": float(len(analysis.device_groups)),
            "actions": float(len(analysis.actions)),
        }

    @property
    def best_seconds(self) -> float:
        """Of what fits; infinity where nothing does."""
        known = [each.step_seconds for each in self._others.values()]
        if self._found is not None and self._found[2].fits:
            known.append(self._found[2].step_seconds)
        return min(known, default=math.inf)

    @property
    def _is_proved(self) -> bool:
        """Whether no deployment can be faster than what this or an earlier method has found."""
        known = min(self.best_seconds, self._attempt.incumbent.step_seconds)
        return known <= self._attempt.bound_seconds * (1 + _ROUNDING)

    @property
    def can_deploy(self) -> bool:
        """Whether groups can be deployed, within reason, and to a purpose; a note says why not."""
        if self._is_proved:
            return False
        graph, devices = self._analysis.graph, self._analysis.cluster.num_devices
        if graph.num_ops * devices > _MAX_REPLICAS:
            self._note(f"{graph.num_ops:,} ops on {devices:,} devices are too many for a search")
            return False
        if not self._analysis.allowed.any(axis=1).all():
            self._note("no device type can run some group of ops as a whole: ops were placed")
            return False
        return True

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.append(text)

    def _try(self, name: str, method: _Method, clock: Clock) -> None:
        """What a method finds, or has found before under the same problem."""
        found = self._attempt.incumbent.attempts.get(name)
        if found is None or not found.has_any or found.clock.is_cut:
            found = self._beside.begin(name, ENTRIES[name].claim, clock)
            method(self._problem.within(clock), found)
        self._others[name] = found
        if found.plan is not None and found.verdict is not None:
            self._attempt.offer(found.plan, found.verdict)

    def try_quick(self) -> None:
        """Plans that need no search, as long as they take no time to speak of."""
        graph, cluster = self._analysis.graph, self._analysis.cluster
        is_large = graph.num_ops * cluster.num_devices > _MAX_QUICK_REPLICAS
        clock = self._problem.clock.first(1.0, tells=False)
        for name, method in _REPLICATED.items():
            if not self._others or (self._has_time() and not (name == "horovod" and is_large)):
                self._try(name, method, clock)
        if cluster.num_devices > _MAX_PLACED or graph.num_ops > _MAX_PLACED_OPS:
            self._note("placements without replicas were not tried: there are too many")
            return
        self._placement_bound = self._problem.placement_bound
        for name, method in _PLACED.items():
            if self.best_seconds > self._placement_bound and self._has_time():
                self._try(name, method, clock)

    def try_msct(self) -> None:
        """The placement that takes longest, where one may be the fastest."""
        if math.isfinite(self._placement_bound) and self.best_seconds > self._placement_bound:
            seconds = min(_MSCT_SHARE * self._problem.clock.seconds, self._clock.left / 2)
            self._try("m-sct", msct, self._clock.within(max(seconds, 1e-3), tells=False))

    def relieve(self) -> None:
        """Offer what replicas on all devices, the best found and plans without a search become
        where they lack memory and save some."""
        others = self._others.values()
        plans = [each.plan for each in others if each.plan is not None and not each.fits]
        if (evaluator := self._evaluator) is not None:
            shared = (evaluator.data_parallel, *self._proportional(), *self._starts)
            heavy = [each for each in shared if not evaluator.evaluate(each).fits]
            plans += [make_plan(self._analysis, each) for each in heavy]
        fronts = [[each] for each in dict.fromkeys(plans)]
        Reliever(self._problem, self._clock).offer(fronts, self._attempt)

    def _has_time(self) -> bool:
        return not self._quick_clock.is_over

    def grow(self, prior: Prior, share: float) -> None:
        """Search the tree of strategies, guided by a prior, for a share of the time."""
        began = self._clock.elapsed
        evaluator = self._evaluator = Evaluator(self._analysis, self._problem.sharing)
        taken = self._clock.elapsed - began
        self._clock = self._clock.sooner(taken)  # which the last simulation will take
        self._keep_strategy(evaluator.data_parallel, evaluator)
        self._statistics["network"] = float(prior is not uniform_prior)
        if evaluator.evaluate(evaluator.data_parallel).fits:
            self._statistics["data_seconds"] = evaluator.reference_seconds
        for strategy in chain(self._proportional(), fitting_strategies(evaluator)):
            if self._clock.left <= taken:
                self._clock.cut()
                break
            self._keep_strategy(strategy, evaluator)
            self._starts.append(strategy)
        tree = Tree(evaluator, prior, seed=self._problem.seed)
        clock = self._clock.rest(share).sooner(taken)
        try:
            tree.run(_MAX_ITERATIONS, clock, self._has_settled)
            clock.look()
        finally:  # an interrupt, too
            strategy, _ = tree.best
            self._keep_strategy(strategy, evaluator)
            self._starts[:0] = [strategy for strategy, _ in tree.best_few(_STARTS)]
            self._statistics["iterations"] = float(tree.num_iterations)
            self._statistics["simulations"] = float(evaluator.num_evaluations)
            if (first := tree.iterations_until()) is not None:
                self._statistics["first_beaten"] = float(first)

    def _has_settled(self, tree: Tree) -> bool:
        evaluation = tree.best[1]
        if evaluation.fits and evaluation.step_seconds <= self._attempt.bound_seconds * (
            1 + _ROUNDING
        ):
            return True
        patience = max(min(_PATIENCE, self._num_looks), tree.improved_at)
        return tree.num_iterations - tree.improved_at > patience

    def _proportional(self) -> Iterator[Strategy]:
        """Data parallelism by speed alone, which the menu's shares go beyond."""
        analysis = self._analysis
        seconds = analysis.seconds.sum(axis=0)[analysis.cluster.type_of]
        devices = np.arange(analysis.cluster.num_devices)
        places = tuple(range(len(analysis.device_groups)))
        if np.isfinite(seconds).all() and (seconds > 0).all():
            for option in (GroupOption.ALL_REDUCE, GroupOption.PARAMETER_SERVER):
                action = share_out(analysis.graph, places, devices, 1.0 / seconds, option)
                yield (action,) * analysis.num_groups

    def polish(self) -> None:
        """Local search, and what it gains."""
        if self._evaluator is None or self._clock.is_over:
            return
        before = self.best_seconds
        found = polish(
            self._evaluator,
            self._starts,
            clock=self._clock,
            seed=self._problem.seed,
            max_evaluations=min(_MAX_POLISHED, self._num_looks),
            layouts=self._layouts,
        )
        self._keep(found.plan, len(found.duplicated), found.evaluation)
        self._clock.look()
        gain = before / self.best_seconds - 1 if 0 < self.best_seconds < before < math.inf else 0.0
        self._statistics |= {
            "simulations": float(self._evaluator.num_evaluations),
            "polish_gain": gain,
        }

    def polish_starts(self) -> None:
        """Local search from the problem's starts alone."""
        plans = [plan for plan in self._problem.starts if plan.is_plain]
        if not self.can_deploy:
            return
        self._evaluator = Evaluator(self._analysis, self._problem.sharing)
        layouts = []
        for plan in plans:
            read = read_strategy(self._analysis, plan)
            layouts += [
                PolishLayout(
                    strategy=read.strategy, duplicated=read.duplicated, bundles=read.bundles
                ),
                PolishLayout(strategy=read.strategy),
            ]
        self._starts = [self._evaluator.data_parallel, *self._proportional()]
        self._layouts = tuple(layouts)
        self.polish()

    @property
    def _num_looks(self) -> int:
        looks = _LOOKS * int(self._analysis.allowed.sum())
        return max(_LEAST_LOOKS, looks // _NEAR_FEWER if self._problem.starts else looks)

    def _keep_strategy(self, strategy: Strategy, evaluator: Evaluator) -> None:
        self._keep(make_plan(self._analysis, strategy), 0, evaluator.evaluate(strategy))

    def _keep(self, plan: Plan, num_duplicated: int, evaluation: StrategyEvaluation) -> None:
        if self._found is None or evaluation.rank < self._found[2].rank:
            self._found = plan, num_duplicated, evaluation

    def conclude(self) -> None:
        """Offer the best of all; where nothing fits, what lacks least and why."""
        attempt = self._attempt
        ranked = sorted(
            (each.missing_bytes, each.step_seconds, name) for name, each in self._others.items()
        )
        attempt.notes = tuple(self._notes)
        if self._found is not None and (not ranked or self._found[2].rank <= ranked[0][:2]):
            plan, num_duplicated, _ = self._found
            self._statistics["duplicated"] = float(num_duplicated)
            attempt.offer(plan, self._problem.settle(plan), wins_ties=True)
        elif ranked:
            name = ranked[0][2]
            other = self._others[name]
            if other.plan is None or other.verdict is None:
                attempt.refuse(other.refusal)
                return
            attempt.offer(other.plan, other.verdict, wins_ties=True)
            if other.fits:
                attempt.notes += (f"the plan is that of {name}: nothing found was faster",)
