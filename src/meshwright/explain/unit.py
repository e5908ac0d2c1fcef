"""What the time of a unit of whole layers is made of: compute, what of it computes again, and what
its team says to each other, axis by axis.

A unit has one time, and of that the collectives together; here both are divided in the proportions
that the prices of its layers have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.mode import Recompute
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.result import Axis, LayerCost
from meshwright.cost.runtime import RUNTIMES
from meshwright.cost.stage import Stage, call_seconds, stage_cost
from meshwright.explain.cause import Cause
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.check import Placement, resolve
from meshwright.plan.plan import Plan, ScheduleKind
from meshwright.plan.stage import team_of
from meshwright.program.team.stage import schedule_of

_AXES: tuple[tuple[Axis, Cause], ...] = (
    ("tensor", Cause.TENSOR),
    ("context", Cause.CONTEXT),
    ("expert", Cause.EXPERT),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitShares:
    """How the time of a stage's units is divided."""

    forward_calls: Mapping[Cause, float]
    """Of the collectives of forward, the part that goes along each axis. What is left of one is an
    estimate of what ZeRO shows, which programs have as instructions of their own."""
    backward_calls: Mapping[Cause, float]
    """The same of backward's collectives."""
    again: float
    """The part of backward's compute that computes again."""


def unit_shares(graph: Graph, cluster: Cluster, plan: Plan) -> tuple[UnitShares, ...]:
    """The shares of each stage of a plan that is lowered by layer."""
    stack, placement = find_layers(graph), resolve(graph, cluster, plan)
    defers = schedule_of(plan).kind is ScheduleKind.ZERO_BUBBLE
    return tuple(
        _of_stage(stack, cluster, _stage(stack, placement, plan, number), defers=defers)
        for number in range(len(plan.parts))
    )


def _stage(stack: Stack, placement: Placement, plan: Plan, number: int) -> Stage:
    """A part in numbers, with the samples of its largest replica."""
    part, here = plan.parts[number], placement.replicas(number)
    layers = np.unique(stack.layer_of_op[placement.part_of_op == number])
    rows = placement.replica_to[here] - placement.replica_from[here]
    return Stage(
        layers=range(int(layers[0]), int(layers[-1]) + 1),
        devices=tuple(placement.replica_device[here].tolist()),
        team=team_of(part),
        zero=part.zero,
        recompute=part.recompute,
        samples=float(rows.max()) * stack.graph.batch / schedule_of(plan).microbatches,
        runtime=RUNTIMES[plan.runtime],
    )


def _of_stage(stack: Stack, cluster: Cluster, stage: Stage, *, defers: bool) -> UnitShares:
    device_type = cluster.types[cluster.devices[stage.devices[0]].type]

    def priced(recompute: Recompute) -> list[LayerCost]:
        kinds = (stack.kinds[stack.layers[each]] for each in stage.layers)
        costs = (price_layer(k, stage.team, recompute, device_type, stage.samples) for k in kinds)
        return [each.under(stage.runtime) for each in costs]

    cost = stage_cost(stack, group_prices(cluster), stage)
    layers, plain = priced(stage.recompute), priced(Recompute.NONE)
    backward = sum(each.backward_seconds for each in layers)
    again = backward - sum(each.backward_seconds for each in plain)
    weights = sum(each.weight_seconds for each in layers)
    backward -= weights if defers else 0.0
    forward_calls = _calls(cluster, stage, layers, "forward")
    backward_calls = _calls(cluster, stage, layers, "backward")
    beside = sum(_calls(cluster, stage, layers, "overlapped").values())
    backward_calls[Cause.TENSOR] += max(0.0, beside - weights)
    return UnitShares(
        forward_calls=_parts(forward_calls, cost.forward_call_seconds),
        backward_calls=_parts(backward_calls, cost.backward_call_seconds),
        again=min(1.0, max(0.0, again / backward)) if backward > 0 else 0.0,
    )


def _calls(
    cluster: Cluster, stage: Stage, layers: Sequence[LayerCost], when: str
) -> dict[Cause, float]:
    """Seconds of a microbatch's collectives along each axis."""
    network, own = group_prices(cluster), frozenset(stage.devices)
    return {cause: call_seconds(network, stage, layers, own, when, axis) for axis, cause in _AXES}


def _parts(seconds: Mapping[Cause, float], whole: float) -> dict[Cause, float]:
    """The same as parts of a whole, or of their sum if that is more."""
    total = max(sum(seconds.values()), whole)
    return {cause: each / total for cause, each in seconds.items() if each > 0}
