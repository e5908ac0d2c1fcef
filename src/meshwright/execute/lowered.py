"""A plan as every rank runs it: lowered, with the order of each device's instructions fixed."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.execute.rows import Rows
from meshwright.execute.runnable import check_runnable
from meshwright.graph.graph import Graph
from meshwright.plan.check import Placement
from meshwright.plan.plan import Plan
from meshwright.program.clip import with_norm
from meshwright.program.expand.context import divide_tokens
from meshwright.program.expand.expansion import Expansion, unexpanded
from meshwright.program.expand.shard import shard
from meshwright.program.program import Kind, Program, freeze_order
from meshwright.simulate.simulate import run_program
from meshwright.simulate.timeline import Timeline


@dataclass(frozen=True, kw_only=True, eq=False)
class Lowered:
    """A plan as the program that every rank runs, in the order that the simulation decided."""

    graph: Graph
    """The step that was planned, with copies of weights that parts share."""
    program: Program
    expansion: Expansion
    """What one device of every part runs; the program numbers its ops and tensors."""
    shards: Expansion | None
    """The expansion by tensor and context teams alone; None: there are none."""
    plan: Plan
    timeline: Timeline
    """The simulation that decided."""
    split: np.ndarray[Any, np.dtype[np.int8]]
    partial: np.ndarray[Any, np.dtype[np.bool_]]
    """Of each tensor, as the plan has it: whether replicas hold sums over their samples."""
    rows: Rows
    num_planned: int
    """How many of the instructions are the plan's own; those that clip gradients come after."""

    @property
    def divides_batch(self) -> bool:
        """Whether any op sees a part of the batch only."""
        rows = self.program.instructions
        return self.program.microbatches > 1 or bool(
            (rows["rows_to"] - rows["rows_from"])[rows["kind"] == Kind.COMPUTE].min(initial=1.0) < 1
        )

    @property
    def devices(self) -> tuple[int, ...]:
        """The devices that do anything, in the cluster's order: rank 0 runs the first."""
        return tuple(np.unique(self.program.instructions["device"]).tolist())


def lower_frozen(graph: Graph, cluster: Cluster, plan: Plan, *, clips: bool = False) -> Lowered:
    """Lower a plan and fix the order in which every device runs.

    `clips`: updates wait for the norm of all gradients.
    """
    found = check_runnable(graph, cluster, plan)
    program = with_norm(found.program) if clips else found.program
    timeline = run_program(program, cluster)
    return Lowered(
        graph=found.graph,
        program=freeze_order(program, timeline.start, timeline.finish),
        num_planned=found.program.num_instructions,
        expansion=found.work.expansion,
        shards=_find_shards(found.graph, found.placement, found.plan),
        plan=found.plan,
        timeline=timeline,
        split=found.work.split,
        partial=found.work.tensor_partial,
        rows=found.rows,
    )


def _find_shards(graph: Graph, placement: Placement, plan: Plan) -> Expansion | None:
    if all(part.width == 1 for part in plan.parts):
        return None
    before = unexpanded(graph, placement)
    return divide_tokens(shard(before, graph, plan), graph, plan)


def communication(program: Program) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """The lanes of groups that communicate, and the ordered pairs of devices that do."""
    rows = program.instructions
    talks = rows["group"] >= 0
    lanes = rows["stream"][talks] // program.num_devices
    groups = dict(zip(rows["group"][talks].tolist(), lanes.tolist(), strict=True))
    sends = rows[rows["kind"] == Kind.SEND]
    pairs = sorted(set(zip(sends["device"].tolist(), sends["peer"].tolist(), strict=True)))
    return groups, pairs
