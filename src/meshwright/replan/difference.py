"""What a new plan changes: which parts, layers, ops and replicas are elsewhere than before."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools
from meshwright.errors import InputError, some
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.part import Part
from meshwright.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """One part, or stage, before and after."""

    number: int
    before: str
    """What it ran, on which devices; empty: there was none of this number."""
    after: str
    """What it runs now; empty: there is none of this number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What changes from one plan to another of the same graph."""

    before: str
    """The degrees and the schedule of the old plan in one line."""
    after: str
    num_ops: int
    moved_ops: int
    """Ops that a device runs which did not run them before."""
    moved_layers: tuple[str, ...]
    """The layers with such ops; empty also where the graph has no layers."""
    parts: tuple[PartChange, ...]
    """The parts that are not what they were."""
    left: tuple[str, ...]
    """Devices that ran something before, and now run nothing or are gone."""
    joined: tuple[str, ...]
    """Devices that run something now, and ran nothing before."""

    @property
    def is_same(self) -> bool:
        """Whether every part is what it was."""
        return not self.parts and self.before == self.after


def find_difference(graph: Graph, before: Plan, after: Plan) -> Difference:
    """Compare two plans in ops of a graph."""
    old, new = (_devices_of_ops(graph, plan) for plan in (before, after))
    moved = np.array([not now <= then for then, now in zip(old, new, strict=True)], dtype=np.bool_)
    used = [{device for part in plan.parts for device in part.devices} for plan in (before, after)]
    return Difference(
        before=before.description,
        after=after.description,
        num_ops=graph.num_ops,
        moved_ops=int(moved.sum()),
        moved_layers=_layers_of(graph, moved),
        parts=tuple(_compare_parts(before.in_layers(graph), after.in_layers(graph))),
        left=tuple(sorted(used[0] - used[1])),
        joined=tuple(sorted(used[1] - used[0])),
    )


def _devices_of_ops(graph: Graph, plan: Plan) -> list[frozenset[str]]:
    found: list[frozenset[str]] = [frozenset()] * graph.num_ops
    for part in plan.parts:
        devices = frozenset(part.devices)
        for op in part.ops:
            found[graph.index[op]] = devices
    return found


def _layers_of(graph: Graph, moved: Bools) -> tuple[str, ...]:
    """The names of the layers that have any of these ops."""
    try:
        stack = find_layers(graph)
    except InputError:
        return ()
    return tuple(stack.layer_name(each) for each in np.unique(stack.layer_of_op[moved]).tolist())


def _compare_parts(before: Plan, after: Plan) -> Iterator[PartChange]:
    for number in range(max(len(before.parts), len(after.parts))):
        old, new = (
            plan.parts[number] if number < len(plan.parts) else None for plan in (before, after)
        )
        if old != new:
            yield PartChange(number=number, before=_describe(old), after=_describe(new))


def _describe(part: Part | None) -> str:
    if part is None:
        return ""
    zero = f", zero {part.zero}" if part.zero else ""
    shares = ", unequal shares" if part.shares else ""
    return f"{part.what} on {some(part.devices)}{zero}{shares}"
