"""Plans with ZeRO and recomputation on real processes train as one process does."""

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_models import MIXING, MODELS, captured, train_eagerly  # noqa: E402
from small_plans import (  # noqa: E402
    UNEQUAL,
    check_trained,
    data_plan,
    hybrid,
    join_held,
    num_ranks,
    pipeline_plan,
    random_placement,
    train_pieces,
)

from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind  # noqa: E402
from quick import few, pairwise  # noqa: E402

STEPS, TOLERANCE = 5, 1e-5

KINDS = {
    "data": lambda graph: data_plan(graph, RANKS),
    "unequal": lambda graph: data_plan(graph, RANKS, UNEQUAL),
    "gpipe": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.GPIPE, 4),
    "1f1b": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.ONE_F_ONE_B, 4),
    "zero-bubble": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.ZERO_BUBBLE, 4),
    "unequal stages": lambda graph: pipeline_plan(
        graph, RANKS, 2, ScheduleKind.ONE_F_ONE_B, 4, shares=(0.75, 0.25)
    ),
}
ZEROS = (0, 1, 2, 3)
AGAIN = tuple(Recompute)
APART = [name for name in MODELS if name not in ("residual", *MIXING)]
"""Models whose samples are computed apart from each other."""
NEEDLESS = ("language", "tied", "heads", "biased", "dropping")
"""Models with biases of attention's keys, whose gradients are rounding errors: Adam makes these as
large as all others."""
CASES = [f"{kind}, zero {zero}, {again}" for kind, zero, again in product(KINDS, ZEROS, AGAIN)]
PAIRS = [f"{kind}, zero {zero}, {again}" for kind, zero, again in pairwise(KINDS, ZEROS, AGAIN)]
"""Cases of models that share all their code with a model that has every one of `CASES`."""
MIDDLE = "1f1b, zero 2, full"


def plan_of(case: str, graph: Graph) -> Plan:
    kind, zero, again = case.split(", ")
    return hybrid(KINDS[kind](graph), int(zero.removeprefix("zero ")), Recompute(again))


def check(
    ranks: Ranks, name: str, plan: Plan, optimizer: str = "momentum", *, untie: bool = False
) -> None:
    """Train by the plan and compare everything that any rank holds, and all of each tensor."""
    graph = captured(name, optimizer, untie=untie)
    answers = ranks.train(num_ranks(plan), train_pieces, name, graph, plan, STEPS, optimizer)
    check_trained(answers, train_eagerly(name, STEPS, optimizer), TOLERANCE, TOLERANCE)


@pytest.mark.parametrize(
    "case",
    few(CASES, "data, zero 1, selective", "zero-bubble, zero 3, full"),
)
def test_a_transformer_trains_alike_under_every_hybrid(ranks: Ranks, case: str) -> None:
    check(ranks, "language", plan_of(case, captured("language", "momentum")))


def name_cases(names: Iterable[str], *quick: str) -> list[Any]:
    """A model and a case, in which any two of model, kind, ZeRO and recomputation meet."""
    rows = pairwise(names, KINDS, ZEROS, AGAIN)
    cases = [f"{name}: {kind}, zero {zero}, {again}" for name, kind, zero, again in rows]
    return few(dict.fromkeys([*quick, *cases]), *quick)


QUICK = (
    "unet: 1f1b, zero 3, full",
    "odd: unequal, zero 3, none",
    "dropping: data, zero 2, full",
)


@pytest.mark.parametrize("named", name_cases(APART, *QUICK))
def test_every_model_trains_alike_under_every_hybrid(ranks: Ranks, named: str) -> None:
    name, case = named.split(": ")
    check(ranks, name, plan_of(case, captured(name, "momentum")))


@pytest.mark.parametrize("named", name_cases(["unet", "odd"], "odd: 1f1b, zero 3, full"))
def test_counters_of_steps_are_right_for_shards(ranks: Ranks, named: str) -> None:
    name, case = named.split(": ")
    check(ranks, name, plan_of(case, captured(name, "adamw")), "adamw")


@pytest.mark.parametrize("again", few(AGAIN, Recompute.FULL))
@pytest.mark.parametrize("name", few(APART, "inception"))
def test_what_is_placed_anywhere_is_computed_again_there(
    ranks: Ranks, name: str, again: Recompute
) -> None:
    check(ranks, name, hybrid(random_placement(captured(name, "momentum"), RANKS, 2), 0, again))


@pytest.mark.parametrize("case", few(dict.fromkeys([MIDDLE, *PAIRS]), MIDDLE))
def test_copies_of_tied_weights_train_alike(ranks: Ranks, case: str) -> None:
    plan = plan_of(case, captured("tied", "momentum", untie=True))
    check(ranks, "tied", plan, untie=True)


@pytest.mark.parametrize("case", few(dict.fromkeys([MIDDLE, *PAIRS]), MIDDLE))
def test_statistics_of_batch_norms_are_updated_once(ranks: Ranks, case: str) -> None:
    """Each replica has its own, the same as without ZeRO and recomputation."""
    graph = captured("residual", "momentum")
    plan = plan_of(case, graph)
    plain = hybrid(plan, 0, Recompute.NONE)
    one, other = (
        ranks.train(RANKS, train_pieces, "residual", graph, each, STEPS) for each in (plain, plan)
    )
    for (losses, held), (wanted_losses, wanted) in zip(other, one, strict=True):
        assert losses == pytest.approx(wanted_losses, rel=TOLERANCE, abs=TOLERANCE)
        for key, (value, holding) in held.items():
            if holding is None:
                torch.testing.assert_close(value, wanted[key][0], rtol=TOLERANCE, atol=TOLERANCE)
    whole, wanted_whole = (join_held([held for _, held in each]) for each in (other, one))
    for key, values in whole.items():
        if "running" not in key:
            torch.testing.assert_close(values[-1], wanted_whole[key][0], rtol=1e-5, atol=1e-5)
    assert all(int(held["norm.num_batches_tracked"][0]) >= STEPS for _, held in other[:1])


def random_plan(graph: Graph, seed: int) -> Plan:
    """Stages that differ in ZeRO, recomputation and shares."""
    draw = random.Random(seed)
    kind = draw.choice([ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE])
    stages = draw.choice([1, 2, 2])
    plan = pipeline_plan(graph, RANKS, stages, kind, draw.choice([1, 2, 4]))
    parts = []
    for part in plan.parts:
        count = len(part.devices)
        shares = draw.choice([(), (0.75, 0.25) if count == 2 else (0.25, 0.5, 0.125, 0.125)])
        least = min(shares, default=1 / count) * graph.batch
        if plan.schedule is not None and least < plan.schedule.microbatches:
            shares = ()
        zero, again = draw.choice(ZEROS), draw.choice(AGAIN)
        parts.append(replace(part, zero=zero, recompute=again, shares=shares))
    return replace(plan, parts=tuple(parts))


@pytest.mark.parametrize("seed", few(range(60), 0))
def test_random_hybrids_train_alike(ranks: Ranks, seed: int) -> None:
    draw = random.Random(-seed)
    name, optimizer = draw.choice(APART), draw.choice(["momentum", "adamw"])
    if name in NEEDLESS:
        optimizer = "momentum"
    untie = name == "tied"
    plan = random_plan(captured(name, optimizer, untie=untie), seed)
    check(ranks, name, plan, optimizer, untie=untie)
