"""Reports of small plans, for tests."""

from dataclasses import replace
from typing import Any

from measured_run import chain, hosts
from meshwright.cluster.cluster import Cluster
from meshwright.explain.explain import explain_plan
from meshwright.graph.graph import Graph
from meshwright.page.entry import PageEntry, make_entry
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.moment import Moment
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.plan.request import Request
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

HOSTILE = (
    "</script><script>window.owned=1</script>",
    "<img src=x onerror=window.owned=1>",
    "\"'`${window.owned=1}",
    "-->\u2028<!--\u0000\x1b[31m\u202e",
    "&lt;b&gt;",
)
"""Names that a page must show and not obey."""


Planned = tuple[Graph, Cluster, Plan]


def pipeline(num_microbatches: int = 2) -> Planned:
    """Four layers with weights on two hosts, in two stages."""
    graph, cluster = chain([0.01] * 4, [1e6] * 4, gradient=4e6), hosts(1e8, 1e-5)
    parts = tuple(
        Part(
            ops=tuple(name for name in graph.op_names if int(name[1]) // 2 == stage),
            devices=(cluster.devices[stage].name,),
        )
        for stage in range(2)
    )
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=num_microbatches)
    return graph, cluster, Plan(parts=parts, schedule=schedule)


def replicas(count: int = 4) -> Planned:
    """Three layers with weights on some hosts that do the same."""
    graph, cluster = chain([0.01] * 3, [1e6] * 3, gradient=4e6), hosts(1e8, 1e-5, count)
    devices = tuple(each.name for each in cluster.devices)
    return graph, cluster, Plan(parts=(Part(ops=graph.op_names, devices=devices),))


def hostile() -> Planned:
    """The pipeline, with names that mean something to a browser."""
    graph, cluster, plan = pipeline()
    spoil = {name: f"{name} {HOSTILE[k % len(HOSTILE)]}" for k, name in enumerate(graph.op_names)}
    device = {each.name: f"{each.name} {HOSTILE[0]}" for each in cluster.devices}
    host = {each.host: f"{each.host} {HOSTILE[1]}" for each in cluster.devices}
    names = {**device, **host, "switch": f"switch {HOSTILE[2]}"}
    kinds = {f"box {HOSTILE[3]}": replace(cluster.types["box"], name=f"box {HOSTILE[3]}")}
    return (
        replace(
            graph,
            name=f"model {HOSTILE[0]}",
            op_names=tuple(spoil.values()),
            module=tuple(f"{each} {HOSTILE[4]}" for each in graph.module),
            seconds={f"box {HOSTILE[3]}": graph.seconds["box"]},
        ),
        Cluster(
            name=f"cluster {HOSTILE[1]}",
            types=kinds,
            devices=tuple(
                replace(each, name=names[each.name], type=next(iter(kinds)), host=names[each.host])
                for each in cluster.devices
            ),
            switches=(names["switch"],),
            links=tuple(
                replace(each, source=names[each.source], target=names[each.target])
                for each in cluster.links
            ),
        ),
        replace(
            plan,
            parts=tuple(
                Part(
                    ops=tuple(spoil[name] for name in part.ops),
                    devices=tuple(names[each] for each in part.devices),
                )
                for part in plan.parts
            ),
        ),
    )


def answered(
    graph: Graph, cluster: Cluster, plan: Plan, bound: float = 0.05
) -> tuple[Answer, Timeline]:
    """An answer with a history, and its timeline."""
    timeline = simulate(graph, cluster, plan, with_links=True)
    step = timeline.step_seconds
    history = (
        Moment(seconds=0.1, method="data", step_seconds=2 * step, bound_seconds=0.0, claim="a"),
        Moment(seconds=0.5, method="hybrid", step_seconds=step, bound_seconds=bound, claim="a"),
    )
    answer = Answer(
        model=graph.name,
        cluster=cluster.name,
        batch=graph.batch,
        method="auto:hybrid",
        plan=plan,
        step_seconds=step,
        bound_seconds=bound,
        stop=Stop.LIMIT,
        search_seconds=1.5,
        peak_bytes=timeline.peak_bytes,
        statistics={"data_seconds": 2 * step, "hybrid_seconds": step, "evaluations": 3.0},
        history=history,
        request=Request(graph=graph, cluster=cluster),
    )
    return answer, timeline


def entry_of(case: Planned, **more: Any) -> PageEntry:
    """The entry of a plan."""
    answer, timeline = answered(*case)
    return make_entry(case[0], case[1], answer, timeline=timeline, **more)


def explained(entry: PageEntry) -> PageEntry:
    """The same with some neighbouring plans."""
    assert entry.answer.request is not None
    found = explain_plan(entry.answer.request, entry.plan, simulations=4, rivals=2)
    return replace(entry, explanation=found)
