"""What the hybrid search is held against: a manual plan, MCMC, and a search that sees no network.

Each gives drafts of the same kind, judged by the same simulator on the same cluster: the first few
that fit by layer, and these op by op.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshwright.cost.layer.team import Team, team_fits
from meshwright.errors import InputError
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.stage import Frame, Option
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt
from meshwright.search.method.hybrid.draft import HybridDraft, Pool
from meshwright.search.method.hybrid.frame import FrameSearch, Layouts
from meshwright.search.method.hybrid.option_price import LayerPrices
from meshwright.search.method.hybrid.propose import find_drafts
from meshwright.search.method.hybrid.scope import Scope, divisors
from meshwright.search.method.hybrid.space import HybridSpace, list_samples, make_space, space_bound
from meshwright.search.method.hybrid.table import samples_of
from meshwright.search.method.hybrid.tier import Tiers
from meshwright.search.method.hybrid.trial import (
    RUNNER_UPS,
    HybridTrials,
    TrialScene,
    offer_trials,
)
from meshwright.search.pool.process import Processes
from meshwright.search.problem import Problem

_SAMPLES = (1, 2, 4, 8)
"""The numbers of samples of a microbatch that people try."""


_SIMULATED = 5
"""The number of drafts that fit after which a method simulates no more of them."""
_MCMC_STEPS = 100_000
_DRAFT_SHARE = 0.5
"""The part of the budget that drafts are made in; the rest is for the simulator."""


def manual(problem: Problem, attempt: Attempt) -> None:
    """The plan that Megatron-LM's authors advise; see `manual_drafts`."""
    _search(problem, attempt, lambda space, _: manual_drafts(space))


def hybrid_mcmc(problem: Problem, attempt: Attempt) -> None:
    """The best plan of a walk over degrees that starts from the manual one; see `mcmc_drafts`."""

    def draft(space: HybridSpace, clock: Clock) -> list[HybridDraft]:
        first = manual_drafts(space)
        return mcmc_drafts(space, first[0], problem.seed, clock) if first else []

    _search(problem, attempt, draft)


def unaware(problem: Problem, attempt: Attempt) -> None:
    """The best plan of a search that takes all links for the fastest; see `unaware_drafts`.

    Its first draft that fits is its answer: to simulate several and take the fastest would let it
    see the network after all.
    """
    _search(problem, attempt, unaware_drafts, most=1)


def _search(
    problem: Problem,
    attempt: Attempt,
    draft: Callable[[HybridSpace, Clock], list[HybridDraft]],
    *,
    most: int = _SIMULATED,
) -> None:
    """Make drafts for a part of the time, and simulate the first that fit."""
    graph, cluster, clock = problem.graph, problem.cluster, problem.clock
    try:
        space = make_space(graph, cluster, Scope())
    except InputError as error:
        attempt.refuse(f"not for this search: {error}")
        return
    drafts = draft(space, clock.first(_DRAFT_SHARE))
    scene = TrialScene(
        graph=graph, cluster=cluster, tiers=space.prices.tiers, sharing=problem.sharing
    )
    trials = HybridTrials(scene, Processes(1))
    with clock.heard():
        simulate_first(trials, drafts, clock, most)
    if clock.is_interrupted and not trials.num_fitting:
        return
    attempt.raise_bound(_bound(space, drafts))
    if trials.num_fitting:
        trials.settle_best(1 + RUNNER_UPS)
        offer_trials(attempt, trials)
    else:
        tried = trials.ranked()
        none_fits = "none of its plans fits; hybrid looks at more"
        attempt.refuse(tried[0][0].binding if tried else none_fits)


def simulate_first(
    trials: HybridTrials, drafts: Sequence[HybridDraft], clock: Clock, most: int = _SIMULATED
) -> None:
    """Simulate drafts until `most` of them fit, or the time is over."""
    for draft in drafts:
        trials.run([draft])
        if trials.num_fitting == most or clock.is_over:
            break


def _bound(space: HybridSpace, drafts: Sequence[HybridDraft]) -> float:
    """A bound on every plan of the hybrid search's space and of these drafts, whose teams that
    space need not have; zero: they have microbatches that it does not know."""
    options = {stage.option: None for draft in drafts for stage in draft.stages}
    wide = replace(space, options=tuple(dict.fromkeys((*space.options, *options))))
    known = {*list_samples(wide)}
    samples = {
        samples_of(space.batch, draft.frame, stage.size, stage.option.team)
        for draft in drafts
        for stage in draft.stages
    }
    return space_bound(wide) if samples <= known else 0.0


