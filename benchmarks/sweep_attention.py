"""Attention of random sizes for `sweep.py`: what is drawn, and the calls that are timed."""

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""tf32 is fp32 with the switch on."""
SEQUENCES = (49, 64, 77, 128, 197, 256, 512, 577, 1024, 2048, 4096, 8192)
FLOPS = {"bf16": 3e12, "fp32": 2e11}
STORED_SCORES = 1e9
"""The most scores of a case whose kernel may store them, several times."""


class Attention(NamedTuple):
    """The sizes of one call of attention, and how keys are masked."""

    precision: str
    dropout: float
    batch: int
    heads: int
    groups: int
    """Heads of keys and values."""
    queries: int
    keys: int
    size: int
    """Numbers in a query."""
    how: str
    """`none`, `causal`, `mask` (true or false for each sample), `full` (a term of each score that
    samples share) or `learnt` (such a term for each head, with a gradient)."""
    is_joined: bool
    """Whether the heads of a token are side by side, as most models lay them out."""


class Calls(NamedTuple):
    """What is timed of a case."""

    forward: Callable[[], Tensor]
    backward: Callable[[], object]
    choice: int
    """The kernel that torch chooses, by its number."""


def draw_size(random: Random, low: int, high: int, multiple: int) -> int:
    """Draw evenly on a logarithmic scale, then round down to a multiple."""
    value = int(2 ** random.uniform(math.log2(low), math.log2(high)))
    return max(multiple, value // multiple * multiple)


def draw_attention(
    random: Random, precision: str, dropout: float, *, is_plain: bool
) -> Attention | None:
    """Draw a case; None where it would be too small or too large. The order of draws is the seed's.

    Where it is not plain it may have fewer heads of keys, or a learnt mask.
    """
    batch = draw_size(random, 1, 128, 1)
    heads, queries = random.choice([4, 8, 12, 16, 20, 25, 32]), random.choice(SEQUENCES)
    size = random.choice([32, 64, 64, 64, 80, 96, 128, 128])
    keys = queries if random.random() < 0.85 else random.choice([64, 128, 512, 1024])
    if not 1e8 <= 4.0 * batch * heads * queries * keys * size <= FLOPS[precision]:
        return None
    how, groups = random.choice(["none", "none", "causal", "mask", "full"]), heads
    if not is_plain:
        how = random.choice(["none", "causal", "causal", "learnt", "learnt", "mask"])
        if how in ("none", "causal"):
            groups = heads // random.choice([each for each in (2, 4, 5, 8) if not heads % each])
    if how == "causal" and keys != queries:
        return None
    is_joined = random.random() < 0.7
    is_stored = how == "learnt" or groups < heads
    if is_stored and batch * heads * queries * keys > STORED_SCORES:
        return None
    sizes = (batch, heads, groups, queries, keys, size)
    return Attention(precision, dropout, *sizes, how, is_joined)


def make_calls(case: Attention, normal: Callable[..., Tensor]) -> Calls | None:
    """The calls of a case; None where torch has no kernel for it, or no memory."""
    dtype = DTYPES[case.precision]
    shapes = ((case.queries, case.heads), (case.keys, case.groups), (case.keys, case.groups))
    q, k, v = (
        (
            normal(case.batch, length, many, case.size, dtype=dtype).transpose(1, 2)
            if case.is_joined
            else normal(case.batch, many, length, case.size, dtype=dtype)
        ).requires_grad_()
        for length, many in shapes
    )
    mask = _make_mask(case, q)
    options = (mask, case.dropout, case.how == "causal")
    is_grouped = case.groups < case.heads
    forward = partial(F.scaled_dot_product_attention, q, k, v, *options, enable_gqa=is_grouped)
    try:
        made = forward()
    except RuntimeError:
        return None
    choice = torch._fused_sdp_choice(q, k, v, *options, enable_gqa=is_grouped)
    inputs = (q, k, v, mask) if case.how == "learnt" else (q, k, v)
    gradient = torch.randn_like(made)
    backward = partial(torch.autograd.grad, made, inputs, gradient, retain_graph=True)
    return Calls(forward, backward, choice)


def _make_mask(case: Attention, like: Tensor) -> Tensor | None:
    """All true for every sample, or zeros that are added to scores."""
    scores, device = (case.queries, case.keys), like.device
    if case.how == "learnt":
        zeros = torch.zeros(1, case.heads, *scores, dtype=like.dtype, device=device)
        return zeros.requires_grad_()
    if case.how == "mask":
        return torch.ones(case.batch, 1, *scores, dtype=torch.bool, device=device)
    if case.how == "full":
        return torch.zeros(1, 1, *scores, dtype=like.dtype, device=device)
    return None
