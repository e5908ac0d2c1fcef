"""What kernels read and write, which calls run them and whose memory they take, by hand."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.ledger import Ledger  # noqa: E402
from meshwright.capture.optimiser import Optimiser  # noqa: E402
from meshwright.capture.trace import trace_step  # noqa: E402
from meshwright.graph.graph import OP_LINES, Graph, Phase  # noqa: E402

FLOAT, LONG = 4, 8
"""Bytes."""


class Model(nn.Module):
    """Features times weights, then what a subclass does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        return self.rest(x * self.weight).sum()

    def rest(self, x: Any) -> Any:
        return x


class Words(nn.Module):
    """Tokens, each its own label."""

    def __init__(self, words: int = 10, width: int = 16) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)

    def forward(self, ids: Any) -> Any:
        return F.cross_entropy(self.table(ids).flatten(0, 1), ids.flatten())


def read(model: nn.Module, *args: Any) -> Ledger:
    trace = trace_step(model, args, {}, loss=None, optimizer=Optimiser.ADAMW)
    return trace.ledger


def capture_words(batch: int) -> Graph:
    with torch.device("meta"):
        return capture(Words(), (torch.empty(batch, 6, dtype=torch.long),))


def costs(graph: Graph, kind: str) -> tuple[float, float]:
    """Bytes that the only op of a kind reads and writes."""
    op = graph.kind.index(kind)
    assert graph.kind.count(kind) == 1
    return float(graph.bytes_read[op]), float(graph.bytes_written[op])


@pytest.mark.parametrize("optimizer", list(Optimiser))
def test_each_parameter_is_updated_by_one_op(optimizer: Optimiser) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2))
    graph = capture(model, (torch.empty(4, 8),), loss=lambda y: y.sum(), optimizer=optimizer)
    updates = [graph.kind[op] for op in np.flatnonzero(graph.phase == Phase.UPDATE)]
    assert len(updates) == 4
    assert all(kind.startswith("_fused_") for kind in updates)


def test_views_are_calls_of_the_kernel_that_follows() -> None:
    class Viewed(Model):
        def rest(self, x: Any) -> Any:
            return (x + 1).view(-1, 2, 8).transpose(0, 1).transpose(0, 1).sin()

    with torch.device("meta"):
        graph = capture(Viewed(), (torch.empty(4, 8),))
    calls = dict(zip(graph.kind, graph.calls, strict=True))
    # three views and the sine itself
    assert (calls["add"], calls["sin"]) == (1, 4)


def test_choosing_an_output_is_no_call() -> None:
    class Chosen(Model):
        def rest(self, x: Any) -> Any:
            return torch.native_dropout(x, 0.5, True)[0] + 1

    kernels = read(Chosen(), torch.empty(4, 8)).kernels
    assert [kernel.calls for kernel in kernels[1:3]] == [1, 1]


def test_the_loss_reads_one_score_a_target_and_its_backward_none() -> None:
    graph = capture_words(4)
    tokens = 4 * 6
    # Targets and their scores; makes the loss and the sum of weights.
    assert costs(graph, "nll_loss_forward") == (tokens * (LONG + FLOAT), 2 * FLOAT)
    # The gradient of the loss, targets and the sum of weights; makes a gradient for every score.
    assert costs(graph, "nll_loss_backward") == (tokens * LONG + 2 * FLOAT, tokens * 16 * FLOAT)


def test_an_embedding_reads_a_row_for_each_token() -> None:
    graph = capture_words(4)
    tokens = 4 * 6  # more than the table's ten rows
    row = 16 * FLOAT
    assert costs(graph, "embedding") == (tokens * (LONG + row), tokens * row)


def test_an_embedding_smaller_than_its_tokens_scales_exactly() -> None:
    scaled, expected = capture_words(16).at_batch(4), capture_words(4)
    for column in (*OP_LINES, "tensor_bytes"):
        np.testing.assert_array_equal(getattr(scaled, column), getattr(expected, column))


def test_a_convolutions_bias_is_added_and_summed_by_kernels_of_their_own() -> None:
    with torch.device("meta"):
        model = nn.Conv2d(3, 8, 3, padding=1)
        graph = capture(model, (torch.empty(2, 3, 4, 4),), loss=lambda y: y.sum())
    image, weight, bias, made = (FLOAT * n for n in (2 * 3 * 16, 8 * 27, 8, 2 * 8 * 16))
    # What the product makes is read once more and written once more.
    assert costs(graph, "biased_convolution") == (image + weight + bias + made, 2 * made)
    # The sum's gradient is one number, expanded and then read by both kernels; the image needs no
    # gradient, for which alone the weight would be read.
    read_bytes, written = costs(graph, "biased_convolution_backward")
    assert read_bytes == image + 2 * FLOAT
    assert written == weight + bias


@pytest.mark.parametrize("is_made", [False, True])
def test_constants_of_the_models_code_are_there_from_the_start(is_made: bool) -> None:
    class Constant(Model):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.full((8,), 2.0)  # no buffer

        def rest(self, x: Any) -> Any:
            return x * (torch.tensor([2.0] * 8) if is_made else self.scale)

    graph = capture(Constant(), (torch.empty(4, 8),))
    sizes = sorted(graph.bytes_read[op] for op in range(3) if "mul" in graph.kind[op])
    assert sizes == [(4 * 8 + 8) * FLOAT] * 2
    assert graph.state_bytes.sum() == 3 * 8 * FLOAT + FLOAT  # weight, moments and counter
