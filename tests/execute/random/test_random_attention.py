"""Attention with dropout in one kernel is what its formula makes with the same numbers."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from meshwright.capture.attention import (  # noqa: E402
    Kept,
    attend_dropping,
    attend_dropping_backward,
)
from meshwright.capture.attention_kernel import Attended  # noqa: E402
from meshwright.execute.draw import Drawing, SampleDim  # noqa: E402
from meshwright.execute.random.attention import (  # noqa: E402
    fused_attention,
    fused_attention_backward,
    may_fuse,
)
from meshwright.execute.random.bits import KERNELS, limit  # noqa: E402
from meshwright.execute.random.keys import sample_keys  # noqa: E402

SHAPES = [
    (2, 2, 2, 70, 70, 16, True),
    (1, 4, 2, 33, 65, 16, False),
    (2, 2, 1, 130, 130, 32, True),
    (1, 1, 1, 1, 1, 16, True),
    (1, 2, 2, 64, 200, 64, False),
]
"""Samples, heads, those of keys, tokens of queries and of keys, width, and whether it is causal."""
DROPOUT = 0.2


def make_tensors(shape: Sequence[int], device: Any, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Query, key and value in the layouts that models give them, and a gradient."""
    samples, heads, few, rows, columns, width = shape
    torch.manual_seed(0)
    settings = {"device": device, "dtype": dtype}
    query = torch.randn(samples, rows, heads, width, **settings).transpose(1, 2)
    key = torch.randn(samples, few, columns, width, **settings)
    value = torch.randn(samples, columns, few, width, **settings).transpose(1, 2)
    return query, key, value, torch.randn(samples, heads, rows, width, **settings)


def check(shape: tuple[Any, ...], device: Any, dtype: Any, tolerance: float) -> None:
    samples, heads, _, rows, columns, _, is_causal = shape
    query, key, value, gradient = make_tensors(shape[:6], device, dtype)
    keys = sample_keys(0, 1, 2, samples).to(device)
    mask = KERNELS.mask(keys, 1, heads * rows * columns, 1 - DROPOUT)
    kept = Kept(mask.view(samples, heads, rows, columns), 1 / (1 - DROPOUT))
    given = Attended(query, key, value, None, is_causal)
    wanted, sums = attend_dropping(given, kept)
    settings = limit(1 - DROPOUT), kept.scale, is_causal, None
    made, own = fused_attention(keys, query, key, value, *settings)
    torch.testing.assert_close(made, wanted, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(own, sums, rtol=tolerance, atol=tolerance)
    assert made.stride() == wanted.stride()
    found = fused_attention_backward(keys, gradient, query, key, value, wanted, sums, *settings)
    more = attend_dropping_backward(given, gradient, wanted, sums, kept)
    for one, other in zip(found, more, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert one.stride() == other.stride()


@pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton and TRITON_INTERPRET=1"
)
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_make_what_the_formula_makes(shape: tuple[Any, ...]) -> None:
    check(shape, "cpu", torch.float32, 1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, (2, 8, 2, 1000, 1000, 128, True)])
def test_kernels_of_a_gpu_make_what_the_formula_makes(shape: tuple[Any, ...], dtype: Any) -> None:
    assert may_fuse(Attended(*make_tensors(shape[:6], "cuda", dtype)[:3], None))
    check(shape, "cuda", dtype, 0.03)


def test_only_whole_samples_on_a_gpu_are_fused() -> None:
    query, key, value, _ = make_tensors((2, 2, 2, 8, 8, 16), "cpu", torch.bfloat16)
    given = Attended(query, key, value, None)
    assert not may_fuse(given)
    for along, expected in ((SampleDim(0, 1, 1), True), (SampleDim(0, 2, 2), False), (None, False)):
        drawing = Drawing(along, (), lambda _: sample_keys(0, 0, 0, 2), KERNELS, None)
        assert not drawing.fuses(given)
        assert replace(drawing, is_fused=True).fuses(given) is expected


def test_fused_ops_are_traced_with_their_layouts() -> None:
    from torch._subclasses import FakeTensorMode

    query, key, value, gradient = make_tensors((2, 4, 2, 8, 8, 16), "cpu", torch.bfloat16)
    keys = sample_keys(0, 0, 0, 2)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(each) for each in (keys, query, key, value, gradient)]
        made, sums = fused_attention(*fakes[:4], 0, 2.0, True, None)
        found = fused_attention_backward(
            fakes[0], fakes[4], *fakes[1:4], made, sums, 0, 2.0, True, None
        )
    assert made.stride() == query.stride()
    assert (sums.shape, sums.dtype) == ((2, 4, 8), torch.float32)
    assert [each.stride() for each in found] == [each.stride() for each in (query, key, value)]
