"""Simulates one candidate, in this process or in another. Knows no other candidates."""

from dataclasses import dataclass

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.plan import ScheduleKind
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.pipeline.candidate import Candidate, Key, StageCut

_MAX_INSTANCES = 300_000
"""The most instances of ops, over all microbatches, of a plan that is simulated op by op where a
stage cannot be simulated as one."""


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
