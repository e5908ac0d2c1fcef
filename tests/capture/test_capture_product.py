"""Sizes of the products inside ATen ops, worked out from shapes by hand."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from meshwright.capture.flops import count_flops  # noqa: E402
from meshwright.capture.product import NONE, Product, find_product  # noqa: E402

aten, ours = torch.ops.aten, torch.ops.meshwright
BF16 = torch.bfloat16


def empty(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def offsets(count: int) -> Any:
    return empty(count, dtype=torch.int32)


def convolved(
    values: Any,
    weight: Any,
    *,
    stride: int = 1,
    padding: int = 0,
    is_transposed: bool = False,
    groups: int = 1,
) -> tuple[Any, ...]:
    """The arguments of a convolution."""
    pair = [stride, stride], [padding, padding], [1, 1]
    return values, weight, None, *pair, is_transposed, [0, 0], groups


def backward_of(
    arguments: tuple[Any, ...], *, of_input: bool = True, of_weight: bool = True
) -> tuple[Any, ...]:
    """The arguments of its backward, for all gradients but a bias's."""
    values, weight, _, *rest = arguments
    gradient = aten.convolution.default(*arguments)
    return gradient, values, weight, None, *rest, [of_input, of_weight, False]


def attended(query: Any, key: Any) -> tuple[Any, ...]:
    return query, key, key, None, 0.0, False, None


def attended_backward(query: Any, key: Any) -> tuple[Any, ...]:
    made, log_sum = ours.attention.default(*attended(query, key))
    return made, query, key, key, made, log_sum, None, 0.0, False, None


STRIDED = convolved(empty(2, 3, 8, 8), empty(8, 3, 3, 3), stride=2, padding=1)
GROUPED = convolved(empty(2, 8, 4, 4), empty(8, 2, 3, 3), padding=1, groups=4)
TRANSPOSED = convolved(empty(2, 4, 4, 4), empty(4, 6, 2, 2), stride=2, is_transposed=True)
HEADS = empty(2, 4, 6, 8), empty(2, 4, 10, 8)
FEWER_KEYS = empty(2, 4, 6, 8), empty(2, 2, 10, 8)
"""Two heads of keys serve four of queries."""
CASES: dict[str, tuple[Any, tuple[Any, ...], tuple[float, ...], int]] = {
    # rows, columns, depth, count, alignment; products of that size
    "mm": (aten.mm.default, (empty(6, 8), empty(8, 4)), (6, 4, 8, 1, 16), 1),
    "addmm": (
        aten.addmm.default, (empty(4), empty(6, 8), empty(8, 4)), (6, 4, 8, 1, 16), 1
    ),
    "bmm": (aten.bmm.default, (empty(3, 6, 8), empty(3, 8, 4)), (6, 4, 8, 3, 16), 1),
    # 12 rows, 24 columns or 24 terms are cut into 3 groups.
    "rows in groups": (
        aten._grouped_mm.default,
        (empty(12, 8, dtype=BF16), empty(3, 8, 16, dtype=BF16), offsets(3)),
        (4, 16, 8, 3, 16), 1,
    ),
    "columns in groups": (
        aten._grouped_mm.default,
        (empty(3, 8, 16, dtype=BF16), empty(24, 16, dtype=BF16).t(), offsets(3)),
        (8, 8, 16, 3, 16), 1,
    ),
    "terms in groups": (
        aten._grouped_mm.default,
        (empty(24, 8, dtype=BF16).t(), empty(24, 16, dtype=BF16), offsets(3)),
        (8, 16, 8, 3, 16), 1,
    ),
    # 2 images of 4 x 4 points; sums over 3 x 3 x 3; three channels of four bytes share only 4.
    "convolution": (aten.convolution.default, STRIDED, (32, 8, 27, 1, 4), 1),
    "its backward": (
        aten.convolution_backward.default, backward_of(STRIDED), (32, 8, 27, 1, 4), 2
    ),
    "its input's gradient": (
        aten.convolution_backward.default,
        backward_of(STRIDED, of_weight=False),
        (32, 8, 27, 1, 4), 1,
    ),
    "its weight's gradient": (
        aten.convolution_backward.default,
        backward_of(STRIDED, of_input=False),
        (32, 8, 27, 1, 4), 1,
    ),
    # 4 groups of 2 channels in and out: sums over 2 x 3 x 3, 8 bytes side by side.
    "groups": (aten.convolution.default, GROUPED, (32, 2, 18, 4, 8), 1),
    # No product of channels of different groups.
    "groups backward": (
        aten.convolution_backward.default, backward_of(GROUPED), (32, 2, 18, 4, 8), 2
    ),
    "groups' weights": (
        aten.convolution_backward.default,
        backward_of(GROUPED, of_input=False),
        (32, 2, 18, 4, 8), 1,
    ),
    # A point of the input (2 x 4 x 4) meets 6 x 2 x 2 weights of each of 4 channels.
    "transposed": (aten.convolution.default, TRANSPOSED, (32, 4, 24, 1, 8), 1),
    "attention": (ours.attention.default, attended(*HEADS), (6, 10, 8, 8, 16), 2),
    "fewer keys": (ours.attention.default, attended(*FEWER_KEYS), (6, 10, 8, 8, 16), 2),
    "attention backward": (
        ours.attention_backward.default, attended_backward(*FEWER_KEYS), (6, 10, 8, 8, 16), 5
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CASES))
def test_sizes_are_those_by_hand_and_multiply_to_the_flops(name: str) -> None:
    target, args, sizes, products = CASES[name]
    made = target(*args)
    found = find_product(target, args, made)
    assert found == Product(*sizes)
    rows, columns, depth, count, _ = sizes
    assert count_flops(target, args, {}, made) == 2 * rows * columns * depth * count * products