def manual_drafts(space: HybridSpace) -> list[HybridDraft]:
    """As Megatron-LM's authors advise (Narayanan et al., 2021, section 3 and 5.4).

    Tensors are divided within a host only, and only as far as memory demands; then the model is cut
    into as few stages as fit; the rest is data parallel, with the optimiser's state divided. Less
    recomputation is preferred to more. All microbatches that people try, the best estimate first.
    """
    order = space.prices.tiers
    for model_width in divisors(space.cluster.num_devices):
        drafts: list[HybridDraft] = []
        for tensor in reversed(divisors(model_width)):
            if tensor > order.host_size or model_width // tensor > space.stack.num_layers:
                continue
            drafts += _megatron(space, tensor, model_width // tensor)
            if drafts:
                return sorted(drafts, key=lambda draft: draft.estimate_seconds)
    return []


def _megatron(space: HybridSpace, tensor: int, num_stages: int) -> Iterator[HybridDraft]:
    """Drafts with the least recomputation that fits, for every microbatch."""
    team = Team(tensor=tensor, sequence=tensor > 1)
    if team_fits(space.stack, team) is not None:
        team = Team(tensor=tensor)
        if team_fits(space.stack, team) is not None:
            return
    size = space.cluster.num_devices // num_stages
    replicas = size // tensor
    for samples in _SAMPLES:
        if space.batch % (replicas * samples):
            continue
        frame = Frame(pods=1, microbatches=space.batch // (replicas * samples))
        for recompute in Recompute:
            option = Option(team=team, zero=1 if replicas > 1 else 0, recompute=recompute)
            found = list(_drafts(space, frame, size, [option]))
            if found:
                yield found[0]
                break


def _drafts(
    space: HybridSpace, frame: Frame, size: int, options: Sequence[Option]
) -> Iterator[HybridDraft]:
    search = FrameSearch(space.layouts, space.shapes, frame, [size], options)
    if search.sizes:
        wanted = min(space.cluster.num_devices // frame.pods // size, space.stack.num_layers)
        for draft in search.drafts([ScheduleKind.ONE_F_ONE_B], lambda: math.inf):
            if len(draft.stages) == wanted and space.allows(draft):
                yield draft


def unaware_drafts(space: HybridSpace, clock: Clock) -> list[HybridDraft]:
    """The same search on a network whose every pair is as fast as the fastest."""
    tiers = space.prices.tiers
    flat = Tiers(order=tiers.order, tiers=tuple(replace(each, size=1) for each in tiers.tiers[:1]))
    prices = LayerPrices(space.stack, space.cluster, flat)
    blind = replace(space, prices=prices, layouts=Layouts(prices))
    pool = Pool(refuses_plain=space.stack.shares_groups)
    with clock.heard():
        find_drafts(blind, pool, clock)
    clock.look()
    return pool.drafts()


@dataclass(frozen=True, slots=True, kw_only=True)
class _DegreesState:
    """A point of the walk: degrees alone."""

    tensor: int
    context: int
    expert: int
    stages: int
    pods: int
    samples: int
    zero: int
    recompute: Recompute


def mcmc_drafts(
    space: HybridSpace, start: HybridDraft, seed: int, clock: Clock, most_steps: int = _MCMC_STEPS
) -> list[HybridDraft]:
    """Metropolis over degrees (as FlexFlow searches; Jia et al., 2019, section 6.2) by estimate.

    A step changes one degree; stages are cut evenly, all with one option. The drafts that it met,
    the best first.
    """
    draw = random.Random(seed)
    first = start.stages[0]
    replicas = first.size // first.option.team.num_devices
    state = _DegreesState(
        tensor=first.option.team.tensor,
        context=first.option.team.context,
        expert=first.option.team.expert,
        stages=len(start.stages),
        pods=start.frame.pods,
        samples=space.batch // (start.frame.microbatches * start.frame.pods * replicas),
        zero=first.option.zero,
        recompute=first.option.recompute,
    )
    cost, met = start.estimate_seconds, {start.key: start}
    with clock.heard():
        for _ in range(most_steps):
            if clock.is_over:
                break
            changed = _change(space, state, draw)
            draft = _draft_of(space, changed)
            if draft is None:
                continue
            met[draft.key] = draft
            # Worse states are taken with a chance that falls e-fold for every 2% they are slower.
            if draw.random() < math.exp(min(0.0, (cost - draft.estimate_seconds) / (0.02 * cost))):
                state, cost = changed, draft.estimate_seconds
    return sorted(met.values(), key=lambda draft: draft.estimate_seconds)


def _change(space: HybridSpace, state: _DegreesState, draw: random.Random) -> _DegreesState:
    name = draw.choice(
        ("tensor", "context", "expert", "stages", "pods", "samples", "zero", "recompute")
    )
    if name == "zero":
        return replace(state, zero=draw.choice(space.scope.zero))
    if name == "recompute":
        return replace(state, recompute=draw.choice(space.scope.recompute))
    value = getattr(state, name)
    return replace(state, **{name: draw.choice((max(1, value // 2), value * 2))})


def _draft_of(space: HybridSpace, state: _DegreesState) -> HybridDraft | None:
    width, num_devices = state.tensor * state.context, space.cluster.num_devices
    if num_devices % (state.pods * state.stages * width) or state.stages > space.stack.num_layers:
        return None
    size = num_devices // (state.pods * state.stages)
    total = size // width * state.pods * state.samples
    team = Team(
        tensor=state.tensor,
        context=state.context,
        expert=state.expert,
        sequence=state.tensor > 1,
    )
    if space.batch % total or team_fits(space.stack, team) is not None:
        return None
    frame = Frame(pods=state.pods, microbatches=space.batch // total)
    option = Option(team=team, zero=state.zero, recompute=state.recompute)
    return next(_drafts(space, frame, size, [option]), None)
