"""Prices a layer on a team of devices: seconds, calls and bytes of one of them.

Knows no network: calls have sizes, and the stage that they are part of prices them. Everything
follows from frozen data and is remembered with the kind of layer; `prepare_prices` times many
teams in one go, which is a hundred times faster than one by one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import product
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.cluster.cluster import DeviceType
from meshwright.cost.compute import host_seconds
from meshwright.cost.layer.call import Messages, find_calls, find_messages
from meshwright.cost.layer.memory import HeldBytes, find_held, saved_and_workspace
from meshwright.cost.layer.mode import Recompute
from meshwright.cost.layer.recomputation import Recomputation, find_recomputation
from meshwright.cost.layer.result import LayerCost
from meshwright.cost.layer.seconds import layer_seconds
from meshwright.cost.layer.state import WeightBytes, divided, find_weights
from meshwright.cost.layer.team import Team
from meshwright.cost.layer.work import LayerWork, find_work
from meshwright.errors import InputError
from meshwright.graph.graph import Bools, Floats, Phase, Split
from meshwright.graph.stack.stack import LayerKind

_Request = tuple[int, Team, float]
"""A device type by identity, a team, samples."""


@dataclass(slots=True)
class _Known:
    """What was found out about a kind of layer."""

    work: LayerWork
    recomputation: Recomputation
    repeats: bool
    """Whether selective recomputation finds anything."""
    held: HeldBytes
    weights: WeightBytes
    messages: Messages
    output: tuple[float, float]
    """Bytes that it passes on at no samples, and for each sample; likewise below."""
    flops: tuple[float, float]
    counts: Floats
    """How many ops of each sort are of forward, of backward, weight gradients, updates, computed
    again, attention in forward and in backward, and weight gradients of column products: those that
    come late, and all."""
    host: tuple[float, float, float]
    """Launches of forward, backward, and what is computed again."""
    seconds: dict[_Request, tuple[DeviceType, Floats]] = field(default_factory=dict)
    """Sums by `counts`; types are kept, so that their identity stays theirs."""
    costs: dict[tuple[_Request, Recompute], LayerCost] = field(default_factory=dict)


_MEMO: WeakKeyDictionary[LayerKind, _Known] = WeakKeyDictionary()


def price_layer(
    kind: LayerKind,
    team: Team,
    recompute: Recompute,
    device_type: DeviceType,
    samples: float,
) -> LayerCost:
    """One device's part of the layer for a microbatch of `samples` that its team gets."""
    if not 0 < samples < np.inf:
        raise InputError(f"{kind.name}: samples must be positive and finite, got {samples}")
    known = _known(kind)
    request = id(device_type), team, samples
    cost = known.costs.get((request, recompute))
    if cost is None:
        if request not in known.seconds:
            prepare_prices((kind,), (team,), device_type, (samples,))
        seconds = known.seconds[request][1]
        share = device_type.launch_share
        cost = _make_cost(kind, known, team, recompute, seconds, samples, share)
        known.costs[request, recompute] = cost
    return cost


def prepare_prices(
    kinds: Iterable[LayerKind],
    teams: Iterable[Team],
    device_type: DeviceType,
    samples: Iterable[float],
) -> None:
    """Time all combinations at once, so that `price_layer` need only look them up."""
    wanted = list(dict.fromkeys(product(teams, samples)))
    for kind in kinds:
        known = _known(kind)
        missing = [each for each in wanted if (id(device_type), *each) not in known.seconds]
        if not missing:
            continue
        sums = _summed(layer_seconds(known.work, device_type, missing), known.counts)
        for each, row in zip(missing, sums, strict=True):
            known.seconds[id(device_type), *each] = device_type, row


def _summed(times: Floats, counts: Floats) -> Floats:
    """Sums of some ops' times; an op that cannot run counts only where it is meant.

    Row by row: a matrix product rounds by how many rows there are, and prices must be the same to
    the last bit whether they are found one by one or all at once.
    """
    with np.errstate(invalid="ignore"):
        each = [np.where(count > 0, times * count, 0.0).sum(axis=1) for count in counts]
    return np.stack(each, axis=1)


def _known(kind: LayerKind) -> _Known:
    known = _MEMO.get(kind)
    if known is None:
        known = _MEMO[kind] = _find_out(kind)
    return known


