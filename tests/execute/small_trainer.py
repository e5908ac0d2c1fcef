"""A rank's trainer of a small model, and plain training in one process to hold it against."""

from collections.abc import Callable
from typing import Any

import torch
from ranks import RANKS

from meshwright.capture.trace import find_loss
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.plain import RepeatedDraws
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from rank_seat import take_seat
from small import connected

LEARNING_RATE, OPTIMIZER = 1e-2, "momentum"

Tensors = dict[str, Any]
"""Tensors by their names."""
Shares = dict[str, tuple[Any, Any]]
"""By name: what a rank holds, and the `Share` of the whole that it is; None: all of it."""


def make_trainer(
    rank: int,
    workload: Workload,
    graph: Graph,
    plan: Plan,
    cluster: Cluster | None = None,
    **settings: Any,
) -> Trainer:
    """The trainer of one rank, on a CPU, of `RANKS` devices that are connected unless a cluster is
    given."""
    given: dict[str, Any] = {"optimizer": OPTIMIZER, "learning_rate": LEARNING_RATE, **settings}
    wiring, compiler = given.pop("wiring", None), given.pop("compiler", None)
    device = given.pop("device", "cpu")
    lowered = lower_frozen(graph, cluster or connected(RANKS), plan)
    seat = take_seat(lowered, rank, device, wiring)
    return Trainer(seat, workload, Settings(**given), compiler=compiler)


def take_steps(trainer: Trainer, steps: int) -> list[float]:
    """All losses after as many steps with the workload's own batch."""
    for _ in range(steps):
        trainer.step(trainer.workload.args, trainer.workload.kwargs)
    return trainer.gather_losses()


def train_shares(
    rank: int,
    make: Callable[[str], Workload],
    name: str,
    graph: Graph,
    plan: Plan,
    steps: int,
    optimizer: str = OPTIMIZER,
) -> tuple[list[float], Shares]:
    """Train on one rank, which may hold shares: all losses, and what it then holds."""
    trainer = make_trainer(rank, make(name), graph, plan, optimizer=optimizer)
    losses, shares = take_steps(trainer, steps), trainer.steps.shares()
    held = {key: (each.clone(), shares.get(key)) for key, each in trainer.state.items()}
    trainer.close()
    return losses, held


def split_groups(model: torch.nn.Module, **first: Any) -> list[dict[str, Any]]:
    """Matrices in one group of an optimiser, with these settings, and vectors in another."""
    parameters = list(model.parameters())
    return [
        {"params": [each for each in parameters if each.dim() > 1], **first},
        {"params": [each for each in parameters if each.dim() <= 1]},
    ]


def train_scheduled(
    workload: Workload,
    make: Callable[[torch.nn.Module], torch.optim.Optimizer],
    schedule_for: Callable[[torch.optim.Optimizer], Any],
    steps: int,
) -> tuple[list[float], list[float]]:
    """Losses of plain training in one process, and the learning rates at its end."""
    update = make(workload.model)
    schedule = schedule_for(update)
    losses = []
    for _ in range(steps):
        update.zero_grad()
        loss = find_loss(workload.model(*workload.args), None)
        torch.autograd.backward(loss)
        update.step()
        if schedule is not None:
            schedule.step()
        losses.append(float(loss.detach()))
    return losses, [group["lr"] for group in update.param_groups]


def train_plainly(
    workload: Workload,
    steps: int,
    optimizer: str = OPTIMIZER,
    repeated: RepeatedDraws | None = None,
) -> tuple[list[float], Tensors]:
    """Losses and tensors after plain training in one process, which changes the workload's model.

    Tensors are the model's, and the optimiser's by its own names.
    """
    model = workload.model
    drawn = RepeatedDraws({}, 0) if repeated is None else repeated
    update: torch.optim.Optimizer = (
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
        if optimizer == "momentum"
        else torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    )
    losses = []
    for step in range(steps):
        update.zero_grad()
        drawn.begin(step)
        with drawn:
            loss = find_loss(model(*workload.args, **workload.kwargs), workload.loss)
        torch.autograd.backward(loss)
        update.step()
        losses.append(float(loss.detach()))
    return losses, {
        **{key: each.detach() for key, each in model.named_parameters()},
        **dict(model.named_buffers()),
        **{
            f"{key}.{kind}": value
            for key, each in model.named_parameters()
            for kind, value in update.state.get(each, {}).items()
        },
    }
