"""Finds a plan by a named method, or by all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from types import MappingProxyType
from typing import Any, Protocol

from meshwright.cluster.cluster import Cluster
from meshwright.compiled import announced_compilation
from meshwright.cost.compute import time_sources
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import place_ops
from meshwright.search import warm
from meshwright.search.best import best_answer, describe_answer
from meshwright.search.bound.work import memory_bound, plan_bound
from meshwright.search.check import (
    GUIDED,
    PIPELINES,
    SCOPED,
    AnyScope,
    check_gap,
    check_request,
    check_runtime,
    need_method,
)
from meshwright.search.instance import make_instance
from meshwright.search.interrupt import pressed_again
from meshwright.search.judge import refuse, why_stopped
from meshwright.search.method.bandwidth.joint.answer import allocate_method, explain_nothing
from meshwright.search.method.bandwidth.joint.joint import UNIFORM, joint
from meshwright.search.method.baseline import data, data_proportional, horovod, round_robin, single
from meshwright.search.method.deploy.baseline import flexflow, mcts
from meshwright.search.method.deploy.deploy import deploy
from meshwright.search.method.deploy.tree.prior import Prior
from meshwright.search.method.heft import heft
from meshwright.search.method.hybrid.baseline import hybrid_mcmc, manual, unaware
from meshwright.search.method.hybrid.hybrid import hybrid
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.mcmc.mcmc import mcmc
from meshwright.search.method.metis import metis
from meshwright.search.method.msct.msct import msct
from meshwright.search.method.name import LAYERED, SEARCHES
from meshwright.search.method.pipeline.consecutive import consecutive
from meshwright.search.method.pipeline.pipedream import pipedream
from meshwright.search.method.pipeline.pipeline import pipeline
from meshwright.search.method.placement.placement import placement
from meshwright.search.method.quickp.quickp import quickp
from meshwright.search.pool.engine import Engine
from meshwright.search.warm import small_cluster, small_rails, small_step
from meshwright.simulate.simulate import simulate


class Method(Protocol):
    """A search for a plan."""

    def __call__(
        self,
        graph: Graph,
        cluster: Cluster,
        *,
        seed: int = 0,
        budget_seconds: float = 30.0,
        sharing: str = "fair",
    ) -> Answer:
        """Search; the same seed gives the same answer unless the budget cuts it short."""


_SEARCHES: Mapping[str, Method] = MappingProxyType(
    {
        "single": single,
        "round-robin": round_robin,
        "data": data,
        "data-proportional": data_proportional,
        "horovod": horovod,
        "metis": metis,
        "heft": heft,
        "m-sct": msct,
        "consecutive": consecutive,
        "pipedream": pipedream,
        "hybrid": hybrid,
        "pipeline": pipeline,
        "deploy": deploy,
        "placement": placement,
        "mcmc": mcmc,
        "quickp": quickp,
        "flexflow": flexflow,
        "mcts": mcts,
        "manual": manual,
        "hybrid-mcmc": hybrid_mcmc,
        "unaware": unaware,
    }
)

_ALLOCATED_SHARE = 0.85
"""Of the budget for a search, or for all of them, where the network is shared out afterwards."""
_FIRST_FEW = 3
"""Plans of `auto` that the network is shared out for in any case; others while there is time."""
_FAR = 10.0
"""Times the best step that a plan of `auto` takes for which no allocation is looked for."""

_SHARES: Mapping[str, float] = MappingProxyType({"hybrid": 0.5, "pipeline": 0.5, "deploy": 0.5})
"""Of what is left of the budget of `auto`, for searches that use all they are given; all where
none is said."""

_MAX_OPS = 10_000
_MAX_INSTANCES = 200_000
"""Of ops times devices. Beyond either, `auto` leaves a model of repeated layers to `hybrid`: the
others go op by op, and on GPT-3 and 128 or 1,024 devices none finds a plan that fits, while
`pipeline` takes 82 and 117 s of a budget of 10 (2026-11-15, 2 busy cores)."""


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
    progress: Callable[[str], None] | None = None,
    microbatches: Sequence[int] = (),
    scope: AnyScope | None = None,
    engine: Engine | None = None,
    allocate: bool = False,
    gap: float = 0.0,
    prior: Prior | None = None,
    runtime: str = MESHWRIGHT.name,
) -> Answer:
    """The plan of a method; `auto` is the best of all. `progress` is told a line a method.

    `microbatches`: the numbers that pipelines may use; none: whatever is best. `scope`: what
    its method looks at (see `SCOPED`), `engine`: what evaluates the candidates of `hybrid`. `gap`:
    `placement` and `quickp` end when nothing can be faster by more than this part. `allocate`:
    share each host's network interfaces out to the destinations, too. `prior`: what `deploy`
    believes at first; None: the network that comes with the package. `runtime`: who will run the
    plan; for others than this program `hybrid` alone searches. The budget does not count the
    compilation of kernels, which happens once on a machine.
    """
    check_request(graph, method, seed, budget_seconds, sharing, microbatches, scope)
    check_gap(gap, method, allocate=allocate)
    check_runtime(runtime, method)
    if prior is not None:
        need_method(method, GUIDED, "prior")
    subject = _subject(graph, cluster, runtime)
    choice = _choose(method, graph, cluster, runtime)
    nothing = explain_nothing(cluster) if allocate else ""
    allocates = allocate and not nothing
    _compile_kernels(choice.names, allocates=allocates)
    started = perf_counter()
    report = progress or (lambda _: None)
    if choice.refusal is not None:
        bound = plan_bound(make_instance(graph, cluster))
        return replace(refuse(method, choice.refusal, bound, started), **subject)
    searches = {
        name: _find_method(name, microbatches, scope, engine, gap, prior, runtime)
        for name in choice.names
    }
    if choice.note:
        report(choice.note)
    of_hybrid = scope if isinstance(scope, Scope) else None
    allocator = partial(allocate_method, graph, cluster, sharing, of_hybrid) if allocates else None
    if len(searches) > 1:
        until = started + budget_seconds
        answer = _find_best(searches, graph, cluster, seed, until, sharing, report, allocator)
    else:
        ((name, search),) = searches.items()
        if allocator is not None and name == "placement":
            search, allocator = joint, None
        share = 1.0 if allocator is None else _ALLOCATED_SHARE
        options: dict[str, Any] = {"seed": seed, "sharing": sharing}
        answer = search(graph, cluster, budget_seconds=share * budget_seconds, **options)
        answer = answer if allocator is None else allocator(name, answer)
        report(describe_answer(name, answer))
        answer = answer if method != "auto" else _only_answer(name, answer, choice.note)
    notes = (*answer.notes, nothing) if nothing else answer.notes
    return replace(answer, notes=notes, **subject)


def _subject(graph: Graph, cluster: Cluster, runtime: str) -> dict[str, Any]:
    """The fields of an answer that say what was planned for what."""
    return {
        "model": graph.name,
        "cluster": cluster.name,
        "batch": graph.batch,
        "times": time_sources(graph, cluster),
        "runtime": runtime,
    }


Allocator = Callable[[str, Answer], Answer]
"""Shares the network out for the plan of a method."""


def _only_answer(name: str, answer: Answer, note: str) -> Answer:
    """Of `auto` where one method is all that it tries, with that method's own bound: one on all
    plans takes a minute on 16,384 devices."""
    counts = {
        key: each
        for key, each in answer.statistics.items()
        if not key.endswith("_seconds") or key == UNIFORM
    }
    return replace(
        answer,
        method="auto" if answer.plan is None else f"auto:{name}",
        statistics={**counts, f"{name}_seconds": answer.step_seconds},
        notes=(note, *answer.notes),
    )


def _choose(method: str, graph: Graph, cluster: Cluster, runtime: str) -> _Choice:
    """All of them for `auto`, but for what cannot find anything."""
    if method in LAYERED:
        return _Choice(names=(method,))  # which knows best what would fit
    if runtime != MESHWRIGHT.name:
        return _Choice(names=("hybrid",), note=f"only hybrid was tried: it plans for {runtime}")
    reason = memory_bound(graph, cluster)
    if method != "auto":
        return _Choice(names=(method,), refusal=reason)
    names = tuple(SEARCHES)
    if not _has_layers(graph):
        return _Choice(names=tuple(name for name in names if name != "hybrid"), refusal=reason)
    if reason is not None:
        note = "the others hold every op whole, which does not fit"
    elif graph.num_ops > _MAX_OPS:
        note = f"{graph.num_ops:,} ops are too many for the others"
    elif graph.num_ops * cluster.num_devices > _MAX_INSTANCES:
        note = (
            f"{graph.num_ops:,} ops on {cluster.num_devices:,} devices are too many for the others"
        )
    else:
        return _Choice(names=names)
    return _Choice(names=("hybrid",), note=f"only hybrid was tried: {note}")


def _has_layers(graph: Graph) -> bool:
    try:
        find_layers(graph)
    except InputError:
        return False
    return True


def _find_method(
    name: str,
    microbatches: Sequence[int],
    scope: AnyScope | None,
    engine: Engine | None,
    gap: float,
    prior: Prior | None,
    runtime: str,
) -> Method:
    if name == "hybrid":
        chosen = scope if isinstance(scope, Scope) else Scope()
        if microbatches:
            chosen = replace(chosen, microbatches=tuple(microbatches))
        return partial(hybrid, scope=chosen, engine=engine, runtime=runtime)
    given: dict[str, Any] = {}
    if scope is not None and name in SCOPED[type(scope)]:
        given["scope"] = scope
    if microbatches and name in PIPELINES:
        given["microbatches"] = microbatches
    if gap:
        given["gap"] = gap
    if prior is not None and name == "deploy":
        given["prior"] = prior
    return partial(_SEARCHES[name], **given) if given else _SEARCHES[name]


def _compile_kernels(names: Sequence[str], *, allocates: bool) -> None:
    """Run the methods on a small step, so that compilation is not searching."""
    graph, cluster = small_step(), small_cluster()
    with announced_compilation(warm.__name__, *names):
        # What programs are lowered and simulated by first: the others are compiled beside it.
        place = [cluster.devices[0].name]
        simulate(graph, cluster, place_ops(graph.op_names, [0] * graph.num_ops, place))
        for name in names:
            if name != "placement":
                _SEARCHES[name](graph, cluster, budget_seconds=0.01)
        if "deploy" in names and "heft" not in names:
            heft(graph, cluster)  # which it may come to later
    if "placement" in names:
        with announced_compilation():  # of what is left: the process beside compiles it last
            _SEARCHES["placement"](graph, cluster, budget_seconds=0.01)
    if allocates:
        with announced_compilation():
            joint(graph, small_rails(), budget_seconds=0.01)


def _find_best(
    searches: Mapping[str, Method],
    graph: Graph,
    cluster: Cluster,
    seed: int,
    until: float,
    sharing: str,
    report: Callable[[str], None],
    allocator: Allocator | None = None,
) -> Answer:
    """Run all methods, within what is left of the budget; Ctrl-C ends it with the best so far."""
    started = perf_counter()
    if allocator is not None:
        searches = {**searches, "placement": joint}
    end = until if allocator is None else started + _ALLOCATED_SHARE * (until - started)
    bound = plan_bound(make_instance(graph, cluster))
    answers: dict[str, Answer] = {}
    is_interrupted = is_cut = False
    with pressed_again() as press:
        try:
            for name, search in searches.items():
                left = end - perf_counter()
                if answers and left <= 0:
                    is_cut = True
                    break
                press.is_armed = bool(answers)
                budget = max(_SHARES.get(name, 1.0) * left, 1e-3)
                found = search(graph, cluster, seed=seed, budget_seconds=budget, sharing=sharing)
                press.is_armed = False
                answers[name] = found
                if press.was_pressed or found.stop is Stop.INTERRUPTED:
                    raise KeyboardInterrupt
                report(describe_answer(name, found))
            if allocator is not None:
                _allocate_all(answers, allocator, until, report)
        except KeyboardInterrupt:
            press.is_armed = False
            if not answers:
                raise
            is_interrupted = True
    stops = {each.stop for each in answers.values()}
    is_interrupted |= Stop.INTERRUPTED in stops
    is_cut |= Stop.LIMIT in stops
    stop = why_stopped(is_interrupted=is_interrupted, is_cut=is_cut)
    return best_answer(answers, bound, started, stop)


def _allocate_all(
    answers: dict[str, Answer], allocator: Allocator, until: float, report: Callable[[str], None]
) -> None:
    """Share the network out for all plans that may gain by it, the best first, while there is time.

    That of `placement` has been searched with it. What an allocation gains differs much by plan:
    data parallelism may come from behind.
    """
    ranked = sorted(answers, key=lambda name: (name != "data", answers[name].step_seconds))
    for place, name in enumerate(ranked):
        best = min(each.step_seconds for each in answers.values())
        is_far = answers[name].step_seconds > _FAR * best
        has_time = perf_counter() < until or place < _FIRST_FEW
        # Of hybrid for its bound, too.
        if name == "hybrid" or (name != "placement" and has_time and not is_far):
            answers[name] = allocator(name, answers[name])
            if answers[name].stop is Stop.INTERRUPTED:
                return
            report(describe_answer(name, answers[name]))
