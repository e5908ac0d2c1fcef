"""The curves of a sweep: throughput over the first axis, one curve for each combination of the
others. Knows nothing of how they are drawn."""

import math
from dataclasses import dataclass

from meshwright.whatif.sweep import Point, Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Points that differ in the first axis alone."""

    name: str
    """The values of the other axes, or what is drawn where there are none."""
    points: tuple[tuple[float, float], ...]
    """The place on the first axis and the samples a second, of points whose plan fits."""
    bounds: tuple[tuple[float, float], ...]
    """Likewise the samples a second that no plan exceeds, where a bound is known."""


def list_curves(sweep: Sweep) -> list[Curve]:
    """The curves, in the order of their first points."""
    groups: dict[tuple[str, ...], list[Point]] = {}
    for point in sweep.points:
        key = tuple(f"{axis.name} {point.values[axis.name]}" for axis in sweep.axes[1:])
        groups.setdefault(key, []).append(point)
    return [
        Curve(
            name=", ".join(key) or "plan",
            points=tuple(
                (_place(sweep, point), point.outcome.samples_per_second)
                for point in points
                if point.outcome.best.fits
            ),
            bounds=tuple(
                (_place(sweep, point), point.outcome.batch / point.outcome.bound_seconds)
                for point in points
                if 0 < point.outcome.bound_seconds < math.inf
            ),
        )
        for key, points in groups.items()
    ]


def _place(sweep: Sweep, point: Point) -> float:
    """Where a point stands on the first axis: by its number of devices or samples, by a factor, or
    else by its turn."""
    axis = sweep.axes[0]
    if axis.option in ("devices", "hosts"):
        return float(point.outcome.num_devices)
    if axis.option == "batch":
        return point.outcome.batch
    value = point.values[axis.name].lower().strip("x")
    try:
        return float(value)
    except ValueError:
        return float(1 + axis.values.index(point.values[axis.name]))
