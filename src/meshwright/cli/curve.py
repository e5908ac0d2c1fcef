"""Curves in a terminal: throughput over the first axis of a sweep, with the bound beside it."""

import math
from collections.abc import Iterator

from meshwright.units import format_number
from meshwright.whatif.curve import Curve, list_curves
from meshwright.whatif.sweep import Sweep

WIDTH, HEIGHT = 64, 12
"""Columns and rows of the area with the marks."""
MARKS = "ox+*#@%&"
"""One for each curve; more curves use them again."""
BOUND = "."


def draw_curves(sweep: Sweep) -> Iterator[str]:
    """The lines of a plot; none where there are not two points to join."""
    curves = list_curves(sweep)
    points = [(x, y) for curve in curves for x, y in (*curve.points, *curve.bounds)]
    if len({x for x, _ in points}) < 2:
        return
    xs, ys = [x for x, _ in points], [y for _, y in points]
    across, up = _Scale(xs, WIDTH), _Scale(ys, HEIGHT)
    area = [[" "] * WIDTH for _ in range(HEIGHT)]
    for curve in curves:
        for x, y in curve.bounds:
            area[HEIGHT - 1 - up(y)][across(x)] = BOUND
    for number, curve in enumerate(curves):
        for x, y in curve.points:
            area[HEIGHT - 1 - up(y)][across(x)] = MARKS[number % len(MARKS)]
    yield from _framed(area, xs, ys, curves, sweep.axes[0].name)


def _framed(
    area: list[list[str]], xs: list[float], ys: list[float], curves: list[Curve], name: str
) -> Iterator[str]:
    labels = {0: format_number(max(ys)), HEIGHT - 1: format_number(min(ys))}
    margin = max(map(len, labels.values()))
    yield ""
    yield f"{'':{margin}}  samples/s"
    for row, cells in enumerate(area):
        yield f"{labels.get(row, ''):>{margin}} |{''.join(cells)}".rstrip()
    yield f"{'':{margin}} +{'-' * WIDTH}"
    low, high = format_number(min(xs)), format_number(max(xs))
    yield f"{'':{margin}}  {low}{name:^{WIDTH - len(low) - len(high)}}{high}"
    named = [f"{MARKS[k % len(MARKS)]} {curve.name}" for k, curve in enumerate(curves)]
    has_bounds = any(curve.bounds for curve in curves)
    yield f"{'':{margin}}  {', '.join([*named, *([f'{BOUND} bound'] if has_bounds else [])])}"


class _Scale:
    """From a value to a place; by ratios where all values are positive, as scaling curves are."""

    def __init__(self, values: list[float], places: int) -> None:
        self.is_log = min(values) > 0
        low, high = self._bent(min(values)), self._bent(max(values))
        self.low, self.span, self.places = low, high - low or 1.0, places

    def _bent(self, value: float) -> float:
        return math.log(value) if self.is_log else value

    def __call__(self, value: float) -> int:
        """The place, from 0."""
        return round((self._bent(value) - self.low) / self.span * (self.places - 1))
