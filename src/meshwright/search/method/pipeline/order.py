"""What a search and its workers say to each other, as pickles: both run the same code."""

from dataclasses import dataclass

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import ScheduleKind
from meshwright.search.method.pipeline.attempt import Task
from meshwright.search.method.pipeline.candidate import Candidate, Cut, Homes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Order:
    """A task without its graph."""

    stage_of_op: Ints
    homes: Homes
    kind: ScheduleKind
    microbatches: int
    ops_first: bool

    @staticmethod
    def of(task: Task) -> "Order":
        """For a worker that knows the graph."""
        candidate = task.candidate
        return Order(
            stage_of_op=candidate.cut.stage_of_op,
            homes=candidate.homes,
            kind=candidate.kind,
            microbatches=candidate.microbatches,
            ops_first=task.ops_first,
        )

    def task(self, graph: Graph) -> Task:
        """What was ordered."""
        cut = Cut(graph=graph, stage_of_op=self.stage_of_op, num_stages=len(self.homes))
        candidate = Candidate(
            cut=cut, homes=self.homes, kind=self.kind, microbatches=self.microbatches
        )
        return Task(candidate=candidate, ops_first=self.ops_first)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """What all orders have in common."""

    graph: Graph
    cluster: Cluster
    sharing: str
    rehearsal: Order
    """Simulated before the worker is ready: what is loaded on first use takes a second."""
