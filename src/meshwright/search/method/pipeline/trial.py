"""Simulates candidates in the order of their guesses and keeps the best.

What counts depends on the candidates alone, never on how fast the machine is or how many cores it
has, unless time runs out: then the best so far counts.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.interpreter import num_cores
from meshwright.plan.plan import ScheduleKind
from meshwright.search.clock import Clock
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.pipeline.candidate import Candidate, Key, StageCut
from meshwright.search.method.pipeline.estimate import Estimate
from meshwright.search.method.pipeline.pipedream import USUAL
from meshwright.search.pool.process import Processes

_MAX_INSTANCES = 300_000
"""The most instances of ops, over all microbatches, of a plan that is simulated op by op where a
stage cannot be simulated as one."""

Result = tuple[Verdict, Candidate]

_MAX_WORKERS = 8
"""The most processes that simulate candidates: of those that many would look at ahead of their
turn, most would never have one."""
_WORTH_SECONDS = 3.0
"""The time that must be left for other processes to be started: each takes one or two seconds to
load what it needs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrialContext:
    """What the simulations of all candidates have in common."""

    graph: Graph
    cluster: Cluster
    sharing: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A candidate and how it is simulated, without the graph, which workers have."""

    key: Key
    ops_first: bool
    """Whether op by op comes before stage by stage."""

    def candidate(self, graph: Graph) -> Candidate:
        """Returns a candidate that has this key."""
        stage_of_op, homes, kind, microbatches = self.key
        stages = np.frombuffer(stage_of_op, dtype=np.int32)
        cut = StageCut(graph=graph, stage_of_op=stages, num_stages=len(homes))
        return Candidate(cut=cut, homes=homes, kind=ScheduleKind(kind), microbatches=microbatches)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedTask:
    """What came of a task."""

    verdict: Verdict | None
    """What the simulator says of the plan; None: the plan cannot be run."""
    reason: str
    """Why the plan could not be simulated in one of the ways; empty where it could."""
    needs_ops: bool
    """Whether the plan could be simulated op by op and not stage by stage."""


def attempt(context: TrialContext, task: Task) -> SimulatedTask:
    """Simulates stage by stage, or op by op where an op needs all replicas within a stage."""
    graph, cluster = context.graph, context.cluster
    candidate = task.candidate(graph)
    plan = candidate.plan(cluster)
    instances = sum(len(part.ops) * len(part.devices) for part in plan.parts)
    granularities = ["part"]
    if instances * candidate.microbatches <= _MAX_INSTANCES:
        granularities.insert(0 if task.ops_first else 1, "op")
    reason = ""
    for number, granularity in enumerate(granularities):
        try:
            verdict = try_plan(graph, cluster, plan, context.sharing, granularity)
        except InputError as error:
            reason = str(error)
            continue
        needs_ops = number > 0 and granularity == "op"
        return SimulatedTask(verdict=verdict, reason=reason, needs_ops=needs_ops)
    return SimulatedTask(verdict=None, reason=reason, needs_ops=False)


def open_pool(num_workers: int | None) -> Processes:
    """A pool of this process and `num_workers` others; None: one for each other core."""
    return Processes(min(num_cores(), _MAX_WORKERS) if num_workers is None else 1 + num_workers)


class CandidateTrials(AbstractContextManager["CandidateTrials"]):
    """The candidates that have been simulated, in this process and in those of its pool.

    It is used as a context, which ends the pool.
    """

    def __init__(
        self,
        pool: Processes,
        context: TrialContext,
        clock: Clock,
        estimate: Callable[[Candidate], Estimate],
    ) -> None:
        self._pool, self._context, self._clock = pool, context, clock
        self._estimate = estimate
        self._estimates: dict[Key, Estimate] = {}
        self._seen: dict[Key, Candidate] = {}
        self._results: dict[Key, Result | None] = {}
        self.best: Result | None = None
        self.reason = ""
        self._fails_by_stage = False
        self.statistics = {"candidates": 0.0, "simulations": 0.0}

    def __exit__(self, *_: object) -> None:
        self._pool.close()

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self.best is not None and self._clock.is_over

    def run(self, candidates: Iterable[Candidate], *, patience: float = math.inf) -> None:
        """Tries the promising first, until so many in a row were no better than the best."""
        in_vain = 0
        ranked = self._ranked(candidates)
        for place in range(len(ranked)):
            if self.is_over or in_vain >= patience:
                return
            before = self.best
            if self._try(ranked, place) is not None:
                in_vain = 0 if self.best is not before else in_vain + 1

    def climb(
        self, start: Result, neighbours: Callable[[Candidate], Iterable[Candidate]]
    ) -> Result:
        """Goes to a better neighbour, trying the promising first, until there is none."""
        at = start
        while not self.is_over:
            ranked = self._ranked(neighbours(at[1]))
            for place in range(len(ranked)):
                found = None if self.is_over else self._try(ranked, place)
                if found is not None and found[0].rank < at[0].rank:
                    at = found
                    break
            else:
                break
        return at

    def leaders(self, count: int) -> list[Result]:
        """Returns the best of each number of stages and replicas, the best first."""
        known = [each for each in self._results.values() if each is not None]
        found: dict[tuple[int, ...], Result] = {}
        for result in sorted(known, key=lambda each: each[0].rank):
            found.setdefault(tuple(map(len, result[1].homes)), result)
        return list(found.values())[:count]

    @property
    def fits(self) -> bool:
        """Whether a candidate that fits was found."""
        return self.best is not None and self.best[0].fits

    def heavy(self) -> list[list[Candidate]]:
        """Returns what lacks memory and may be faster than the best that fits, by its guess, or by
        the simulator where that has seen it: of each number of stages and replicas, the fastest
        first, candidates in the order of their steps of which each lacks less than those before."""
        limit = self.best[0].step_seconds if self.best and self.fits else math.inf
        known: list[tuple[float, float, Candidate]] = []
        for key, candidate in self._seen.items():
            estimate = self._estimates[key]
            seconds, missing = estimate.guess_seconds, estimate.missing_bytes
            if key in self._results:
                if (result := self._results[key]) is None:
                    continue
                seconds, missing = result[0].step_seconds, result[0].missing_bytes
            if seconds < limit and missing > 0:
                known.append((seconds, missing, candidate))
        least: dict[tuple[int, ...], float] = {}
        fronts: dict[tuple[int, ...], list[Candidate]] = {}
        for _, missing, candidate in sorted(known, key=lambda each: each[0]):
            shape = tuple(map(len, candidate.homes))
            if missing < least.get(shape, math.inf):
                least[shape] = missing
                fronts.setdefault(shape, []).append(candidate)
        return list(fronts.values())

    def finalists(self) -> list[Candidate]:
        """Returns the best, the best usual ones, and those of one stage that run the batch at once.

        Stage by stage, a stage of several replicas whose ops sum over them in its middle may take
        longer than op by op; so these are looked at op by op.
        """
        known = [each for each in self._results.values() if each is not None]
        found: dict[str, Candidate] = {}
        for _, candidate in sorted(known, key=lambda each: each[0].rank):
            found.setdefault(candidate.origin if candidate.origin in USUAL else "", candidate)
            if candidate.cut.num_stages == candidate.microbatches == 1:
                found.setdefault(f"one stage on {len(candidate.homes[0])}", candidate)
        return list({each.key: each for each in found.values()}.values())

    def _ranked(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Returns the candidates that have not been tried, the promising first."""
        fresh: dict[Key, Candidate] = {}
        for each in candidates:
            if each.key not in self._results:
                fresh[each.key] = each
        for key, candidate in fresh.items():
            if key not in self._estimates:
                self.statistics["candidates"] += 1
                self._estimates[key] = self._estimate(candidate)
                self._seen[key] = candidate
        return [fresh[key] for key in sorted(fresh, key=lambda key: self._estimates[key].rank)]

    def _is_hopeless(self, estimate: Estimate) -> bool:
        """Whether a candidate is proven to be no faster than the best that fits, or not to fit."""
        if self.best is None or not self.best[0].fits:
            return False
        return estimate.missing_bytes > 0 or estimate.bound_seconds >= self.best[0].step_seconds

    def _try(self, ranked: Sequence[Candidate], place: int) -> Result | None:
        candidate = ranked[place]
        if self._is_hopeless(self._estimates[candidate.key]):
            return None
        if self._clock.left >= _WORTH_SECONDS:
            self._pool.start()
        tasks = list(islice(self._tasks(ranked, place), self._pool.reach))
        found = self._pool.take(attempt, self._context, tasks, lambda: self.is_over)
        if found is None:
            return None
        self.statistics["simulations"] += 1
        self.reason = found.reason or self.reason
        self._fails_by_stage |= found.needs_ops
        result = None if found.verdict is None else (found.verdict, candidate)
        self._results[candidate.key] = result
        if result and (self.best is None or result[0].rank < self.best[0].rank):
            self.best = result
        return result

    def _tasks(self, ranked: Sequence[Candidate], place: int) -> Iterator[Task]:
        """The tasks from this place on, as far as can be seen: each is decided on at its turn."""
        for candidate in ranked[place:]:
            if not self._is_hopeless(self._estimates[candidate.key]):
                # What failed stage by stage once will again, if any stage has replicas.
                is_replicated = max(map(len, candidate.homes)) > 1
                yield Task(key=candidate.key, ops_first=self._fails_by_stage and is_replicated)
