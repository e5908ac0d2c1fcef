"""What a step records is, node by node, what `make_fx` of torch records."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch._functorch._aot_autograd import logging_utils  # noqa: E402
from torch.fx import GraphModule, Node, traceback  # noqa: E402
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from meshwright.capture.fake import StepMode  # noqa: E402
from meshwright.capture.optimiser import Optimiser  # noqa: E402
from meshwright.capture.trace import _StepTrace  # noqa: E402
from meshwright.capture.tracer import Tracer  # noqa: E402

Inputs = tuple[Any, ...]


class ByTorch:
    """Takes the tracer's place while `make_fx` traces."""

    @property
    def graph(self) -> Any:
        return get_proxy_mode().tracer.graph  # type: ignore[union-attr]

    def named_modules(self, model: nn.Module) -> Any:
        del model
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def numbered(self, loss: Any) -> Iterator[None]:
        logging_utils.setup_stacktrace_preservation_hooks([loss.grad_fn])
        yield

    def drop_branches(self) -> None:
        pass  # it knows no value, and these models ask for none


MARKS = tuple(int(each) for each in torch.__version__.split(".")[:2]) >= (2, 13)
"""Whether torch marks the sums of gradients that we mark; older releases mark others, too."""


def start(
    model: nn.Module, inputs: Inputs, autocast: Any
) -> tuple[_StepTrace, StepMode, list[Any]]:
    step = _StepTrace(model, inputs, {}, None, Optimiser.ADAMW, autocast, False, (), False)
    mode = StepMode(allow_non_fake_inputs=True)
    return step, mode, step.fake_start(mode)


def record(model: nn.Module, inputs: Inputs, autocast: Any = None) -> list[Node]:
    step, mode, tensors = start(model, inputs, autocast)
    tracer = Tracer(mode)
    for each in tensors:
        tracer.add_input(each)
    with mode, tracer:
        made = step.run(tensors, tracer)
    tracer.end(made)
    return list(tracer.graph.nodes)


def trace_by_torch(model: nn.Module, inputs: Inputs, autocast: Any = None) -> list[Node]:
    step, mode, tensors = start(model, inputs, autocast)
    by_torch: Any = ByTorch()

    def run(*flat: Any) -> Any:
        return step.run(flat, by_torch)

    logging_utils.callback_set = False
    with mode, traceback.preserve_node_meta():
        module: GraphModule = make_fx(run, tracing_mode="real")(*tensors)
    return list(module.graph.nodes)


def describe(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.storage_offset()
    if isinstance(value, (tuple, list)):
        return [describe(each) for each in value]
    return value


def lines(nodes: list[Node]) -> list[Any]:
    """Nodes as they are compared; autograd's numbers of ops from the step's first on."""
    numbers = {node: node.meta["seq_nr"] for node in nodes if node.op == "call_function"}
    first = min(numbers.values())
    marks = "is_gradient_acc" if MARKS else ""
    return [
        (
            *(node.op, node.name, str(node.target), str(node.args), str(node.kwargs)),
            describe(node.meta.get("val")),
            numbers.get(node, first) - first,
            node.meta.get(marks, False),
        )
        for node in nodes
    ]


class Odd(nn.Module):
    """Constants, writes in place, several results, branches of several gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 6)
        self.norm = nn.LayerNorm(8)
        self.loose = [torch.arange(6.0)]  # a tensor that no buffer is

    def forward(self, x: Any) -> Any:
        x = x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) + self.loose[0]
        if torch.tensor(3.0) > 2:
            x = x - self.loose[0]
        y = self.norm(torch.relu_(self.first(x)))
        top, places = y.topk(3, dim=-1)
        left, right = y.split([2, 6], dim=-1)
        with torch.no_grad():
            scale = right.abs().amax(-1, keepdim=True).clamp_(min=1)
        z = self.second(y) + (right / scale) + top.sum(-1, keepdim=True) + places[:, :1]
        return (z * z).mean() + left.clone().unsqueeze_(0).squeeze_(0).std()


class Recomputed(nn.Module):
    """Two blocks that backward runs again."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.1), nn.Linear(12, 6))
            for _ in range(2)
        )

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return x.square().mean()


class Encoder(nn.Module):
    """Torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.layer(x).pow(2).mean()


class Recurrent(nn.Module):
    """Two layers of torch's LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 5, num_layers=2, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.lstm(x)[0].pow(2).mean()


class Frozen(nn.Module):
    """A part runs in inference mode, of which autograd sees nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Any) -> Any:
        with torch.inference_mode():
            shift = torch.nn.functional.linear(x, self.table.weight).softmax(-1)
        return self.last(x + shift.clone()).mean()


def rows(*sizes: int) -> Inputs:
    return (torch.randn(sizes),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "odd": (Odd, rows(4, 6)),
    "recomputed": (Recomputed, rows(4, 6)),
    "encoder": (Encoder, rows(2, 5, 8)),
    "recurrent": (Recurrent, rows(2, 3, 6)),
    "frozen": (Frozen, rows(4, 6)),
}


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
@pytest.mark.parametrize("name", [*MODELS])
def test_nodes_are_those_of_torch(name: str, autocast: Any) -> None:
    make, inputs = MODELS[name]
    model = make().train()
    record(model, inputs, autocast)  # what fake ops gave first and what they give again may differ
    expected = lines(trace_by_torch(model, inputs, autocast))
    found = lines(record(model, inputs, autocast))
    for one, other in zip(found, expected, strict=False):
        assert one == other
    assert len(found) == len(expected)
