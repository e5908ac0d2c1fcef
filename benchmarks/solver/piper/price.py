"""What the nodes of upsets take at least where memory has a price, at some numbers of flights.

For any price, the seconds and the priced bytes of a stage's ways are at least the sums of what is
least of each node; where these exceed the limit and the priced memory, no choice of ways fits both.
Sums over upsets make that a subtraction, before the stage's nodes are looked at. Knows nothing of
edges.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.search.method.pipeline.stage.downset import downset_weights
from meshwright.search.method.pipeline.stage.lattice import Lattice
from solver.piper.problem import Way

_QUANTILES = (0.2, 0.5, 0.8)
"""Prices at which so many of the nodes would rather take their leanest way."""

NUM_SUMS = len(_QUANTILES) + 1
"""For each width and number of flights: at the prices, and of bytes alone."""


def flight_grid(most: int) -> list[int]:
    """Some numbers of flights up to the most: 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    found = [1]
    while found[-1] < most:
        last = found[-1]
        step = max(1, last // 2 if last & (last - 1) == 0 else last // 3)
        found.append(last + step)
    return found[:-1] if found[-1] > most else found


def price_upsets(
    lattice: Lattice, ways: Sequence[Sequence[tuple[Way, ...]]], most_flights: int
) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """By number of flights its place in the grid, rounded down; by width and place the prices; by
    upset, width and place the sums. All nodes have the same widths, some without a way."""
    grid = flight_grid(most_flights)
    places = np.searchsorted(grid, np.arange(most_flights + 1), side="right") - 1
    seconds, flight, fixed = (
        _pad(ways, name) for name in ("seconds", "flight_bytes", "fixed_bytes")
    )
    num_widths = seconds.shape[1]
    prices = np.zeros((num_widths, len(grid), NUM_SUMS))
    sums = np.empty((lattice.num_downsets, num_widths, len(grid), NUM_SUMS))
    for place, flights in enumerate(grid):
        held = flight * flights + fixed
        for width in range(num_widths):
            own_seconds, own_held = seconds[:, width], held[:, width]
            ratios = np.sort(_ratios(own_seconds, own_held))
            prices[width, place, :-1] = ratios[[int(q * len(ratios)) for q in _QUANTILES]]
            for column, price in enumerate(prices[width, place, :-1].tolist()):
                least = _least(own_seconds + price * np.where(own_held < np.inf, own_held, 0.0))
                sums[:, width, place, column] = downset_weights(lattice, least)
            sums[:, width, place, -1] = downset_weights(lattice, _least(own_held))
    return places.astype(np.int64), prices, sums


def _pad(ways: Sequence[Sequence[tuple[Way, ...]]], name: str) -> Floats:
    """A quantity by node, width and way; infinity beyond the last way."""
    most = max((len(each) for by_width in ways for each in by_width), default=0)
    found = np.full((len(ways), len(ways[0]), max(1, most)), np.inf)
    for node, by_width in enumerate(ways):
        for width, each in enumerate(by_width):
            found[node, width, : len(each)] = [getattr(way, name) for way in each]
    return found


def _least(values: Floats) -> Floats:
    least = values.min(axis=1)
    return np.where(np.isfinite(least), least, 0.0)  # a width without a way is known elsewhere


def _ratios(seconds: Floats, held: Floats) -> Floats:
    """Of every node with a choice: seconds that its leanest way takes more, by byte spared."""
    node = np.arange(len(seconds))
    fast, lean = seconds.argmin(axis=1), held.argmin(axis=1)
    with np.errstate(invalid="ignore"):  # widths without a way
        more = seconds[node, lean] - seconds[node, fast]
        spared = held[node, fast] - held[node, lean]
    is_choice = (spared > 0) & (more > 0)
    found: Floats = more[is_choice] / spared[is_choice]
    return found if len(found) else np.zeros(1)
