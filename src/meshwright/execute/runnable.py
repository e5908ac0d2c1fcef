"""Whether a plan can be lowered and its batch divided, before any rank is started.

Knows nothing of torch: what a model's ops allow is found out by `meshwright.execute.trial`.
"""

from dataclasses import dataclass

from meshwright.cluster.cluster import Cluster
from meshwright.execute.rows import Rows, check_rows, divide_batch
from meshwright.graph.graph import Graph
from meshwright.plan.check import Placement
from meshwright.plan.plan import Plan
from meshwright.program.lower import emit_program
from meshwright.program.program import Program
from meshwright.program.untie import untie
from meshwright.program.work import Work, prepare_work


@dataclass(frozen=True, kw_only=True, eq=False)
class Runnable:
    """A plan that can be run, as far as its graph and cluster tell."""

    graph: Graph
    """The step, with copies of weights that parts share."""
    plan: Plan
    placement: Placement
    work: Work
    program: Program
    rows: Rows


def check_runnable(graph: Graph, cluster: Cluster, plan: Plan) -> Runnable:
    """Lower a plan op by op; refused where that cannot be, or where replicas have no sample."""
    graph, plan, placement = untie(graph, cluster, plan)
    work = prepare_work(graph, cluster, plan)
    program = emit_program(work, cluster)
    rows = divide_batch(graph.name, graph.batch, program.microbatches)
    check_rows(program, rows)
    return Runnable(
        graph=graph, plan=plan, placement=placement, work=work, program=program, rows=rows
    )
