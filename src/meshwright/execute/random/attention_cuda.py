"""Attention with dropout on a GPU, without ever storing a score.

FlashAttention-2 (Dao, 2023), whose weights are dropped by the bits of their sample's key and their
position, as in `meshwright.execute.random.bits`: the same as its formula drops, whichever device
and tile they are in. PyTorch's own kernels draw from a generator, whose numbers depend on what was
drawn before.
"""

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from meshwright.execute.random.bits_cuda import mix

_LOG2E = 1.4426950408889634
_ROWS, _COLUMNS = 128, 64
"""The rows and columns of a tile of scores in forward."""
_SMALL_ROWS, _SMALL_COLUMNS = 64, 64
"""The rows and columns of a tile in backward, which holds several tiles at once."""


@triton.jit
def _load_keys(keys, sample):  # type: ignore[no-untyped-def]
    """Both halves of a sample's key."""
    first = tl.load(keys + 2 * sample).to(tl.uint32, bitcast=True)
    return first, tl.load(keys + 2 * sample + 1).to(tl.uint32, bitcast=True)


@triton.jit
def _load(base, number, step, place, count):  # type: ignore[no-untyped-def]
    """Rows of a head; of those that there are not, zeros."""
    return tl.load(base + number[:, None] * step + place[None, :], number[:, None] < count, 0.0)


@triton.jit
def _store(base, number, step, place, count, values):  # type: ignore[no-untyped-def]
    at = base + number[:, None] * step + place[None, :]
    tl.store(at, values.to(base.dtype.element_ty), number[:, None] < count)


@triton.jit
def _keep(first, second, row, column, head, rows, columns, below):  # type: ignore[no-untyped-def]
    """Which weights of a tile are not dropped."""
    position = ((head * rows + row[:, None]) * columns + column[None, :]).to(tl.uint32)
    return mix(mix(position ^ first) ^ second).to(tl.int32, bitcast=True) < below


@triton.jit  # type: ignore[untyped-decorator]
def _scores(q, k, row, column, columns, factor, is_causal: tl.constexpr, precision: tl.constexpr):  # type: ignore[no-untyped-def]
    """A tile of scores, to be an exponent of two; those of no key, or of a later one, are -inf."""
    made = tl.dot(q, tl.trans(k), input_precision=precision) * factor
    is_seen = column[None, :] < columns
    if is_causal:
        is_seen = is_seen & (column[None, :] <= row[:, None])
    return tl.where(is_seen, made, float("-inf"))


