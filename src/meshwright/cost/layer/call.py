"""What members of a team say to each other for one layer and microbatch.

Tensor: the results of row products are added up in forward, the gradients of what column products
read in backward, beside the product that makes the weight's (Shoeybi et al. 2019, "Megatron-LM",
figure 3; NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py); where rows are divided as
well, an all-gather before and a reduce-scatter after take their place, and what was gathered is
gathered again in backward, beside a product (Korthikanti et al. 2022, section 4.2.2). Context: keys
and values are gathered, their gradients scattered; or both travel around a ring, beside the blocks
of attention. Expert: tokens go to experts and back.
"""

from dataclasses import dataclass

from meshwright.cost.collective import Collective
from meshwright.cost.layer.mode import Keys, Recompute
from meshwright.cost.layer.result import Axis, TeamCall
from meshwright.cost.layer.team import Team
from meshwright.graph.graph import Ints
from meshwright.graph.stack.loss import share_of_rows
from meshwright.graph.stack.stack import LayerKind

_LOSS_REDUCTIONS = 3
"""Of a loss over divided columns: the maximum, the sum of exponentials, the target's logit."""
_LOSS_BYTES = 4.0
"""Each a row, in fp32."""

_Line = tuple[float, float]
"""Bytes that do not grow with the rows, and that do, at the batch of the layer's graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """What a layer's members exchange, before a team divides it."""

    reduced: tuple[_Line, ...]
    spread: tuple[_Line, ...]
    dispatched: tuple[_Line, ...]
    key_bytes: float
    loss_bytes: float
    """Zero: there is no loss whose columns are divided."""
    has_backward: bool = True
    """Whether there are gradients to exchange; inference has none."""


def find_messages(kind: LayerKind) -> Messages:
    """The tensors of a layer that teams exchange."""
    return Messages(
        reduced=_lines(kind, kind.reduced),
        spread=_lines(kind, kind.spread),
        dispatched=_lines(kind, kind.dispatched),
        key_bytes=kind.key_bytes,
        loss_bytes=loss_bytes(kind) if kind.is_loss else 0.0,
        has_backward=not kind.graph.is_inference,
    )


def loss_bytes(kind: LayerKind) -> float:
    """One number a row, of which a team adds up several for a loss over divided columns."""
    return _LOSS_BYTES * kind.tokens * kind.graph.batch * share_of_rows(kind)


def _lines(kind: LayerKind, tensors: Ints) -> tuple[_Line, ...]:
    whole, fixed = kind.graph.tensor_bytes[tensors], kind.graph.fixed_tensor_bytes[tensors]
    return tuple(zip(fixed.tolist(), (whole - fixed).tolist(), strict=True))


class _Tally(dict[tuple[Collective, Axis, float, tuple[float, float]], list[int]]):
    """How many calls of a size there are in forward, in backward, and beside products, by what
    runs beside each."""

    def __init__(self, has_backward: bool) -> None:
        super().__init__()
        self._has_backward = has_backward

    def add(
        self,
        collective: Collective,
        axis: Axis,
        size: float,
        forward: int,
        backward: int,
        overlapped: int = 0,
        beside: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        counts = self.setdefault((collective, axis, size, beside), [0, 0, 0])
        counts[0] += forward
        if self._has_backward:
            counts[1] += backward
            counts[2] += overlapped

    def calls(self) -> tuple[TeamCall, ...]:
        return tuple(
            TeamCall(
                collective=collective,
                axis=axis,
                message_bytes=size,
                forward=forward,
                backward=backward,
                overlapped=overlapped,
                beside_seconds=beside[0],
                late_beside_seconds=beside[1],
            )
            for (collective, axis, size, beside), (forward, backward, overlapped) in self.items()
            if size > 0 and forward + backward + overlapped > 0
        )


def find_calls(
    messages: Messages,
    team: Team,
    growth: float,
    recompute: Recompute,
    attends_again: bool,
    attention: tuple[float, float] = (0.0, 0.0),
    weights: tuple[float, float] = (0.0, 0.0),
) -> tuple[TeamCall, ...]:
    """All calls of a layer; `growth` is samples over those of the layer's graph, `attention` the
    seconds of attention in forward and in backward, which hide what travels around a ring, and
    `weights` those of the weight gradients of column products, which hide the sums of what these
    read: of those that come after it in the layer's own order, and of all."""
    tally = _Tally(messages.has_backward)
    again = int(recompute is Recompute.FULL)
    if team.tensor > 1:
        beside = (
            weights[0] / max(1, len(messages.spread)),
            weights[1] / max(1, len(messages.spread)),
        )
        _add_tensor_calls(tally, messages, team.sequence, growth / team.context, again, beside)
    if team.context > 1 and messages.key_bytes:
        size = messages.key_bytes * growth / team.tensor
        repeats = again or int(recompute is Recompute.SELECTIVE and attends_again)
        if team.keys is Keys.RING:
            _add_ring_calls(tally, size, team.context, repeats, attention)
        else:
            tally.add(Collective.ALL_GATHER, "context", size, 1, 1 + repeats)
            tally.add(Collective.REDUCE_SCATTER, "context", size, 0, 1)
    if team.expert > 1:
        rows = growth / team.context / (team.tensor if team.sequence else 1)
        for fixed, growing in messages.dispatched:
            tally.add(Collective.ALL_TO_ALL, "expert", fixed + growing * rows, 1, 1 + again)
    return tally.calls()


def _add_ring_calls(
    tally: _Tally, size: float, width: int, repeats: int, attention: tuple[float, float]
) -> None:
    """Blocks of keys and values go to all other members, in backward with their gradients."""
    forward, backward = (seconds / width for seconds in attention)
    block, hops = size / width, width - 1
    tally.add(Collective.SHIFT, "context", block, hops, hops * repeats, beside=(forward, forward))
    tally.add(Collective.SHIFT, "context", block, 0, 2 * hops, beside=(backward / 2,) * 2)


def _add_tensor_calls(
    tally: _Tally,
    messages: Messages,
    sequence: bool,
    rows: float,
    again: int,
    beside: tuple[float, float],
) -> None:
    reduced = [fixed + growing * rows for fixed, growing in messages.reduced]
    spread = [fixed + growing * rows for fixed, growing in messages.spread]
    if not sequence:
        for size in reduced:
            tally.add(Collective.ALL_REDUCE, "tensor", size, 1, again)
        for size in spread:
            tally.add(Collective.ALL_REDUCE, "tensor", size, 0, 1, beside=beside)
    else:
        for size in reduced:
            tally.add(Collective.REDUCE_SCATTER, "tensor", size, 1, again)
            tally.add(Collective.ALL_GATHER, "tensor", size, 0, 1)
        for size in spread:
            tally.add(Collective.ALL_GATHER, "tensor", size, 1, again, 1)
            tally.add(Collective.REDUCE_SCATTER, "tensor", size, 0, 1, beside=beside)
    if messages.loss_bytes:
        count = _LOSS_REDUCTIONS
        loss = messages.loss_bytes * rows
        tally.add(Collective.ALL_REDUCE, "tensor", loss, count, count * again)
