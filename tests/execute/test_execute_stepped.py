"""Optimisers that take their own steps: a plan updates as they do, and others are refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import Ranks  # noqa: E402
from small_models import make_workload  # noqa: E402
from small_plans import data_plan, device_names, hybrid, pipeline_plan  # noqa: E402
from small_trainer import make_trainer, split_groups, train_scheduled  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim.lr_scheduler import CosineAnnealingLR  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.optimiser import find_optimiser  # noqa: E402
from meshwright.capture.stepped import CLASSES, Stepped  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.groups import advance, open_optimizer  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Part, Plan, Recompute, ScheduleKind  # noqa: E402
from meshwright.zoo.model import OPTIMIZERS as NAMES  # noqa: E402
from quick import few  # noqa: E402

STEPS = 6
MODEL = "heads"


class Lion(optim.Optimizer):
    """A user's own: steps by signs of an average (arXiv 2302.06675)."""

    def __init__(self, params: Any, lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        pairs = [(group, each) for group in self.param_groups for each in group["params"]]
        with torch.no_grad():
            for group, each in pairs:
                first, second = group["betas"]
                mean = self.state[each].setdefault("mean", torch.zeros_like(each))
                each.sub_(mean.lerp(each.grad, 1 - first).sign_(), alpha=group["lr"])
                mean.lerp_(each.grad, 1 - second)


OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "rmsprop": lambda model: optim.RMSprop(
        split_groups(model, weight_decay=0.1), lr=0.01, momentum=0.5, centered=True
    ),
    "adagrad": lambda model: optim.Adagrad(
        model.parameters(), lr=0.05, lr_decay=0.1, initial_accumulator_value=0.2
    ),
    "adadelta": lambda model: optim.Adadelta(model.parameters(), lr=0.5),
    "adamax": lambda model: optim.Adamax(split_groups(model, lr=0.02), lr=0.01),
    "asgd": lambda model: optim.ASGD(model.parameters(), lr=0.05, t0=2.0),
    "nadam": lambda model: optim.NAdam(model.parameters(), decoupled_weight_decay=True),
    "radam": lambda model: optim.RAdam(model.parameters(), lr=0.01),
    "rprop": lambda model: optim.Rprop(model.parameters(), lr=0.01),
    "amsgrad": lambda model: optim.AdamW(split_groups(model, lr=0.02), lr=0.01, amsgrad=True),
    "lion": lambda model: Lion(split_groups(model, lr=0.002)),
}
PLANS: dict[str, Callable[[Graph], Plan]] = {
    "data": lambda graph: data_plan(graph, 2),
    "pipeline": lambda graph: pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 4),
    "zero 1": lambda graph: hybrid(data_plan(graph, 2), 1, Recompute.NONE),
    "zero 3": lambda graph: hybrid(data_plan(graph, 2), 3, Recompute.FULL),
    "team": lambda graph: Plan(
        parts=(Part(ops=graph.op_names, devices=device_names(2), tensor=2),)
    ),
}


def make_schedule(optimizer: Any) -> Any:
    return CosineAnnealingLR(optimizer, STEPS)


def train_by(rank: int, graph: Graph, plan: Plan, name: str, folder: str) -> list[float]:
    """Losses; after half of the steps the run goes on in another trainer, from a checkpoint."""
    from meshwright.execute.resume import look_for_checkpoint, resume, save_state

    losses: list[float] = []
    for turn in range(2 if folder else 1):
        workload = make_workload(MODEL)
        trainer = make_trainer(rank, workload, graph, plan, optimizer=OPTIMIZERS[name])
        schedule = make_schedule(trainer.optimizer)
        if turn:
            resume(trainer, look_for_checkpoint(Path(folder), None, pytest.fail))
            for _ in range(trainer.num_steps):
                advance(schedule, trainer.optimizer)
        while trainer.num_steps < (STEPS // 2 if folder and not turn else STEPS):
            trainer.step(workload.args, workload.kwargs)
            advance(schedule, trainer.optimizer)
        losses = trainer.gather_losses()
        if folder and not turn:
            save_state(Path(folder), trainer)
        trainer.close()
    return losses


CASES = [
    *((name, "zero 3", False) for name in OPTIMIZERS),
    *(("rmsprop", plan, False) for plan in PLANS if plan != "zero 3"),
    ("nadam", "team", False),
    ("nadam", "zero 1", True),
    ("adagrad", "pipeline", True),
]
QUICK = [("rmsprop", "zero 3", False), ("nadam", "zero 1", True), ("rmsprop", "team", False)]


@pytest.mark.parametrize("case", few(CASES, *QUICK), ids=str)
def test_a_plan_updates_as_the_optimizer_steps(
    ranks: Ranks, case: tuple[str, str, bool], tmp_path: Path
) -> None:
    name, plan, stops = case
    workload = make_workload(MODEL)
    graph = capture_workload(workload, OPTIMIZERS[name](workload.model))
    folder = str(tmp_path / "kept") if stops else ""
    expected, _ = train_scheduled(workload, OPTIMIZERS[name], make_schedule, STEPS)
    for losses in ranks.train(2, train_by, graph, PLANS[plan](graph), name, folder):
        assert losses == pytest.approx(expected, rel=2e-5)


def test_names_are_those_that_commands_take() -> None:
    assert set(CLASSES) < set(NAMES)
    for name in CLASSES:
        made = open_optimizer(name, make_workload(MODEL).model, 0.02)
        assert type(made) is type(CLASSES[name](list(nn.Linear(1, 1).parameters())))
        assert made.param_groups[0]["lr"] == 0.02
        assert isinstance(find_optimiser(name), Stepped)


class Shaped(Lion):
    """Keeps something of another shape."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for each in self.param_groups[0]["params"]:
            self.state[each]["rows"] = torch.zeros(7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (optim.LBFGS, "LBFGS must step by gradients alone.*: LBFGS.step.. missing.*'closure'"),
        (optim.SparseAdam, "SparseAdam must step by gradients alone.*does not support dense"),
        (optim.Adafactor, "Adafactor must update every number by its own gradient and state"),
        (Shaped, r"keeps 'rows' of shape \[7\] for one of \[4, 3\]"),
        (
            lambda parameters: optim.RMSprop(
                [{"params": parameters[:1], "centered": True}, {"params": parameters[1:]}]
            ),
            "all groups of RMSprop must keep the same tensors",
        ),
    ],
)
def test_those_that_look_at_more_than_a_number_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_optimizer(lambda model: make(list(model.parameters())), make_workload(MODEL).model, 1)
