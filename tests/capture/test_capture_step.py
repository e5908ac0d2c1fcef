"""Captured steps against eager PyTorch: the same numbers, the same FLOPs, the same bytes."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.optimiser import BETAS, LEARNING_RATE, Optimiser  # noqa: E402
from meshwright.capture.stepped import MOMENTUM  # noqa: E402
from meshwright.capture.trace import trace_step  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.graph.graph import OP_LINES, Graph, Phase, Split  # noqa: E402


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Any) -> Any:
        return self.layers(x).square().mean()


class Residual(nn.Module):
    """Convolutions, batch norm and a skip."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any, label: Any) -> Any:
        x = F.relu(self.norm(self.first(x)))
        x = x + F.relu(self.second(x))
        return F.cross_entropy(self.head(x.mean((2, 3))), label)


class Language(nn.Module):
    """A causal transformer whose head is tied to its embedding."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.words = nn.Embedding(50, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        batch, length, width = x.shape
        split = self.qkv(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return F.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())


class Experts(nn.Module):
    """A dense mixture: all experts run, a gate weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, 3)
        self.up = nn.Parameter(torch.randn(3, 8, 16) / 3)
        self.down = nn.Parameter(torch.randn(3, 16, 8) / 4)

    def forward(self, x: Any) -> Any:
        weights = self.gate(x).softmax(-1)
        hidden = torch.einsum("bi,eih->ebh", x, self.up).tanh()
        mixed = torch.einsum("be,ebi->bi", weights, torch.bmm(hidden, self.down))
        return {"loss": (x + mixed).square().mean(), "mixed": mixed}


