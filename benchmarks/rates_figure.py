"""Draws rates over time as SVG: a panel a network, a line a destination. Measures nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, PANEL, LEFT, RIGHT, TOP, GAP, BOTTOM = 760, 150, 64, 20, 86, 42, 52
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Okabe and Ito's, which colour-blind people can tell apart."""
FONT = "font-family='Helvetica, Arial, sans-serif'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What one destination received."""

    name: str
    mbit_per_second: tuple[float, ...]
    """By interval."""
    allocated_mbit_per_second: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One network."""

    title: str
    lines: tuple[Line, ...]
    interval_seconds: float


def draw(title: str, panels: Sequence[Panel]) -> str:
    """The figure."""
    seconds = 1.02 * max(_end(panel) for panel in panels)
    most = max(rate for panel in panels for line in panel.lines for rate in line.mbit_per_second)
    height = TOP + len(panels) * (PANEL + GAP) - GAP + BOTTOM
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' "
        f"width='{WIDTH}' height='{height}' {FONT} font-size='12' fill='#222'>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        f"<text x='{LEFT}' y='22' font-size='15' font-weight='bold'>{escape(title)}</text>",
        *_legend(panels),
    ]
    for place, panel in enumerate(panels):
        frame = _Frame(top=TOP + place * (PANEL + GAP), seconds=seconds, most=1.08 * most)
        parts += frame.axes(panel.title, has_labels=place == len(panels) - 1)
        for number, line in enumerate(panel.lines):
            parts += frame.line(line, COLOURS[number % len(COLOURS)], panel.interval_seconds)
    middle = TOP + (height - TOP - BOTTOM) / 2
    parts += [
        f"<text x='{(LEFT + WIDTH - RIGHT) / 2}' y='{height - 12}' text-anchor='middle'>"
        "time (seconds)</text>",
        f"<text transform='translate(16 {middle:g}) rotate(-90)' text-anchor='middle'>"
        "payload received (Mbit/s)</text>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _end(panel: Panel) -> float:
    """When the last line has come to its end."""
    last = max(
        (place for line in panel.lines for place, rate in enumerate(line.mbit_per_second) if rate),
        default=0,
    )
    return (last + 1) * panel.interval_seconds


def _legend(panels: Sequence[Panel]) -> Iterator[str]:
    x = float(LEFT)
    for number, line in enumerate(panels[0].lines):
        colour = COLOURS[number % len(COLOURS)]
        yield f"<path d='M{x:g} 40h22' stroke='{colour}' stroke-width='2'/>"
        yield f"<text x='{x + 28:g}' y='44'>{escape(line.name)}</text>"
        x += 40 + 6.6 * len(line.name)
    yield f"<path d='M{x:g} 40h22' stroke='#222' stroke-dasharray='5 3'/>"
    yield f"<text x='{x + 28:g}' y='44'>allocated</text>"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Frame:
    """A panel's place and scales."""

    top: float
    seconds: float
    most: float

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, seconds / self.seconds)

    def y(self, rate: float) -> float:
        return self.top + PANEL * (1 - rate / self.most)

    def axes(self, title: str, *, has_labels: bool) -> Iterator[str]:
        """Grid, ticks and the panel's title; times below the last panel only."""
        bottom = self.top + PANEL
        yield f"<text x='{LEFT}' y='{self.top - 8:g}' font-weight='bold'>{escape(title)}</text>"
        for tick in _ticks(self.most, 4):
            y = self.y(tick)
            yield f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#ddd'/>"
            yield f"<text x='{LEFT - 8}' y='{y + 4:.1f}' text-anchor='end'>{tick:g}</text>"
        for tick in _ticks(self.seconds, 8):
            x = self.x(tick)
            yield f"<path d='M{x:.1f} {bottom:g}v5' stroke='#222'/>"
            if has_labels:
                yield f"<text x='{x:.1f}' y='{bottom + 19:g}' text-anchor='middle'>{tick:g}</text>"
        edge = f"M{LEFT} {self.top:g}V{bottom:g}H{WIDTH - RIGHT}"
        yield f"<path d='{edge}' fill='none' stroke='#222'/>"

    def line(self, line: Line, colour: str, interval: float) -> Iterator[str]:
        """A step an interval, down to nothing where the transfer ended, and what was allocated."""
        rates = list(line.mbit_per_second)
        while rates and not rates[-1]:
            rates.pop()
        path = f"M{self.x(0):.1f} {self.y(0):.1f}"
        for place, rate in enumerate(rates):
            path += f"V{self.y(rate):.1f}H{self.x((place + 1) * interval):.1f}"
        path += f"V{self.y(0):.1f}"
        if line.allocated_mbit_per_second is not None:
            y = self.y(line.allocated_mbit_per_second)
            end = self.x(len(rates) * interval)
            yield f"<path d='M{LEFT} {y:.1f}H{end:.1f}' stroke='#222' stroke-dasharray='5 3'/>"
        yield f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='2'/>"


def _ticks(most: float, count: int) -> list[float]:
    """Round numbers from zero to at most `most`, about so many."""
    raw = most / count
    unit = 10.0 ** floor(log10(raw))
    step = next(unit * each for each in (1, 2, 2.5, 5, 10) if unit * each >= raw)
    return [round(step * place, 10) for place in range(ceil(most / step)) if step * place <= most]