@pytest.mark.parametrize(
    ("left", "right", "alignment"),
    [
        (empty(64, 768, dtype=BF16), empty(768, 50_257, dtype=BF16), 2),  # odd rows, 2 bytes each
        (empty(64, 768, dtype=BF16), empty(768, 50_256, dtype=BF16), 16),
        (empty(64, 768, dtype=BF16), empty(50_257, 768, dtype=BF16).t(), 2),  # of the result
        (empty(64, 50_257, dtype=BF16), empty(50_257, 768, dtype=BF16), 2),
        (empty(64, 50_258), empty(50_258, 768), 8),
        (empty(64, 12)[:, :8], empty(8, 16), 16),  # a slice steps by 48 bytes
        (empty(64, 9)[:, :8], empty(8, 16), 4),  # ... by 36
        (empty(1, 9), empty(9, 16), 16),  # one row starts where it starts
    ],
)
def test_alignment_is_what_divides_every_rows_start(
    left: Any, right: Any, alignment: float
) -> None:
    made = aten.mm.default(left, right)
    assert find_product(aten.mm.default, (left, right), made).alignment == alignment


@pytest.mark.parametrize(
    ("side", "window", "stride", "alignment"),
    [
        (8, 1, 1, 16),  # planes of 64 x 2 bytes
        (7, 1, 1, 8),  # planes of 49 x 2 bytes end between multiples of 16
        (7, 1, 2, 16),  # images are copied anyway, and 16 channels lie side by side
        (7, 3, 1, 16),
    ],
)
def test_images_taken_as_they_lie_are_aligned_by_their_planes(
    side: int, window: int, stride: int, alignment: float
) -> None:
    values = empty(2, 16, side, side, dtype=BF16)
    weight = empty(32, 16, window, window, dtype=BF16)
    args = convolved(values, weight, stride=stride)
    found = find_product(aten.convolution.default, args, aten.convolution.default(*args))
    assert found.alignment == alignment


@pytest.mark.parametrize(
    ("shape", "dims", "sizes"),
    [
        ((128, 32), [0], (1, 32, 128)),
        ((128, 32), [1], (128, 1, 1)),
        ((128, 32), [-1], (128, 1, 1)),
        ((128, 32), [], (1, 1, 1)),
        ((2, 8, 4, 4), [0, 2, 3], (8, 1, 1)),
        ((4, 6, 8), [0, 1], (1, 8, 24)),
        ((4, 6, 8), [1], (4, 8, 6)),
    ],
)
def test_a_sum_of_rows_has_its_terms_as_depth(
    shape: tuple[int, ...], dims: list[int], sizes: tuple[float, float, float]
) -> None:
    values = empty(*shape)
    args = (values, dims) if dims else (values,)
    for target in (aten.sum, aten.mean):
        call = target.dim_IntList if target is aten.sum else target.dim
        call = call if dims else target.default
        assert find_product(call, args, None) == Product(*sizes, 1, 0)


def test_batch_norm_sums_each_channel_over_samples_and_points() -> None:
    values = empty(4, 8, 5, 5)
    forward = find_product(aten.native_batch_norm.default, (values,), None)
    backward = find_product(aten.native_batch_norm_backward.default, (values, values), None)
    assert forward == backward == Product(8, 1, 4 * 5 * 5, 1, 0)


def test_interpolation_backward_waits_for_the_gradients_of_the_same_point() -> None:
    # 128 gradients, four to each of 32 results: each of them waits for four.
    gradient, made = empty(1, 2, 8, 8), empty(1, 2, 4, 4)
    for target in (aten.upsample_bilinear2d_backward, aten.upsample_bicubic2d_backward):
        assert find_product(target.default, (gradient,), made) == Product(32, 1, 128 * 4, 1, 0)


def test_other_ops_have_no_product() -> None:
    values = empty(4, 4)
    assert find_product(aten.relu.default, (values,), values) is NONE
    assert find_product(len, (values,), 4) is NONE
