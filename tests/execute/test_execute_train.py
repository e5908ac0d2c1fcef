"""Plans run on real processes: the losses and parameters of one process, whatever the plan."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks import RANKS, Ranks  # noqa: E402
from small_models import MIXING, MODELS, captured, make_workload, train_eagerly  # noqa: E402
from small_plans import (  # noqa: E402
    data_plan,
    factor_plan,
    num_ranks,
    pipeline_plan,
    random_placement,
    train_rank,
)
from small_trainer import OPTIMIZER, make_trainer  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.apart import check_apart  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, ScheduleKind, Sync  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402

STEPS = 5
TOLERANCE = 1e-5


def steps_of(name: str) -> PlannedSteps:
    """The step of a model, traced at four samples."""
    steps = PlannedSteps(make_workload(name), captured(name), OPTIMIZER)
    assert steps[4]
    return steps


def check(ranks: Ranks, name: str, plan: Plan) -> None:
    """Train by the plan and compare everything that any rank holds."""
    losses, tensors = train_eagerly(name, STEPS)
    answers = ranks.train(num_ranks(plan), train_rank, name, captured(name), plan, STEPS)
    seen = set()
    for answer in answers:
        assert answer[0] == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        for key, value in answer[1].items():
            if key in tensors:
                torch.testing.assert_close(value, tensors[key], rtol=TOLERANCE, atol=TOLERANCE)
                seen.add(key)
    assert seen == set(tensors)


KINDS = {
    "placement": lambda graph: random_placement(graph, RANKS, 2),
    "data": lambda graph: data_plan(graph, RANKS),
    "unequal": lambda graph: data_plan(graph, RANKS, (0.5, 0.25, 0.125, 0.125)),
    "server": lambda graph: data_plan(graph, RANKS, sync=Sync.PARAMETER_SERVER),
    "duplicate": lambda graph: data_plan(graph, RANKS, sync=Sync.DUPLICATE),
    "factors": lambda graph: factor_plan(graph, RANKS),
    "gpipe": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.GPIPE, 4),
    "1f1b": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.ONE_F_ONE_B, 8),
    "zero-bubble": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.ZERO_BUBBLE, 4),
    "pipeline x data": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.ONE_F_ONE_B, 4),
}
BATCH_MODELS = [name for name in MODELS if name not in ("residual", *MIXING)]
"""Whose samples are computed apart from each other."""


@pytest.mark.parametrize("kind", few(KINDS, "server", "1f1b"))
def test_a_transformer_trains_alike_under_every_kind_of_plan(ranks: Ranks, kind: str) -> None:
    check(ranks, "language", KINDS[kind](captured("language")))


@pytest.mark.parametrize(
    "name", few(MODELS, "tied", "residual", "experts", "contrastive", "dropping")
)
def test_every_model_trains_alike_under_a_placement(ranks: Ranks, name: str) -> None:
    check(ranks, name, KINDS["placement"](captured(name)))


@pytest.mark.parametrize("name", few(BATCH_MODELS, "unet", "recurrent", "fourier", "masked"))
def test_every_model_trains_alike_as_pipeline_with_replicas(ranks: Ranks, name: str) -> None:
    check(ranks, name, KINDS["pipeline x data"](captured(name)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCH_MODELS)
def test_every_model_trains_alike_under_every_kind_of_plan(
    ranks: Ranks, name: str, kind: str
) -> None:
    check(ranks, name, KINDS[kind](captured(name)))


@pytest.mark.parametrize(
    "kind", few(["unequal", "server", "one microbatch"], "unequal", "one microbatch")
)
@pytest.mark.parametrize("name", few(MIXING, "contrastive"))
def test_what_compares_samples_sees_the_whole_batch(ranks: Ranks, name: str, kind: str) -> None:
    graph = captured(name)
    if kind == "one microbatch":
        check(ranks, name, pipeline_plan(graph, RANKS, 2, ScheduleKind.GPIPE, 1))
    else:
        check(ranks, name, KINDS[kind](graph))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["data", "duplicate", "factors"])
@pytest.mark.parametrize("name", MIXING)
def test_what_compares_samples_trains_alike(ranks: Ranks, name: str, kind: str) -> None:
    check(ranks, name, KINDS[kind](captured(name)))


@pytest.mark.parametrize("name", MIXING)
def test_what_compares_samples_is_not_divided_into_microbatches(name: str) -> None:
    graph = captured(name)
    plan = KINDS["1f1b"](graph)
    with pytest.raises(InputError, match=r"must be 1, because op .* mixes the samples"):
        lower_frozen(graph, connected(4), plan)


def test_a_device_may_hold_several_stages(ranks: Ranks) -> None:
    graph = captured("language")
    check(ranks, "language", pipeline_plan(graph, 4, 8, ScheduleKind.INTERLEAVED, 8))


def test_stages_may_have_other_shares_than_their_neighbours(ranks: Ranks) -> None:
    graph = captured("unet")
    plan = pipeline_plan(graph, RANKS, 2, ScheduleKind.GPIPE, 2)
    first, second = plan.parts
    uneven = replace(plan, parts=(replace(first, shares=(0.75, 0.25)), second))
    check(ranks, "unet", uneven)


def test_one_device_may_feed_several_replicas(ranks: Ranks) -> None:
    # Attention's outputs lie in memory in another order than their dimensions.
    graph = captured("language")
    plan = pipeline_plan(graph, 3, 3, ScheduleKind.GPIPE, 4)
    *others, last = plan.parts
    wider = replace(plan, parts=(*others, replace(last, devices=("d2", "d3"))))
    check(ranks, "language", wider)


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(MODELS)),
    count=st.integers(2, RANKS),
    seed=st.integers(0, 10_000),
)
def test_random_placements_train_alike(ranks: Ranks, name: str, count: int, seed: int) -> None:
    check(ranks, name, random_placement(captured(name), count, seed))


def spoil_rank(rank: int, graph: Graph, plan: Plan) -> tuple[str, str]:
    """Train on one rank with a weight that is too large: what it says, and who holds the weight."""
    from meshwright.errors import NonFiniteError

    name, workload = "blocks.1.up.weight", make_workload("language")
    trainer = make_trainer(rank, workload, graph, plan, checks_ops=True)
    trainer.step(workload.args)
    if name in trainer.state:
        trainer.state[name].fill_(3e38)
    try:
        trainer.step(workload.args)
    except NonFiniteError as error:
        trainer.close()
        return str(error), f"rank {rank} (d{rank})" if name in trainer.state else ""
    raise AssertionError("nothing was found")


@pytest.mark.parametrize("kind", few(["1f1b", "data", "placement"], "1f1b"))
def test_an_op_that_overflows_is_named_by_all_ranks(ranks: Ranks, kind: str) -> None:
    graph = captured("language")
    found = ranks.train(RANKS, spoil_rank, graph, KINDS[kind](graph))
    (text,) = {text for text, _ in found}
    holders = [where for _, where in found if where]
    assert text.startswith(f"{holders[0]}: step 2: op 'blocks.1.up/")
    assert "makes " in text


def test_batch_norm_is_refused_where_the_batch_is_divided() -> None:
    graph = captured("residual")
    with pytest.raises(InputError, match=r"norm.*normalises over the batch.*--local-statistics"):
        check_apart(graph, steps_of("residual"))
    lowered = lower_frozen(graph, connected(4), data_plan(graph, 4))
    assert lowered.divides_batch
    assert not lower_frozen(graph, connected(4), random_placement(graph, 4, 0)).divides_batch


@pytest.mark.parametrize("name", BATCH_MODELS)
def test_models_whose_samples_are_apart_are_not_refused(name: str) -> None:
    check_apart(captured(name), steps_of(name))


class Centred(nn.Module):
    """Compares every sample with something of all of them."""

    def __init__(self, compare: Callable[[Any], Any]) -> None:
        super().__init__()
        self.encoder, self.compare = nn.Linear(4, 4), compare

    def forward(self, x: Any) -> Any:
        return self.compare(self.encoder(x)).tanh().square().mean()


@pytest.mark.parametrize(
    ("compare", "reason"),
    [
        (lambda x: x - x.mean(0), "op 'sub': uses a sum over the batch for each sample"),
        (lambda x: x.softmax(0), "op '_softmax': computes _softmax over the batch"),
        (lambda x: x * x.flip(0), "op 'flip': computes flip over the batch"),
        (lambda x: x.cumsum(0), "op 'cumsum': computes cumsum over the batch"),
        (lambda x: x / x.norm(dim=0), "op 'linalg_vector_norm': computes linalg_vector_norm over"),
    ],
)
def test_steps_that_compare_samples_with_all_are_refused(
    compare: Callable[[Any], Any], reason: str
) -> None:
    workload = Workload(name="centred", model=Centred(compare), args=(torch.randn(6, 4),))
    graph = capture_workload(workload, OPTIMIZER)
    steps = PlannedSteps(workload, graph, OPTIMIZER)
    assert steps[3]
    with pytest.raises(InputError, match=reason):
        check_apart(graph, steps)


@pytest.mark.parametrize("compare", [lambda x: x.softmax(1), lambda x: x.flip(1)])
def test_steps_that_work_along_features_are_not_refused(compare: Callable[[Any], Any]) -> None:
    # As many features as samples: only another trace tells them apart.
    workload = Workload(name="centred", model=Centred(compare), args=(torch.randn(4, 4),))
    graph = capture_workload(workload, OPTIMIZER)
    steps = PlannedSteps(workload, graph, OPTIMIZER)
    assert steps[4]
    check_apart(graph, steps)


def test_microbatches_must_be_whole_samples() -> None:
    graph = captured("perceptron")
    plan = pipeline_plan(graph, 4, 4, ScheduleKind.GPIPE, 3)
    with pytest.raises(InputError, match="16 samples cannot be cut into 3 equal microbatches"):
        lower_frozen(graph, connected(4), plan)


def test_a_replica_must_have_a_sample() -> None:
    graph = captured("perceptron")
    plan = data_plan(graph, 4, (0.97, 0.01, 0.01, 0.01))
    with pytest.raises(InputError, match=r"'d1'.*must be at least one sample, got 0\.01"):
        lower_frozen(graph, connected(4), plan)


def test_another_model_than_planned_is_refused() -> None:
    steps = PlannedSteps(make_workload("unet"), captured("perceptron"), OPTIMIZER)
    with pytest.raises(InputError, match=r"has \d+ ops, but the model's step on 4 samples has"):
        steps[4]
