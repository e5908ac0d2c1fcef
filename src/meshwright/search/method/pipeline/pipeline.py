"""Parmesan's flow on any graph and cluster: stages, replicas, microbatches, schedule, devices.

Blocks of ops that must share a stage are cut into stages exactly (`search/method/pipeline/stage`)
for many numbers of stages, replicas and microbatches; stages are refined block by block and mapped
onto the devices; what is promising is simulated, and the best by simulation counts. The stages of
`consecutive` and of `pipedream` are among the candidates, so that neither is ever better.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from meshwright.array import Ints
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance
from meshwright.search.method.pipeline.block import find_blocks
from meshwright.search.method.pipeline.candidate import (
    Candidate,
    recomputed_peak_bytes,
    scheduled,
)
from meshwright.search.method.pipeline.consecutive import (
    counts_samples,
    possible_microbatches,
    refuse_pipeline,
)
from meshwright.search.method.pipeline.cutter import DEFAULT, Cutter, Options, Sketch
from meshwright.search.method.pipeline.estimate import Estimator
from meshwright.search.method.pipeline.map.problem import links_differ
from meshwright.search.method.pipeline.microbatch_price import PipelineShape, Prices, StageTeam
from meshwright.search.method.pipeline.near import near_shapes, start_candidates
from meshwright.search.method.pipeline.pipedream import usual_candidates
from meshwright.search.method.pipeline.place import (
    CHUNKS,
    chosen_homes,
    has_samples,
    mapped_homes,
    mapping_problem,
    plain_homes,
    shapes,
)
from meshwright.search.method.pipeline.scope import PipelineScope, StageMapping
from meshwright.search.method.pipeline.trial import CandidateTrials, TrialContext, open_pool
from meshwright.search.method.pipeline.tune import neighbours
from meshwright.search.problem import Problem
from meshwright.search.relief import Reliever
from meshwright.search.start import own_starts

_CLIMBS = 3
"""Pipelines of different stages and replicas from which small changes start."""
_MAPPED = 8
"""Pipelines of different stages and replicas that are mapped onto the devices anew."""
_MAPPING_SECONDS = 2.0
"""For one mapping, at most; all of them take no more than `_MAPPING_SHARE` of what is left."""
_MAPPING_SHARE = 0.3
_PATIENCE = 60
"""Candidates in the order of their guesses that may be no better, one after the other."""
_NEAR_PATIENCE = 6
"""The same near starts."""
_INTERLEAVED = 4
"""Pipelines of different stages and replicas that are tried with several stages a device."""
_RELIEVED = 12
"""Pipelines of different stages and replicas that lack memory and are relieved, at most."""
_REFINED = 10
"""Pipelines of different stages and replicas that are refined."""
_MEMORY_SHARES = (1.0, 0.85, 0.7, 0.5)
"""Of their memory what devices may fill by the split's count, in turn until a plan fits."""
_OUTSIDE = "no pipeline with as many stages and replicas was found"
_CUTTING_SHARE = 0.35
"""Of the time that is left what may be spent on cutting stages."""


def pipeline(
    problem: Problem,
    attempt: Attempt,
    *,
    options: Options = DEFAULT,
    num_workers: int | None = None,
) -> None:
    """The best pipeline that is found; `options`: parts of the search, for comparisons.

    `num_workers`: processes that simulate beside this one; None: one for each other core.
    """
    attempt.raise_bound(problem.plan_bound)
    devices = _useful_devices(problem.instance)
    scope = problem.scope_of(PipelineScope)
    reason = refuse_pipeline(problem.graph, devices) or _few_devices(scope, len(devices))
    if reason:
        attempt.refuse(reason)
        return
    search = _PipelineSearch(problem, attempt, options, num_workers)
    with problem.clock.heard(), search.trials:
        search.run()
    search.conclude()


def _useful_devices(instance: Instance) -> Ints:
    """Devices that can run some op; none where an op can run nowhere."""
    can_run = np.isfinite(instance.seconds[:, instance.type_of])
    if not can_run.any(axis=1).all():
        return np.zeros(0, dtype=np.int32)
    return np.flatnonzero(can_run.any(axis=0)).astype(np.int32)


