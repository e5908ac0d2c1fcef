"""Random bits as a function of a key and a position, so that any part of them can be drawn alone.

Counter-based, as those of Salmon et al. ("Parallel random numbers: as easy as 1, 2, 3", SC 2011),
but cheaper, for dropout is bound by what its numbers cost: two rounds of Even and Mansour's cipher,
whose permutation of 32 bits is Wellons' lowbias32 (2018), found by a search for the least bias of
two multiplications. One function, written three times: in PyTorch's ops, of which a compiler makes
part of another kernel, and as kernels of a CPU and of a GPU for ops that are called one by one.
Tests hold them to be equal bit by bit.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from meshwright.execute.random.bits_cpu import fill_bits, fill_mask

_FACTORS = 0x7FEB352D, 0x846CA68B - (1 << 32)
"""The factors of the permutation, as signed numbers."""
_FLIP = 1 << 31


@dataclass(frozen=True, slots=True)
class BitSource:
    """Where bits come from: functions of keys of shape (samples, 2), which make tensors of shape
    (rows, samples, inner). Positions of a sample go through its row, then to the next."""

    bits: Callable[[Tensor, int, int], Tensor]
    """Signed numbers of 32 bits, of `rows` and `inner`."""
    mask: Callable[[Tensor, int, int, float], Tensor]
    """True with a probability, the last argument."""


def mix_bits(word: Tensor) -> Tensor:
    """A permutation of 32 bits, written in ops."""
    word = word ^ ((word >> 16) & 0xFFFF)
    word = word * _FACTORS[0]
    word = word ^ ((word >> 15) & 0x1FFFF)
    word = word * _FACTORS[1]
    return word ^ ((word >> 16) & 0xFFFF)


def _write_bits(keys: Tensor, rows: int, inner: int) -> Tensor:
    row = torch.arange(rows, dtype=torch.int32, device=keys.device).view(-1, 1, 1)
    place = torch.arange(inner, dtype=torch.int32, device=keys.device)
    first, second = keys[:, 0].view(1, -1, 1), keys[:, 1].view(1, -1, 1)
    return mix_bits(mix_bits((row * inner + place) ^ first) ^ second)


def _write_mask(keys: Tensor, rows: int, inner: int, share: float) -> Tensor:
    if is_sure(share):
        shape = rows, len(keys), inner
        return torch.ones(shape, dtype=torch.bool, device=keys.device)
    return _write_bits(keys, rows, inner) < limit(share)


def is_sure(share: float) -> bool:
    """Whether a probability is 1 in 32 bits."""
    return limit(share) == _FLIP


def limit(share: float) -> int:
    """Signed numbers of 32 bits below it are this share of all."""
    return round(share * (1 << 32)) - _FLIP


def _run_bits(keys: Tensor, rows: int, inner: int) -> Tensor:
    made = torch.empty((rows, len(keys), inner), dtype=torch.int32, device=keys.device)
    if keys.device.type == "cpu":
        fill_bits(keys.numpy(), made.numpy())
        return made
    run = _gpu_kernel() if keys.is_cuda else None
    return _write_bits(keys, rows, inner) if run is None else run(keys, made, None)


def _run_mask(keys: Tensor, rows: int, inner: int, share: float) -> Tensor:
    made = torch.empty((rows, len(keys), inner), dtype=torch.bool, device=keys.device)
    if is_sure(share):
        return made.fill_(True)
    if keys.device.type == "cpu":
        fill_mask(keys.numpy(), limit(share), made.numpy())
        return made
    run = _gpu_kernel() if keys.is_cuda else None
    return _write_mask(keys, rows, inner, share) if run is None else run(keys, made, limit(share))


@cache
def _gpu_kernel() -> Callable[[Tensor, Tensor, int | None], Tensor] | None:
    """What fills a tensor on a GPU; None where there is no Triton."""
    try:
        from meshwright.execute.random.bits_cuda import run_bits
    except ImportError:
        return None
    return run_bits


KERNELS = BitSource(_run_bits, _run_mask)
"""Draws by the kernels of the device."""
WRITTEN = BitSource(_write_bits, _write_mask)
"""Draws in ops that a compiler merges with others."""
