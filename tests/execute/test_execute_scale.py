"""Losses are scaled as by torch.amp.GradScaler in one process: steps that overflow are left out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_plans import data_plan, hybrid, num_ranks, pipeline_plan  # noqa: E402
from small_trainer import LEARNING_RATE  # noqa: E402
from team_models import make  # noqa: E402

from meshwright.capture.autocast import cuda_autocast  # noqa: E402
from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.region.recipe import RegionRecipe, run_recipe  # noqa: E402
from meshwright.execute.resume import look_for_checkpoint, resume, save_state  # noqa: E402
from meshwright.execute.scale import LossScale  # noqa: E402
from meshwright.execute.settings import Settings  # noqa: E402
from meshwright.execute.trainer import Trainer  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402
from rank_seat import take_seat  # noqa: E402
from small import connected  # noqa: E402

STEPS = 8
NAME = "language"
FIRST = 2.0**22
"""Too large at first: some steps overflow in fp16, then none."""
CPU = torch.device("cpu")


class LargeScale(Settings):
    """With a first scale that is too large."""

    @property
    def loss_scale(self) -> float:
        return FIRST


def open_trainer(
    rank: int, graph: Graph, plan: Plan, optimizer: Any, clip_norm: float | None = None, **more: Any
) -> Trainer:
    lowered = lower_frozen(graph, connected(RANKS), plan, clips=True)
    settings = LargeScale(
        optimizer=optimizer, autocast="fp16", learning_rate=LEARNING_RATE, clip_norm=clip_norm
    )
    return Trainer(take_seat(lowered, rank), make(NAME), settings, **more)


def train_scaled(
    rank: int, graph: Graph, plan: Plan, optimizer: str, clip_norm: float | None, is_merged: bool
) -> tuple[list[float], float, float]:
    """Losses, the scale at the end, and how many steps the optimiser counts."""

    def compiler(recipe: RegionRecipe) -> Any:
        return lambda given: run_recipe(recipe, given, CPU)

    trainer = open_trainer(
        rank, graph, plan, optimizer, clip_norm=clip_norm, compiler=compiler if is_merged else None
    )
    for _ in range(STEPS):
        trainer.step(trainer.workload.args, trainer.workload.kwargs)
    losses = trainer.gather_losses()
    assert trainer.scale is not None
    scale = float(trainer.scale.value)
    counts = [float(each) for name, each in trainer.state.items() if name.endswith(".step")]
    trainer.close()
    return losses, scale, max(counts, default=0.0)


def train_plainly(
    optimizer: str, clip_norm: float | None, pieces: int = 1
) -> tuple[list[float], float, int]:
    """The same with GradScaler, the batch in so many pieces; the last: how many steps updated
    something."""
    workload = make(NAME)
    model = workload.model
    kind = {"adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam, "sgd": torch.optim.SGD}
    update = kind[optimizer](model.parameters(), lr=LEARNING_RATE)
    scaler = torch.amp.GradScaler("cpu", init_scale=FIRST)
    losses, updates = [], 0
    for _ in range(STEPS):
        update.zero_grad()
        total = 0.0
        for rows in zip(*(each.chunk(pieces) for each in workload.args), strict=True):
            with cuda_autocast(), torch.autocast("cpu", torch.float16):
                loss = model(*rows) / pieces
            torch.autograd.backward(scaler.scale(loss))
            total += float(loss.detach())
        if clip_norm is not None:
            scaler.unscale_(update)
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        before = scaler.get_scale()
        scaler.step(update)
        scaler.update()
        updates += scaler.get_scale() >= before
        losses.append(total)
    return losses, scaler.get_scale(), updates


PLANS: dict[str, tuple[int, Callable[[Graph], Plan]]] = {
    "alone": (1, lambda graph: data_plan(graph, 1)),
    "data": (2, lambda graph: data_plan(graph, 2)),
    "1f1b": (4, lambda graph: pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 4)),
    "zero 2": (2, lambda graph: hybrid(data_plan(graph, 2), 2, Recompute.NONE)),
}
"""With the pieces that a batch is divided into, each of which overflows by itself."""


@pytest.mark.parametrize("kind", few([*PLANS], "alone", "1f1b"))
@pytest.mark.parametrize(("optimizer", "clip_norm"), [("adamw", None), ("sgd", 0.3)])
def test_training_in_fp16_is_that_of_a_grad_scaler(
    ranks: Ranks, kind: str, optimizer: str, clip_norm: float | None
) -> None:
    graph = capture_workload(make(NAME), optimizer, "fp16")
    pieces, make_plan = PLANS[kind]
    plan = make_plan(graph)
    expected, scale, updates = train_plainly(optimizer, clip_norm, pieces)
    assert 0 < updates < STEPS
    args = graph, plan, optimizer, clip_norm, kind == "alone"
    for losses, found, counted in ranks.train(num_ranks(plan), train_scaled, *args):
        assert losses == pytest.approx(expected, rel=2e-3)  # sums in fp16 depend on their order
        assert found == scale
        assert counted in (0.0, updates)


def test_optimisers_that_step_themselves_leave_steps_out_too(ranks: Ranks) -> None:
    graph = capture_workload(make(NAME), "nadam", "fp16")
    plan = data_plan(graph, 1)
    expected, scale, updates = train_plainly("nadam", None)
    ((losses, found, counted),) = ranks.train(1, train_scaled, graph, plan, "nadam", None, False)
    assert losses == pytest.approx(expected, rel=2e-3)
    assert (found, counted) == (scale, updates)


def keep_and_go_on(rank: int, graph: Graph, plan: Plan, folder: str) -> tuple[list[float], float]:
    trainer = open_trainer(rank, graph, plan, "adamw")
    for _ in range(STEPS // 2):
        trainer.step(trainer.workload.args, trainer.workload.kwargs)
    save_state(Path(folder), trainer)
    trainer.close()
    other = open_trainer(rank, graph, plan, "adamw")
    resume(other, look_for_checkpoint(Path(folder), None, print))
    for _ in range(STEPS - STEPS // 2):
        other.step(other.workload.args, other.workload.kwargs)
    losses = other.gather_losses()
    assert other.scale is not None
    scale = float(other.scale.value)
    other.close()
    return losses, scale


def test_a_checkpoint_has_the_scale(ranks: Ranks, tmp_path: Path) -> None:
    graph = capture_workload(make(NAME), "adamw", "fp16")
    expected, scale, _ = train_plainly("adamw", None)
    plan = data_plan(graph, 1)
    ((losses, found),) = ranks.train(1, keep_and_go_on, graph, plan, str(tmp_path))
    assert losses == pytest.approx(expected, rel=2e-3)
    assert found == scale


def test_the_scale_doubles_after_2000_finite_steps_and_is_halved_by_one_that_is_not() -> None:
    scale, oracle = LossScale(CPU), torch.amp.GradScaler("cpu")
    weight = torch.zeros(1, requires_grad=True)
    update = torch.optim.SGD([weight], lr=0.0)
    oracle.scale(torch.zeros(1))  # which makes its tensors
    for step in range(4100):
        norm = torch.tensor(float("inf") if step in (3, 2500, 2501) else 1.0)
        weight.grad = norm.reshape(1).clone()
        oracle.step(update)
        oracle.update()
        scale.judge(norm)
        assert float(scale.value) == oracle.get_scale(), step
        assert float(scale.skips) == float(not norm.isfinite())


def test_losses_are_scaled_with_fp16_unless_one_says_otherwise() -> None:
    assert Settings(autocast="fp16").loss_scale == 2.0**16
    assert Settings(autocast="fp16", scales_loss=False).loss_scale is None
    assert Settings(autocast="bf16").loss_scale is None
    assert Settings(scales_loss=True).clips
    assert not Settings().clips
