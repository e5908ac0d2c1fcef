"""Buffers that layers share: copies where they are only read, one where they are written."""

from typing import Any

import pytest

pytest.importorskip("torch", reason="capture needs the torch extra")

import torch
from torch import nn

from meshwright.capture.capture import capture
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.plan import Part, Plan
from meshwright.simulate.simulate import simulate
from small import connected

WIDTH = 8
WEIGHTS = 4 * WIDTH * WIDTH
"""The bytes of a layer's weights."""
TABLE = 4 * WIDTH
"""The bytes of the buffer."""


class Layer(nn.Module):
    """Reads a table twice, and once more in backward."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)
        self.register_buffer("table", table)

    def forward(self, x: Any) -> Any:
        return x + (self.linear(x) * self.table).tanh() + self.table


class Layers(nn.Module):
    """Layers that share one table."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        table = torch.ones(WIDTH)
        self.layers = nn.ModuleList(Layer(table) for _ in range(count))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


class Inline(Layers):
    """The same, with the layers written out in the model's own `forward`."""

    def forward(self, x: Any) -> Any:
        layers: Any = self.layers
        for layer in layers:
            x = x + (layer.linear(x) * layer.table).tanh()
        return x.square().mean()


class Norms(nn.Module):
    """Two batch norms, each with weights of its own, that count in the same statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH)
        for name, each in self.first.named_buffers():
            setattr(self.second, name, each)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).tanh()).square().mean()


def groups_of(graph: Graph, module: str) -> set[int]:
    """The groups of a module's ops that are of one."""
    ops = zip(graph.module, graph.group.tolist(), strict=True)
    return {group for name, group in ops if name == module and group >= 0}


def captured(model: nn.Module) -> Graph:
    return capture(model, (torch.randn(4, WIDTH),), optimizer="sgd")


def test_a_buffer_that_is_only_read_is_a_copy_in_each_module() -> None:
    graph = captured(Layers())
    groups = [groups_of(graph, f"layers.{number}") for number in range(4)]
    assert [len(each) for each in groups] == [1, 1, 1, 1]
    assert len(set.union(*groups)) == 4
    assert graph.state_bytes.sum() == 4 * (WEIGHTS + TABLE)
    assert graph.parameter_bytes.sum() == 4 * WEIGHTS


def test_what_layers_read_alone_does_not_keep_them_together() -> None:
    assert find_layers(captured(Layers())).num_layers >= 4


def test_ops_of_the_models_own_forward_have_copies_of_their_own() -> None:
    graph = captured(Inline())
    products = [
        op for op, kind in enumerate(graph.kind) if kind == "strided_mul" and graph.group[op] >= 0
    ]
    assert len(products) == 8  # forward and backward of four layers
    assert len({int(graph.group[op]) for op in products}) == 4


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_every_device_that_reads_a_buffer_holds_it(cut: int) -> None:
    graph = captured(Layers())
    is_first = [name != "" and int(name.split(".")[1]) < cut for name in graph.module]
    ops = [
        tuple(name for name, each in zip(graph.op_names, is_first, strict=True) if each == wanted)
        for wanted in (True, False)
    ]
    plan = Plan(parts=tuple(Part(ops=each, devices=(f"d{k}",)) for k, each in enumerate(ops)))
    timeline = simulate(graph, connected(2), plan)
    layer = WEIGHTS + TABLE
    assert timeline.program.state_bytes.tolist() == [cut * layer, (4 - cut) * layer]


def test_statistics_that_two_norms_write_keep_them_together() -> None:
    graph = captured(Norms())
    norms = [op for op, kind in enumerate(graph.kind) if kind == "native_batch_norm"]
    assert len(norms) == 2
    assert graph.group[norms[0]] == graph.group[norms[1]] >= 0
