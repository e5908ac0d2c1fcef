"""A stack on a cluster and all that is searched: options, frames, and bounds on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.cost.runtime import MESHWRIGHT, Runtime
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.kernel.row import group_values
from meshwright.plan.describe import span, words
from meshwright.plan.part import Recompute
from meshwright.plan.stage import Frame, Option
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.frame import Layouts
from meshwright.search.method.hybrid.option_price import LayerPrices
from meshwright.search.method.hybrid.scope import (
    Scope,
    list_frames,
    list_sizes,
    list_teams,
    whole_batch,
)
from meshwright.search.method.hybrid.shape import Shapes, find_shapes
from meshwright.search.method.hybrid.table import samples_of
from meshwright.search.method.hybrid.tier import find_tiers


@dataclass(frozen=True, kw_only=True)
class HybridSpace:
    """A stack on a cluster and what is searched, with everything that frames have in common."""

    stack: Stack
    cluster: Cluster
    scope: Scope
    prices: LayerPrices
    layouts: Layouts
    shapes: Shapes
    options: tuple[Option, ...]
    batch: int

    @cached_property
    def options_of_team(self) -> dict[Team, list[Option]]:
        """The options of each team, in their order."""
        return group_values((option.team, option) for option in self.options)

    def allows(self, draft: HybridDraft) -> bool:
        """Whether the plan of a draft is legal."""
        return len(draft.stages) == 1 or not (self.stack.shares_groups and draft.is_plain)


def make_space(
    graph: Graph, cluster: Cluster, scope: Scope, runtime: Runtime = MESHWRIGHT
) -> HybridSpace:
    """Find the layers and tiers, and list the options."""
    stack = find_layers(graph)
    _check_runnable(graph, cluster)
    prices = LayerPrices(stack, cluster, find_tiers(cluster), runtime)
    teams = list_teams(scope, stack, cluster.num_devices)
    return HybridSpace(
        stack=stack,
        cluster=cluster,
        scope=scope,
        prices=prices,
        layouts=Layouts(prices),
        shapes=find_shapes(stack),
        options=tuple(_all_options(scope, teams)),
        batch=whole_batch(stack),
    )


def _all_options(scope: Scope, teams: Sequence[Team]) -> list[Option]:
    """Every combination; no ZeRO where each device is said to be the only one with its layers."""
    return [
        Option(team=team, zero=zero, recompute=recompute)
        for team in teams
        for zero in ((0,) if scope.data == (1,) and team.context == 1 else scope.zero)
        for recompute in scope.recompute
    ]


def _check_runnable(graph: Graph, cluster: Cluster) -> None:
    """Any stage may be on any devices, so all types run all ops."""
    for name in cluster.type_names:
        cannot = np.flatnonzero(np.isinf(op_seconds(graph, cluster.types[name], graph.batch)))
        if len(cannot):
            raise InputError(
                f"graph {graph.name}: every op must run on every device type, but "
                f"{quoted(graph.op_names[cannot[0]])} cannot on {quoted(name)}"
            )


def list_samples(space: HybridSpace) -> list[float]:
    """Every number of samples that a team may get for a microbatch."""
    widths = {option.team.num_devices: option.team for option in space.options}
    num_devices = space.cluster.num_devices
    found = set()
    for frame in list_frames(space.scope, space.batch, num_devices):
        for size in list_sizes(num_devices // frame.pods):
            for width, team in widths.items():
                if size % width == 0:
                    samples = samples_of(space.batch, frame, size, team)
                    if samples >= 1 and samples == int(samples):
                        found.add(samples)
    return sorted(found)


def space_bound(space: HybridSpace) -> float:
    """No plan of a space is faster, whatever its stages and schedule.

    Every sample passes every layer on some team, and its members are busy for as long as that
    takes: device-seconds a sample, at the best team and microbatch for that layer, divided by all
    devices. With several types of devices every second counts as one of the fastest type's, and a
    replica may get any share of the batch: a layer takes no less a sample for fewer of them.
    """
    stack, cluster = space.stack, space.cluster
    teams = list(dict.fromkeys(option.team for option in space.options))
    samples = list_samples(space)
    if len(cluster.type_names) > 1:
        samples = sorted({*samples, float(space.batch)})
    space.prices.prepare(teams, samples)
    total = 0.0
    for number, kind in enumerate(stack.kinds):
        least = inf
        for name in cluster.type_names:
            for team in teams:
                for size in samples:
                    cost = price_layer(kind, team, Recompute.NONE, cluster.types[name], size)
                    busy = cost.forward_seconds + cost.backward_seconds
                    least = min(least, busy * team.num_devices / size)
        total += least * stack.layers.count(number)
    return total * stack.graph.batch / cluster.num_devices


_MAX_UNITS = 64
"""Stages of different sizes are looked for in pods of no more units than these."""
_MIXED_FRAMES = 3


def list_mixed(space: HybridSpace, drafts: Sequence[HybridDraft]) -> list[tuple[Frame, list[int]]]:
    """The frames of the best drafts with more than one stage, and sizes to mix in their pods."""
    frames = dict.fromkeys(draft.frame for draft in drafts if len(draft.stages) > 1)
    mixed = []
    for frame in list(frames)[:_MIXED_FRAMES]:
        pod = space.cluster.num_devices // frame.pods
        sizes = [size for size in list_sizes(pod) if size * _MAX_UNITS >= pod and size < pod]
        if len(sizes) > 1:
            mixed.append((frame, sizes))
    return mixed


def describe_space(space: HybridSpace) -> str:
    """What was searched, in one line for people."""
    teams = [option.team for option in space.options]
    widths = {
        name: span(getattr(team, name) for team in teams)
        for name in ("tensor", "context", "expert")
    }
    scope = space.scope
    sizes = "of any size" if scope.mixed else "of one size"
    return (
        f"scope: stages {sizes} of whole layers on neighbouring devices, the same in every pod; "
        f"{', '.join(f'{name} {text}' for name, text in widths.items())}; "
        f"zero {'/'.join(map(str, scope.zero))}; recompute {words(scope.recompute)}; "
        f"{words(scope.schedules)}{_describe_limits(scope)}"
    )


def _describe_limits(scope: Scope) -> str:
    """The degrees of whole plans, where they are limited."""
    names = ("pipeline", "chunks", "data", "microbatches", "pods")
    given = {name: getattr(scope, name) for name in names}
    return "".join(f"; {name} {'/'.join(map(str, each))}" for name, each in given.items() if each)
