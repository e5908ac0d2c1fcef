"""Convolutions whose weights lie channels-last train as they do otherwise."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_models import captured, make_workload, train_eagerly  # noqa: E402
from small_plans import (  # noqa: E402
    UNEQUAL,
    Held,
    check_trained,
    data_plan,
    held_by,
    hybrid,
    pipeline_plan,
)
from small_trainer import make_trainer, take_steps  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.channels import find_channels_last  # noqa: E402
from meshwright.execute import trainer  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.execute.traced import Layout  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind  # noqa: E402
from meshwright.program.expand.synchronise import with_batch_statistics  # noqa: E402
from quick import few  # noqa: E402

STEPS, TOLERANCE, NUM_OPS = 3, 1e-5, 100


def convolutions(*sizes: tuple[int, int, int], groups: int = 1) -> nn.Module:
    """A model of these input channels, output channels and kernel sizes."""
    layers = [nn.Conv2d(one, other, size, groups=groups) for one, other, size in sizes]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("model", "num_ops", "count"),
    [
        (convolutions((3, 64, 7), (64, 128, 3)), NUM_OPS, 2),
        (nn.Conv2d(3, 128, 3), NUM_OPS, 1),
        (nn.Sequential(nn.Conv2d(3, 128, 3), nn.ConvTranspose2d(128, 128, 2)), NUM_OPS, 2),
        (convolutions((3, 1024, 16)), 300, 0),  # a patch embedding among other ops
        (convolutions((64, 128, 3), (128, 128, 3), groups=2), NUM_OPS, 0),
        (convolutions((256, 128, 3)), NUM_OPS, 0),  # narrows, ...
        (convolutions((256, 128, 1)), NUM_OPS, 1),  # ... but not what is around a pixel
        (convolutions((3, 64, 3), (64, 64, 3)), NUM_OPS, 0),  # small ones only
        (nn.Conv1d(3, 128, 3), NUM_OPS, 0),
        (nn.Linear(128, 128), NUM_OPS, 0),
    ],
)
def test_many_plain_and_wide_convolutions_are_channels_last(
    model: nn.Module, num_ops: int, count: int
) -> None:
    found = find_channels_last(model, num_ops)
    assert len(found) == count
    assert found <= {name for name, _ in model.named_parameters()}


PLANS: dict[str, Callable[[Graph], Plan]] = {
    "one": lambda graph: data_plan(graph, 1),
    "data": lambda graph: data_plan(graph, RANKS, UNEQUAL),
    "zero 3, full": lambda graph: hybrid(data_plan(graph, RANKS), 3, Recompute.FULL),
    "pipeline": lambda graph: pipeline_plan(graph, 2, 1, ScheduleKind.ONE_F_ONE_B, 1),
}


def not_contiguous(layout: Layout) -> bool:
    return len(layout.shape) == 4 and not layout.empty(torch.device("meta")).is_contiguous()


def train_relaid(rank: int, name: str, graph: Graph, plan: Plan) -> tuple[list[float], Held]:
    """Train as on a GPU that likes all convolutions to be channels-last."""

    def steps(*args: Any, **kwargs: Any) -> PlannedSteps:
        return PlannedSteps(*args, **{**kwargs, "on_gpu": True})

    def every(model: nn.Module, _: int) -> frozenset[str]:
        kinds = nn.Conv2d | nn.ConvTranspose2d
        modules = model.named_modules()
        return frozenset(f"{name}.weight" for name, each in modules if isinstance(each, kinds))

    with (
        patch.object(trainer, "PlannedSteps", steps),
        patch("meshwright.execute.steps.find_channels_last", every),
    ):
        made = make_trainer(rank, make_workload(name), graph, plan)
        step = made.planned.any()
        assert any(not_contiguous(step.layouts[each]) for each in step.held), "weights are relaid"
        losses, held = take_steps(made, STEPS), held_by(made)
        made.close()
    return losses, held


@pytest.mark.parametrize("kind", few(PLANS, "one", "zero 3, full"))
@pytest.mark.parametrize("name", few(["residual", "inception", "unet"], "residual", "unet"))
def test_relaid_weights_train_as_others_do(ranks: Ranks, name: str, kind: str) -> None:
    graph = captured(name)
    plan = with_batch_statistics(graph, PLANS[kind](graph))
    count = len({device for part in plan.parts for device in part.devices})
    answers = ranks.call(count, train_relaid, name, graph, plan)
    check_trained(answers, train_eagerly(name, STEPS), TOLERANCE, TOLERANCE)
