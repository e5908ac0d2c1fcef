"""Pipelines of tensor teams and plans of many models train as one process does.

Every plan is trained on real gloo processes; losses and all that ranks hold are compared with plain
training, and the collectives that ranks start with those of the lowered program.
"""

import random

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")
pytest.importorskip("transformers", reason="most models here are of transformers")

from team_plans import STEPS, Case, Stage, check_calls, run_case, worst_differences  # noqa: E402

from meshwright.errors import InputError  # noqa: E402
from meshwright.plan.plan import Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

TOLERANCE = 1e-5
NONE, SELECTIVE, FULL = Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL
GPIPE, ONE_F, ZERO_BUBBLE = ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE
INTERLEAVED = ScheduleKind.INTERLEAVED
TIED = ("gpt2", "gpt2-dropping", "bert", "bert-dropping", "tied", "t5")
"""Models with tied weights: parts that hold one each need copies."""
SHIFTED = ("language", "tied")
"""Models whose loss leaves a token out, so that teams say less about it than is planned."""


def check(case: Case) -> None:
    """Train and compare."""
    answers = run_case(case)
    loss, worst, where = worst_differences(case, answers, STEPS)
    assert loss <= TOLERANCE, f"{case}: losses are {loss:.1e} apart"
    assert worst <= TOLERANCE, f"{case}: {where} is {worst:.1e} apart"
    for each in answers:
        if case.model not in SHIFTED:
            check_calls(each, num_holders=max(stage.replicas for stage in case.stages))


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
def test_pipelines_of_teams_train_alike(case: Case) -> None:
    check(case)


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
]  # fmt: skip


@pytest.mark.parametrize("case", few(ALONE, ALONE[1]), ids=str)
def test_models_train_alike_on_one_stage(case: Case) -> None:
    check(case)


@pytest.mark.parametrize("model", ["unet", "odd"])
def test_a_model_without_layers_has_no_tensor_widths(model: str) -> None:
    with pytest.raises(InputError, match="layers"):
        run_case(Case(model=model, stages=(Stage(tensor=2),)))


RANDOM = ("gpt2", "gpt2-untied", "gpt2-dropping", "llama", "bert", "bert-dropping", "vit",
          "language", "mixtral")  # fmt: skip
DROPPING = ("gpt2-dropping", "bert-dropping")
WIDTHS = {"llama": (1, 2), "mixtral": (1, 2), "language": (1, 2)}
"""Of models whose heads do not allow all: of grouped ones those of keys count."""
RIGID = ("mixtral", "vit")
"""Models whose rows cannot be divided by `sequence`: experts take them; or they are odd."""


def random_case(seed: int) -> Case:
    """A model, a pipeline of one to three stages and all that each may have; eight ranks at most.

    A third of them drops."""
    draw = random.Random(seed)
    model = draw.choice(DROPPING if seed % 3 == 0 else RANDOM)
    count = draw.choice((1, 2, 2, 3))
    made, left = [], 8
    for number in range(count):
        most = left - (count - 1 - number)
        tensor = draw.choice([each for each in WIDTHS.get(model, (1, 2, 4)) if each <= most])
        replicas = draw.choice([each for each in (1, 1, 2) if each * tensor <= most])
        left -= tensor * replicas
        made.append(
            Stage(
                tensor=tensor,
                sequence=tensor > 1 and model not in RIGID and draw.random() < 0.5,
                replicas=replicas,
                shares=(0.75, 0.25) if replicas == 2 and draw.random() < 0.4 else (),
                zero=draw.choice((0, 1, 2, 3)),
                again=draw.choice((NONE, SELECTIVE, FULL)),
            )
        )
    kind = draw.choice((GPIPE, ONE_F, ZERO_BUBBLE)) if count > 1 else None
    return Case(
        model=model,
        stages=tuple(made),
        kind=kind,
        microbatches=draw.choice((1, 2)) if kind else 1,
        untie=count > 1 and model in TIED,
    )


@pytest.mark.parametrize("seed", few(range(300), 1))
def test_random_plans_train_alike(seed: int) -> None:
    check(random_case(seed))
