"""A plan for the hosts that are left of a cluster, which ranks can run."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf

from meshwright.change.host import drop_hosts
from meshwright.execute.runnable import find_obstacle
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.request import Request
from meshwright.planned import Planned
from meshwright.report.expected import with_facts
from meshwright.simulate.simulate import simulate
from meshwright.whatif.outcome import search_again

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
    answer = plan_again(planned, replace(request, budget_seconds=budget_seconds))
    if answer.plan is None or answer.stop is Stop.INTERRUPTED:
        return answer
    obstacle = find_obstacle(request.graph, request.cluster, answer.plan)
    for method in _OTHERS:
        if not obstacle or answer.plan is None:
            break
        say(f"ranks cannot run the new plan ({obstacle}); planning with the method {method}")
        answer = search_again(
            replace(
                request,
                budget_seconds=budget_seconds,
                method=method,
                scope=None,
                microbatches=(),
            )
        )
        if answer.plan is not None:
            obstacle = find_obstacle(request.graph, request.cluster, answer.plan)
    if answer.plan is None or obstacle:
        binding = answer.binding if answer.plan is None else f"ranks cannot run it: {obstacle}"
        return replace(answer, plan=None, step_seconds=inf, binding=binding)
    timeline = simulate(request.graph, request.cluster, answer.plan, sharing=request.sharing)
    return replace(with_facts(request.graph, request.cluster, answer, timeline), request=request)


def plan_again(_planned: Planned, request: Request) -> Answer:
    """The answer for a request that another plan was there for before."""
    return search_again(request)
