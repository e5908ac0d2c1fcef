"""What is near a pipeline: plans as candidates, and shapes with about as many stages."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.search.method.pipeline.candidate import Candidate, StageCut, suited_kinds
from meshwright.search.method.pipeline.microbatch_price import PipelineShape


def start_candidates(graph: Graph, cluster: Cluster, plans: Iterable[Plan]) -> Iterator[Candidate]:
    """Plans of stages as candidates, whose replicas have equal shares of the batch."""
    for plan in plans:
        assert plan.schedule is not None, "a pipeline has a schedule"
        stage = np.zeros(graph.num_ops, dtype=np.int32)
        for number, part in enumerate(plan.parts):
            stage[[graph.index[op] for op in part.ops]] = number
        homes = tuple(
            tuple(cluster.index[device] for device in part.devices) for part in plan.parts
        )
        count = plan.schedule.microbatches
        suited = suited_kinds(len(homes), homes, count)
        kind = plan.schedule.kind if plan.schedule.kind in suited else suited[0]
        yield Candidate(
            cut=StageCut.of(graph, stage), homes=homes, kind=kind, microbatches=count,
            origin="start",
        )  # fmt: skip


def near_shapes(
    known: Iterable[tuple[PipelineShape, tuple[int, ...]]], starts: Sequence[Candidate]
) -> Iterator[tuple[PipelineShape, tuple[int, ...]]]:
    """Of some shapes those whose replicas are about as many as some start's, and of their
    microbatches those within twice and half of its own."""
    for shape, choices in known:
        for start in starts:
            widths = {len(home) for home in start.homes}
            replicas = max(team.replicas for team in shape.teams)
            if min(widths) - 1 <= replicas <= max(widths) + 1:
                own = start.microbatches
                near = [each for each in choices if own <= 2 * each and each <= 2 * own]
                yield shape, tuple(near or choices[:1])
                break
