"""The runner-up of each kind: what other plans take, and what they lose their time to."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.cause import Cause
from meshwright.explain.neighbour import NO_PLAN, Setting
from meshwright.explain.share import Shares, difference, find_shares
from meshwright.graph.graph import Graph
from meshwright.plan.answer import RunnerUp
from meshwright.plan.plan import Plan
from meshwright.search.judge import judge_timeline
from meshwright.search.portfolio import search_by
from meshwright.simulate.simulate import simulate

_BASELINES = ("single", "data", "data-proportional", "consecutive", "heft")
"""Methods without limits of their own whose plans stand for their kinds."""
_MAX_INSTANCES = 100_000
"""Of ops times devices: beyond, these methods take long, and degrees stand for kinds."""
_BUDGET_SECONDS = 60.0
"""More than any of these methods takes on so few instances: they end by themselves."""
_SHOWN = 4
"""So many runner-ups of the search itself are told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """Another plan, held against the one that was chosen."""

    kind: str
    """Where it comes from: a method, a kind of parallelism, or the search's own runner-up."""
    description: str
    step_seconds: float
    """Infinity: there is none."""
    slower: float
    """By what part its step is longer; negative: it is faster."""
    because: Mapping[Cause, float] = field(default_factory=dict)
    """By how many seconds more it spends on each cause; they add up to the difference."""
    obstacle: str = ""
    """Why it cannot be run; empty: it can."""


def find_rivals(
    setting: Setting,
    shares: Shares,
    plan: Plan,
    method: str,
    runner_ups: Sequence[RunnerUp],
    most: int,
) -> tuple[Rival, ...]:
    """The search's runner-ups, then the plans of other kinds; at most so many are simulated."""
    found: list[Rival] = []
    seen = [plan.description]
    others = (("runner-up", each.plan.in_ops(setting.graph)) for each in runner_ups[:_SHOWN])
    kinds = chain(others, _other_kinds(setting, method))
    while len(found) < most and (following := next(kinds, None)) is not None:
        kind, other = following
        if isinstance(other, str):
            found.append(_without_plan(kind, other))
        elif other.description not in seen or kind == "runner-up":
            seen.append(other.description)
            found.append(_hold(setting, shares, kind, other))
    return tuple(found)


def _other_kinds(setting: Setting, method: str) -> Iterator[tuple[str, Plan | str]]:
    """A plan of each other kind, or why there is none."""
    graph, cluster = setting.graph, setting.cluster
    if graph.num_ops * cluster.num_devices <= _MAX_INSTANCES:
        own = method.removeprefix("auto:")
        for name in _BASELINES:
            if name != own:
                answer = search_by(
                    name, graph, cluster, budget_seconds=_BUDGET_SECONDS, sharing=setting.sharing
                )
                yield name, answer.plan if answer.plan is not None else answer.binding
    yield from _by_degrees(graph, cluster)


def _by_degrees(graph: Graph, cluster: Cluster) -> Iterator[tuple[str, Plan | str]]:
    """Each kind of parallelism alone, for models of layers."""
    count = cluster.num_devices
    per_host = max(1, count // len(cluster.hosts))
    for kind, degrees in (
        ("data alone", {"data": count}),
        ("ZeRO 3 alone", {"data": count, "zero": 3}),
        ("tensor in hosts, data", {"tensor": per_host}),
        ("pipeline of hosts, tensor", {"tensor": per_host, "pipeline": len(cluster.hosts)}),
    ):
        if count == 1 or (per_host == 1 and "tensor" in degrees):
            continue
        try:
            yield kind, Plan.from_degrees(graph, cluster, **degrees)
        except InputError as error:
            yield kind, str(error)


def _without_plan(kind: str, obstacle: str) -> Rival:
    return Rival(kind=kind, description="", step_seconds=NO_PLAN, slower=NO_PLAN, obstacle=obstacle)


def _hold(setting: Setting, shares: Shares, kind: str, plan: Plan) -> Rival:
    """Simulate a plan and compare what its step is spent on."""
    graph, cluster = setting.graph, setting.cluster
    try:
        timeline = simulate(
            graph, cluster, plan, sharing=setting.sharing, granularity=setting.granularity
        )
    except InputError as error:
        return _without_plan(kind, str(error))
    verdict = judge_timeline(graph, cluster, timeline)
    step = verdict.step_seconds
    return Rival(
        kind=kind,
        description=plan.description,
        step_seconds=step,
        slower=step / shares.step_seconds - 1 if shares.step_seconds else 0.0,
        because=difference(shares, find_shares(graph, cluster, plan, timeline)),
        obstacle=verdict.binding,
    )
