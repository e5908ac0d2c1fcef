"""Finds how groups of ops are replicated, placed and synchronised on unequal devices (after TAG).

A tree search guided by a trained prior, then a local search from the best it found; the simulator
evaluates all. Plans that need no search come first, so that none of them is faster than the answer.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import chain
from time import perf_counter
from types import MappingProxyType
from typing import Protocol

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.message import say
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.search.bound.work import placement_bound, plan_bound
from meshwright.search.judge import judge, refuse, settle_stop, why_stopped
from meshwright.search.method.baseline import data, data_proportional, horovod, single
from meshwright.search.method.deploy.analysis import Analysis, analyse
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.evaluate import Evaluator, StrategyEvaluation
from meshwright.search.method.deploy.fit import fitting_strategies
from meshwright.search.method.deploy.menu import share_out
from meshwright.search.method.deploy.option import Option, Strategy
from meshwright.search.method.deploy.polish.polish import polish
from meshwright.search.method.deploy.tree.net import load_prior
from meshwright.search.method.deploy.tree.prior import Prior, uniform_prior
from meshwright.search.method.deploy.tree.tree import Tree
from meshwright.search.method.heft import heft
from meshwright.search.method.mcmc.mcmc import no_device_message
from meshwright.search.method.metis import metis
from meshwright.search.method.msct.msct import msct

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
_STARTS = 6
"""Of the local search: so many of the tree's best strategies."""
_ROUNDING = 1e-9


class _Quick(Protocol):
    """A method that ends by itself."""

    def __call__(
        self,
        graph: Graph,
        cluster: Cluster,
        *,
        seed: int = 0,
        budget_seconds: float = 30.0,
        sharing: str = "fair",
    ) -> Answer:
        """Search."""


_REPLICATED: Mapping[str, _Quick] = MappingProxyType(
    {"data": data, "data-proportional": data_proportional, "horovod": horovod}
)
_PLACED: Mapping[str, _Quick] = MappingProxyType({"single": single, "metis": metis, "heft": heft})
"""Every op whole on one device: not tried where it is proven that none can be faster."""


def deploy(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
    prior: Prior | None = None,
    polishes: bool = True,
) -> Answer:
    """The best deployment found; see this module's docstring.

    `prior`: what the tree search believes before it has tried anything; None: the network that
    comes with the package. Without `polishes` the tree search has all the time. Large steps on
    many devices get fewer simulations, and what was left out is said in the notes.
    """
    started = perf_counter()
    if cluster.num_devices > MAX_DEVICES:
        reason = f"{cluster.num_devices:,} devices are more than {MAX_DEVICES}; hybrid takes more"
        return refuse("deploy", f"not for this search: {reason}", 0.0, started)
    analysis = analyse(graph, cluster, seed=seed)
    bound = plan_bound(analysis.instance)
    if not np.isfinite(analysis.instance.unit_seconds).any(axis=1).all():
        return refuse("deploy", no_device_message(analysis.instance), bound, started)
    search = _DeploySearch(analysis, bound, sharing, seed, started, budget_seconds)
    try:
        search.try_quick()
        if search.can_deploy:
            search.grow(_find_prior() if prior is None else prior, _TREE_SHARE if polishes else 1.0)
        search.try_msct()
        if search.can_deploy and polishes:
            search.polish()
    except KeyboardInterrupt:
        if not search.has_any:
            raise
        search.is_interrupted = True  # the best so far is the answer
    return search.answer()


@lru_cache(maxsize=1)
def _find_prior() -> Prior:
    """The package's network, read once; where it cannot be, that is said once."""
    return load_prior(warn=say)


