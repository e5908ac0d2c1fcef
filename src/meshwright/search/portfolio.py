"""Finds a plan by a named method, or by all of them: one problem, one incumbent."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import has_layers
from meshwright.interpreter import can_start_python, num_cores
from meshwright.plan.answer import Answer
from meshwright.plan.moment import Moment
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.search.answer import (
    answer_attempt,
    answer_best,
    answer_only,
    describe_attempt,
    refuse_all,
)
from meshwright.search.beside import Beside
from meshwright.search.bound.work import memory_bound
from meshwright.search.check import (
    AnyScope,
    check_gap,
    check_request,
    check_runtime,
    need_method,
)
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.compile import compile_methods
from meshwright.search.incumbent import Incumbent, is_proved
from meshwright.search.method.bandwidth.joint.joint import allocate_plan, explain_nothing
from meshwright.search.method.deploy.tree.tree import Prior
from meshwright.search.method.name import ENTRIES, LAYERED, SEARCHES
from meshwright.search.method.table import ALLOCATING
from meshwright.search.pool.engine import Engine
from meshwright.search.problem import Problem
from meshwright.search.run import run_method
from meshwright.search.standing import Lookout, Watch
from meshwright.search.start import kind_of, near_methods
from meshwright.units import format_percent, format_seconds

_ALLOCATED_SHARE = 0.85
"""Of the budget for a search, or for all of them, where the network is shared out afterwards."""
_NEAR_SHARE = 0.6
"""The part of the time left that a search gets near plans that are there."""
_NEAR_LEAST = 0.2
"""Of the time: with less than that left no more searches begin near plans that are there, since
some take longer than they are given."""
_NEAR_GAIN = 1e-3
"""The part of the step by which a search near the best plan has to better it for another one."""
_BESIDE = ("deploy", "pipeline", "placement")
"""Searches of `auto` that processes of their own run where there are cores for them, in this order;
`hybrid` uses more cores by itself."""
_BESIDE_SECONDS = 4.0
"""The time that must be left for such processes: each takes one or two seconds to load what it
needs."""
_FIRST_FEW = 3
"""Plans of `auto` that the network is shared out for in any case; others while there is time."""
_FAR = 10.0
"""Times the best step that a plan of `auto` takes for which no allocation is looked for."""

_MAX_OPS = 10_000
_MAX_INSTANCES = 200_000
"""Of ops times devices. Beyond either, `auto` leaves a model of repeated layers to `hybrid`: the
others go op by op, and on GPT-3 and 128 or 1,024 devices none finds a plan that fits, while
`pipeline` takes 82 and 117 s of a budget of 10 (2026-11-15, 2 busy cores)."""

Report = Callable[[str], None]
"""Is told a line as soon as a method has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """The searches that a method's name stands for."""

    names: tuple[str, ...]
    note: str = ""
    """What was left out, and why."""
    refusal: str | None = None
    """Why no plan of any of them can fit."""


