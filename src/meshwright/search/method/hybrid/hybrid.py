"""Finds degrees, stages and devices together: tensor, context, expert, data and pipeline
parallelism, ZeRO and recomputation, for models of repeated layers.

Drafts come from dynamic programmes within frames (see `scope`, `frame`), ordered by an estimate;
the simulator times the best of them on the actual links, layer by layer, and the best of these op
by op, which decides. The drafts are the same whatever the machine; only when the budget ends does
it matter how fast it is.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from meshwright.cost.runtime import RUNTIMES
from meshwright.errors import InputError
from meshwright.plan.degrees import stage_degrees
from meshwright.plan.part import ScheduleKind
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.method.hybrid.draft import HybridDraft, Pool
from meshwright.search.method.hybrid.exhaust import exhaust
from meshwright.search.method.hybrid.frame import FrameSearch
from meshwright.search.method.hybrid.interleave import interleave
from meshwright.search.method.hybrid.near import near_scope, offer_near
from meshwright.search.method.hybrid.scope import Scope, narrow_to_inference
from meshwright.search.method.hybrid.smallest import explain_lack
from meshwright.search.method.hybrid.space import (
    HybridSpace,
    describe_space,
    list_cells,
    list_mixed,
    make_space,
    space_bound,
)
from meshwright.search.method.hybrid.table import option_fits
from meshwright.search.method.hybrid.trial import (
    RUNNER_UPS,
    HybridTrials,
    TrialScene,
    offer_trials,
)
from meshwright.search.pool.engine import open_engine
from meshwright.search.pool.process import Processes
from meshwright.search.problem import Problem

_INTERLEAVED = 8
"""Drafts that are also tried with several chunks a device."""
_UNIFORM_CELLS = 6
"""On few devices, frames and sizes that are also tried with one option for all stages; on
more, simulations take too long to make use of that."""

_DRAFT_SHARE = 0.5
"""The part of the budget that drafts are made in; the rest is for the simulator."""
_EXPLAIN_SHARE = 0.25
"""Where nothing fits, this part of the budget is added, to find out how many devices would do."""
_SIMULATED = 16
"""After so many drafts that fit, one of each family, no more are simulated."""
_FEW_DEVICES, _SIMULATED_OF_FEW = 256, 48
"""On no more than so many devices, where a simulation takes a tenth of a second at the most, so
many drafts are simulated."""
_WAVE = 4
"""Drafts that are simulated at once, whatever the number of workers, so that the answer does not
depend on it."""
_MARGIN = 1.03
"""A draft whose estimate is so much above the best simulated step is not simulated, but for the
first wave: people want to see what comes next. On even networks estimates are off by 0.2% in the
mean."""
_UNEVEN_MARGIN = 1.25
"""The same on uneven networks, where estimates are off by up to a quarter."""
_SMALL_DEVICES, _SMALL_LAYERS = 16, 8
"""On so few devices, and with so few layers, every plan of the scope may be looked at."""
_NEAR_FEWER, _NEAR_RUNNER_UPS = 4, 2
"""Near a plan that is there a quarter of as many drafts are simulated, and so many besides the best
of them op by op: on few devices, where steps by layer and op by op differ by up to a quarter."""
_EXHAUSTED = 5_000
"""Every plan is looked at only where no more than so many of them have to be simulated."""
_SLOW_SECONDS = 0.25
"""A simulation that takes longer is worth other processes."""


def hybrid(problem: Problem, attempt: Attempt) -> None:
    """The best plan of the scope that the search finds; see this module's docstring.

    Without an engine, other cores are used where simulations take long.
    """
    graph, clock = problem.graph, problem.clock
    chosen = problem.scope_of(Scope)
    if problem.microbatches:
        chosen = replace(chosen, microbatches=problem.microbatches)
    try:
        chosen = narrow_to_inference(chosen) if graph.is_inference else chosen
        chosen = near_scope(chosen, problem.starts)
        space = make_space(graph, problem.cluster, chosen, RUNTIMES[problem.runtime])
    except InputError as error:
        attempt.refuse(f"not for this search: {error}")
        return
    is_near = bool(problem.starts)
    pool = Pool(refuses_plain=space.stack.shares_groups)
    scene = TrialScene(
        graph=graph, cluster=problem.cluster, tiers=space.prices.tiers, sharing=problem.sharing,
        runtime=problem.runtime,
    )  # fmt: skip
    trials = HybridTrials(scene, problem.engine or Processes(1), chosen.keys)
    is_whole = False
    with ExitStack() as stack:
        with clock.heard():
            drafting = clock.first(_DRAFT_SHARE)
            find_drafts(space, pool, drafting, is_near=is_near)
            drafting.look()
            others = stack if problem.engine is None else None
            _simulate(space, trials, pool.drafts(), clock, others, is_near=is_near)
            devices, layers = space.cluster.num_devices, space.stack.num_layers
            is_small = devices <= _SMALL_DEVICES and layers <= _SMALL_LAYERS
            is_whole = is_small and not is_near and exhaust(space, trials, _EXHAUSTED, clock)
            clock.look()
        if clock.is_interrupted:
            if not pool.kept:
                return
            if not trials.num_fitting:  # a moment more, to have something
                trials.run(pool.drafts()[:1])
    if is_near:
        offer_near(problem, attempt, trials.best_seconds)
    bound = space_bound(space)
    if not trials.num_fitting:
        tried = trials.ranked()
        more = clock.more(_EXPLAIN_SHARE * clock.seconds)
        attempt.raise_bound(min(bound, attempt.step_seconds))
        attempt.refuse(tried[0][0].binding if tried else explain_lack(space, more))
        return
    if is_whole and all(option.is_plain for option in space.options):
        bound = trials.best_seconds  # by layer it proves nothing about steps op by op
    # A start may divide samples as no plan of the scope does, and be faster than all of them.
    attempt.raise_bound(min(bound, attempt.step_seconds))
    is_large = problem.cluster.num_devices > _FEW_DEVICES
    near_ups = 0 if is_large else _NEAR_RUNNER_UPS
    offer_trials(attempt, trials, near_ups if is_near else RUNNER_UPS)
    if attempt.plan is not None:
        attempt.statistics["whole"] = float(is_whole)
        whole = "all plans of this space were looked at, layer by layer"
        attempt.notes = (describe_space(space), *([whole] if is_whole else []))


def _simulate(
    space: HybridSpace,
    trials: HybridTrials,
    drafts: Sequence[HybridDraft],
    clock: Clock,
    stack: ExitStack | None,
    *,
    is_near: bool,
) -> None:
    """From the best estimate on, one of a family first; then the family of the best."""
    if not drafts:
        return
    first = list({draft.family: draft for draft in reversed(drafts)}.values())[::-1]
    margin = _MARGIN if space.prices.tiers.is_even else _UNEVEN_MARGIN
    most = _SIMULATED if space.cluster.num_devices > _FEW_DEVICES else _SIMULATED_OF_FEW
    most = most // _NEAR_FEWER if is_near else most
    before = clock.elapsed
    trials.run(first[:1])
    spent = clock.elapsed - before
    if stack is not None and spent > _SLOW_SECONDS:
        trials.engine = stack.enter_context(open_engine("local"))
    for start in range(1, len(first), _WAVE):
        wave = [
            draft
            for draft in first[start : start + _WAVE]
            if start == 1 or draft.estimate_seconds <= margin * trials.best_seconds
        ]
        if not wave or trials.num_fitting >= most:
            break
        room = clock.left / spent * trials.engine.workers
        if room < len(wave):
            clock.cut()
        if room < 1 and trials.num_fitting:
            break
        trials.run(wave[: max(1, int(min(room, len(wave))))])
    best = trials.ranked()[0][1]
    family = [draft for draft in drafts if draft.family == best.family][:_WAVE]
    # A draft's stages are only as even as its estimate needs them, those of people more so.
    for wave in (_described(space, trials.scene, best), family):
        if clock.left <= spent:
            clock.cut()
            return
        trials.run(wave)


def _described(space: HybridSpace, scene: TrialScene, draft: HybridDraft) -> list[HybridDraft]:
    """The draft that people mean by the degrees of this one; none where its stages are unlike."""
    degrees = scene.plan(draft).degrees(scene.graph, scene.cluster)
    if degrees is None or (space.scope.pods and 1 not in space.scope.pods):
        return []
    usual = replace(degrees, layers=(), pods=1)
    frame, stages = stage_degrees(space.stack, space.cluster, usual)
    return [replace(draft, frame=frame, stages=stages)]


def find_drafts(space: HybridSpace, pool: Pool, clock: Clock, *, is_near: bool = False) -> None:
    """Stages of one size in every frame whose bound is below what the pool keeps, stages of
    different sizes in the best frames, and chunks on the devices of the best drafts.

    `is_near`: a plan is there already, and stages of different sizes are not looked for."""
    kinds = [each for each in space.scope.schedules if each is not ScheduleKind.INTERLEAVED]
    # Interleaved drafts begin from others, which are dropped where they may not be used.
    seeds = pool if kinds else Pool()
    kinds = kinds or [ScheduleKind.ONE_F_ONE_B]

    def limit() -> float:
        return seeds.limit

    for cell in list_cells(space):
        if cell.bound >= seeds.limit or (seeds.kept and clock.is_over):
            break
        options = cell.options(space, seeds.limit)
        search = FrameSearch(space.layouts, space.shapes, cell.frame, [cell.size], options)
        found = list(search.drafts(kinds, limit))
        if not all(map(space.allows, found)):
            legal = [each for each in options if not each.is_plain]
            search = FrameSearch(space.layouts, space.shapes, cell.frame, [cell.size], legal)
            found += search.drafts(kinds, limit)
        for draft in found:
            seeds.offer(draft)
    _add_uniform(space, seeds, kinds, clock)
    has_mixed = space.scope.mixed and not is_near
    for frame, sizes in list_mixed(space, seeds.drafts()) if has_mixed else ():
        if clock.is_over:
            break
        search = FrameSearch(space.layouts, space.shapes, frame, sizes, space.options)
        for draft in search.drafts(_cheapest(kinds), limit):
            seeds.offer(draft)
    if ScheduleKind.INTERLEAVED in space.scope.schedules:
        is_tied = space.stack.shares_groups
        legal = [each for each in space.options if not (is_tied and each.is_plain)]
        for draft in seeds.drafts()[:_INTERLEAVED]:
            for each in interleave(
                space.layouts, space.shapes, legal, draft, space.scope.interleaved_chunks
            ):
                pool.offer(each)
    if seeds is not pool and space.scope.allows_one_chunk:
        for draft in seeds.drafts():
            if len(draft.stages) == 1:  # which all schedules run alike
                pool.offer(draft)


def _add_uniform(
    space: HybridSpace, pool: Pool, kinds: Sequence[ScheduleKind], clock: Clock
) -> None:
    """In the best frames, all stages with one option each: what is least for every stage by itself
    need not be for all together, which only the simulator can tell."""
    if space.cluster.num_devices > _FEW_DEVICES:
        return
    best = dict.fromkeys((each.frame, each.stages[0].size) for each in pool.drafts())
    for frame, size in list(best)[:_UNIFORM_CELLS]:
        for option in space.options:
            if clock.is_over:
                return
            if option_fits(space.prices, frame, size, option):
                search = FrameSearch(space.layouts, space.shapes, frame, [size], [option])
                for draft in search.drafts(kinds, lambda: pool.limit):
                    pool.offer(draft)


def _cheapest(kinds: Sequence[ScheduleKind]) -> Sequence[ScheduleKind]:
    """One schedule for stages of different sizes, whose dynamic programme takes a while: 1F1B,
    which holds fewest microbatches, where it may be used."""
    return [ScheduleKind.ONE_F_ONE_B] if ScheduleKind.ONE_F_ONE_B in kinds else kinds[:1]
