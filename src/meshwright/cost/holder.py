"""What devices that hold the same parameters do together: add up gradients, and what ZeRO moves.

Once a step gradients are reduced or scattered and parameters gathered (ZeRO 0 to 2). In every
microbatch ZeRO 3 gathers layers ahead of the one that computes, and ZeRO 2 and 3 scatter gradients
behind it: `find_shards` says which, for programs; `shown_seconds` estimates what does not hide.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cost.collective import Collective
from meshwright.cost.group_price import GroupPrices, Groups
from meshwright.cost.layer.result import LayerCost
from meshwright.cost.runtime import Runtime

MAX_PIECES = 8
"""Into so many runs of layers forward and backward are cut at the most where ZeRO moves something
beside them: simulations of a thousand devices stay quick."""


_PREFIXES = {"dense": "", "experts": "expert_"}
"""By axis of those that hold the same: what the sizes of a layer begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Synchronisation:
    """What replicas do together once a step: all groups at once, in `num_buckets` equal pieces."""

    collective: str
    """As `Collective` spells it: all_reduce, or reduce_scatter under ZeRO."""
    groups: Groups
    """Device numbers; groups that run at the same time and share links."""
    message_bytes: float
    """Of each group, in all."""
    seconds: float
    """Alone on the network, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pieces:
    """What all groups move for each piece of a pass over the layers."""

    groups: Groups
    message_bytes: tuple[float, ...]
    """The bytes that each group moves for each piece, piece by piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTraffic:
    """What ZeRO 2 and 3 move in every microbatch, by pieces of forward and backward.

    A piece is a run of layers. Before it starts, the weights of its first layer have come; those of
    its others come while it computes, with the next piece's first; gradients are the mirror of it.
    The first and the last piece are one layer each, so that equal layers take as long as one by
    one: what shows is one layer's, be compute the longer or what is moved.
    """

    forward_shares: tuple[float, ...]
    """The part of forward's time that each piece takes; one: it is not cut."""
    backward_shares: tuple[float, ...]
    forward_gathers: tuple[Pieces, ...]
    """Weights that must have come before each piece of forward starts; empty under ZeRO 2."""
    backward_gathers: tuple[Pieces, ...]
    scatters: tuple[Pieces, ...]
    """Gradients that set off when each piece of backward ends."""
    forward_seconds: float
    """What of forward is the estimate of what does not hide; a program finds its own."""
    backward_seconds: float
    forward_slowdown_seconds: float
    """What forward takes longer because something travels beside it."""
    backward_slowdown_seconds: float


def held(axes: Mapping[str, Groups], layer: LayerCost) -> tuple[tuple[Groups, float, float], ...]:
    """Who holds the same: groups, parameter and gradient bytes; dense ones, then experts."""
    return (
        (axes["dense"], layer.parameter_bytes, layer.gradient_bytes),
        (axes["experts"], layer.expert_parameter_bytes, layer.expert_gradient_bytes),
    )


def once(
    network: GroupPrices,
    axes: Mapping[str, Groups],
    collective: Collective,
    what: str,
    layers: Sequence[LayerCost],
) -> tuple[Synchronisation, ...]:
    """A collective of what dense layers have and one of what experts have, once a step, where there
    is any: parameters, or gradients."""
    messages = [
        (axes[axis], float(sum(getattr(layer, f"{prefix}{what}_bytes") for layer in layers)))
        for axis, prefix in _PREFIXES.items()
    ]
    return tuple(
        Synchronisation(
            collective=str(collective),
            groups=groups,
            message_bytes=size,
            seconds=network.seconds(collective, groups, size),
        )
        for groups, size in messages
        if size > 0 and len(groups[0]) > 1
    )


def find_shards(
    network: GroupPrices,
    axes: Mapping[str, Groups],
    zero: int,
    layers: Sequence[LayerCost],
    compute: tuple[Floats, Floats],
    runtime: Runtime,
) -> ShardTraffic | None:
    """What ZeRO 2 or 3 moves for layers whose forward and backward take `compute` seconds each."""
    if zero < 2 or max(len(groups[0]) for groups, *_ in held(axes, layers[0])) == 1:
        return None
    gathered, scattered = _alone_seconds(network, axes, zero, layers)
    count = len(layers)
    order = LayerOrder(
        counts=np.ones((1, count)),
        pairs=np.eye(count, k=1)[None],
        first=np.zeros(1, np.int64),
        second=np.full(1, min(1, count - 1)),
        last=np.full(1, count - 1),
    )
    forward, backward = shown_seconds(gathered, scattered, compute, order, runtime)
    slowdown = runtime.overlap_slowdown
    back = layers[::-1]
    bounds = _cut(len(layers))
    # A piece waits for all layers up to its first one. When it ends, its last layer's gradients set
    # off, and behind them the next piece's all but its last: in time the mirror of gathers.
    before = [0, *(bound + 1 for bound in bounds[:-1])]
    behind = [*(bound - 1 for bound in bounds[1:]), count]
    return ShardTraffic(
        forward_shares=_shares(compute[0], bounds) if zero >= 3 else (1.0,),
        backward_shares=_shares(compute[1][::-1], bounds),
        forward_gathers=_moved(axes, layers, before, "parameter") if zero >= 3 else (),
        backward_gathers=_moved(axes, back, before, "parameter") if zero >= 3 else (),
        scatters=_moved(axes, back, behind, "gradient"),
        forward_seconds=float(forward[0]),
        backward_seconds=float(backward[0]),
        forward_slowdown_seconds=slowdown * float(np.minimum(gathered, compute[0]).sum()),
        backward_slowdown_seconds=slowdown
        * float(np.minimum(gathered + scattered, compute[1]).sum()),
    )


