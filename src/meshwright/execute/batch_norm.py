"""Synchronised batch norm: ops over the samples of all replicas, and all-reduces between them.

The statistics of all replicas are the sum of one row of double-precision numbers of each: how many
values a channel has, then two sums for each channel; such a row is called a "word". All replicas
then normalise with the same mean and variance and update their running statistics in the same way.
Each has an equal part of the gradients of scale and shift, which are added up later as all
gradients are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.execute.exchange import RankExchange
from meshwright.execute.talk import Begun, nothing


def _others(x: Tensor) -> list[int]:
    """The dimensions of samples other than that of channels."""
    return [dim for dim in range(x.dim()) if dim != 1]


def _spread(row: Tensor, x: Tensor) -> Tensor:
    """One number a channel, in a shape that broadcasts over samples."""
    return row.to(_working(x)).view(-1, *(1,) * (x.dim() - 2))


def _working(x: Tensor) -> torch.dtype:
    """The type that samples are computed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _word(count: float, one: Tensor, other: Tensor) -> Tensor:
    return torch.cat([one.new_full((1,), count), one, other])


def _read(word: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    channels = len(word) // 2
    return word[0], word[1 : 1 + channels], word[1 + channels :]


@dataclass(frozen=True)
class Moments:
    """The all-reduce before a batch norm: count, sums and sums of squares of all replicas' samples,
    by channel."""

    __name__ = "moments"

    def __call__(self, x: Tensor) -> Tensor:
        """A tensor of the size of a row of statistics."""
        return torch.empty(2 * x.shape[1] + 1, dtype=torch.float64)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-reduce of the row of statistics."""
        x = args[0]
        variance, mean = torch.var_mean(x.to(_working(x)), _others(x), correction=0)
        mean, variance = mean.double(), variance.double()
        count = x.numel() / x.shape[1]
        word = _word(count, count * mean, count * (variance + mean.square()))
        return Begun(word, exchange.all_reduce(word, group), nothing)


@dataclass(frozen=True)
class BackwardMoments:
    """The all-reduce before backward: count, sums of the gradient and of its product with centred
    samples, by channel."""

    __name__ = "backward_moments"

    def __call__(self, _gradient: Tensor, x: Tensor, _mean: Tensor) -> Tensor:
        """A tensor of the size of a row of statistics."""
        return torch.empty(2 * x.shape[1] + 1, dtype=torch.float64)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-reduce of the row of statistics."""
        gradient, x, mean = args
        given, dims = gradient.to(_working(x)), _others(x)
        product = given * (x.to(_working(x)) - _spread(mean, x))
        word = _word(x.numel() / x.shape[1], given.sum(dims).double(), product.sum(dims).double())
        return Begun(word, exchange.all_reduce(word, group), nothing)


def batch_norm(
    x: Tensor,
    word: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_variance: Tensor | None,
    momentum: float,
    epsilon: float,
) -> list[Tensor]:
    """Normalised samples, and the mean and inverse deviation that backward needs."""
    count, total, squares = _read(word)
    mean = total / count
    variance = (squares / count - mean.square()).clamp_min(0)
    if running_mean is not None and running_variance is not None:
        unbiased = variance * (count / (count - 1))
        for running, now in ((running_mean, mean), (running_variance, unbiased)):
            running.mul_(1 - momentum).add_((momentum * now).to(running.dtype))
    inverse = (variance + epsilon).rsqrt()
    kind = _working(x)
    made: Tensor = torch.native_batch_norm(
        x, weight, bias, mean.to(kind), variance.to(kind), False, 0.0, epsilon
    )[0]
    return [made, mean.to(kind), inverse.to(kind)]


def stored_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_variance: Tensor,
    epsilon: float,
) -> Tensor:
    """Samples normalised with the running statistics, as in evaluation."""
    made: Tensor = torch.native_batch_norm(
        x, weight, bias, running_mean, running_variance, False, 0.0, epsilon
    )[0]
    return made


def batch_norm_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor | None,
    mean: Tensor,
    inverse: Tensor,
    word: Tensor,
    replicas: int,
    wanted: Sequence[bool],
) -> list[Tensor | None]:
    """The gradient of samples, and a replica's part of those of scale and shift."""
    count, total, product = _read(word)
    double = inverse.double()
    scale = double if weight is None else double * weight.double()
    found: list[Tensor | None] = [None, None, None]
    if wanted[0]:
        centred = x.to(_working(x)) - _spread(mean, x)
        rest = gradient.to(_working(x)) - _spread(total / count, x)
        rest = rest - centred * _spread(product * double.square() / count, x)
        found[0] = (rest * _spread(scale, x)).to(gradient.dtype)
    kind = inverse.dtype if weight is None else weight.dtype
    if wanted[1]:
        found[1] = (product * double / replicas).to(kind)
    if wanted[2]:
        found[2] = (total / replicas).to(kind)
    return found