def _find_out(kind: LayerKind) -> _Known:
    graph = kind.graph
    recomputation = find_recomputation(kind)
    forward, backward = graph.phase == Phase.FORWARD, graph.phase == Phase.BACKWARD
    update = graph.phase == Phase.UPDATE
    weight = backward & (graph.split == Split.SUM)
    work = find_work(kind)
    attention = kind.read_keys > 0
    chosen = (
        forward, backward, weight, update, recomputation.again,
        forward & attention, backward & attention, *_column_weights(kind),
    )  # fmt: skip
    host = host_seconds(graph)
    return _Known(
        work=work,
        recomputation=recomputation,
        repeats=bool(recomputation.again.any()),
        held=find_held(kind, recomputation),
        weights=find_weights(kind),
        messages=find_messages(kind),
        output=_line(kind.is_leaving, graph.fixed_tensor_bytes, graph.tensor_bytes, graph.batch),
        flops=_line(forward | backward, graph.fixed_flops, graph.flops, graph.batch),
        counts=np.stack([work.count(each) for each in chosen]),
        host=(
            float(host[forward].sum()),
            float(host[backward].sum()),
            float(host[recomputation.again].sum()),
        ),
    )


def _column_weights(kind: LayerKind) -> tuple[Bools, Bools]:
    """Weight gradients of products that read what a tensor team has whole: those that come after
    the last gradient of what was read, whose sum they hide then, and all of them."""
    graph = kind.graph
    after, every = np.zeros(graph.num_ops, np.bool_), np.zeros(graph.num_ops, np.bool_)
    backward = (graph.phase == Phase.BACKWARD) & (graph.product_count > 0)
    for tensor in kind.spread.tolist():
        own = backward & np.isin(graph.partner, graph.readers[tensor])
        weights = own & (graph.split == Split.SUM)
        last = max(np.flatnonzero(own & ~weights).tolist(), default=graph.num_ops)
        every |= weights
        after |= weights & (np.arange(graph.num_ops) > last)
    return after, every


def _make_cost(
    kind: LayerKind,
    known: _Known,
    team: Team,
    recompute: Recompute,
    seconds: Floats,
    samples: float,
    launch_share: float,
) -> LayerCost:
    forward, backward, weight, update, selected, *others = seconds.tolist()
    recompute = recompute if kind.is_wrapped else Recompute.NONE
    extra, launches = 0.0, 0.0
    if recompute is Recompute.FULL:
        extra, launches = forward, known.host[0]
    elif recompute is Recompute.SELECTIVE:
        extra, launches = selected, known.host[2]
    growth = samples / kind.graph.batch
    manner = recompute if recompute is Recompute.FULL or known.repeats else Recompute.NONE
    saved, workspace = saved_and_workspace(known.held, team, growth, manner)
    parameters, expert_parameters = divided(known.weights.parameters, team)
    gradients, expert_gradients = divided(known.weights.gradients, team)
    optimiser, expert_optimiser = divided(known.weights.optimiser, team)
    return LayerCost(
        forward_seconds=forward,
        backward_seconds=backward + extra,
        weight_seconds=weight,
        update_seconds=update,
        host_seconds=(known.host[0] + known.host[1] + launches) * launch_share,
        forward_host_seconds=known.host[0] * launch_share,
        calls=find_calls(
            known.messages,
            team,
            growth,
            recompute,
            known.recomputation.attends,
            (others[0], others[1]),
            (others[2], others[3]),
        ),
        parameter_bytes=parameters,
        gradient_bytes=gradients,
        gradient_growth=known.weights.gradient_growth,
        optimiser_bytes=optimiser,
        expert_parameter_bytes=expert_parameters,
        expert_gradient_bytes=expert_gradients,
        expert_optimiser_bytes=expert_optimiser,
        saved_bytes=saved,
        workspace_bytes=workspace,
        output_bytes=known.output[0] + known.output[1] * samples,
        flops=known.flops[0] + known.flops[1] * samples,
    )


def _line(chosen: Bools, fixed: Floats, whole: Floats, batch: float) -> tuple[float, float]:
    start = float(fixed[chosen].sum())
    return start, (float(whole[chosen].sum()) - start) / batch
