"""Explains an answer: simulates its plan, divides its step, and holds it against its neighbours."""

from collections.abc import Callable, Iterable

import numpy as np

from meshwright.argument import need_number
from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.explanation import Explanation
from meshwright.explain.idea.degree import memory_ideas, schedule_ideas, width_ideas
from meshwright.explain.idea.place import move_ideas, replica_ideas, share_ideas
from meshwright.explain.idea.stage import boundary_ideas
from meshwright.explain.memory import find_memory
from meshwright.explain.neighbour import Idea, Setting, judge_ideas
from meshwright.explain.path import tell_path
from meshwright.explain.remedy import find_remedies
from meshwright.explain.rival import find_rivals
from meshwright.explain.share import StepSpans, sum_spans
from meshwright.graph.graph import Graph
from meshwright.plan.answer import RunnerUp
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.program.lower import choose_granularity
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

SIMULATIONS = 48
"""So many neighbouring plans are simulated."""
RIVALS = 10
"""So many plans of other kinds are."""

Report = Callable[[str], None]


def explain_plan(
    request: Request,
    plan: Plan | None,
    *,
    method: str = "",
    bound_seconds: float = 0.0,
    binding: str = "",
    runner_ups: tuple[RunnerUp, ...] = (),
    simulations: int = SIMULATIONS,
    rivals: int = RIVALS,
    granularity: str | None = None,
    timeline: Timeline | None = None,
    progress: Report | None = None,
) -> Explanation:
    """Why a plan that answers a request takes as long as it does; without one, what would do.

    `method`, `bound_seconds`, `binding` and `runner_ups` are what the search said; `simulations`
    is how many neighbouring plans may be simulated, `rivals` how many of other kinds are looked
    for; `granularity` is as for `simulate`; `timeline` is the plan's, where it is known.
    """
    need_number(simulations, "simulations", is_whole=True)
    report = progress or (lambda _: None)
    graph, cluster = request.graph, request.cluster
    if plan is None:
        return Explanation(
            model=graph.name,
            cluster=cluster.name,
            binding=binding,
            remedies=find_remedies(request, progress=report),
        )
    plan = plan.in_ops(graph)
    setting = Setting(
        graph=graph,
        cluster=cluster,
        sharing=request.sharing,
        granularity=granularity or choose_granularity(plan),
    )
    if timeline is None:
        timeline = simulate(
            graph, cluster, plan, sharing=setting.sharing, granularity=setting.granularity
        )
    step = timeline.step_seconds
    spans = StepSpans(graph, cluster, plan, timeline)
    shares = sum_spans(spans, plan)
    report("simulating neighbouring plans")
    ideas = plan_ideas(graph, cluster, plan, timeline)
    neighbours, left = judge_ideas(setting, plan, step, ideas, simulations)
    report("simulating plans of other kinds")
    others = find_rivals(setting, shares, plan, method, runner_ups, rivals)
    return Explanation(
        model=graph.name,
        cluster=cluster.name,
        plan=plan.description,
        granularity=setting.granularity,
        sharing=setting.sharing,
        step_seconds=step,
        bound_seconds=bound_seconds,
        launch_bound=timeline.is_launch_bound,
        anchor=shares.anchor,
        shares=shares.shares,
        path=tell_path(spans, cluster, plan),
        neighbours=neighbours,
        not_tried=left,
        rivals=others,
        memory=find_memory(graph, cluster, plan, timeline),
        binding=binding,
    )


def plan_ideas(
    graph: Graph, cluster: Cluster, plan: Plan, timeline: Timeline
) -> list[Iterable[Idea]]:
    """Plans that differ from one in a single decision, by sorts; `timeline`: of its step."""
    return [
        boundary_ideas(graph, plan, _busy_by_stage(cluster, plan, timeline)),
        width_ideas(graph, cluster, plan),
        schedule_ideas(graph, cluster, plan),
        memory_ideas(graph, plan),
        share_ideas(graph, cluster, plan),
        replica_ideas(graph, cluster, plan),
        move_ideas(graph, cluster, plan),
    ]


def _busy_by_stage(cluster: Cluster, plan: Plan, timeline: Timeline) -> Floats:
    """For how long the busiest device of each part is busy."""
    busy = timeline.busy_seconds
    return np.array(
        [max(busy[cluster.index[name]] for name in part.devices) for part in plan.parts]
    )


def need_request(request: Request | None) -> Request:
    """The request of an answer; InputError where it has none."""
    if request is None:
        raise InputError(
            "explain: the answer must know what was asked (its `request`), as those of "
            "`meshwright.plan` and folders of `meshwright plan -o` do"
        )
    return request
