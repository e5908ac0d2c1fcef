"""Plans of `deploy` run on real processes: the losses and gradients of one process."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from random_models import (  # noqa: E402
    LAYERS,
    LOSSES,
    Answer,
    Recipe,
    make_model,
    train_alone,
    train_composed,
)
from ranks import Ranks  # noqa: E402
from small_models import make_workload  # noqa: E402
from small_plans import num_ranks  # noqa: E402

from deploy_plans import WAYS, deploy_plan, find_units  # noqa: E402
from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.sample import count_blocks  # noqa: E402
from meshwright.execute.settings import Settings  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.execute.trainer import Trainer  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Part, Plan, Sync  # noqa: E402
from rank_seat import take_seat  # noqa: E402
from small import connected  # noqa: E402

STEPS = 2
TOLERANCE = 1e-5
DEVICES = ("d0", "d1", "d2", "d3")


@cache
def captured(recipe: Recipe) -> Graph:
    return capture_workload(make_model(recipe), "momentum")


@cache
def expected(recipe: Recipe) -> Answer:
    return train_alone(recipe, STEPS)


def assert_alike(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> set[str]:
    """To a hundred-thousandth of the largest number of each tensor; the names that were there.

    Some gradients are zero but for rounding, so a tenth of the largest of all counts, too.
    """
    largest = max(float(each.abs().max()) for each in wanted.values())
    for name in found.keys() & wanted.keys():
        limit = TOLERANCE * max(float(wanted[name].abs().max()), largest / 10)
        torch.testing.assert_close(found[name], wanted[name], rtol=0, atol=limit, msg=name)
    return set(found.keys() & wanted.keys())


def check(ranks: Ranks, recipe: Recipe, plan: Plan) -> None:
    losses, gradients, tensors = expected(recipe)
    answers = ranks.train(num_ranks(plan), train_composed, recipe, captured(recipe), plan, STEPS)
    seen: set[str] = set()
    for answer in answers:
        assert answer[0] == pytest.approx(losses, rel=TOLERANCE)
        seen |= assert_alike(answer[1], gradients)
        assert_alike(answer[2], {name: tensors[name] for name in gradients})
    assert seen == set(gradients)


RECIPES = st.builds(
    Recipe,
    layers=st.lists(st.sampled_from(LAYERS), min_size=1, max_size=6).map(tuple),
    loss=st.sampled_from(LOSSES),
    batch=st.integers(4, 8),
    embeds=st.booleans(),
)
SEEDS = st.integers(0, 1_000_000)


@pytest.mark.slow
@settings(max_examples=3, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=RECIPES, seed=SEEDS)
def test_random_models_train_alike_by_random_plans(ranks: Ranks, recipe: Recipe, seed: int) -> None:
    check(ranks, recipe, deploy_plan(captured(recipe), DEVICES, seed, WAYS))


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(recipe=RECIPES, seed=SEEDS)
def test_many_random_models_train_alike_by_random_plans(
    ranks: Ranks, recipe: Recipe, seed: int
) -> None:
    check(ranks, recipe, deploy_plan(captured(recipe), DEVICES, seed, WAYS))


def test_a_single_sample_does_not_tell_how_samples_lie() -> None:
    """Rows of two time-major layers lie in blocks, whichever other step they are compared with."""
    recipe = Recipe(layers=("time", "relu", "time"), loss="mse", batch=4, embeds=False)
    steps = PlannedSteps(make_model(recipe), captured(recipe), "momentum")
    found = [count_blocks(steps[one], steps[two]) for one, two in ((4, 2), (1, 2), (4, 1), (1, 4))]
    names = captured(recipe).op_names
    for step in (steps[1], steps[4]):
        (version,) = step.ledger.kernels[names.index("mul_1")].made
        assert [each[version] for each in found] == [3, 3, 3, 3]


def test_replicas_of_one_sample_take_their_rows_of_what_others_make(ranks: Ranks) -> None:
    """Of four samples one, two and one; the rows of a sample lie apart, one for every moment."""
    recipe = Recipe(layers=("time", "relu", "time"), loss="mse", batch=4, embeds=False)
    graph = captured(recipe)
    placed = {"mul_1": 1, "head/clone_1": 2}
    ways: list[tuple[tuple[str, ...], tuple[float, ...], Sync]] = [
        (("d3",), (), Sync.ALL_REDUCE),
        (DEVICES[:3], (), Sync.DUPLICATE),
        (DEVICES[:3], (0.25, 0.5, 0.25), Sync.ALL_REDUCE),
    ]
    parts = tuple(
        Part(
            ops=tuple(name for name in graph.op_names if placed.get(name, 0) == number),
            devices=devices,
            shares=shares,
            sync=sync,
        )
        for number, (devices, shares, sync) in enumerate(ways)
    )
    check(ranks, recipe, Plan(parts=parts))


MODEL = Recipe(layers=("linear", "time", "conv", "residual"), loss="entropy", batch=6, embeds=True)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [Sync.PARAMETER_SERVER, Sync.DUPLICATE])
def test_parts_of_all_kinds_train_alike_together(ranks: Ranks, sync: Sync) -> None:
    # Halves of the model on overlapping devices with other shares, in two ways.
    graph = captured(MODEL)
    units = find_units(graph)
    half = len(units) // 2
    first, second = (
        tuple(graph.op_names[op] for unit in each for op in unit)
        for each in (units[:half], units[half:])
    )
    parts = (
        Part(ops=first, devices=("d0", "d1", "d2"), shares=(1 / 6, 1 / 2, 1 / 3)),
        Part(ops=second, devices=("d2", "d3", "d1", "d0"), sync=sync),
    )
    check(ranks, MODEL, Plan(parts=parts))


def test_a_loss_and_what_reads_it_must_see_the_same_samples(ranks: Ranks) -> None:
    graph = captured(MODEL)
    late = tuple(name for name in graph.op_names if "nll_loss_backward" in name)
    early = tuple(name for name in graph.op_names if name not in late)
    parts = (
        Part(ops=early, devices=("d0", "d1")),
        Part(ops=late, devices=("d0", "d1"), shares=(1 / 3, 2 / 3)),
    )
    lowered = lower_frozen(graph, connected(2), Plan(parts=parts))
    workload = make_model(MODEL)
    with pytest.raises(InputError, match=r"nll_loss_backward.*reads a sum over the samples of op"):
        Trainer(take_seat(lowered, 0), workload, Settings())
    # Of how many targets there are, the whole batch's number is the sum of all replicas'.
    whole = (parts[0], Part(ops=late, devices=("d2", "d3"), sync=Sync.DUPLICATE))
    check(ranks, MODEL, Plan(parts=whole))


def test_batch_norm_may_be_duplicated() -> None:
    workload = make_workload("residual")
    graph = capture_workload(workload, "momentum")
    part = Part(ops=graph.op_names, devices=("d0", "d1"), sync=Sync.DUPLICATE)
    assert not lower_frozen(graph, connected(2), Plan(parts=(part,))).divides_batch


def test_samples_lie_in_blocks_where_time_comes_first() -> None:
    # Five moments of all samples in a row: what a linear layer makes of [5 x samples, 4].
    workload = make_workload("recurrent")
    steps = PlannedSteps(workload, capture_workload(workload, "momentum"), "momentum")
    blocks = count_blocks(steps[4], steps[6])
    apart = {version: each for version, each in blocks.items() if each > 1}
    assert apart == {15: 5}
    assert steps[4].layouts[15].shape == (20, 8)
