"""Improves strategies by local search, so that what a learned search finds is not the last word.

Starts are ranked, the best are opened by moves that a person would try first, and from there on
moves are drawn, turned down by their sums or simulated, and accepted by annealing. Which groups a
move changes comes from the critical path of the simulated step. Gradients are bundled as suits the
best, and in between sufficient factors are tried on it. Knows nothing of how starts were found.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.graph.graph import Floats
from meshwright.kernel.row import sum_values
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.evaluate import Evaluator, StrategyEvaluation
from meshwright.search.method.deploy.factor.factor import choose_duplicated
from meshwright.search.method.deploy.option import GroupOption, Strategy
from meshwright.search.method.deploy.polish.load import Loads
from meshwright.search.method.deploy.polish.move import MOVES, Site
from meshwright.search.method.deploy.polish.opening import open_strategies
from meshwright.simulate.timeline import Timeline

Rank = tuple[float, float]

_NUM_ELITE = 4
_BUNDLES = (1, 8, 20, 10**6)
"""Into how many runs gradients are bundled; the last: each group's alone."""
_OPENING = 0.3
"""The part of the time, or of the evaluations, that openings get at most."""
_FACTORS_AT = (0.35, 0.85)
"""When sufficient factors are tried on the best."""
_MOST_OPS = 10_000
"""Of graphs on which they are; the programme of more takes seconds."""
_TEMPERATURE = 0.012
"""At the start, relative to the step."""
_PATIENCE = 40
"""Evaluations without a better one after which the walk goes back to the best."""
_TURNED_DOWN = 60
"""Moves in a row that are none or hopeless, after which the walk goes elsewhere."""
_MOST_IDLE = 1000
"""Moves in a row that are all known, after which the search has seen what it can."""
_MOST_PROPOSED = 4
"""Of so many moves at most the one with the least sums is simulated."""
_SLACK = 0.99
"""Sums are estimates: moves are turned down where they are above the level by more than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolishLayout:
    """A strategy, and what else a plan is made of."""

    strategy: Strategy
    duplicated: frozenset[int] = frozenset()
    """Ops that replicas run on the whole batch besides."""
    bundles: tuple[int, ...] = ()
    """By group: gradients with different numbers travel apart; empty: all together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Polished:
    """What the local search found."""

    plan: Plan
    strategy: Strategy
    duplicated: frozenset[int]
    bundles: tuple[int, ...]
    evaluation: StrategyEvaluation
    num_moves: int
    """Moves that made the best better."""
    num_evaluations: int


def polish(
    evaluator: Evaluator,
    starts: Sequence[Strategy],
    *,
    clock: Clock,
    seed: int = 0,
    max_evaluations: int | None = None,
    layouts: Sequence[PolishLayout] = (),
) -> Polished:
    """The best strategy near the starts, never worse than any of them; `layouts` are starts of
    which bundles and duplicated ops are known, too.

    With `max_evaluations` and a clock without end the same seed gives the same strategy. Ctrl-C
    ends it with the best so far.
    """
    search = _PolishSearch(evaluator, clock.rest(1.0), seed, max_evaluations)
    with clock.heard():
        search.run(starts or (evaluator.data_parallel,), layouts)
    best = search.best
    return Polished(
        plan=make_plan(evaluator.analysis, best.strategy, best.duplicated, best.bundles),
        strategy=best.strategy,
        duplicated=best.duplicated,
        bundles=best.bundles,
        evaluation=evaluator.evaluate(best.strategy, best.duplicated, best.bundles),
        num_moves=search.num_moves,
        num_evaluations=evaluator.num_evaluations - search.evaluations_before,
    )


