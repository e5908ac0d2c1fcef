"""Fits tables and links to measured times of collectives and transfers."""

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import CollectiveTable
from meshwright.errors import InputError, quoted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_REWEIGHTINGS = 20
"""Rounds of reweighted least squares. On vTrain's files twenty more move no knot by over 0.2%."""
_ERROR_FLOOR = 1e-4
"""Relative errors below this count alike when reweighting, so that weights stay finite."""


def fit_table(
    collective: str,
    device_type: str,
    num_devices: int,
    sizes: npt.ArrayLike,
    seconds: npt.ArrayLike,
    max_knots: int = 24,
) -> CollectiveTable:
    """A table of at most `max_knots` sizes that follows many noisy measurements.

    Repeated sizes count as their median. Knots are added one at a time where they lower the
    summed relative error the most; then all their times are moved together to lower it further.
    """
    what = f"measurements of {quoted(collective)} on {num_devices} x {quoted(device_type)}"
    if max_knots < 2:
        raise InputError(f"{what}: max_knots must be two or more, got {max_knots}")
    x, y = _medians(what, sizes, seconds)
    log_x, log_y = np.log(x), np.log(y)
    knots = _choose_knots(log_x, log_y, max_knots)
    values = _fit_values(log_x, log_y, log_x[knots])
    return CollectiveTable(
        collective=str(collective),
        device_type=device_type,
        num_devices=num_devices,
        sizes_bytes=tuple(x[knots].tolist()),
        seconds=tuple(np.exp(values).tolist()),
    )


def fit_link(sizes: npt.ArrayLike, seconds: npt.ArrayLike) -> tuple[float, float]:
    """Latency and bytes a second of `latency + bytes / rate` with least squared relative error."""
    x, y = _medians("measurements of a link", sizes, seconds)
    rows = np.stack([1 / y, x / y], axis=1)
    latency, per_byte = np.linalg.lstsq(rows, np.ones(len(y)), rcond=None)[0].tolist()
    if latency < 0:  # the best with no latency, as a negative one has no meaning
        latency, per_byte = 0.0, float(rows[:, 1].sum() / (rows[:, 1] ** 2).sum())
    if not per_byte > 0:
        raise InputError(
            "measurements of a link: seconds must rise with the size, got the times "
            f"{y[0]:.4g} s at {x[0]:.4g} bytes and {y[-1]:.4g} s at {x[-1]:.4g} bytes"
        )
    return latency, 1 / per_byte


def _medians(what: str, sizes: npt.ArrayLike, seconds: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Distinct sizes, rising, and the median time of each."""
    x, y = np.asarray(sizes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise InputError(f"{what}: sizes and seconds must be lists of equal length")
    for name, array in (("sizes", x), ("seconds", y)):
        bad = np.flatnonzero(~((array > 0) & (array < np.inf)))
        if len(bad):
            raise InputError(f"{what}: {name} must be positive and finite, got {array[bad[0]]}")
    distinct, inverse = np.unique(x, return_inverse=True)
    if len(distinct) < 2:
        raise InputError(f"{what}: must have two or more distinct sizes, got {len(distinct):,}")
    order = np.lexsort((y, inverse))
    count = np.bincount(inverse)
    first = np.cumsum(count) - count
    ranked = y[order]
    return distinct, (ranked[first + (count - 1) // 2] + ranked[first + count // 2]) / 2


def _choose_knots(x: Floats, y: Floats, max_knots: int) -> Ints:
    """Positions of the knots: both ends, then greedily the best split of any segment."""
    splits = {(0, len(x) - 1): _best_split(x, y, 0, len(x) - 1)}
    while len(splits) + 1 < max_knots:
        (first, last), (gain, middle) = max(splits.items(), key=lambda item: item[1][0])
        if gain <= 0:
            break
        del splits[first, last]
        splits[first, middle] = _best_split(x, y, first, middle)
        splits[middle, last] = _best_split(x, y, middle, last)
    return np.array(sorted({end for segment in splits for end in segment}))


def _best_split(x: Floats, y: Floats, first: int, last: int) -> tuple[float, int]:
    """How much a knot between two knots can lower the summed error, and where it stands."""
    if last - first < 2:
        return 0.0, first
    inner, values = x[first + 1 : last], y[first + 1 : last]
    whole = np.abs(y[first] + _slope(x, y, first, last) * (inner - x[first]) - values).sum()
    middles = np.arange(first + 1, last)
    # One row a candidate: the chord from the first knot left of it, to the last knot right of it.
    rising = _slope(x, y, first, middles)[:, None] * (inner - x[first]) + y[first]
    falling = _slope(x, y, middles, last)[:, None] * (inner - x[last]) + y[last]
    is_left = inner[None, :] <= inner[:, None]
    errors = np.abs(np.where(is_left, rising, falling) - values).sum(axis=1)
    best = int(np.argmin(errors))
    return float(whole - errors[best]), int(middles[best])


def _slope(x: Floats, y: Floats, first: int | Ints, last: int | Ints) -> Floats:
    """Of the chord between two points, or between one and each of many."""
    return np.asarray((y[last] - y[first]) / (x[last] - x[first]), dtype=np.float64)


def _fit_values(x: Floats, y: Floats, knots: Floats) -> Floats:
    """Times (logarithms) at the knots with the least absolute error, by reweighting squares."""
    place = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
    share = (x - knots[place]) / (knots[place + 1] - knots[place])
    hats = np.zeros((len(x), len(knots)))
    rows = np.arange(len(x))
    hats[rows, place] = 1 - share
    hats[rows, place + 1] = share
    weight = np.ones(len(x))
    for _ in range(_REWEIGHTINGS):
        values = np.linalg.lstsq(hats * weight[:, None], y * weight, rcond=None)[0]
        weight = 1 / np.sqrt(np.maximum(np.abs(hats @ values - y), _ERROR_FLOOR))
    return values.astype(np.float64, copy=False)
