"""Cross entropy over a vocabulary that a tensor team divides: ops, and all-reduces between them.

A member takes the logarithm of the sum of exponentials over its own classes. Two all-reduces of a
number a row, a maximum and a sum, turn these into the logarithm of the sum over all classes, which
every op that reads the softmax is given; the scores themselves stay as they are. In backward the
gradient of a row is zero except at its target, so its sum over classes needs no communication. A
"word" is such a number a row that members exchange.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.execute.cut.loss import MEAN, NONE, sample_weights
from meshwright.execute.exchange import RankExchange
from meshwright.execute.shard import Share
from meshwright.execute.talk import Begun, nothing


def start_log_softmax(scores: Tensor, dim: int, to_float: bool) -> list[Tensor]:
    """The scores, and by row the logarithm of the sum of exponentials over the member's own
    classes."""
    made = scores.float() if to_float else scores.clone()
    return [made, made.float().logsumexp(dim, keepdim=True)]


def log_softmax_backward(
    gradient: Tensor, scores: Tensor, log_sum: Tensor, sums: Tensor, dim: int, dtype: torch.dtype
) -> Tensor:
    """A member's part of the gradient of the scores; `sums`: by row, the sum of the given gradient
    over all classes."""
    chances = (scores.float() - log_sum).exp()
    return (gradient.float() - chances * sums.unsqueeze(dim)).to(dtype)


@dataclass(frozen=True)
class NllLoss:
    """The loss from the log-probabilities of the targets, and the total weight of all rows.

    A member of a context team gets its term of the loss, from its own rows.
    """

    rows: Share
    """The rows of the targets that a member of a context team has."""
    __name__ = "nll_loss_forward"

    def __call__(
        self, picked: Tensor, targets: Tensor, weight: Tensor | None, reduction: int, ignored: int
    ) -> tuple[Tensor, Tensor]:
        """The loss, and the total weight."""
        counts = sample_weights(targets, weight, ignored, picked.dtype)
        terms, total = -picked * self.rows.of(counts), counts.sum()
        if reduction == NONE:
            return terms, total.new_zeros(())
        return (terms.sum() / total if reduction == MEAN else terms.sum()), total


@dataclass(frozen=True)
class NllLossBackward:
    """A member's part of the gradient, and by row its sum over all classes."""

    first: int
    """The number of the member's first class."""
    rows: Share
    """The rows of the targets that a member of a context team has."""
    __name__ = "nll_loss_backward"

    def __call__(
        self,
        gradient: Tensor,
        scores: Tensor,
        targets: Tensor,
        weight: Tensor | None,
        reduction: int,
        ignored: int,
        total: Tensor,
    ) -> list[Tensor]:
        """The part of the gradient, and its sums over classes."""
        target = self.rows.of(targets)
        counts = sample_weights(target, weight, ignored, torch.float32)
        each = -counts * (gradient / total if reduction == MEAN else gradient)
        own, is_own = _own_classes(scores, target, self.first)
        made = torch.zeros_like(scores)
        if scores.shape[-1]:
            kept = each.masked_fill(~is_own, 0).to(scores.dtype)
            made.scatter_(-1, own.unsqueeze(-1), kept.unsqueeze(-1))
        return [made, each.clone()]


def _own_classes(logs: Tensor, target: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """Targets counted from the member's first class, zero where they are not its own, and where
    they are."""
    own = target - first
    is_own = (own >= 0) & (own < logs.shape[-1])
    return own.where(is_own, 0), is_own


@dataclass(frozen=True)
class TeamMax:
    """An all-reduce by maximum: a member's own numbers, and beside them the greatest of all
    members'."""

    __name__ = "team_max"

    def __call__(self, own: Tensor) -> Tensor:
        """A tensor for the own numbers and for the greatest."""
        return torch.empty((2, *own.shape), dtype=own.dtype)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-reduce of the greatest numbers."""
        both = torch.stack([args[0], args[0]])
        return Begun(both, exchange.all_reduce(both[1].view(-1), group, is_max=True), nothing)


@dataclass(frozen=True)
class TeamLogSum:
    """The logarithm of the sum of exponentials over all members, from what `TeamMax` gives."""

    __name__ = "team_log_sum"

    def __call__(self, both: Tensor) -> Tensor:
        """A tensor of one number a row."""
        return torch.empty(both.shape[1:], dtype=both.dtype)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-reduce of the sums of exponentials."""
        own, top = args[0][0], args[0][1]
        made = (own - top).exp()
        work = exchange.all_reduce(made.view(-1), group)
        return Begun(made, work, lambda: made.copy_(made.log() + top))


@dataclass(frozen=True)
class PickTargets:
    """The all-reduce that gives every member the log-probability of each row's target, from the
    member that has its class."""

    first: int
    """The number of the member's first class."""
    ignored: int
    rows: Share
    """The rows of the targets that a member of a context team has."""
    __name__ = "pick_targets"

    def __call__(self, _scores: Tensor, targets: Tensor, _log_sum: Tensor) -> Tensor:
        """A tensor of one number a row."""
        return torch.empty(self.rows.of(targets).shape, dtype=torch.float32)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-reduce of the log-probabilities, zero for classes of other members."""
        scores, targets, log_sum = args
        target = self.rows.of(targets)
        own, is_own = _own_classes(scores, target, self.first)
        found = torch.zeros(target.shape, dtype=torch.float32, device=scores.device)
        if scores.shape[-1]:
            picked = scores.gather(-1, own.unsqueeze(-1)).float() - log_sum
            found = picked.squeeze(-1).masked_fill(~is_own | (target == self.ignored), 0)
        return Begun(found, exchange.all_reduce(found.view(-1), group), nothing)
