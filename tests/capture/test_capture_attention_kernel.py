"""Fused attention of every device at hand is what the formula gives, forward and backward."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from meshwright.capture.attention import (  # noqa: E402
    attend_dropping,
    attend_dropping_backward,
    attention,
    attention_backward,
)
from meshwright.capture.attention_kernel import Attended, find_kernel  # noqa: E402

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ),
]
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "grouped": {"is_causal": True, "groups": 2},
    "chosen": {"mask": "chosen"},
    "added": {"mask": "added"},
    "one mask": {"mask": "one"},
    "scaled": {"scale": 0.3},
    "other length": {"keys": 24},
    "odd length": {"length": 19, "mask": "added"},
    "short heads": {"width": 12},
}


def close(one: object, other: object, precision: str) -> None:
    tolerance = {"float32": 2e-5, "bfloat16": 3e-2}[precision]
    torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance, check_stride=False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("device", DEVICES)
def test_kernels_are_the_formula(device: str, name: str, precision: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    length, width = int(case.get("length", 32)), int(case.get("width", 16))
    keys, heads = int(case.get("keys", length)), 4
    dtype = getattr(torch, precision)
    # Heads split off rows of features, as models do.
    query, key, value = (
        torch.randn(2, tokens, count, width, device=device, dtype=dtype).transpose(1, 2)
        for tokens, count in (
            (length, heads),
            *[(keys, heads // int(case.get("groups", 1)))] * 2,
        )
    )
    mask = {
        None: None,
        "chosen": torch.rand(2, 1, length, keys, device=device) > 0.3,
        "added": torch.randn(2, heads, length, keys, device=device, dtype=dtype),
        "one": torch.rand(length, keys, device=device) > 0.3,
    }[case.get("mask")]
    if mask is not None and mask.dtype is torch.bool:
        mask[..., 0] = True  # every row sees something
    is_causal, scale = bool(case.get("is_causal")), case.get("scale")
    if "groups" not in case and (device == "cpu" or name != "short heads"):
        assert find_kernel(Attended(query, key, value, mask, is_causal, scale)) is not None

    made, sums = attention(query, key, value, mask, 0.0, is_causal, scale)
    bias = mask if mask is None or mask.dtype is torch.bool else mask.float()
    wide = Attended(query.float(), key.float(), value.float(), bias, is_causal, scale)
    wanted, wanted_sums = attend_dropping(wide, None)
    close(made, wanted.to(dtype), precision)
    close(sums, wanted_sums, precision)
    assert made.stride() == query.stride()
    assert sums.is_contiguous()

    gradient = torch.randn_like(made)
    found = attention_backward(gradient, query, key, value, made, sums, mask, 0.0, is_causal, scale)
    expected = attend_dropping_backward(wide, gradient.float(), wanted, wanted_sums, None)
    for one, other, given in zip(found, expected, (query, key, value), strict=True):
        close(one, other.to(dtype), precision)
        assert one.stride() == given.stride()
        assert one.untyped_storage().nbytes() == one.nbytes
