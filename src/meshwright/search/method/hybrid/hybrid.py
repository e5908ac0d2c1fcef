"""Finds degrees, stages and devices together: tensor, context, expert, data and pipeline
parallelism, ZeRO and recomputation, for models of repeated layers.

Drafts come from dynamic programmes within frames (see `scope`, `frame`), ordered by an estimate;
the simulator times the best of them on the actual links, layer by layer, and the best of these op
by op, which decides. The drafts are the same whatever the machine; only when the budget ends does
it matter how fast it is.
"""

from contextlib import ExitStack
from dataclasses import replace

from meshwright.cost.runtime import RUNTIMES
from meshwright.errors import InputError
from meshwright.search.incumbent import Attempt
from meshwright.search.method.hybrid.compare import Comparison, one_of_each
from meshwright.search.method.hybrid.draft import Pool
from meshwright.search.method.hybrid.exhaust import exhaust
from meshwright.search.method.hybrid.near import near_scope, offer_near
from meshwright.search.method.hybrid.propose import Proposals, find_drafts, propose_mixed
from meshwright.search.method.hybrid.scope import Scope, narrow_to_inference
from meshwright.search.method.hybrid.share import share_samples
from meshwright.search.method.hybrid.smallest import explain_lack
from meshwright.search.method.hybrid.space import describe_space, make_space, space_bound
from meshwright.search.method.hybrid.trial import (
    RUNNER_UPS,
    HybridTrials,
    TrialScene,
    offer_trials,
)
from meshwright.search.pool.process import Processes
from meshwright.search.problem import Problem

_DRAFT_SHARE, _MIXED_SHARE, _LAYER_SHARE, _SETTLED_SHARE = 0.4, 0.55, 0.7, 0.85
"""The parts of the time after layers and tiers are known, after which no more drafts of one size
are made, none of several, none are simulated by layer, and none op by op but the best."""
_SEED_SHARE = 0.2
"""The part of the time in which the best stages of every frame are looked for before all else."""
_ROUND = 8
"""After so many settings the best draft is simulated."""
_NEAR_SHARE = 0.5
"""The part of the budget that drafts near a plan are made in."""
_EXPLAIN_SHARE = 0.15
"""Where nothing fits, this part of the budget is added, to find out how many devices would do."""
_KEPT = 4096
"""Drafts that are kept for the simulator, the best by estimate."""
_FEW_DEVICES = 256
"""On no more devices a few simulations take no time."""
_SMALL_DEVICES, _SMALL_LAYERS = 16, 8
"""On so few devices, and with so few layers, every plan of the scope may be looked at."""
_NEAR_SIMULATED, _NEAR_RUNNER_UPS = 12, 2
"""Near a plan that is there so many drafts are simulated, and so many besides the best
of them op by op: on few devices, where steps by layer and op by op differ by up to a quarter."""
_EXHAUSTED = 5_000
"""Every plan is looked at only where no more than so many of them have to be simulated."""


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
    pool = Pool(refuses_plain=space.stack.shares_groups, most=_KEPT)
    scene = TrialScene(
        graph=graph, cluster=problem.cluster, tiers=space.prices.tiers, sharing=problem.sharing,
        runtime=problem.runtime,
    )  # fmt: skip
    trials = HybridTrials(scene, problem.engine or Processes(1), chosen.keys)
    bound = space_bound(space)
    is_whole = False
    with ExitStack() as stack:
        with clock.heard():
            others = stack if problem.engine is None else None
            comparison = Comparison(
                space, trials, clock, bound * (1 + problem.gap),
                lambda: attempt.incumbent.known_seconds, others,
            )  # fmt: skip
            if is_near:
                _look_near(comparison, pool)
            else:
                is_whole = _look(comparison, pool)
            clock.look()
        if clock.is_interrupted:
            if not pool.kept:
                return
            if not trials.num_fitting:  # a moment more, to have something
                trials.run(pool.drafts()[:1])
    if is_near:
        offer_near(problem, attempt, trials.best_seconds)
    if not trials.num_fitting:
        tried = trials.ranked()
        more = clock.more(_EXPLAIN_SHARE * clock.seconds)
        attempt.raise_bound(min(bound, attempt.step_seconds))
        attempt.refuse(tried[0][0].binding if tried else explain_lack(space, more))
        return
    if is_whole and all(option.is_plain for option in space.options):
        bound = trials.best_seconds  # by layer it proves nothing about steps op by op
    # A start may divide samples as no plan of the scope does, and be faster than all of them.
    attempt.raise_bound(min(bound, attempt.step_seconds, trials.best_seconds))
    is_large = problem.cluster.num_devices > _FEW_DEVICES
    near_ups = 0 if is_large else _NEAR_RUNNER_UPS
    runner_ups = near_ups if is_near else RUNNER_UPS
    comparison.clock = clock
    comparison.settle(1 + runner_ups)
    offer_trials(attempt, trials, runner_ups)
    if attempt.plan is not None:
        attempt.statistics["whole"] = float(is_whole)
        whole = "all plans of this space were looked at, layer by layer"
        attempt.notes = (describe_space(space), *([whole] if is_whole else []))