class _DeploySearch:
    """What is found, step by step, so that an interrupt loses nothing."""

    def __init__(
        self,
        analysis: Analysis,
        bound: float,
        sharing: str,
        seed: int,
        started: float,
        budget_seconds: float,
    ) -> None:
        self._analysis, self._bound, self._sharing = analysis, bound, sharing
        self._seed, self._started, self._budget = seed, started, budget_seconds
        self._end = started + _END * budget_seconds
        self._placement_bound = math.inf
        self._answers: dict[str, Answer] = {}
        self._found: tuple[Plan, int, StrategyEvaluation] | None = None
        """The plan, how many of its ops are duplicated, and what the simulator says."""
        self._evaluator: Evaluator | None = None
        self._starts: list[Strategy] = []
        self._notes: list[str] = []
        self._statistics = {
            "groups": float(analysis.num_groups),
            "device_groups": float(len(analysis.device_groups)),
            "actions": float(len(analysis.actions)),
        }
        self.is_interrupted = self._is_cut = False

    @property
    def has_any(self) -> bool:
        """Whether there is something to answer."""
        return bool(self._answers) or self._found is not None

    @property
    def best_seconds(self) -> float:
        """Of what fits; infinity where nothing does."""
        known = [each.step_seconds for each in self._answers.values()]
        if self._found is not None and self._found[2].fits:
            known.append(self._found[2].step_seconds)
        return min(known, default=math.inf)

    @property
    def _is_proved(self) -> bool:
        return self.best_seconds <= self._bound * (1 + _ROUNDING)

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

    def _try(self, name: str, method: _Quick, budget_seconds: float) -> None:
        graph, cluster = self._analysis.graph, self._analysis.cluster
        self._answers[name] = method(
            graph,
            cluster,
            seed=self._seed,
            budget_seconds=max(budget_seconds, 1e-3),
            sharing=self._sharing,
        )

    def try_quick(self) -> None:
        """Plans that need no search, as long as they take no time to speak of."""
        graph, cluster = self._analysis.graph, self._analysis.cluster
        is_large = graph.num_ops * cluster.num_devices > _MAX_QUICK_REPLICAS
        for name, method in _REPLICATED.items():
            if not self._answers or (self._has_time() and not (name == "horovod" and is_large)):
                self._try(name, method, self._budget)
        if cluster.num_devices > _MAX_PLACED or graph.num_ops > _MAX_PLACED_OPS:
            self._note("placements without replicas were not tried: there are too many")
            return
        self._placement_bound = placement_bound(self._analysis.instance)
        for name, method in _PLACED.items():
            if self.best_seconds > self._placement_bound and self._has_time():
                self._try(name, method, self._budget)

    def try_msct(self) -> None:
        """The placement that takes longest, where one may be the fastest."""
        if math.isfinite(self._placement_bound) and self.best_seconds > self._placement_bound:
            self._try("m-sct", msct, min(_MSCT_SHARE * self._budget, self._left / 2))

    @property
    def _left(self) -> float:
        return self._end - perf_counter()

    def _has_time(self) -> bool:
        has_time = perf_counter() < self._started + _QUICK_SHARE * self._budget
        self._is_cut |= not has_time
        return has_time

    @property
    def _stop(self) -> Stop:
        return why_stopped(is_interrupted=self.is_interrupted, is_cut=self._is_cut)

    def grow(self, prior: Prior, share: float) -> None:
        """Tree search."""
        began = perf_counter()
        evaluator = self._evaluator = Evaluator(self._analysis, self._sharing)
        taken = perf_counter() - began
        self._end -= taken  # which the last simulation will take
        self._keep_strategy(evaluator.data_parallel, evaluator)
        self._statistics["network"] = float(prior is not uniform_prior)
        if evaluator.evaluate(evaluator.data_parallel).fits:
            self._statistics["data_seconds"] = evaluator.reference_seconds
        for strategy in chain(self._proportional(), fitting_strategies(evaluator)):
            if self._left <= taken:
                self._is_cut = True
                break
            self._keep_strategy(strategy, evaluator)
            self._starts.append(strategy)
        tree = Tree(evaluator, prior, seed=self._seed)
        until = perf_counter() + share * self._left - taken
        try:
            tree.run(_MAX_ITERATIONS, until, self._has_settled)
            self._is_cut |= perf_counter() >= until
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
        if evaluation.fits and evaluation.step_seconds <= self._bound * (1 + _ROUNDING):
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
            for option in (Option.ALL_REDUCE, Option.PARAMETER_SERVER):
                action = share_out(analysis.graph, places, devices, 1.0 / seconds, option)
                yield (action,) * analysis.num_groups

    def polish(self) -> None:
        """Local search, and what it gains."""
        if self._evaluator is None or self._left <= 0:
            self._is_cut |= self._evaluator is not None
            return
        before = self.best_seconds
        found = polish(
            self._evaluator,
            self._starts,
            until=self._end,
            seed=self._seed,
            max_evaluations=min(_MAX_POLISHED, self._num_looks),
        )
        self._keep(found.plan, len(found.duplicated), found.evaluation)
        self.is_interrupted |= found.is_interrupted
        self._is_cut |= self._left <= 0
        gain = before / self.best_seconds - 1 if 0 < self.best_seconds < before < math.inf else 0.0
        self._statistics |= {
            "simulations": float(self._evaluator.num_evaluations),
            "polish_gain": gain,
        }

    @property
    def _num_looks(self) -> int:
        return max(_LEAST_LOOKS, _LOOKS * int(self._analysis.allowed.sum()))

    def _keep_strategy(self, strategy: Strategy, evaluator: Evaluator) -> None:
        self._keep(make_plan(self._analysis, strategy), 0, evaluator.evaluate(strategy))

    def _keep(self, plan: Plan, num_duplicated: int, evaluation: StrategyEvaluation) -> None:
        if self._found is None or evaluation.rank < self._found[2].rank:
            self._found = plan, num_duplicated, evaluation

    def answer(self) -> Answer:
        """The best of all; where nothing fits, what lacks least and why."""
        ranked = sorted(
            (each.statistics.get("missing_bytes", math.inf) if each.plan is None else 0.0,
             each.step_seconds, name)
            for name, each in self._answers.items()
        )  # fmt: skip
        if self._found is not None and (not ranked or self._found[2].rank <= ranked[0][:2]):
            return self._own_answer(*self._found[:2])
        return self._other_answer(ranked[0][2])

    def _own_answer(self, plan: Plan, num_duplicated: int) -> Answer:
        analysis = self._analysis
        self._statistics["duplicated"] = float(num_duplicated)
        answer = judge(
            "deploy",
            analysis.graph,
            analysis.cluster,
            plan,
            self._bound,
            self._started,
            self._statistics,
            self._sharing,
            stop=self._stop,
        )
        return replace(answer, notes=tuple(self._notes))

    def _other_answer(self, name: str) -> Answer:
        """That of a method without a search, which no deployment that was found is faster than."""
        other = self._answers[name]
        spent = perf_counter() - self._started
        if other.plan is None:
            missing = {key: other.statistics[key] for key in ("missing_bytes",) if key in
                       other.statistics}  # fmt: skip
            return refuse(
                "deploy", other.binding, self._bound, self._started,
                self._statistics | missing, other.peak_bytes, self._stop,
            )  # fmt: skip
        return replace(
            other,
            method="deploy",
            bound_seconds=self._bound,
            stop=settle_stop(self._stop, other.step_seconds, self._bound),
            search_seconds=spent,
            statistics=self._statistics,
            notes=(*self._notes, f"the plan is that of {name}: nothing found was faster"),
        )
