"""Runs a Program on a Cluster with costs: the predicted Timeline."""

import numpy as np

from meshwright.array import Records
from meshwright.cluster.cluster import Cluster
from meshwright.compiled import announced_compilation
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.lower import choose_granularity, lower
from meshwright.program.program import Program
from meshwright.simulate.edge import read_times
from meshwright.simulate.engine import run_tasks
from meshwright.simulate.tasks import EngineInput, network_arrays, prepare_engine
from meshwright.simulate.timeline import Timeline


def simulate(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    *,
    sharing: str = "fair",
    granularity: str | None = None,
    with_links: bool = False,
) -> Timeline:
    """Predict one step of a plan.

    `sharing`: "none" runs each transfer as if alone; "fair" shares every link max-min fairly
    between pairs of devices, while transfers of one pair go one after the other.
    `granularity`: "op" has an instruction an op, "part" one an action of a pipeline stage, "layer"
    one by what whole layers cost; None is "op" unless the plan has too many ops for that.
    `with_links`: also record the use of every link over time (under "fair").
    """
    if granularity in ("op", "part") and plan.runtime != MESHWRIGHT.name:
        raise InputError(
            f"granularity {granularity}: the runtime must be {MESHWRIGHT.name}, got {plan.runtime}"
        )
    with announced_compilation():
        program = lower(graph, cluster, plan, granularity or choose_granularity(plan))
        return run_program(program, cluster, sharing=sharing, with_links=with_links)


def run_program(
    program: Program, cluster: Cluster, *, sharing: str = "fair", with_links: bool = False
) -> Timeline:
    """Predict one step of a program."""
    engine, log = run_engine(program, cluster, sharing, with_links=with_links)
    tasks = engine.tasks
    start, finish = np.empty(len(engine.task_of)), np.empty(len(engine.task_of))
    cause = np.empty(len(tasks) - 1, np.int32)
    read_times(engine.task_of, tasks, start, finish, cause)
    has_flows = sharing == "fair"
    return Timeline(
        program=program,
        sharing=sharing,
        start=start,
        finish=finish,
        cause=cause,
        flow_class=tasks["flow_class"][:-1].copy() if has_flows else np.full_like(cause, -1),
        network=engine.network,
        log=log if with_links and sharing == "fair" else None,
    )


def run_engine(
    program: Program, cluster: Cluster, sharing: str, *, with_links: bool = False
) -> tuple[EngineInput, Records]:
    """The tasks of a program with their times, and the log of rates; those that wait for each
    other are refused."""
    engine = prepare_engine(program, cluster, sharing)
    num_done, log = run_tasks(
        engine.tasks,
        engine.following,
        engine.streams,
        engine.flow_bytes,
        network_arrays(engine.network, engine.tasks),
        with_log=with_links,
    )
    if num_done < len(engine.tasks) - 1:
        _explain_deadlock(program, engine)
    return engine, log


def _explain_deadlock(program: Program, engine: EngineInput) -> None:
    """Name an op that waits for itself, by way of the order the plan fixes."""
    waits = engine.tasks["waits_for"][engine.task_of] > 0
    stuck = [number for number in range(program.num_instructions) if waits[number]]
    assert stuck, "a task that waits for nothing has run"
    first = stuck[0]
    device = program.device_names[program.instructions["device"][first]]
    raise InputError(
        f"plan: its order must follow the graph, but {quoted(program.describe(first))} on {device} "
        f"and {len(stuck) - 1} other instructions wait for each other"
    )