def find_plan(
    graph: Graph,
    cluster: Cluster,
    method: str = "auto",
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
    progress: Report | None = None,
    microbatches: Sequence[int] = (),
    scope: AnyScope | None = None,
    engine: Engine | None = None,
    allocate: bool = False,
    gap: float = 0.0,
    prior: Prior | None = None,
    runtime: str = MESHWRIGHT.name,
    starts: Sequence[Plan] = (),
    watch: Watch | None = None,
) -> Answer:
    """The plan of a method; `auto` is the best of all. `progress` is told a line a method, `watch`
    where the search stands.

    `microbatches`: the numbers that pipelines may use; none: whatever is best. `scope`: what the
    method that has this kind of scope looks at, `engine`: what evaluates the candidates of
    `hybrid`. `gap`: the search ends when nothing can be faster by more than this part.
    `allocate`: share each host's network interfaces out to the destinations, too. `prior`: what
    `deploy` believes at first; None: the network that comes with the package. `runtime`: who will
    run the plan; for others than this program `hybrid` alone searches. `starts`: plans in ops of
    the graph that the search starts from and stays near, so that it ends soon. The budget does not
    count the compilation of kernels, which happens once on a machine.
    """
    check_request(graph, method, seed, budget_seconds, sharing, microbatches, scope)
    check_gap(gap, allocate=allocate)
    check_runtime(runtime, method)
    if prior is not None:
        need_method(method, "prior", "prior")
    choice = _choose(method, graph, cluster, runtime, starts)
    nothing = explain_nothing(cluster) if allocate else ""
    allocates = allocate and not nothing
    compile_methods(choice.names, allocates=allocates)
    report = progress or (lambda _: None)
    problem = Problem(
        graph=graph, cluster=cluster, sharing=sharing, seed=seed, clock=Clock(budget_seconds),
        engine=engine, microbatches=tuple(microbatches), scope=scope, gap=gap, prior=prior,
        runtime=runtime, allocate=allocates, starts=tuple(starts),
    )  # fmt: skip
    request = Request(
        graph=graph, cluster=cluster, method=method, seed=seed, budget_seconds=budget_seconds,
        sharing=sharing, microbatches=tuple(microbatches), scope=scope, allocate=allocate, gap=gap,
        runtime=runtime,
    )  # fmt: skip
    lookout = Lookout(choice.names, problem.clock, watch, None if allocates else gap)
    answer = replace(_answer(choice, problem, method, report, lookout), request=request)
    return replace(answer, notes=(*answer.notes, nothing)) if nothing else answer


def answer_request(
    request: Request,
    *,
    engine: Engine | None = None,
    starts: Sequence[Plan] = (),
    prior: Prior | None = None,
    progress: Report | None = None,
    watch: Watch | None = None,
) -> Answer:
    """The answer of a search for what a request asks."""
    return find_plan(
        request.graph,
        request.cluster,
        method=request.method,
        seed=request.seed,
        budget_seconds=request.budget_seconds,
        sharing=request.sharing,
        progress=progress,
        microbatches=request.microbatches,
        scope=request.scope,  # type: ignore[arg-type]
        engine=engine,
        allocate=request.allocate,
        gap=request.gap,
        runtime=request.runtime,
        prior=prior,
        starts=starts,
        watch=watch,
    )


def _answer(
    choice: _Choice, problem: Problem, method: str, report: Report, lookout: Lookout
) -> Answer:
    """What the chosen searches say together."""
    if choice.refusal is not None:
        return refuse_all(problem, method, choice.refusal)
    if choice.note:
        report(choice.note)
    incumbent = _run_all(choice.names, problem, report, lookout)
    attempts = tuple(incumbent.attempts.values())
    if len(choice.names) > 1:
        return answer_best(problem, incumbent, problem.clock)
    if method == "auto":
        return answer_only(problem, attempts[0], choice.note)
    return answer_attempt(problem, attempts[0])


def search_by(
    method: str, graph: Graph, cluster: Cluster, *, budget_seconds: float = 30.0, **given: Any
) -> Answer:
    """The plan of one method, run as it is: nothing is checked, compiled or left out before.

    For tests and comparisons. What is `given` are fields of the problem and options of the
    method's function.
    """
    fields = {key: given.pop(key) for key in list(given) if key in Problem.__dataclass_fields__}
    problem = Problem(graph=graph, cluster=cluster, clock=Clock(budget_seconds), **fields)
    incumbent = Incumbent(problem.clock, Lookout((method,), problem.clock, gap=problem.gap).note)
    run_method(method, problem, incumbent, **given)
    if not incumbent.attempts:
        raise KeyboardInterrupt
    return answer_attempt(problem, incumbent.attempts[method])