def _few_devices(scope: PipelineScope, num_devices: int) -> str:
    """Why no pipeline of the scope has devices; empty where one does."""
    stages, replicas = min(scope.stages, default=1), min(scope.replicas, default=1)
    if stages * replicas <= num_devices:
        return ""
    needed = f"{stages:,} stages of {replicas:,} replicas need {stages * replicas:,} devices"
    return f"{needed}; {num_devices} can run ops"


def warm_splits(instance: Instance) -> None:
    """Compile what cutting a small step into stages needs."""
    _cut_once(instance, Options(num_clusters=0))


def warm_clusters(instance: Instance) -> None:
    """Compile what clustering a small step before that needs."""
    _cut_once(instance, Options(num_clusters=8, weights=(1.0,)))


def _cut_once(instance: Instance, options: Options) -> None:
    prices = Prices(instance)
    cutter = Cutter(prices, find_blocks(instance.graph), options)
    for shape, _ in shapes(prices, cutter.blocks.num_blocks, (), keeps_all=False):
        for sketch in cutter.sketches([shape], Clock(0.0)):
            problem = mapping_problem(prices, sketch.cut, sketch.teams, sketch.flights())
            plain_homes(problem, sketch.cut.num_stages)


class _PipelineSearch:
    """Candidates, and what is known of them."""

    def __init__(
        self, problem: Problem, attempt: Attempt, options: Options, num_workers: int | None
    ) -> None:
        self.problem, self.instance, self.clock = problem, problem.instance, problem.clock
        self.attempt, self.reliever = attempt, Reliever(problem, problem.clock)
        self.microbatches, self.options = problem.microbatches, options
        self.scope = problem.scope_of(PipelineScope)
        prices = Prices(self.instance)
        self.estimator = Estimator(prices, problem.sharing)
        context = TrialContext(
            graph=problem.graph, cluster=problem.cluster, sharing=problem.sharing
        )
        pool = open_pool(num_workers)
        self.trials = CandidateTrials(pool, context, self.clock, self.estimator.estimate)
        self.sketches: dict[bytes, Sketch] = {}
        self._near: dict[PipelineShape, tuple[int, ...]] = {}
        """Shapes near the starts, with their microbatches; empty: all are looked at."""
        self.cutter = Cutter(prices, find_blocks(problem.graph), options)

    def run(self) -> None:
        """The usual pipelines, those of exact splits, other mappings; then small changes.

        From starts: these, splits like theirs, and small changes."""
        trials, options = self.trials, self.options
        if plans := own_starts(self.problem, "pipeline"):
            self._run_near(plans)
            return
        if options.tries_usual:
            trials.run(self._usual_candidates())
        for share in _MEMORY_SHARES:
            self.cutter.memory_share = share
            trials.run(self._allowed(self._split_candidates()), patience=_PATIENCE)
            if trials.fits:
                break
            self._relieve()
        self._relieve()
        if options.refines:
            trials.run(self._allowed(self._refined_candidates()))
        if options.interleaves and not self.cutter.blocks.has_tail:
            trials.run(self._allowed(self._interleaved_candidates()))
        is_open = self.scope.mapping is StageMapping.SEARCHED
        if options.maps and is_open and links_differ(self.instance.bandwidth):
            trials.run(self._mapped_candidates())
        if options.tunes:
            for start in trials.leaders(_CLIMBS):
                trials.climb(start, self._neighbours)

    def _run_near(self, plans: Sequence[Plan]) -> None:
        graph, trials = self.instance.graph, self.trials
        starts = list(start_candidates(graph, self.problem.cluster, plans))
        trials.run(
            each
            for start in starts
            for each in scheduled(start.cut, start.homes, self._near_counts(start), "start")
        )
        known = shapes(
            self.cutter.prices,
            self.cutter.blocks.num_blocks,
            self.microbatches,
            keeps_all=self.cutter.blocks.has_tail,
            scope=self.scope,
        )
        self._near = dict(near_shapes(known, starts))
        trials.run(self._allowed(self._split_candidates()), patience=_NEAR_PATIENCE)
        for start in trials.leaders(1):
            trials.climb(start, self._neighbours)

    def _relieve(self) -> None:
        """Offer what the most promising that lack memory become where they save some."""
        cluster = self.instance.cluster
        fronts = (
            [each.plan(cluster) for each in front] for front in self.trials.heavy()[:_RELIEVED]
        )
        self.reliever.offer(fronts, self.attempt)

    def _near_counts(self, start: Candidate) -> list[int]:
        """Microbatches within twice and half of a start's, its own first."""
        most = max(map(len, start.homes))
        own = start.microbatches
        known = self.microbatches or possible_microbatches(self.instance.graph, most)
        near = [
            each
            for each in known
            if own <= 2 * each <= 4 * own and has_samples(self.instance.graph, most * each)
        ]
        return sorted(near, key=lambda each: abs(np.log(each / own))) or [own]

    def _allowed(self, candidates: Iterable[Candidate]) -> Iterator[Candidate]:
        return (each for each in candidates if self.scope.allows(each.homes))

    def _usual_candidates(self) -> Iterator[Candidate]:
        """Those of `consecutive` are mapped consecutively, those of `pipedream` in its own way."""
        mapping = self.scope.mapping
        for each in self._allowed(usual_candidates(self.instance, self.microbatches)):
            if mapping is StageMapping.SEARCHED or each.origin == mapping:
                yield each

    def _split_candidates(self) -> Iterator[Candidate]:
        """All stages that are cut within a part of the time, on devices in their order."""
        cutting = self.clock.rest(_CUTTING_SHARE)
        blocks = self.cutter.blocks
        choices = self._near or dict(
            shapes(
                self.cutter.prices,
                blocks.num_blocks,
                self.microbatches,
                keeps_all=blocks.has_tail,
                scope=self.scope,
            )
        )
        for sketch in self._sketches(list(choices), cutting):
            self.sketches[sketch.cut.key] = sketch
            yield from self._placed(sketch, choices[sketch.shape])
        cutting.look()

    def _sketches(self, wanted: Sequence[PipelineShape], clock: Clock) -> Iterator[Sketch]:
        """As many stages as the scope says, where all devices are alike; else those that suit."""
        if self.scope.stages and all(len(shape.teams) == 1 for shape in wanted):
            for place, shape in enumerate(wanted):
                if place == 0 or not clock.is_over:
                    yield from self.cutter.exact(shape)
        else:
            yield from self.cutter.sketches(wanted, clock)

    def _placed(self, sketch: Sketch, choices: Sequence[int]) -> Iterator[Candidate]:
        cut = sketch.cut
        problem = mapping_problem(self.cutter.prices, cut, sketch.teams, sketch.flights())
        mapping, budget = self.scope.mapping, self._mapping_seconds()
        for homes in chosen_homes(problem, cut.num_stages, mapping, budget):
            yield from scheduled(cut, homes, choices, "split")

    def _mapping_seconds(self) -> float:
        left = max(0.0, self.clock.left)
        return min(_MAPPING_SECONDS, _MAPPING_SHARE * left / _MAPPED)

    def _refined_candidates(self) -> Iterator[Candidate]:
        """The most promising stages, refined: those that are best already may exchange less."""
        for _, candidate in self.trials.leaders(_REFINED):
            sketch = self.sketches.get(candidate.cut.key)
            if sketch is not None and not self.trials.is_over:
                yield from self._placed(self.cutter.refine(sketch), [candidate.microbatches])

    def _interleaved_candidates(self) -> Iterator[Candidate]:
        """The most promising teams of one size, with several stages each."""
        grade_of = self.cutter.prices.grade_of
        for _, candidate in self.trials.leaders(_INTERLEAVED):
            homes = candidate.homes
            teams = {(int(grade_of[device]), len(home)) for home in homes for device in home}
            if len(homes) < 2 or len(teams) > 1:
                continue
            ((grade, replicas),) = teams
            usual = candidate.microbatches
            choices = self.microbatches or possible_microbatches(self.instance.graph, replicas)
            near = sorted(choices, key=lambda count: abs(np.log(count / usual)))[:3]
            for chunks in CHUNKS:
                shape = PipelineShape(
                    teams=(StageTeam(grade=grade, replicas=replicas),),
                    counts=(len(homes) * replicas,),
                    microbatches=usual,
                    chunks=chunks,
                )
                if shape.most_stages > self.cutter.blocks.num_blocks or self.trials.is_over:
                    break
                for sketch in self.cutter.exact(shape):
                    yield from self._placed(sketch, near)

    def _mapped_candidates(self) -> Iterator[Candidate]:
        """The most promising stages on the best devices that are found for them."""
        grade_of = self.cutter.prices.grade_of
        budget = self._mapping_seconds()
        for _, candidate in self.trials.leaders(_MAPPED):
            slots = list(dict.fromkeys(candidate.homes))
            grades = [{int(grade_of[device]) for device in home} for home in slots]
            in_turn = tuple(slots[k % len(slots)] for k in range(len(candidate.homes)))
            is_mixed = any(len(each) > 1 for each in grades)
            if self.trials.is_over or is_mixed or in_turn != candidate.homes:
                continue
            teams = [
                StageTeam(grade=each.pop(), replicas=len(home))
                for each, home in zip(grades, slots, strict=True)
            ]
            flights = [1 / candidate.microbatches] * candidate.cut.num_stages
            problem = mapping_problem(self.cutter.prices, candidate.cut, teams, flights)
            for homes in mapped_homes(
                problem,
                candidate.cut.num_stages,
                seed=self.problem.seed,
                budget_seconds=budget,
            ):
                yield from scheduled(candidate.cut, homes, [candidate.microbatches], "split")

    def _neighbours(self, candidate: Candidate) -> Iterator[Candidate]:
        replicas = max(map(len, candidate.homes))
        choices = self.microbatches or possible_microbatches(self.instance.graph, replicas)
        is_open = self.scope.mapping is StageMapping.SEARCHED
        found = neighbours(self.instance, self.cutter.blocks, candidate, choices)
        for each in self._allowed(found):
            has_all = has_samples(
                self.instance.graph, max(map(len, each.homes)) * each.microbatches
            )
            if has_all and (is_open or each.homes == candidate.homes):
                yield each

    def _lacking(self) -> str:
        """Why the batch or the graph has nothing of what is wanted; empty where it has."""
        graph, scope = self.instance.graph, self.scope
        fewest, replicas = min(self.microbatches, default=1), min(scope.replicas, default=1)
        if counts_samples(graph) and fewest * replicas > graph.batch:
            of_each = "" if replicas == 1 else f" of {replicas:,} replicas"
            return (
                f"{fewest:,} microbatches{of_each} leave less than a sample of the batch of "
                f"{graph.batch:g} for each; at most {graph.batch / replicas:g} do"
            )
        blocks = self.cutter.blocks.num_blocks
        if min(scope.stages, default=1) > blocks:
            return f"the step can be cut into {blocks:,} stages, not into {min(scope.stages)}"
        return ""

    def _recomputed(self, candidate: Candidate) -> float:
        """What the fullest device would hold with recomputation, by Parmesan's formula."""
        replicas = [len(home) for home in candidate.homes]
        graph, cut = self.instance.graph, candidate.cut
        peaks = recomputed_peak_bytes(graph, cut, candidate.microbatches, replicas)
        held = np.zeros(self.instance.num_devices)
        for home, peak in zip(candidate.homes, peaks.tolist(), strict=True):
            held[list(home)] += peak
        return float(held.max())

    def conclude(self) -> None:
        """Offer what was best, judged op by op."""
        attempt, trials = self.attempt, self.trials
        if trials.best is None:
            if not (self.clock.is_interrupted or attempt.has_any):
                reason = self._lacking() or trials.reason or self.cutter.reason or _OUTSIDE
                attempt.refuse(reason, trials.statistics)
            return
        if attempt.fits and not trials.fits:
            attempt.statistics = trials.statistics
            return
        for candidate in trials.finalists():
            plan = candidate.plan(self.instance.cluster)
            if attempt.offer(plan, self.problem.settle(plan)):
                attempt.statistics = trials.statistics | {
                    "stages": float(candidate.cut.num_stages),
                    "microbatches": float(candidate.microbatches),
                    "replicas": float(max(map(len, candidate.homes))),
                    "largest_stage_seconds": self.estimator.estimate(candidate).largest_seconds,
                    "recomputed_peak_bytes": self._recomputed(candidate),
                }
