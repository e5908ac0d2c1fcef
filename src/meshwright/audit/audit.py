"""What a set-up of another program takes on a cluster, what the best plan takes that this program
can be told, and which of its settings lie between the two. Knows no file."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.export.config.describe import describe_plan
from meshwright.export.config.program import PROGRAMS, Program
from meshwright.export.config.setup import Setup, plan_setup
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import has_layers
from meshwright.plan.answer import Answer
from meshwright.plan.facts import HybridFacts
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.report.hybrid_facts import hybrid_facts
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import find_plan
from meshwright.simulate.footprint import footprint
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Costed:
    """A plan with what it takes."""

    plan: Plan
    timeline: Timeline
    facts: HybridFacts | None
    """None: its parts are no stages of whole layers."""
    fullest_bytes: float
    """What the device has at its peak that has the least room left."""
    usable_bytes: float
    """What a plan may use of that device."""

    @property
    def fits(self) -> bool:
        """Whether every device has the memory."""
        return self.fullest_bytes <= self.usable_bytes

    @property
    def step_seconds(self) -> float:
        """The time of one step."""
        return self.timeline.step_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A setting of the program that the best plan has otherwise; empty: it has none."""

    key: str
    now: str
    then: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Audit:
    """A set-up as it is, and the best that the same program can be told."""

    setup: Setup
    graph: Graph
    """At the batch of the set-up."""
    cluster: Cluster
    present: Costed
    best: Costed | None
    """None: no plan that fits was found."""
    answer: Answer
    """What the search says, which may know plans that this program cannot be told."""
    changes: tuple[Change, ...] = ()
    left_out: tuple[str, ...] = ()
    """What of the plan that was found this program cannot be told: a sentence each."""

    @property
    def speedup(self) -> float:
        """How many times as many samples a second; 1 where there is nothing better."""
        if self.best is None or not self.best.step_seconds:
            return 1.0
        return self.present.step_seconds / self.best.step_seconds

    @property
    def is_best(self) -> bool:
        """Whether nothing was found that is better than the set-up as it is."""
        return self.best is not None and self.best.plan == self.present.plan


def audit_setup(
    setup: Setup,
    graph: Graph,
    cluster: Cluster,
    budget_seconds: float = 30.0,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> Audit:
    """Simulate a set-up, plan the same step for the same program, and compare."""
    planned = plan_setup(setup, graph, cluster)
    sized = planned.graph
    present = cost_plan(sized, cluster, planned.plan)
    program = PROGRAMS[setup.runtime]
    answer = find_plan(
        sized,
        cluster,
        method="hybrid" if has_layers(sized) else "data",
        seed=seed,
        budget_seconds=budget_seconds,
        scope=_scope(program) if has_layers(sized) else None,
        runtime=setup.runtime if has_layers(sized) else planned.plan.runtime,
        progress=progress,
    )
    request = answer.request or Request(graph=sized, cluster=cluster)
    best, left_out = _find_best(program, request, answer, present)
    return Audit(
        setup=setup,
        graph=sized,
        cluster=cluster,
        present=present,
        best=best,
        answer=answer,
        changes=() if best is None else _find_changes(program, request, present, best),
        left_out=left_out,
    )


def _scope(program: Program) -> Scope:
    """Plans that the program can be told, as far as a scope says it."""
    return Scope(mixed=False, **program.limits)


def cost_plan(graph: Graph, cluster: Cluster, plan: Plan) -> Costed:
    """Simulate a plan, and find the device with the least room."""
    timeline = simulate(graph, cluster, plan)
    held = footprint(graph, cluster, timeline)
    fullest = int(np.argmax(held.peak_bytes - held.usable_bytes))
    return Costed(
        plan=plan,
        timeline=timeline,
        facts=None if plan.schedule is None else hybrid_facts(graph, cluster, plan, timeline),
        fullest_bytes=float(held.peak_bytes[fullest]),
        usable_bytes=float(held.usable_bytes[fullest]),
    )


def _find_best(
    program: Program, request: Request, answer: Answer, present: Costed
) -> tuple[Costed | None, tuple[str, ...]]:
    """The plan of an answer as the program can be told it; the present one where that is faster and
    fits, too."""
    candidates: list[tuple[Costed, tuple[str, ...]]] = [(present, ())] if present.fits else []
    if answer.plan is not None:
        described = describe_plan(request, answer.plan, program.runtime)
        setup, more = program.narrow(described.setup)
        told = plan_setup(setup, request.graph, request.cluster).plan
        found = cost_plan(request.graph, request.cluster, replace(told, runtime=program.runtime))
        if found.fits:
            candidates.append((found, (*described.left_out, *more)))
    if not candidates:
        return None, ()
    return min(candidates, key=lambda each: each[0].step_seconds)


def _find_changes(
    program: Program, request: Request, present: Costed, best: Costed
) -> tuple[Change, ...]:
    """The settings in which two plans differ, in the program's own words."""
    now, then = (
        program.words(program.narrow(describe_plan(request, each.plan, program.runtime).setup)[0])
        for each in (present, best)
    )
    keys = list(dict.fromkeys((*now, *then)))
    return tuple(
        Change(key=key, now=now.get(key, ""), then=then.get(key, ""))
        for key in keys
        if now.get(key) != then.get(key)
    )


def mfu(costed: Costed) -> float:
    """Model FLOPs over what the devices would do at their peak; not a number where not known."""
    return math.nan if costed.facts is None else costed.facts.mfu