def _choose(
    method: str, graph: Graph, cluster: Cluster, runtime: str, starts: Sequence[Plan]
) -> _Choice:
    """All of them for `auto`, but for what cannot find anything."""
    if method in LAYERED:
        return _Choice(names=(method,))  # which knows best what would fit
    if runtime != MESHWRIGHT.name:
        return _Choice(names=("hybrid",), note=f"only hybrid was tried: it plans for {runtime}")
    reason = memory_bound(graph, cluster)
    if method != "auto":
        return _Choice(names=(method,), refusal=reason)
    if not has_layers(graph):
        if starts and reason is None:
            return _Choice(names=near_methods(graph, starts))
        whole = tuple(name for name in SEARCHES if name not in LAYERED)
        return _Choice(names=whole, refusal=reason)
    if reason is not None:
        note = "the others hold every op whole, which does not fit"
    elif starts:
        return _Choice(names=near_methods(graph, starts))
    elif graph.num_ops > _MAX_OPS:
        note = f"{graph.num_ops:,} ops are too many for the others"
    elif graph.num_ops * cluster.num_devices > _MAX_INSTANCES:
        note = (
            f"{graph.num_ops:,} ops on {cluster.num_devices:,} devices are too many for the others"
        )
    else:
        return _Choice(names=tuple(SEARCHES))
    return _Choice(names=("hybrid",), note=f"only hybrid was tried: {note}")


def _run_all(names: Sequence[str], problem: Problem, report: Report, lookout: Lookout) -> Incumbent:
    """Run methods within what is left of the time; Ctrl-C ends it with the best so far."""
    whole = clock = problem.clock
    if problem.allocate and names != tuple(ALLOCATING):
        clock = whole.first(_ALLOCATED_SHARE)
    incumbent, is_one = Incumbent(whole, lookout.note), len(names) == 1
    with whole.listening(), whole.heard(), ExitStack() as ended:
        beside = (
            {} if is_one else _start_beside(names, problem.within(clock), ended, incumbent, lookout)
        )
        # Those whose processes are still being made come last: they begin here only if need be.
        order = sorted(names, key=lambda name: name in beside)
        for place, name in enumerate(order):
            is_over = clock.is_over and not whole.is_satisfied
            if whole.is_interrupted or (incumbent.attempts and is_over):
                break
            if name in beside and beside[name].has_begun:
                continue
            beside.pop(name, None)  # which began too late to be of use
            if reason := _explain_hopeless(name, problem, incumbent):
                report(f"{name}: {reason}")
                continue
            # What others will not use is there for this one.
            left = [
                each
                for each in order[place:]
                if not (each in beside and beside[each].may_answer)
                and not _explain_hopeless(each, problem, incumbent)
            ]
            share = ENTRIES[name].weight / max(1e-9, sum(ENTRIES[each].weight for each in left))
            if problem.starts and ENTRIES[name].weight:
                share = max(share, _NEAR_SHARE)
                if incumbent.best is not None and clock.left < _NEAR_LEAST * clock.seconds:
                    continue
            own = clock.first(1.0) if is_one else clock.rest(share or 1.0, tells=False)
            is_hurried = bool(incumbent.attempts)
            with lookout.searching(name), whole.hurried(is_hurried=is_hurried):
                run_method(name, problem.within(own), incumbent)
            if name in incumbent.attempts and not (is_one or whole.is_interrupted):
                report(describe_attempt(incumbent.attempts[name]))
        for each in beside.values():
            found = each.wait()
            lookout.end(each.name)
            if found is not None:
                incumbent.adopt(found)
                report(describe_attempt(found))
        if not (is_one or problem.starts):
            _go_on(problem.within(clock), incumbent, report, lookout)
        if problem.allocate and not whole.is_interrupted:
            incumbent = _allocate_all(problem, incumbent, report, lookout)
        if is_one and incumbent.attempts:
            report(describe_attempt(incumbent.attempts[names[0]]))
    if not incumbent.attempts:
        raise KeyboardInterrupt
    incumbent.attempts = {
        name: incumbent.attempts[name] for name in names if name in incumbent.attempts
    }
    return incumbent