def _look(comparison: Comparison, pool: Pool) -> bool:
    """Simulate the drafts of every setting that may be better than the best so far; whether every
    plan of the scope was looked at."""
    space, clock = comparison.space, comparison.clock
    shares = (_DRAFT_SHARE, _MIXED_SHARE, _LAYER_SHARE, _SETTLED_SHARE)
    drafting, mixing, simulating, settling = map(clock.rest, shares)
    comparison.clock = simulating
    # The best stages of every frame first: good plans come early, and say what can be left out.
    seeds = Pool(refuses_plain=space.stack.shares_groups)
    find_drafts(space, seeds, clock.rest(_SEED_SHARE))
    for draft in seeds.drafts():
        pool.offer(share_samples(space, draft))
    comparison.run_first(pool.drafts())
    proposals = Proposals(space, comparison.limit, drafting)
    for number, drafts in enumerate(proposals.drafts()):
        for draft in drafts:
            pool.offer(share_samples(space, draft))
        # The best so far says which settings need not be looked at.
        if number % _ROUND == 0 or not comparison.trials.verdicts:
            comparison.run_first(pool.drafts())
            if comparison.has_enough:
                return False
    is_small = space.cluster.num_devices <= _SMALL_DEVICES
    is_small = is_small and space.stack.num_layers <= _SMALL_LAYERS
    # Of several types replicas have shares, which `exhaust` does not know.
    is_small = is_small and len(space.cluster.type_names) == 1
    if is_small and exhaust(space, comparison.trials, _EXHAUSTED, comparison.clock):
        return True
    for draft in propose_mixed(space, pool.drafts(), comparison.limit, mixing):
        pool.offer(share_samples(space, draft))
    _simulate(comparison, pool)
    comparison.clock = settling
    comparison.settle(1 + RUNNER_UPS)
    # Where steps op by op are longer, more drafts may be better than the best of them.
    _simulate(comparison, pool)
    return False


def _simulate(comparison: Comparison, pool: Pool) -> None:
    """By layer, one of a family first, then those that differ in where devices are."""
    comparison.run(one_of_each(pool.drafts()), len(pool.kept))
    if comparison.is_small or not comparison.space.prices.tiers.is_even:
        comparison.run(pool.drafts(), len(pool.kept))
    comparison.run_like_best(pool.drafts())
    comparison.clock.look()


def _look_near(comparison: Comparison, pool: Pool) -> None:
    """Simulate a few drafts of a scope that is near some plan."""
    drafting = comparison.clock.first(_NEAR_SHARE)
    find_drafts(comparison.space, pool, drafting, is_near=True)
    drafting.look()
    comparison.run(one_of_each(pool.drafts()), _NEAR_SIMULATED)
    comparison.run_like_best(pool.drafts())
