"""Pipelines of tensor teams and plans of many models train as one process does.

Every plan is trained on real gloo processes; losses and all that ranks hold are compared with plain
training, and the collectives that ranks start with those of the lowered program.
"""

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")
pytest.importorskip("transformers", reason="most models here are of transformers")

from random_plans import random_case  # noqa: E402
from ranks import Ranks  # noqa: E402
from small_plans import num_ranks  # noqa: E402
from team_plans import (  # noqa: E402
    STEPS,
    Case,
    Stage,
    Trained,
    check_calls,
    make_plan,
    train,
    worst_differences,
)

from meshwright.errors import InputError  # noqa: E402
from meshwright.plan.plan import Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

TOLERANCE = 1e-5
NONE, SELECTIVE, FULL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
GPIPE, ONE_F, ZERO_BUBBLE = ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE
INTERLEAVED = ScheduleKind.INTERLEAVED
TIED = ("gpt2", "gpt2-dropping", "bert", "bert-dropping", "tied", "t5")
"""Models with tied weights: parts that hold one each need copies."""


def run(ranks: Ranks, case: Case) -> list[Trained]:
    """What each rank has after training."""
    plan = make_plan(case)
    return ranks.train(num_ranks(plan), train, case, case.graph, plan, STEPS, timeout=600)


def check(ranks: Ranks, case: Case) -> None:
    """Train and compare."""
    answers = run(ranks, case)
    loss, worst, where = worst_differences(case, answers, STEPS)
    assert loss <= TOLERANCE, f"{case}: losses are {loss:.1e} apart"
    assert worst <= TOLERANCE, f"{case}: {where} is {worst:.1e} apart"
    num_holders = max(stage.replicas * stage.context for stage in case.stages)
    for each in answers:
        check_calls(each, num_holders=num_holders)


def stages(*each: Stage) -> tuple[Stage, ...]:
    return each


PIPELINES = [
    Case(model="gpt2-untied", stages=stages(Stage(tensor=2), Stage(tensor=2)), kind=kind,
         microbatches=4)
    for kind in (GPIPE, ONE_F, ZERO_BUBBLE)
] + [
    Case(model=model, stages=stages(first, second), kind=kind, microbatches=2,
         untie=model in TIED)
    for model, first, second, kind in (
        ("gpt2-untied", Stage(tensor=4, sequence=True), Stage(tensor=2, sequence=True), ONE_F),
        ("gpt2-untied", Stage(tensor=2, sequence=True), Stage(tensor=4), ZERO_BUBBLE),
        ("llama", Stage(tensor=2, sequence=True, replicas=2, zero=3),
         Stage(tensor=2, sequence=True, replicas=2, zero=2, again=FULL), ONE_F),
        ("llama", Stage(), Stage(tensor=2), ZERO_BUBBLE),
        ("gpt2", Stage(tensor=2), Stage(tensor=2), ONE_F),
        ("gpt2", Stage(tensor=2, replicas=2, zero=3), Stage(tensor=4, sequence=True), ONE_F),
        ("gpt2", Stage(), Stage(tensor=2, replicas=2, zero=1), ONE_F),
        ("gpt2", Stage(tensor=2, replicas=2, shares=(0.75, 0.25)), Stage(replicas=2), GPIPE),
        ("bert", Stage(tensor=4), Stage(tensor=2), ONE_F),
        ("bert", Stage(tensor=2), Stage(tensor=2, sequence=True, again=FULL), ONE_F),
        ("vit", Stage(tensor=2, replicas=2, zero=2, again=FULL), Stage(tensor=4), ZERO_BUBBLE),
    )
] + [
    Case(model=model, stages=stages(*(Stage(tensor=2, home=home) for home in homes)), kind=kind,
         microbatches=4, untie=model in TIED)
    for model, homes, kind in (
        ("gpt2-untied", (0, 2, 0, 2), INTERLEAVED),
        ("gpt2", (0, 2, 0, 2), INTERLEAVED),
        ("gpt2", (0, 2, 0), GPIPE),
    )
]  # fmt: skip


@pytest.mark.parametrize("case", few(PIPELINES, PIPELINES[7]), ids=str)
def test_pipelines_of_teams_train_alike(ranks: Ranks, case: Case) -> None:
    check(ranks, case)


ALONE = [
    Case(model=model, stages=(stage,))
    for model in ("gpt2", "llama", "bert", "vit", "mixtral", "swin", "language")
    for stage in (Stage(tensor=2), Stage(tensor=2, replicas=2, zero=3, again=FULL))
] + [
    Case(model=model, stages=(stage,))
    for model in ("t5", "unet", "odd", "swin", "mixtral", "inception", "experts")
    for stage in (Stage(replicas=2, zero=3, again=FULL),
                  Stage(replicas=4, zero=1, shares=(0.5, 0.25, 0.125, 0.125)))
] + [
    Case(model=model, stages=(Stage(tensor=2, sequence=True, again=again),))
    for model in ("gpt2-dropping", "bert-dropping")
    for again in Recompute
] + [
    Case(model=model, stages=(stage,))
    for model in ("neox", "qwen3", "biased")
    for stage in (Stage(tensor=2), Stage(tensor=2, sequence=True, replicas=2, zero=3, again=FULL))
]  # fmt: skip


@pytest.mark.parametrize("case", few(ALONE, ALONE[1], ALONE[-1]), ids=str)
def test_models_train_alike_on_one_stage(ranks: Ranks, case: Case) -> None:
    check(ranks, case)


@pytest.mark.parametrize("model", ["unet", "odd"])
def test_a_model_without_layers_has_no_tensor_widths(ranks: Ranks, model: str) -> None:
    with pytest.raises(InputError, match="layers"):
        run(ranks, Case(model=model, stages=(Stage(tensor=2),)))


@pytest.mark.parametrize("seed", few(range(100), 5))
def test_random_plans_train_alike(ranks: Ranks, seed: int) -> None:
    check(ranks, random_case(seed))
