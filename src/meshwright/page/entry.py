"""What a report shows of one plan: what a search said of it, and what simulating it says.

Asks no search; whoever wants neighbouring plans or changes told gives what was found of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.compared import Case
from meshwright.explain.explain import explain_plan
from meshwright.explain.explanation import Explanation
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.report.compare import Comparison, compare
from meshwright.report.expected import with_facts
from meshwright.report.hybrid_facts import hybrid_facts
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

NO_SEARCH = "run"
"""The method of a plan that is known by a run of it alone."""
_DRIFT = 1e-6
"""Relative. A step that differs by more from what a folder says was searched with other costs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageEntry:
    """One plan of a report, or why there is none."""

    name: str
    """What it is called among others: its folder, or the model and the cluster."""
    graph: Graph
    cluster: Cluster
    answer: Answer
    """With what is read off the simulated step."""
    plan: Plan | None
    """In ops of the graph."""
    timeline: Timeline | None
    explanation: Explanation
    whatif: Mapping[str, Any] | None = None
    """What changes bring, as `WhatIf.to_dict` has it."""
    case: Case | None = None
    """A run of the plan."""
    comparison: Comparison | None = None
    commands: tuple[str, ...] = ()
    """What to do next, a line each."""
    remarks: tuple[str, ...] = field(default=())
    """What a reader of the figures must know, a line each."""


def make_entry(
    graph: Graph,
    cluster: Cluster,
    answer: Answer,
    *,
    name: str = "",
    timeline: Timeline | None = None,
    explanation: Explanation | None = None,
    whatif: Mapping[str, Any] | None = None,
    commands: tuple[str, ...] = (),
) -> PageEntry:
    """The entry of an answer; what is not given is simulated, with no plan but the answer's."""
    request = answer.request or Request(graph=graph, cluster=cluster, method=answer.method)
    name = name or f"{graph.name} on {cluster.name}"
    if answer.plan is None:
        return PageEntry(
            name=name,
            graph=graph,
            cluster=cluster,
            answer=answer,
            plan=None,
            timeline=None,
            explanation=explanation
            or Explanation(model=graph.name, cluster=cluster.name, binding=answer.binding),
            whatif=whatif,
            commands=commands,
        )
    plan = answer.plan.in_ops(graph)
    if timeline is None:
        timeline = simulate(graph, cluster, plan, sharing=request.sharing, with_links=True)
    if answer.expected_error is None:
        answer = with_facts(graph, cluster, answer, timeline)
    if explanation is None:
        explanation = explain_plan(
            request,
            plan,
            method=answer.method,
            bound_seconds=answer.bound_seconds,
            binding=answer.binding,
            simulations=0,
            rivals=0,
            timeline=timeline,
        )
    return PageEntry(
        name=name,
        graph=graph,
        cluster=cluster,
        answer=answer,
        plan=plan,
        timeline=timeline,
        explanation=explanation,
        whatif=whatif,
        commands=commands,
        remarks=_remark_drift(answer, timeline),
    )


def _remark_drift(answer: Answer, timeline: Timeline) -> tuple[str, ...]:
    """Says so where the search had other times than a simulation has now."""
    said, now = answer.step_seconds, timeline.step_seconds
    if abs(said - now) <= _DRIFT * max(said, now):
        return ()
    return (
        "the search had other costs than this version: its step, and so its bound, are not "
        "comparable with what is simulated here; plan again",
    )


def measured_entry(case: Case, *, name: str, commands: tuple[str, ...] = ()) -> PageEntry:
    """The entry of a run: its prediction, and what was measured beside it."""
    graph, cluster, plan = case.graph, case.cluster, case.plan
    answer = Answer(
        model=graph.name,
        cluster=cluster.name,
        batch=graph.batch,
        method=NO_SEARCH,
        plan=plan,
        step_seconds=case.predicted.step_seconds,
        bound_seconds=0.0,
        stop=Stop.ENDED,
        peak_bytes=case.predicted.peak_bytes,
    )
    made = make_entry(graph, cluster, answer, name=name, timeline=case.predicted, commands=commands)
    comparison = compare(case.predicted, case.measured, cluster)
    facts = hybrid_facts(graph, cluster, plan, case.predicted)
    return replace(
        made,
        case=case,
        comparison=comparison,
        answer=replace(made.answer, hybrid=facts),
    )
