"""Small models put together from a list of layers, the same in every process."""

from dataclasses import dataclass
from typing import Any

import torch
from small_trainer import make_trainer
from torch import nn
from torch.nn import functional as F  # noqa: N812

from meshwright.capture.workload import Workload
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan

LENGTH, WIDTH, WORDS = 3, 4, 7
LAYERS = (
    "linear", "relu", "tanh", "residual", "transpose", "reshape", "norm", "conv", "skip", "branch",
    "twice", "image", "scale", "time",
)  # fmt: skip
LOSSES = ("mse", "entropy", "square", "two", "penalty", "sum")
LEARNING_RATE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a model is made of."""

    layers: tuple[str, ...]
    loss: str
    batch: int
    embeds: bool


class Composed(nn.Module):
    """Layers on sequences of LENGTH rows of WIDTH features, one after the other."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.words = nn.Embedding(WORDS, WIDTH) if recipe.embeds else None
        self.layers = nn.ModuleList(self._layer(kind) for kind in recipe.layers)
        self.head = nn.Linear(WIDTH, WORDS)
        self.tied = nn.Linear(WIDTH, WIDTH)

    def _layer(self, kind: str) -> nn.Module:
        if kind == "norm":
            return nn.LayerNorm(WIDTH)
        if kind == "conv":
            return nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        if kind == "image":
            return nn.Conv2d(1, 2, 3, padding=1)
        if kind == "branch":
            return nn.ModuleList([nn.Linear(WIDTH, 2), nn.Linear(WIDTH, WIDTH - 2)])
        if kind == "scale":
            return nn.ParameterList([nn.Parameter(torch.randn(WIDTH))])
        if kind in ("linear", "residual", "time"):
            return nn.Linear(WIDTH, WIDTH)
        if kind == "transpose":
            return nn.Linear(LENGTH, LENGTH)
        return nn.Identity()

    def forward(self, x: Any, y: Any) -> Any:
        if self.words is not None:
            x = self.words(x)
        start = x
        for kind, layer in zip(self.recipe.layers, self.layers, strict=True):
            x = self._apply_layer(kind, layer, x, start)
        return self._loss(x, y)

    def _apply_layer(self, kind: str, layer: Any, x: Any, start: Any) -> Any:
        if kind in ("relu", "tanh"):
            return getattr(torch, kind)(x)
        if kind == "residual":
            return x + F.gelu(layer(x))
        if kind == "transpose":
            return layer(x.transpose(1, 2)).transpose(1, 2)
        if kind == "reshape":
            return (x.reshape(-1, WIDTH * LENGTH) * 0.5).reshape(-1, LENGTH, WIDTH).contiguous()
        if kind == "conv":
            return layer(x.transpose(1, 2)).transpose(1, 2)
        if kind == "image":
            return layer(x.unsqueeze(1)).relu().mean(1)
        if kind == "time":  # first, and the batch within it
            rows = layer(x.transpose(0, 1).flatten(0, 1)).tanh() * 1.5
            return rows.unflatten(0, (LENGTH, -1)).transpose(0, 1)
        if kind == "branch":
            return torch.cat([layer[0](x), layer[1](x)], -1)
        if kind == "skip":
            return x + start
        if kind == "twice":
            return self.tied(self.tied(x))
        if kind == "scale":
            return x * layer[0]
        return layer(x)

    def _loss(self, x: Any, y: Any) -> Any:
        kind = self.recipe.loss
        if kind == "entropy":
            return F.cross_entropy(self.head(x).flatten(0, 1), y.flatten())
        x = self.head(x)
        target = F.one_hot(y, WORDS).to(x.dtype)
        if kind == "square":
            return x.square().mean()
        if kind == "sum":
            return (x - target).square().sum() / x.shape[0]
        loss = F.mse_loss(x, target)
        if kind == "two":
            return loss + 0.1 * x.abs().mean()
        if kind == "penalty":
            return loss + 0.01 * self.head.weight.square().sum()
        return loss


def make_model(recipe: Recipe) -> Workload:
    torch.manual_seed(11)
    model = Composed(recipe)
    y = torch.randint(0, WORDS, (recipe.batch, LENGTH))
    x = torch.randint(0, WORDS, (recipe.batch, LENGTH))
    given = x if recipe.embeds else torch.randn(recipe.batch, LENGTH, WIDTH)
    return Workload(name="composed", model=model, args=(given, y))


Answer = tuple[list[float], dict[str, Any], dict[str, Any]]
"""Losses, gradients of the first step, and parameters after the last one."""


def train_alone(recipe: Recipe, steps: int) -> Answer:
    """By one process, in the plain way."""
    workload = make_model(recipe)
    model = workload.model
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses, gradients = [], {}
    for step in range(steps):
        optimizer.zero_grad()
        loss = model(*workload.args)
        loss.backward()
        if step == 0:
            gradients = {
                name: each.grad.clone()
                for name, each in model.named_parameters()
                if each.grad is not None
            }
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, gradients, {name: each.detach() for name, each in model.named_parameters()}


def train_composed(rank: int, recipe: Recipe, graph: Graph, plan: Plan, steps: int) -> Answer:
    """What one rank of a plan holds of the same."""
    workload = make_model(recipe)
    trainer = make_trainer(rank, workload, graph, plan, learning_rate=LEARNING_RATE)
    gradients = {}
    for step in range(steps):
        trainer.step(workload.args)
        if step == 0:  # momentum begins with the gradient
            gradients = {
                name.removesuffix(".momentum_buffer"): each.clone()
                for name, each in trainer.state.items()
                if name.endswith(".momentum_buffer")
            }
    losses = trainer.gather_losses()
    state = {name: each.clone() for name, each in trainer.state.items()}
    trainer.close()
    return losses, gradients, state
