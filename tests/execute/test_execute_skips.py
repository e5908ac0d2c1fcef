"""Encoders with decoders, and connections that skip layers, train as one process does.

Stages are intervals of the line in which their layers stand, so that what one makes is read by
several others, and gradients come from several.
"""

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")
pytest.importorskip("transformers", reason="most models here are of transformers")

from ranks import Ranks  # noqa: E402
from small_plans import num_ranks  # noqa: E402
from team_plans import (  # noqa: E402
    STEPS,
    Case,
    Stage,
    check_calls,
    make_plan,
    train,
    worst_differences,
)

from meshwright.plan.plan import Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

TOLERANCE = 1e-5
SELECTIVE, FULL = Recompute.SELECTIVE, Recompute.FULL
GPIPE, ONE_F, ZERO_BUBBLE = ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE

CASES = [
    Case(model=model, stages=stages, kind=kind, microbatches=4, untie="t5" in model)
    for model, stages, kind in (
        ("t5", (Stage(), Stage(), Stage()), ONE_F),
        ("t5", (Stage(), Stage(), Stage(), Stage()), ZERO_BUBBLE),
        ("t5", (Stage(home=0), Stage(home=1), Stage(home=0), Stage(home=1)),
         ScheduleKind.INTERLEAVED),
        ("t5", (Stage(replicas=2, zero=1), Stage(replicas=2, zero=3)), ONE_F),
        ("t5", (Stage(again=FULL), Stage(again=FULL), Stage(again=SELECTIVE)), GPIPE),
        ("t5", (Stage(tensor=2), Stage(tensor=2)), ONE_F),
        ("t5", (Stage(tensor=2, sequence=True), Stage(tensor=2, again=FULL)), ONE_F),
        ("inception", (Stage(), Stage(), Stage(), Stage()), ONE_F),
        ("inception", (Stage(zero=1, replicas=2), Stage(again=FULL)), ZERO_BUBBLE),
        ("ladder", (Stage(), Stage(), Stage()), ONE_F),
        ("ladder", (Stage(replicas=2, zero=2), Stage(replicas=2, zero=1)), ONE_F),
        ("ladder", (Stage(again=FULL), Stage(again=FULL)), GPIPE),
        ("ladder", (Stage(home=0), Stage(home=1), Stage(home=0), Stage(home=1)),
         ScheduleKind.INTERLEAVED),
    )
]  # fmt: skip


@pytest.mark.parametrize("case", few(CASES, CASES[0], CASES[3], CASES[9]), ids=str)
def test_layers_in_line_train_alike(ranks: Ranks, case: Case) -> None:
    plan = make_plan(case)
    answers = ranks.train(num_ranks(plan), train, case, case.graph, plan, STEPS, timeout=600)
    loss, worst, where = worst_differences(case, answers, STEPS)
    assert loss <= TOLERANCE, f"{case}: losses are {loss:.1e} apart"
    assert worst <= TOLERANCE, f"{case}: {where} is {worst:.1e} apart"
    num_holders = max(stage.replicas * stage.context for stage in case.stages)
    for each in answers:
        check_calls(each, num_holders=num_holders)