def _alone_seconds(
    network: GroupPrices, axes: Mapping[str, Groups], zero: int, layers: Sequence[LayerCost]
) -> tuple[Floats, Floats]:
    """By layer and microbatch: gathering its parameters (ZeRO 3), scattering its gradients."""
    found = np.zeros((2, len(layers)))
    for number, layer in enumerate(layers):
        for groups, parameters, gradients in held(axes, layer):
            if zero >= 3:
                found[0, number] += network.seconds(Collective.ALL_GATHER, groups, parameters)
            found[1, number] += network.seconds(Collective.REDUCE_SCATTER, groups, gradients)
    return found[0], found[1]


class LayerOrder(NamedTuple):
    """Which layers stages have, and in which order: kinds are numbers."""

    counts: Floats
    """By stage and kind."""
    pairs: Floats
    """By stage, kind, and kind of the layer after it: how many there are."""
    first: Longs
    """By stage, the kind of its first layer."""
    second: Longs
    """Of its second; of a stage of one layer the first again."""
    last: Longs


def shown_seconds(
    gathered: Floats,
    scattered: Floats,
    compute: tuple[Floats, Floats],
    order: LayerOrder,
    runtime: Runtime,
) -> tuple[Floats, Floats]:
    """An estimate of what forward and backward take longer for what ZeRO moves in a microbatch:
    what is beyond their compute, and what slows it.

    Arguments are seconds by kind of layer (last axis), results by stage. A layer's gather hides
    behind the layer before it, in backward behind the one after it, and beside a scatter it has
    half of the network; scatters hide behind all else, the first two layers of the next forward
    not excepted.
    """
    forward, backward = compute if runtime.gathered_ahead else (0 * each for each in compute)
    both = gathered[..., :, None] + np.minimum(gathered[..., :, None], scattered[..., None, :])
    ahead = np.maximum(0.0, gathered[..., None, :] - forward[..., :, None])
    behind = np.maximum(0.0, both - backward[..., None, :])
    again = np.maximum(0.0, gathered + np.minimum(gathered, scattered) - backward)
    turn = np.maximum(0.0, gathered - forward)
    left = np.maximum(0.0, scattered - forward - backward)[..., order.first]
    later = gathered[..., order.second] - forward[..., order.first]
    shared = later + np.minimum(gathered[..., order.second], left)
    first = np.tensordot(ahead, order.pairs, ((-2, -1), (1, 2))) + again[..., order.first]
    first = first + np.maximum(0.0, shared) - np.maximum(0.0, later)
    second = np.tensordot(behind, order.pairs, ((-2, -1), (1, 2))) + turn[..., order.last]
    moved = (2 * gathered + scattered - sum(compute)) @ order.counts.T
    slow = [np.minimum(gathered, compute[0]), np.minimum(gathered + scattered, compute[1])]
    slower = [runtime.overlap_slowdown * each @ order.counts.T for each in slow]
    return first + slower[0], np.maximum(second, moved - first) + slower[1]


def _cut(num_layers: int) -> list[int]:
    """Where pieces begin, and where the last ends: one layer, runs of even length, one layer."""
    if num_layers <= MAX_PIECES:
        return list(range(num_layers + 1))
    runs = MAX_PIECES - 2
    inner = (1 + number * (num_layers - 2) // runs for number in range(runs + 1))
    return [0, *inner, num_layers]


def _shares(seconds: Floats, bounds: Sequence[int]) -> tuple[float, ...]:
    """The part of all seconds that each piece takes."""
    each = seconds if seconds.sum() > 0 else np.ones(len(seconds))
    return tuple(float(each[low:high].sum() / each.sum()) for low, high in pairwise(bounds))


def _moved(
    axes: Mapping[str, Groups], layers: Sequence[LayerCost], bounds: Sequence[int], what: str
) -> tuple[Pieces, ...]:
    """By axis on which something moves: its bytes, piece by piece."""
    found = []
    for axis, prefix in _PREFIXES.items():
        sizes = [float(getattr(each, f"{prefix}{what}_bytes")) for each in layers]
        by_piece = tuple(sum(sizes[low:high]) for low, high in pairwise(bounds))
        if len(axes[axis][0]) > 1 and sum(by_piece) > 0:
            found.append(Pieces(groups=axes[axis], message_bytes=by_piece))
    return tuple(found)
