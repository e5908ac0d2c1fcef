"""Equal stages times replicas on consecutive devices, and what all pipelines try alike.

S stages of about equal compute, R replicas of each on neighbouring devices (all-reduce first, as
Megatron-LM orders its groups), for every S R = devices; the best by simulation.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.part import MOST_MICROBATCHES
from meshwright.plan.plan import Plan
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance
from meshwright.search.judge import Verdict
from meshwright.search.method.pipeline.chain import Chain, make_chain, stages_plan
from meshwright.search.problem import Problem

_MAX_MICROBATCHES = 64
"""Where the batch does not count samples, powers of two up to this are tried."""


def consecutive(problem: Problem, attempt: Attempt) -> None:
    """The best of all S stages x R replicas."""
    if (devices := open_pipeline(problem, attempt)) is None:
        return
    trial = Trial(problem)
    for pipeline in equal_pipelines(problem.instance, devices):
        trial.try_stages(*pipeline)
    trial.conclude(attempt)


def equal_pipelines(
    instance: Instance, devices: Ints
) -> Iterator[tuple[Chain, tuple[int, ...], list[Ints]]]:
    """For every number of stages that divides the devices: where stages end, and their homes."""
    chain = make_chain(instance, np.unique(instance.type_of[devices]).tolist())
    for stages in range(1, min(len(devices), chain.num_blocks) + 1):
        if len(devices) % stages == 0:
            yield chain, equal_stages(chain.seconds, stages), np.split(devices, stages)


def equal_stages(seconds: Floats, stages: int) -> tuple[int, ...]:
    """Where stages end so that the slowest is as fast as can be; none is empty."""
    sums = np.concatenate(([0.0], np.cumsum(seconds)))
    low, high = max(float(seconds.max()), float(sums[-1]) / stages), float(sums[-1])
    for _ in range(60):  # bisection on the slowest stage's time; a stage takes all that fits
        middle = (low + high) / 2
        if len(_fill_stages(sums, middle)) <= stages:
            high = middle
        else:
            low = middle
    ends = _fill_stages(sums, high)
    # Too few stages: cut off single blocks from the front, which makes no stage slower.
    missing = [end for end in range(1, len(seconds)) if end not in ends]
    return tuple(sorted([*ends, *missing[: stages - len(ends)]]))


def _fill_stages(sums: Floats, most: float) -> list[int]:
    """Greedy: each stage takes blocks as long as it stays within `most`."""
    ends = [0]
    while ends[-1] < len(sums) - 1:
        limit = sums[ends[-1]] + most * (1 + 1e-12)
        end = int(np.searchsorted(sums, limit, side="right")) - 1
        ends.append(max(end, ends[-1] + 1))
    return ends[1:]


def open_pipeline(problem: Problem, attempt: Attempt) -> Ints | None:
    """Offer the bound of all pipelines; their devices, None where there can be no pipeline."""
    attempt.raise_bound(problem.plan_bound)
    devices = pipeline_devices(problem.instance)
    if reason := refuse_pipeline(problem.graph, devices):
        attempt.refuse(reason, {"simulations": 0.0})
        return None
    return devices


def pipeline_devices(instance: Instance) -> Ints:
    """The devices that can run every op."""
    can_run = np.isfinite(instance.seconds[:, instance.type_of]).all(axis=0)
    return np.flatnonzero(can_run).astype(np.int32)


def refuse_pipeline(graph: Graph, devices: Ints) -> str:
    """Why there can be no pipeline; empty when there can."""
    if not len(devices):
        return "no device type of the cluster can run every op; place ops on several devices"
    source, target = graph.edges
    if (graph.phase[target] < graph.phase[source]).any():
        return "an op of an earlier phase reads one of a later phase, which no schedule can run"
    return ""


class Trial:
    """Simulates pipelines and keeps the best."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self._graph = problem, problem.graph
        self._best: tuple[Verdict, Plan] | None = None
        self._reason = ""
        self.statistics: dict[str, float] = {"simulations": 0.0}

    def try_stages(
        self, chain: Chain, ends: Sequence[int], devices: Sequence[npt.NDArray[np.integer]]
    ) -> None:
        """Try the wanted numbers of microbatches, or some, as long as there is time."""
        replicas = max(map(len, devices))
        if counts_samples(self._graph) and replicas > self._graph.batch:
            devices = [each[: int(self._graph.batch)] for each in devices]
            replicas = int(self._graph.batch)
        choices = self._problem.microbatches or microbatch_choices(self._graph, len(ends), replicas)
        for count in choices:
            if counts_samples(self._graph) and count * replicas > self._graph.batch:
                self._reason = (
                    f"{count:,} microbatches on {replicas:,} replicas leave less than a sample of "
                    f"the batch of {self._graph.batch:g} for each"
                )
                continue
            if self._best is not None and self._problem.clock.is_over:
                return
            plan = stages_plan(self._graph, self._problem.cluster, chain, ends, devices, count)
            verdict = self._simulate(plan)
            if verdict is None:
                continue
            if self._best is None or verdict.rank < self._best[0].rank:
                self._best = verdict, plan
            if len(ends) == 1 and verdict.fits:
                return  # one stage gains nothing by microbatches but memory

    def _simulate(self, plan: Plan) -> Verdict | None:
        """None where an op needs all replicas in the middle of a stage: no schedule can run it."""
        self.statistics["simulations"] += 1
        try:
            return self._problem.try_plan(plan, "part")
        except InputError as error:
            self._reason = str(error)
            return None

    def conclude(self, attempt: Attempt) -> None:
        """Offer what was best, judged op by op."""
        if self._best is None:
            attempt.refuse(self._reason, self.statistics)
            return
        plan = self._best[1]
        assert plan.schedule is not None
        attempt.statistics |= self.statistics | {
            "stages": float(len(plan.parts)),
            "microbatches": float(plan.schedule.microbatches),
        }
        attempt.offer(plan, self._problem.settle(plan))


def microbatch_choices(graph: Graph, stages: int, replicas: int) -> list[int]:
    """Divisors of the batch near 1, 2, 4, ... times the stages that leave each replica a sample."""
    possible = possible_microbatches(graph, replicas)
    wanted = [1, *(stages * factor for factor in (0.5, 1, 2, 4, 8))]
    if stages == 1:
        wanted = [1, 2, 4, 8, 16, 32]
    return sorted({min(possible, key=lambda count: abs(count - each)) for each in wanted})


def possible_microbatches(graph: Graph, replicas: int) -> list[int]:
    """Divisors of the batch, powers of two where it counts no samples, 1 where ops mix samples."""
    if graph.mixes.any():
        return [1]
    if not counts_samples(graph):
        return [2**power for power in range(_MAX_MICROBATCHES.bit_length())]
    most = min(max(1, int(graph.batch) // replicas), MOST_MICROBATCHES)
    counts = np.arange(1, most + 1)
    return [int(count) for count in counts[int(graph.batch) % counts == 0]]


def counts_samples(graph: Graph) -> bool:
    """Whether the batch is a number of samples: a batch of 1 may be a profile that counts none."""
    return graph.batch > 1 and float(graph.batch).is_integer()
