"""A plan for the hosts that are left of a cluster, which ranks can run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from meshwright.change.host import drop_hosts
from meshwright.execute.runnable import find_obstacle
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.request import Request
from meshwright.planned import Planned
from meshwright.replan.replan import search_near
from meshwright.report.expected import with_facts
from meshwright.simulate.simulate import simulate

BUDGET_SHARE = 0.2
"""Of what was searched for the plan at first, so much may be searched for one on what is left."""
_OTHERS = ("data", "single")
"""The methods that are asked, in this order, where ranks cannot run what the plan's own finds."""

Report = Callable[[str], None]


def request_without(request: Request, hosts: Sequence[str]) -> Request | None:
    """What is asked once hosts are lost; None: no host is left."""
    if set(hosts) >= set(request.cluster.hosts):
        return None
    return replace(request, cluster=drop_hosts(request.cluster, hosts, "lost hosts"))


def plan_left(planned: Planned, request: Request, budget_seconds: float, say: Report) -> Answer:
    """The answer for what is left, with the limits of the request; its plan is one that ranks can
    run, None where none fits."""
    answer = _plan_again(planned, request, budget_seconds)
    obstacle = _find_obstacle(request, answer)
    for method in _OTHERS:
        if not obstacle:
            break
        say(
            f"ranks cannot run the new plan ({obstacle}); planning with the method {method}, which "
            f"knows no limits on degrees and microbatches"
        )
        wider = replace(request, method=method, scope=None, microbatches=())
        answer = _plan_again(replace(planned, request=wider), wider, budget_seconds)
        obstacle = _find_obstacle(request, answer)
    if answer.plan is None or answer.stop is Stop.INTERRUPTED:
        return answer
    if obstacle:
        return replace(answer, plan=None, step_seconds=inf, binding=obstacle)
    timeline = simulate(request.graph, request.cluster, answer.plan, sharing=request.sharing)
    return replace(with_facts(request.graph, request.cluster, answer, timeline), request=request)


def _plan_again(planned: Planned, request: Request, budget_seconds: float) -> Answer:
    """The answer for a request whose cluster is another than that of the plan before."""
    return search_near(
        planned, request.cluster, budget_seconds=budget_seconds, seed=request.seed
    ).answer


def _find_obstacle(request: Request, answer: Answer) -> str:
    """Why ranks cannot run the plan of an answer; empty where there is none, or where they can."""
    if answer.plan is None or answer.stop is Stop.INTERRUPTED:
        return ""
    return find_obstacle(request.graph, request.cluster, answer.plan)
