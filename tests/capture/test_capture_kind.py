"""Kinds of captured ops: one for each kernel that runs at a speed of its own."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402

Computed = Callable[[Any], Any]


class Scaled(nn.Module):
    """A weight for each feature, then what a test is about."""

    def __init__(self, compute: Computed, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.compute = compute

    def forward(self, x: Any) -> Any:
        return self.compute(x * self.weight).sum()


def captured(compute: Computed, *shape: int) -> Graph:
    with torch.device("meta"):
        return capture(Scaled(compute, shape[-1]), (torch.empty(shape),))


def named(graph: Graph, word: str) -> list[str]:
    return [kind for kind in graph.kind if word in kind]


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, ""),
        ({"is_causal": True}, "causal_"),
        ({"is_causal": True, "dropout_p": 0.1}, "causal_dropout_"),
        ({"dropout_p": 0.1}, "dropout_"),
        ({"attn_mask": torch.ones(6, 6, dtype=torch.bool)}, "masked_"),
        ({"attn_mask": torch.ones(6, 6), "dropout_p": 0.1}, "masked_dropout_"),
    ],
)
def test_attention_says_what_it_sees_and_drops(options: dict[str, Any], seen: str) -> None:
    graph = captured(lambda x: F.scaled_dot_product_attention(x, x, x, **options), 2, 4, 6, 8)
    assert named(graph, "attention") == [f"{seen}attention", f"{seen}attention_backward"]


@pytest.mark.parametrize(("bias", "word"), [(True, "biased_"), (False, "")])
def test_convolutions_say_whether_a_bias_runs_a_kernel_of_its_own(bias: bool, word: str) -> None:
    with torch.device("meta"):
        model = nn.Conv2d(3, 4, 3, bias=bias)
        graph = capture(model, (torch.empty(2, 3, 8, 8),), loss=lambda made: made.sum())
    assert named(graph, "convolution") == [f"{word}convolution", f"{word}convolution_backward"]


@pytest.mark.parametrize(
    ("dim", "word"), [(1, "spatial_"), (-1, ""), (2, ""), (-2, "spatial_")]
)  # fmt: skip
def test_softmax_says_whether_its_numbers_lie_side_by_side(dim: int, word: str) -> None:
    graph = captured(lambda x: x.log_softmax(dim), 2, 4, 8)
    kinds = named(graph, "softmax")
    assert kinds == [f"{word}_log_softmax", f"{word}_log_softmax_backward_data"]


@pytest.mark.parametrize(
    ("compute", "kind"),
    [
        (lambda x: torch.add(x, x), "add"),
        (lambda x: torch.add(x.transpose(1, 2), x.transpose(1, 2)), "add"),  # both lie alike
        (lambda x: torch.add(x, x.transpose(1, 2)), "strided_add"),
        (lambda x: torch.add(x, x[:, :1]), "strided_add"),  # rows are broadcast
        (lambda x: torch.add(x, x.detach()[0, 0, 0]), "add"),  # one number costs nothing
        (lambda x: torch.add(x[..., ::2], 1.0), "strided_add"),  # every other number
        (lambda x: torch.add(x[:1], 1.0), "add"),  # a dense piece
        (lambda x: x.transpose(1, 2).contiguous(), "strided_clone"),
        (lambda x: x.to(torch.bfloat16), "_to_copy"),
        (lambda x: torch.add(x[:, :1].transpose(1, 2), 1.0), "strided_add"),
    ],
)
def test_element_wise_ops_are_strided_where_their_tensors_lie_differently(
    compute: Computed, kind: str
) -> None:
    graph = captured(compute, 2, 8, 8)
    # The first op multiplies by the weights, the next one is the one asked for.
    assert graph.kind[:2] == ("strided_mul", kind)


@pytest.mark.parametrize(
    ("width", "dim", "kind"),
    [
        (256, -1, "cat"),  # runs of 256 x 4 = 1,024 bytes
        (255, -1, "strided_cat"),
        (64, 1, "cat"),  # four rows of 256 bytes follow one another
        (63, 1, "strided_cat"),
        (255, 0, "cat"),
    ],
)
def test_cat_is_strided_where_a_piece_of_a_row_is_short(width: int, dim: int, kind: str) -> None:
    graph = captured(lambda x: torch.cat((x, x), dim), 2, 4, width)
    assert named(graph, "cat") == [kind]


def test_one_narrow_piece_makes_a_cat_narrow() -> None:
    graph = captured(lambda x: torch.cat((x, x[..., :1]), -1), 2, 4, 256)
    assert named(graph, "cat") == ["strided_cat"]
