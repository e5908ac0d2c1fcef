"""What the hybrid search is held against: a manual plan, MCMC, and a search that sees no network.

Each gives drafts of the same kind, judged by the same simulator on the same cluster.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from meshwright.cost.layer.team import Team, team_fits
from meshwright.plan.part import Recompute, ScheduleKind
from meshwright.plan.stage import Frame, Option
from meshwright.search.hybrid.draft import Draft
from meshwright.search.hybrid.find import find_drafts
from meshwright.search.hybrid.frame import FrameSearch, Layouts
from meshwright.search.hybrid.pool import Pool
from meshwright.search.hybrid.price import Prices
from meshwright.search.hybrid.scope import divisors
from meshwright.search.hybrid.space import Space
from meshwright.search.hybrid.tier import Tiers

_SAMPLES = (1, 2, 4, 8)
"""Of a microbatch, that people try."""


def manual(space: Space) -> list[Draft]:
    """As Megatron-LM's authors advise (Narayanan et al., 2021, section 3 and 5.4).

    Tensors are divided within a host only, and only as far as memory demands; then the model is cut
    into as few stages as fit; the rest is data parallel, with the optimiser's state divided. Less
    recomputation is preferred to more. All microbatches that people try, the best estimate first.
    """
    order = space.prices.tiers
    for model_width in divisors(space.cluster.num_devices):
        drafts: list[Draft] = []
        for tensor in reversed(divisors(model_width)):
            if tensor > order.host_size or model_width // tensor > space.stack.num_layers:
                continue
            drafts += _megatron(space, tensor, model_width // tensor)
            if drafts:
                return sorted(drafts, key=lambda draft: draft.estimate_seconds)
    return []


def _megatron(space: Space, tensor: int, num_stages: int) -> Iterator[Draft]:
    """With the least recomputation that fits, for every microbatch."""
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


def _drafts(space: Space, frame: Frame, size: int, options: Sequence[Option]) -> Iterator[Draft]:
    search = FrameSearch(space.layouts, space.shapes, frame, [size], options)
    if search.sizes:
        wanted = min(space.cluster.num_devices // frame.pods // size, space.stack.num_layers)
        for draft in search.drafts([ScheduleKind.ONE_F_ONE_B], lambda: math.inf):
            if len(draft.stages) == wanted:
                yield draft


def unaware(space: Space, until: float) -> list[Draft]:
    """The same search on a network whose every pair is as fast as the fastest."""
    tiers = space.prices.tiers
    flat = Tiers(order=tiers.order, tiers=tuple(replace(tiers.tiers[0], size=1) for _ in range(1)))
    prices = Prices(space.stack, space.cluster, flat)
    blind = replace(space, prices=prices, layouts=Layouts(prices))
    pool = Pool(refuses_plain=space.stack.shares_groups)
    find_drafts(blind, pool, until)
    return pool.drafts()


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A point of the walk: degrees alone."""

    tensor: int
    context: int
    expert: int
    stages: int
    pods: int
    samples: int
    zero: int
    recompute: Recompute


def mcmc(space: Space, start: Draft, seed: int, until: float, most_steps: int) -> list[Draft]:
    """Metropolis over degrees (as FlexFlow searches; Jia et al., 2019, section 6.2) by estimate.

    A step changes one degree; stages are cut evenly, all with one option. The drafts that it met,
    the best first.
    """
    draw = random.Random(seed)
    first = start.stages[0]
    replicas = first.size // first.option.team.num_devices
    state = _State(
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
    for _ in range(most_steps):
        if perf_counter() > until:
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


def _change(space: Space, state: _State, draw: random.Random) -> _State:
    name = draw.choice(
        ("tensor", "context", "expert", "stages", "pods", "samples", "zero", "recompute")
    )
    if name == "zero":
        return replace(state, zero=draw.choice(space.scope.zero))
    if name == "recompute":
        return replace(state, recompute=draw.choice(space.scope.recompute))
    value = getattr(state, name)
    return replace(state, **{name: draw.choice((max(1, value // 2), value * 2))})


def _draft_of(space: Space, state: _State) -> Draft | None:
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