@triton.jit  # type: ignore[untyped-decorator]
def _forward(  # type: ignore[no-untyped-def]
    query, key, value, made, sums, keys,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, mb, mh, mt,
    heads, group, rows, columns, below, factor, kept,
    is_causal: tl.constexpr, precision: tl.constexpr,
    width: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    row = tl.program_id(0) * block_m + tl.arange(0, block_m)
    place = tl.arange(0, width)
    first, second = _load_keys(keys, sample)
    base = sample.to(tl.int64)
    q = _load(query + base * qb + head * qh, row, qt, place, rows)
    key += base * kb + (head // group) * kh
    value += base * vb + (head // group) * vh
    top = tl.full([block_m], float("-inf"), tl.float32)
    total = tl.zeros([block_m], tl.float32)
    found = tl.zeros([block_m, width], tl.float32)
    end = columns
    if is_causal:
        end = tl.minimum(columns, (tl.program_id(0) + 1) * block_m)
    for start in range(0, end, block_n):
        column = start + tl.arange(0, block_n)
        k = _load(key, column, kt, place, columns)
        v = _load(value, column, vt, place, columns)
        scores = _scores(q, k, row, column, columns, factor, is_causal, precision)
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrunk = tl.exp2(top - higher)
        total = total * shrunk + tl.sum(weights, 1)
        is_kept = _keep(first, second, row, column, head, rows, columns, below)
        weights = tl.where(is_kept, weights, 0.0).to(v.dtype)
        found = tl.dot(weights, v, found * shrunk[:, None], input_precision=precision)
        top = higher
    found = found * (kept / total)[:, None]
    _store(made + base * mb + head * mh, row, mt, place, rows, found)
    natural = (top + tl.log2(total)) * 0.6931471805599453
    tl.store(sums + tl.program_id(1).to(tl.int64) * rows + row, natural, row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _weights(  # type: ignore[no-untyped-def]
    q, k, v, d, sums, inner, row, column, head, first, second, rows, columns, below, factor, kept,
    is_causal: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Of a tile: the weights without those that are dropped, and the gradients of scores."""
    scores = _scores(q, k, row, column, columns, factor, is_causal, precision)
    weights = tl.exp2(scores - (sums * 1.4426950408889634)[:, None])
    weights = tl.where(row[:, None] < rows, weights, 0.0)
    is_kept = _keep(first, second, row, column, head, rows, columns, below)
    gradient = tl.dot(d, tl.trans(v), input_precision=precision)
    gradient = tl.where(is_kept, gradient * kept, 0.0)
    return tl.where(is_kept, weights * kept, 0.0), weights * (gradient - inner[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def _backward_keys(  # type: ignore[no-untyped-def]
    query, key, value, gradient, sums, inners, dkey, dvalue, keys,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, dkb, dkh, dkt, dvb, dvh, dvt,
    heads, group, rows, columns, below, factor, kept, scale,
    is_causal: tl.constexpr, precision: tl.constexpr,
    width: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    few = heads // group
    sample, few_head = tl.program_id(1) // few, tl.program_id(1) % few
    column = tl.program_id(0) * block_n + tl.arange(0, block_n)
    place = tl.arange(0, width)
    first, second = _load_keys(keys, sample)
    base = sample.to(tl.int64)
    k = _load(key + base * kb + few_head * kh, column, kt, place, columns)
    v = _load(value + base * vb + few_head * vh, column, vt, place, columns)
    dk = tl.zeros([block_n, width], tl.float32)
    dv = tl.zeros([block_n, width], tl.float32)
    begin = 0
    if is_causal:
        begin = (tl.program_id(0) * block_n) // block_m * block_m
    for number in range(group):
        head = few_head * group + number
        line = (base * heads + head) * rows
        for start in range(begin, rows, block_m):
            row = start + tl.arange(0, block_m)
            q = _load(query + base * qb + head * qh, row, qt, place, rows)
            d = _load(gradient + base * gb + head * gh, row, gt, place, rows)
            own = tl.load(sums + line + row, mask=row < rows, other=0.0)
            inner = tl.load(inners + line + row, mask=row < rows, other=0.0)
            weights, score = _weights(
                q, k, v, d, own, inner, row, column, head, first, second, rows, columns, below,
                factor, kept, is_causal, precision,
            )  # fmt: skip
            dv = tl.dot(tl.trans(weights.to(d.dtype)), d, dv, input_precision=precision)
            dk = tl.dot(tl.trans(score.to(q.dtype)), q, dk, input_precision=precision)
    _store(dkey + base * dkb + few_head * dkh, column, dkt, place, columns, dk * scale)
    _store(dvalue + base * dvb + few_head * dvh, column, dvt, place, columns, dv)


@triton.jit  # type: ignore[untyped-decorator]
def _backward_query(  # type: ignore[no-untyped-def]
    query, key, value, gradient, sums, inners, dquery, keys,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, gb, gh, gt, dqb, dqh, dqt,
    heads, group, rows, columns, below, factor, kept, scale,
    is_causal: tl.constexpr, precision: tl.constexpr,
    width: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    sample, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    row = tl.program_id(0) * block_m + tl.arange(0, block_m)
    place = tl.arange(0, width)
    first, second = _load_keys(keys, sample)
    base = sample.to(tl.int64)
    line = (base * heads + head) * rows
    q = _load(query + base * qb + head * qh, row, qt, place, rows)
    d = _load(gradient + base * gb + head * gh, row, gt, place, rows)
    own = tl.load(sums + line + row, mask=row < rows, other=0.0)
    inner = tl.load(inners + line + row, mask=row < rows, other=0.0)
    key += base * kb + (head // group) * kh
    value += base * vb + (head // group) * vh
    dq = tl.zeros([block_m, width], tl.float32)
    end = columns
    if is_causal:
        end = tl.minimum(columns, (tl.program_id(0) + 1) * block_m)
    for start in range(0, end, block_n):
        column = start + tl.arange(0, block_n)
        k = _load(key, column, kt, place, columns)
        v = _load(value, column, vt, place, columns)
        _, score = _weights(
            q, k, v, d, own, inner, row, column, head, first, second, rows, columns, below, factor,
            kept, is_causal, precision,
        )  # fmt: skip
        dq = tl.dot(score.to(k.dtype), k, dq, input_precision=precision)
    _store(dquery + base * dqb + head * dqh, row, dqt, place, rows, dq * scale)


def run_forward(
    keys: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    made: Tensor,
    below: int,
    is_causal: bool,
    scale: float,
    kept: float,
) -> Tensor:
    """Fill `made` with what attention makes; the logarithms of its sums."""
    batch, heads, rows, width = query.shape
    sums = torch.empty((batch, heads, rows), dtype=torch.float32, device=query.device)
    grid = triton.cdiv(rows, _ROWS), batch * heads
    _forward[grid](
        query, key, value, made, sums, keys,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *made.stride()[:3],
        heads, heads // key.shape[1], rows, key.shape[2], below, scale * _LOG2E, kept,
        is_causal=is_causal, precision=_precision(query), width=width,
        block_m=_ROWS, block_n=_COLUMNS, num_warps=4 if width <= 64 else 8, num_stages=3,
    )  # fmt: skip
    return sums


def run_backward(
    keys: Tensor,
    given: tuple[Tensor, Tensor, Tensor, Tensor],
    made: Tensor,
    sums: Tensor,
    found: tuple[Tensor, Tensor, Tensor],
    below: int,
    is_causal: bool,
    scale: float,
    kept: float,
) -> None:
    """Fill `found` with the gradients of query, key and value; `given`: these and the gradient of
    what was made."""
    query, key, value, gradient = given
    dquery, dkey, dvalue = found
    batch, heads, rows, width = query.shape
    few, columns = key.shape[1:3]
    inner = (gradient * made).sum(-1, dtype=torch.float32).contiguous()
    sizes = heads, heads // few, rows, columns, below, scale * _LOG2E, kept, scale
    options = {
        "is_causal": is_causal, "precision": _precision(query), "width": width,
        "block_m": _SMALL_ROWS, "block_n": _SMALL_COLUMNS,
        "num_warps": 4 if width <= 64 else 8, "num_stages": 2,
    }  # fmt: skip
    strides = [each for tensor in given for each in tensor.stride()[:3]]
    _backward_keys[triton.cdiv(columns, _SMALL_COLUMNS), batch * few](
        query, key, value, gradient, sums, inner, dkey, dvalue, keys,
        *strides, *dkey.stride()[:3], *dvalue.stride()[:3], *sizes, **options,
    )  # fmt: skip
    _backward_query[triton.cdiv(rows, _SMALL_ROWS), batch * heads](
        query, key, value, gradient, sums, inner, dquery, keys,
        *strides, *dquery.stride()[:3], *sizes, **options,
    )  # fmt: skip


def _precision(query: Tensor) -> str:
    """Products of 32 bits are exact unless PyTorch's own may be rounded, too."""
    return "tf32" if torch.backends.cuda.matmul.allow_tf32 and query.is_cuda else "ieee"
