"""One simulation of a candidate, in this process or in another. Knows no other candidates."""

from dataclasses import dataclass

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.pipeline.candidate import Candidate, Key

_MAX_INSTANCES = 300_000
"""Instances of ops that are simulated op by op where a stage cannot be simulated as one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Task:
    """A candidate and how it is simulated."""

    candidate: Candidate
    ops_first: bool
    """Whether op by op comes before stage by stage."""

    @property
    def key(self) -> tuple[Key, bool]:
        """Equal for equal simulations."""
        return self.candidate.key, self.ops_first


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What came of a task."""

    verdict: Verdict | None
    """None: the plan cannot be run."""
    reason: str
    """Why it could not be simulated in one of the ways; empty where it could."""
    needs_ops: bool
    """Whether it could be simulated op by op and not stage by stage."""


def attempt(graph: Graph, cluster: Cluster, sharing: str, task: Task) -> Attempt:
    """Stage by stage; op by op where an op needs all replicas in the middle of a stage."""
    plan = task.candidate.plan(cluster)
    instances = sum(len(part.ops) * len(part.devices) for part in plan.parts)
    granularities = ["part"]
    if instances * task.candidate.microbatches <= _MAX_INSTANCES:
        granularities.insert(0 if task.ops_first else 1, "op")
    reason = ""
    for number, granularity in enumerate(granularities):
        try:
            verdict = try_plan(graph, cluster, plan, sharing, granularity)
        except InputError as error:
            reason = str(error)
            continue
        needs_ops = number > 0 and granularity == "op"
        return Attempt(verdict=verdict, reason=reason, needs_ops=needs_ops)
    return Attempt(verdict=None, reason=reason, needs_ops=False)