class _PolishSearch:
    """The search for better strategies: the best so far and what is known of it."""

    def __init__(
        self, evaluator: Evaluator, clock: Clock, seed: int, max_evaluations: int | None
    ) -> None:
        self.evaluator, self.analysis = evaluator, evaluator.analysis
        self.clock = clock
        self.rng = np.random.default_rng(seed)
        self.evaluations_before = evaluator.num_evaluations
        self.max_evaluations = max_evaluations
        self.best = PolishLayout(strategy=evaluator.data_parallel)
        self.best_rank: Rank = (math.inf, math.inf)
        self.elite: list[tuple[Rank, PolishLayout]] = []
        self.num_moves = 0
        self.loads = Loads(self.analysis)
        self.odds = np.ones(len(MOVES))
        self.factors_at = list(_FACTORS_AT)

    def progress(self) -> float:
        """From 0 to 1, where the search ends."""
        done = self.evaluator.num_evaluations - self.evaluations_before
        share = 0.0 if self.max_evaluations is None else done / max(self.max_evaluations, 1)
        if math.isinf(self.clock.until):
            assert self.max_evaluations is not None, "a search must end"
            return share
        return max(share, self.clock.elapsed / max(self.clock.seconds, 1e-9))

    def measure(self, layout: PolishLayout) -> Rank:
        """Simulate, and remember the best and the elite."""
        rank = self.evaluator.rank(layout.strategy, layout.duplicated, layout.bundles)
        if rank < self.best_rank:
            self.best, self.best_rank = layout, rank
            self.num_moves += 1
        if all(rank != each for each, _ in self.elite):  # equals are mostly the same plan
            self.elite = sorted([*self.elite, (rank, layout)], key=lambda each: each[0])
            del self.elite[_NUM_ELITE:]
        return rank

    def run(self, starts: Sequence[Strategy], layouts: Sequence[PolishLayout] = ()) -> None:
        """Starts, openings, then the walk."""
        plain = (PolishLayout(strategy=start) for start in dict.fromkeys(starts))
        for layout in (*layouts, *plain):
            self.measure(layout)
            if self.progress() >= 1:
                return
        self.num_moves = 0
        for count in _BUNDLES:
            if self.progress() < 1:
                self.measure(replace(self.best, bundles=self.loads.bundle(count)))
        for layout in self._openings():
            if self.progress() >= _OPENING:
                break
            level = self.best_rank[1]
            if self.best_rank[0] > 0 or not self._is_hopeless(layout.strategy, level):
                self.measure(layout)
        self._walk()

    def _openings(self) -> Iterator[PolishLayout]:
        starts = [layout.strategy for _, layout in self.elite]
        fits = self.best_rank[0] <= 0

        def is_over() -> bool:
            return self.progress() >= _OPENING / 2

        for strategy in open_strategies(self.loads, starts, fits=fits, is_over=is_over):
            yield replace(self.best, strategy=strategy)

    def _is_hopeless(self, strategy: Strategy, level_seconds: float) -> bool:
        return self.loads.floor_seconds(strategy) * _SLACK > level_seconds

    def _walk(self) -> None:
        current, rank = self.best, self.best_rank
        site = self._site(current)
        since, num_idle = 0, 0
        while (progress := self.progress()) < 1 and num_idle < _MOST_IDLE:
            if self.factors_at and progress >= self.factors_at[0]:
                self.factors_at.pop(0)
                if self._try_factors():
                    current, rank = self.best, self.best_rank
                    site = self._site(current)
            before, best = self.evaluator.num_evaluations, self.best_rank
            number, strategy = self._propose(site, rank)
            if strategy is not None:
                proposed = replace(current, strategy=strategy)
                found = self.measure(proposed)
                is_better = self.best_rank < best
                self.odds[number] = max(0.2, 0.97 * self.odds[number] + (1.0 if is_better else 0.0))
                since = 0 if is_better else since + 1
                if self._accepts(found, rank, progress):
                    current, rank = proposed, found
                    site = self._site(current, None if is_better else site.heat)
            num_idle = 0 if self.evaluator.num_evaluations > before else num_idle + 1
            if since > _PATIENCE or strategy is None or num_idle > _PATIENCE:
                since = 0
                current = self._kick(site)
                rank = self.measure(current)
                site = self._site(current)

    def _propose(self, site: Site, rank: Rank) -> tuple[int, Strategy | None]:
        """A move that is not hopeless, of a few the one with the least sums; and its number."""
        chosen: tuple[float, int, Strategy] | None = None
        level = math.inf if rank[0] > 0 else rank[1] * (1 + 3 * _TEMPERATURE)
        wanted = int(self.rng.integers(1, _MOST_PROPOSED + 1))
        for _ in range(_TURNED_DOWN):
            number = int(self.rng.choice(len(MOVES), p=self.odds / self.odds.sum()))
            strategy = MOVES[number](site, self.rng)
            if strategy is None:
                continue
            if not self._is_hopeless(strategy, level):
                sums = self.loads.estimate_seconds(strategy)
                if chosen is None or sums < chosen[0]:
                    chosen = sums, number, strategy
            wanted -= 1
            if wanted <= 0 and chosen is not None:
                break
        return (0, None) if chosen is None else chosen[1:]

    def _kick(self, site: Site) -> PolishLayout:
        """One of the elite, mostly the best, after a few moves at once."""
        place = 0 if self.rng.random() < 0.6 else int(self.rng.integers(len(self.elite)))
        layout = self.elite[place][1]
        for _ in range(int(self.rng.integers(0, 4))):
            site = replace(site, strategy=layout.strategy)
            move = MOVES[int(self.rng.integers(len(MOVES)))]
            layout = replace(layout, strategy=move(site, self.rng) or layout.strategy)
        return layout

    def _accepts(self, found: Rank, rank: Rank, progress: float) -> bool:
        if found <= rank:
            return True
        if found[0] > 0 or rank[0] > 0:
            return False
        temperature = _TEMPERATURE * max(1 - progress, 0.02) * rank[1]
        return self.rng.random() < math.exp((rank[1] - found[1]) / max(temperature, 1e-300))

    def _site(self, layout: PolishLayout, heat: Floats | None = None) -> Site:
        if heat is None:
            timeline = self.evaluator.simulate(layout.strategy, layout.duplicated, layout.bundles)
            heat = group_heat(self.analysis, timeline)
        elite = tuple(each.strategy for _, each in self.elite)
        return Site(strategy=layout.strategy, heat=heat, elite=elite, loads=self.loads)

    def _try_factors(self) -> bool:
        """Sufficient factors for the replicas of the best with the most gradients; whether they
        make it faster."""
        best, before = self.best, self.best_rank
        if self.analysis.graph.num_ops > _MOST_OPS:
            return False
        chosen = zip(best.strategy, self.analysis.gradient_bytes.tolist(), strict=True)
        sizes = sum_values(
            ((action.devices, action.shares), size)
            for action, size in chosen
            if len(action.devices) > 1 and action.option in _SYNCHRONISED
        )
        if not sizes:
            return False
        devices, shares = max(sizes, key=lambda key: sizes[key])
        groups = [
            group
            for group, each in enumerate(best.strategy)
            if (each.devices, each.shares) == (devices, shares) and each.option in _SYNCHRONISED
        ]
        within = np.flatnonzero(np.isin(self.analysis.group_of, groups)).tolist()

        def time(ops: frozenset[int]) -> float:
            if self.progress() >= 1:
                return math.inf
            rank = self.measure(replace(best, duplicated=ops))
            return rank[1] if rank[0] <= 0 else math.inf

        choose_duplicated(
            time, self.analysis.graph, self.analysis.cluster, devices, shares, within=within
        )
        return self.best_rank < before


_SYNCHRONISED = (GroupOption.ALL_REDUCE, GroupOption.PARAMETER_SERVER)


def group_heat(analysis: Analysis, timeline: Timeline) -> Floats:
    """By group: seconds on the critical path, of its ops, of what brings their inputs, and of its
    gradients, which share their collective's by bytes."""
    rows, graph = timeline.program.instructions, analysis.graph
    path = np.array(timeline.critical_path, dtype=np.int64)
    heat = np.zeros(analysis.num_groups)
    if not len(path):
        return heat
    took = np.diff(timeline.finish[path], prepend=0.0)
    tensor, op = rows["tensor"][path], rows["op"][path]
    source = op.copy()
    source[tensor >= 0] = graph.tensor_source[tensor[tensor >= 0]]
    known = source >= 0
    heat += np.bincount(
        analysis.group_of[source[known]], weights=took[known], minlength=analysis.num_groups
    )
    gradients = float(took[~known].sum())
    total = float(analysis.gradient_bytes.sum())
    if gradients > 0 and total > 0:
        heat += gradients * analysis.gradient_bytes / total
    return np.maximum(heat, 0.0)
