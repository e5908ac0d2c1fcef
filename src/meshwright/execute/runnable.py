"""Whether a plan can be lowered and its batch divided, before any rank is started.

Knows nothing of torch: what a model's ops allow is found out by `meshwright.execute.trial`.
"""

from dataclasses import dataclass

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.execute.rows import Rows, check_rows, divide_batch
from meshwright.graph.foreach import fused_kind
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.check import Placement
from meshwright.plan.plan import Plan
from meshwright.program.expand.synchronise import with_batch_statistics
from meshwright.program.lower import MAX_OP_INSTANCES, count_instances, emit_program
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
    rows = _divide(graph, plan)  # before what may take seconds
    graph, plan, placement = untie(graph, cluster, plan)
    work = prepare_work(graph, cluster, plan)
    program = emit_program(work, cluster)
    check_rows(program, rows)
    return Runnable(
        graph=graph, plan=plan, placement=placement, work=work, program=program, rows=rows
    )


def find_obstacle(graph: Graph, cluster: Cluster, plan: Plan) -> str:
    """Why ranks could not run a plan, in one line; "" where nothing is known to be in the way.

    Of a plan with too many ops to be lowered on the spot the batch alone is looked at.
    """
    try:
        if count_instances(plan) <= MAX_OP_INSTANCES:
            check_runnable(graph, cluster, with_batch_statistics(graph, plan))
        else:
            _divide(graph, plan)
    except InputError as error:
        return str(error)
    return ""


def _divide(graph: Graph, plan: Plan) -> Rows:
    microbatches = plan.schedule.microbatches if plan.schedule else 1
    return divide_batch(graph.name, graph.batch, microbatches)


def why_untrained(graph: Graph) -> str:
    """Why a plan of a graph can be emulated and not trained by; "" where it can be."""
    if not graph.calls.any():
        return "its graph was not captured"
    return "its step has no loss (inference)" if graph.is_inference else ""


def check_trainable(graph: Graph) -> None:
    """Refuse to train where the planned step is no model's training step."""
    if why_untrained(graph):
        raise InputError(
            f"graph {graph.name}: its ops must be those of a captured training step to be trained, "
            f"but {why_untrained(graph)}; --emulate runs others"
        )


def check_step(graph: Graph, optimizer: str, autocast: str | None) -> None:
    """Refuse to train where the planned step has another named optimiser or precision, before a
    model is built and traced, which finds all other differences."""
    updates = (
        fused_kind(kind)
        for kind, phase in zip(graph.kind, graph.phase.tolist(), strict=True)
        if phase == Phase.UPDATE and fused_kind(kind).startswith("_fused_")
    )
    kinds = sorted(set(updates))
    own = f"_fused_{optimizer.replace('momentum', 'sgd')}_"
    if kinds and ":" not in optimizer and own not in kinds:
        raise InputError(
            f"graph {graph.name}: --optimizer must be that of the planned step, whose updates are "
            f"{', '.join(kinds)}, got {optimizer}"
        )
    if autocast is not None and autocast not in graph.precision:
        raise InputError(
            f"graph {graph.name}: --autocast must be that of the planned step, which has no op in "
            f"{autocast}"
        )