def _start_beside(
    names: Sequence[str],
    problem: Problem,
    ended: ExitStack,
    incumbent: Incumbent,
    lookout: Lookout,
) -> dict[str, Beside]:
    """Processes for the methods that there are cores for, so that these have the whole time."""
    if problem.starts or problem.clock.left < _BESIDE_SECONDS or not can_start_python():
        return {}

    def hear(moment: Moment) -> None:
        incumbent.hear(moment)
        lookout.note(moment)

    chosen = [name for name in _BESIDE if name in names][: num_cores() - 1]
    return {name: ended.enter_context(Beside(name, problem, hear)) for name in chosen}


def _explain_hopeless(name: str, problem: Problem, incumbent: Incumbent) -> str:
    """Why a search that takes time cannot find anything faster than what is known; empty where it
    might."""
    if problem.clock.is_satisfied:
        by_more = f" by more than {format_percent(problem.gap)}" if problem.gap else ""
        return f"not tried: no plan is faster{by_more} than the best"
    entry, known = ENTRIES[name], incumbent.known_seconds
    is_placed = entry.weight > 0 and entry.claim is Claim.PLACEMENT and not problem.allocate
    if not is_placed or problem.starts or math.isinf(known):
        return ""
    if (bound := problem.placement_bound) < known:
        return ""
    return f"not tried: no placement is faster than {format_seconds(bound)}"


def _go_on(problem: Problem, incumbent: Incumbent, report: Report, lookout: Lookout) -> None:
    """Spend the time that is left near the best plan, for as long as that finds better ones."""
    clock, seed = problem.clock, problem.seed
    while (best := incumbent.best) is not None and not clock.is_interrupted:
        if clock.left < _NEAR_LEAST * clock.seconds or is_proved(
            best.step_seconds, problem.plan_bound
        ):
            return
        assert best.plan is not None, "it fits"
        name, seed = kind_of(best.plan), seed + 1
        near = replace(problem.within(clock.rest(1.0, tells=False)), starts=(best.plan,), seed=seed)
        beside = Incumbent(clock, lookout.note)
        with lookout.searching(name), clock.hurried():
            run_method(name, near, beside)
        found = beside.attempts.get(name)
        if found is None or not found.step_seconds < best.step_seconds * (1 - _NEAR_GAIN):
            return
        assert found.plan is not None and found.verdict is not None, "it fits"
        incumbent.attempts[name].offer(found.plan, found.verdict)
        report(f"{name}: {format_seconds(found.step_seconds)} a step, near the best plan so far")


def _allocate_all(
    problem: Problem, found: Incumbent, report: Report, lookout: Lookout
) -> Incumbent:
    """Share the network out for all plans that may gain by it, the best first, while there is time.

    That of `placement` has been searched with it. What an allocation gains differs much by plan:
    data parallelism may come from behind.
    """
    shared, attempts = Incumbent(problem.clock, lookout.note), found.attempts
    ranked = sorted(attempts, key=lambda name: (name != "data", attempts[name].step_seconds))
    for place, name in enumerate(ranked):
        attempt = attempts[name]
        best = min(found.step_seconds, shared.step_seconds)
        is_far = attempt.step_seconds > _FAR * best
        has_time = place < _FIRST_FEW or not problem.clock.is_over
        # Of hybrid for its bound, too.
        is_worth = len(ranked) == 1 or name == "hybrid" or (has_time and not is_far)
        if name in ALLOCATING or not is_worth or problem.clock.is_interrupted:
            shared.adopt(attempt)
            continue
        claim = Claim.ALLOCATED if attempt.claim is Claim.PLACEMENT else attempt.claim
        with lookout.searching(name):
            allocate_plan(problem, attempt, shared.begin(name, claim, attempt.clock))
        if len(ranked) > 1 and not problem.clock.is_interrupted:
            report(describe_attempt(shared.attempts[name]))
    shared.attempts = {name: shared.attempts[name] for name in attempts}
    return shared
