"""Cuts a captured graph into pipeline stages by module path, and runs the plan."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import meshwright as mw
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind

FOLDER = Path(__file__).resolve().parent


def cut_by_module(graph: Graph, starts: Sequence[str]) -> list[int]:
    """The stage of each op: a new stage begins with the first forward op of each named module.

    Backward ops follow their forward partner, updates the ops that they share a parameter with.
    """
    stages: list[int] = []
    current = 0
    of_group: dict[int, int] = {}
    for op in range(graph.num_ops):
        if graph.phase[op] == Phase.FORWARD:
            is_next = current < len(starts) and graph.module[op].startswith(starts[current])
            current += is_next
            stage = current
        elif graph.partner[op] >= 0:
            stage = stages[graph.partner[op]]
        else:
            stage = of_group.get(int(graph.group[op]), 0)
        of_group.setdefault(int(graph.group[op]), stage)
        stages.append(stage)
    return stages


def pipeline(
    graph: Graph, starts: Sequence[str], devices: Sequence[Sequence[str]], microbatches: int
) -> Plan:
    """A 1F1B pipeline whose stage s runs on the replicas `devices[s]`."""
    stages = cut_by_module(graph, starts)
    parts = tuple(
        Part(
            ops=tuple(name for name, each in zip(graph.op_names, stages, strict=True) if each == k),
            devices=tuple(names),
        )
        for k, names in enumerate(devices)
    )
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=microbatches)
    return Plan(parts=parts, schedule=schedule)


def run_and_compare(
    name: str, cluster_name: str, make_plan: Callable[[Graph, mw.Cluster], Plan], folder: Path
) -> int:
    """Plan, run on local processes, and compare the losses with one process."""
    from meshwright.source import capture_model

    sys.path.insert(0, str(FOLDER))
    graph, cluster = capture_model(name), mw.cluster(cluster_name)
    plan = make_plan(graph, cluster)
    timeline = mw.simulate(graph, cluster, plan)
    print(f"{len(plan.parts)} parts, {timeline.program.num_instructions} instructions", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    plan.save(folder / "plan.json")
    cluster.save(folder / "cluster.yaml")
    graph.save(folder / "graph.json.gz")
    command = [sys.executable, "-m", "meshwright", "run", str(folder.resolve()), "--model", name]
    return subprocess.run([*command, "--steps", "5", "--check"], cwd=FOLDER, check=False).returncode
