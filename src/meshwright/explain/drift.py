"""Which decision of a plan depends on what has changed: plans that differ in one, tried on both."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.cluster.cluster import Cluster
from meshwright.explain.explain import plan_ideas
from meshwright.explain.neighbour import Neighbour, Setting, judge_ideas
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.lower import choose_granularity
from meshwright.report.drift import Drift, with_drift
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_percent

MOST_DRIFTS = 4
"""So many changes, those that went furthest, are looked at."""
SIMULATIONS = 32
"""So many neighbouring plans are simulated for each."""
LEAST_GAIN = 0.01
"""A plan that gains less than this part is no reason to change anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """What one change means for a plan."""

    drift: Drift
    slower: float
    """By what part the plan's step is longer with it; negative: shorter."""
    decision: str = ""
    """The decision that would be made otherwise now; empty: none of those that were tried."""
    change: str = ""
    """What would be done instead."""
    gain: float = 0.0
    """By what part the step would be shorter."""

    def __str__(self) -> str:
        side = "longer" if self.slower >= 0 else "shorter"
        step = f"the plan's step is {format_percent(abs(self.slower))} {side} by it"
        if not self.decision:
            return f"{self.drift}; {step}, and no single decision of it would be another"
        instead = f"{self.decision}: {self.change} would be {format_percent(self.gain)} faster now"
        return f"{self.drift}; {step}, and a decision depends on it: {instead}"


def find_dependences(
    graph: Graph, cluster: Cluster, plan: Plan, drifts: Sequence[Drift], sharing: str = "fair"
) -> tuple[Dependence, ...]:
    """For each change the decision that it makes wrong: one that was right, as far as tried."""
    if not drifts:
        return ()
    plan = plan.in_ops(graph)
    granularity = choose_granularity(plan)
    before = Setting(graph=graph, cluster=cluster, sharing=sharing, granularity=granularity)
    own = _simulate(before, plan).step_seconds
    found = []
    for drift in drifts[:MOST_DRIFTS]:
        then, there = with_drift(graph, cluster, drift)
        changed = replace(before, graph=then, cluster=there)
        timeline = _simulate(changed, plan)
        best = _best_neighbour(changed, plan, timeline, before, own)
        slower = timeline.step_seconds / own - 1 if own else 0.0
        if best is None:
            found.append(Dependence(drift=drift, slower=slower))
        else:
            found.append(
                Dependence(
                    drift=drift,
                    slower=slower,
                    decision=best.decision,
                    change=best.change,
                    gain=-best.slower,
                )
            )
    return tuple(found)


def _simulate(setting: Setting, plan: Plan) -> Timeline:
    return simulate(
        setting.graph,
        setting.cluster,
        plan,
        sharing=setting.sharing,
        granularity=setting.granularity,
    )


def _best_neighbour(
    changed: Setting, plan: Plan, timeline: Timeline, before: Setting, own: float
) -> Neighbour | None:
    """The plan that gains most now and gained nothing before."""
    ideas = plan_ideas(changed.graph, changed.cluster, plan, timeline)
    neighbours, _ = judge_ideas(changed, plan, timeline.step_seconds, ideas, SIMULATIONS)
    gaining = [each for each in neighbours if each.is_faster and -each.slower >= LEAST_GAIN]
    for each in sorted(gaining, key=lambda neighbour: neighbour.slower):
        assert each.plan is not None
        if _simulate(before, each.plan).step_seconds >= own * (1 - LEAST_GAIN / 2):
            return each
    return None