class Net(nn.Module):
    """Encoder, decoder and the skip between them; the loss is outside."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, 4, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.last = nn.Conv2d(5, 1, 1)

    def forward(self, x: Any) -> Any:
        y = F.gelu(self.down(x))
        y = F.gelu(self.middle(y))
        return self.last(torch.cat((self.up(y), x), 1))


CASES: dict[str, tuple[Callable[[], Any], Callable[[int], tuple[Any, ...]], Any]] = {
    "perceptron": (Perceptron, lambda b: (torch.randn(b, 8),), None),
    "residual": (
        Residual,
        lambda b: (torch.randn(b, 3, 8, 8), torch.randint(0, 5, (b,))),
        None,
    ),
    "language": (Language, lambda b: (torch.randint(0, 50, (b, 6)),), None),
    "experts": (Experts, lambda b: (torch.randn(b, 8),), None),
    "net": (Net, lambda b: (torch.randn(b, 1, 8, 8),), lambda y: y.abs().mean()),
}


def eager_optimizer(kind: Optimiser, parameters: Any) -> Any:
    if kind is Optimiser.SGD:
        return torch.optim.SGD(parameters, lr=LEARNING_RATE)
    if kind is Optimiser.MOMENTUM:
        return torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=MOMENTUM)
    which = torch.optim.Adam if kind is Optimiser.ADAM else torch.optim.AdamW
    return which(parameters, lr=LEARNING_RATE, betas=BETAS)


def loss_of(output: Any, loss: Any) -> Any:
    if loss is not None:
        return loss(output)
    return output["loss"] if isinstance(output, Mapping) else output


@pytest.mark.parametrize("kind", list(Optimiser))
@pytest.mark.parametrize("name", list(CASES))
def test_the_traced_step_equals_eager(name: str, kind: Optimiser) -> None:
    make, inputs, loss = CASES[name]
    torch.manual_seed(0)
    model, args = make(), inputs(4)
    trace = trace_step(model, args, {}, loss=loss, optimizer=kind)
    start = {key: each.detach().clone() for key, each in model.named_parameters()}
    held = [each.clone() for _, each in model.named_buffers()]
    state = [
        torch.zeros(())
        if key.endswith(".step")
        else torch.zeros_like(start[key.rpartition(".")[0]])
        for key in trace.state_names
    ]
    value, *gradients = trace.module(*start.values(), *held, *state, *args)

    optimizer = eager_optimizer(kind, model.parameters())
    expected = loss_of(model(*args), loss)
    expected.backward()
    optimizer.step()
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-6)
    after = dict(model.named_parameters())
    for key, gradient in zip(trace.gradient_names, gradients, strict=True):
        torch.testing.assert_close(gradient, after[key].grad, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(start[key], after[key].detach(), rtol=1e-6, atol=1e-6)
    for mine, theirs in zip(held, (each for _, each in model.named_buffers()), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-6)


def captured(name: str, batch: int = 4) -> Graph:
    make, inputs, loss = CASES[name]
    with torch.device("meta"):
        return capture(make(), inputs(batch), loss=loss)


@pytest.mark.parametrize("name", list(CASES))
def test_parameters_and_flops_equal_torchs_own_counts(name: str) -> None:
    make, inputs, loss = CASES[name]
    graph = captured(name)
    model = make()
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    assert graph.parameter_bytes.sum() == size
    with FlopCounterMode(display=False) as counter:
        loss_of(model(*inputs(4)), loss).backward()
    unknown = np.array(["attention" in kind for kind in graph.kind])
    assert graph.flops[~unknown].sum() == counter.get_total_flops()


def test_attention_counts_what_torchs_counter_misses() -> None:
    # 4 sequences x 4 heads x 6 x 6 pairs x 8 wide: 2 products forward, 5 backward.
    graph = captured("language")
    attention = {
        kind: flops
        for kind, flops in zip(graph.kind, graph.flops, strict=True)
        if "attention" in kind
    }
    product = 2 * 4 * 4 * 6 * 6 * 8
    assert sorted(attention.values()) == [2 * product, 5 * product]


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("batch", [2, 8])
def test_costs_at_another_batch_equal_a_capture_there(name: str, batch: int) -> None:
    scaled, expected = captured(name).at_batch(batch), captured(name, batch)
    assert scaled.op_names == expected.op_names
    for column in (*OP_LINES, "tensor_bytes"):
        np.testing.assert_array_equal(getattr(scaled, column), getattr(expected, column))


def test_every_backward_op_has_a_partner_and_gradients_are_partial_sums() -> None:
    graph = captured("language")
    backward = graph.phase == Phase.BACKWARD
    assert (graph.partner[backward] >= 0).all()
    updates = np.flatnonzero([kind.startswith("_fused") for kind in graph.kind])
    for update in updates.tolist():
        gradients = [
            tensor
            for tensor in graph.inputs[update]
            if graph.phase[graph.tensor_source[tensor]] == Phase.BACKWARD
        ]
        assert len(gradients) == 1
        assert graph.tensor_partial[gradients[0]]
        assert graph.split[update] == Split.NONE


def test_tied_weights_share_a_group_and_one_update() -> None:
    graph = captured("language")
    group = {name.rpartition("/")[2]: graph.group[graph.index[name]] for name in graph.op_names}
    assert group["embedding"] == group["mm"] == group["_fused_adamw_"] >= 0


def test_views_cost_nothing() -> None:
    graph = captured("language")
    assert not {"view", "t", "transpose", "permute", "detach", "getitem"} & set(graph.kind)


def test_module_paths_are_kept() -> None:
    graph = captured("language")
    assert {"words", "norm", "qkv", "out", "head"} <= set(graph.module)


def test_half_precision_by_autocast() -> None:
    with torch.device("meta"):
        graph = capture(Perceptron(), (torch.empty(4, 8),), autocast=torch.bfloat16)
    products = [p for k, p in zip(graph.kind, graph.precision, strict=True) if k == "addmm"]
    assert set(products) == {"bf16"}


def test_activation_checkpointing_computes_forward_again() -> None:
    class Checkpointed(Perceptron):
        def forward(self, x: Any) -> Any:
            again = torch.utils.checkpoint.checkpoint(self.layers, x, use_reentrant=False)
            return again.square().mean()

    with torch.device("meta"):
        plain = capture(Perceptron(), (torch.empty(4, 8),))
        graph = capture(Checkpointed(), (torch.empty(4, 8),))
    forward = plain.flops[plain.phase == Phase.FORWARD].sum()
    assert graph.flops.sum() > plain.flops.sum()
    assert graph.flops.sum() <= plain.flops.sum() + forward


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (lambda: _Sized(), r"test_capture_step.py:\d+ \(.*nonzero\(\).*values of a tensor"),
        (lambda: _Wrong(), r"cannot be traced at test_capture_step.py:\d+ \(return x @ x"),
        (lambda: nn.Linear(8, 2), r"loss: must be a scalar tensor, got \(4, 2\)"),
        (lambda: nn.ReLU(), "must have a parameter that needs a gradient"),
    ],
)
def test_what_cannot_be_traced_says_where_and_why(model: Callable[[], Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        capture(model(), (torch.randn(4, 8),))


class _Sized(Perceptron):
    def forward(self, x: Any) -> Any:
        return self.layers(x[(x > 0).nonzero()[:, 0]]).mean()


class _Wrong(Perceptron):
    def forward(self, x: Any) -> Any:
        return x @ x


def test_unknown_optimisers_and_missing_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="optimizer: must be one of sgd, momentum, adam, adamw"):
        capture(Perceptron(), (torch.randn(4, 8),), optimizer="lion")
    with pytest.raises(InputError, match="must have a tensor among its inputs"):
        capture(Perceptron(), ())
    with pytest.raises(InputError, match="batch: must be the first dimension of an input, got 5"):
        capture(Perceptron(), (torch.randn(4, 8),), batch=5)


class Waves(nn.Module):
    """A table of all positions, without a gradient."""

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            return torch.arange(x.shape[-1], dtype=x.dtype).cos()


class Turned(nn.Module):
    """Words, times waves."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.waves, self.head = nn.Embedding(9, 4), Waves(), nn.Linear(4, 3)

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        return self.head(x * self.waves(x)).square().mean()


def test_what_has_no_gradient_is_no_partner_of_a_module_before_it() -> None:
    graph = capture(Turned(), (torch.randint(0, 9, (2, 5)),), optimizer="sgd")
    gradient = graph.index["words/embedding_dense_backward"]
    assert graph.op_names[graph.partner[gradient]] == "words/embedding"
