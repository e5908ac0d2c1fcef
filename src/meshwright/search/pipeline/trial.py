"""Simulates candidates in the order of their guesses and keeps the best.

What is simulated depends on the candidates alone, never on how fast the machine is, unless time
runs out: then the best so far counts.
"""

import math
from collections.abc import Callable, Iterable
from time import perf_counter

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.pipeline.baseline import USUAL
from meshwright.search.pipeline.candidate import Candidate, Key
from meshwright.search.pipeline.estimate import Estimate

_MAX_INSTANCES = 300_000
"""Instances of ops that are simulated op by op where a stage cannot be simulated as one."""

Result = tuple[Verdict, Candidate]


class Trials:
    """What has been simulated."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        sharing: str,
        until: float,
        estimate: Callable[[Candidate], Estimate],
    ) -> None:
        self._graph, self._cluster, self.sharing = graph, cluster, sharing
        self.until = until
        self._estimate = estimate
        self._estimates: dict[Key, Estimate] = {}
        self._results: dict[Key, Result | None] = {}
        self.best: Result | None = None
        self.reason = ""
        self._fails_by_stage = False
        self.statistics = {"candidates": 0.0, "simulations": 0.0}

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return self.best is not None and perf_counter() > self.until

    def run(self, candidates: Iterable[Candidate], *, patience: float = math.inf) -> None:
        """Try the promising first, until so many in a row were no better than the best."""
        in_vain = 0
        for candidate in self._ranked(candidates):
            if self.is_over or in_vain >= patience:
                return
            before = self.best
            if self._try(candidate) is not None:
                in_vain = 0 if self.best is not before else in_vain + 1

    def climb(
        self, start: Result, neighbours: Callable[[Candidate], Iterable[Candidate]]
    ) -> Result:
        """Go to a better neighbour, the promising first, until there is none."""
        at = start
        while not self.is_over:
            for candidate in self._ranked(neighbours(at[1])):
                found = None if self.is_over else self._try(candidate)
                if found is not None and found[0].rank < at[0].rank:
                    at = found
                    break
            else:
                break
        return at

    def leaders(self, count: int) -> list[Result]:
        """The best of each number of stages and replicas, the best first."""
        known = [each for each in self._results.values() if each is not None]
        found: dict[tuple[int, ...], Result] = {}
        for result in sorted(known, key=lambda each: each[0].rank):
            found.setdefault(tuple(map(len, result[1].homes)), result)
        return list(found.values())[:count]

    def finalists(self) -> list[Candidate]:
        """The best, the best usual ones, and those of one stage that run the batch at once.

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
        """What has not been tried, the promising first."""
        fresh = {each.key: each for each in candidates if each.key not in self._results}
        for key, candidate in fresh.items():
            if key not in self._estimates:
                self.statistics["candidates"] += 1
                self._estimates[key] = self._estimate(candidate)
        return [fresh[key] for key in sorted(fresh, key=lambda key: self._estimates[key].rank)]

    def _is_hopeless(self, estimate: Estimate) -> bool:
        """Whether it is proven to be no faster than the best that fits, or not to fit."""
        if self.best is None or not self.best[0].fits:
            return False
        return estimate.missing_bytes > 0 or estimate.bound_seconds >= self.best[0].step_seconds

    def _try(self, candidate: Candidate) -> Result | None:
        if self._is_hopeless(self._estimates[candidate.key]):
            return None
        verdict = self._simulate(candidate)
        result = None if verdict is None else (verdict, candidate)
        self._results[candidate.key] = result
        if result and (self.best is None or result[0].rank < self.best[0].rank):
            self.best = result
        return result

    def _simulate(self, candidate: Candidate) -> Verdict | None:
        """Stage by stage; op by op where an op needs all replicas in the middle of a stage."""
        self.statistics["simulations"] += 1
        plan = candidate.plan(self._cluster)
        instances = sum(len(part.ops) * len(part.devices) for part in plan.parts)
        is_replicated = max(map(len, candidate.homes)) > 1
        granularities = ["part"]
        if instances * candidate.microbatches <= _MAX_INSTANCES:
            # What failed stage by stage once will again, if any stage has replicas.
            place = 0 if self._fails_by_stage and is_replicated else 1
            granularities.insert(place, "op")
        for number, granularity in enumerate(granularities):
            try:
                verdict = try_plan(self._graph, self._cluster, plan, self.sharing, granularity)
            except InputError as error:
                self.reason = str(error)
                continue
            self._fails_by_stage |= number > 0 and granularity == "op"
            return verdict
        return None
