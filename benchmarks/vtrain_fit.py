"""Fits the four constants of `vtrain.py` to vTrain's measured steps.

    python benchmarks/vtrain_fit.py measured_single_node.csv [measured_multi_node.csv] --json

The constants: the share that 16-bit products reach of the peak of `vtrain.DEVICE_TYPE`, which is
scaled by what was fitted before; how much longer they take on unaligned rows
(`meshwright.cost.a100`); and the host seconds to launch a kernel, forward and backward. They are
fitted to the rows of one node with `FITTED_LAYERS` layers; all others are held out. What is
minimised: the mean absolute logarithm of predicted over measured, plus `--weight` times a smooth
regret: what a choice among the rows of a workload, micro batch free, takes longer than the best on
average, where a row is chosen the more often the faster it is predicted to be.

Nelder and Mead's simplex, from each of `STARTS` and anew from where it ends until that gains
nothing: deterministic. Prints a line an improvement, then the constants found and those in use
with their errors. Predictions are `vtrain.Predictor`'s, found faster (`vtrain_constants.py`), and
for a sample of rows held against it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import CollectiveTable
from meshwright.errors import InputError
from vtrain import (
    COLUMNS,
    DEGREES,
    FITTED_LAYERS,
    HOST_DEVICES,
    Predictor,
    Row,
    read_rows,
    read_tables,
    summarise,
)
from vtrain_constants import IN_USE, Constants, Steps

WEIGHT = 0.3
"""Of the regret in what is minimised: of those tried between 0 and 1, the one whose least lies
nearest to the constants in use. What others give stands in the results."""
DOUBT = 0.015
"""A row that is predicted to take so much longer, relatively, is chosen e times less often."""
FIRST_STEP = 0.1
"""Of the simplex, in the logarithm of each constant."""
LEAST_GAIN = 1e-6
"""A simplex whose corners differ by less is done, and a start anew that gains less is the last."""
SAMPLE = 40
"""One in so many rows is held against `vtrain.Predictor`."""

STARTS = (
    Constants(share=0.7, misaligned=2.0, forward_launch_seconds=1e-4, backward_launch_seconds=5e-5),
    Constants(
        share=0.8, misaligned=3.0, forward_launch_seconds=1.5e-4, backward_launch_seconds=3e-5
    ),
)
"""Round figures on either side of what steps suggest at a glance."""


class Objective:
    """What is minimised."""

    def __init__(self, rows: Sequence[Row], steps: Steps, weight: float) -> None:
        self._steps, self._weight = steps, weight
        self._measured = np.array([row.milliseconds for row in rows])
        fixed = [name for name in COLUMNS if name not in (*DEGREES, "micro_batch")]
        groups: dict[tuple[int, ...], list[int]] = {}
        for place, row in enumerate(rows):
            groups.setdefault(tuple(getattr(row, name) for name in fixed), []).append(place)
        self._groups = list(groups.values())

    def value(self, constants: Constants) -> float:
        """The error plus the weighted regret."""
        predicted = self._steps.milliseconds(constants)
        error = float(np.abs(np.log(predicted / self._measured)).mean())
        return error + self._weight * smooth_regret(predicted, self._measured, self._groups)


def smooth_regret(predicted: Floats, measured: Floats, groups: Sequence[Sequence[int]]) -> float:
    """What is lost where a row is chosen with odds of its predicted time to the -1/`DOUBT`."""
    regrets = []
    for group in groups:
        odds = (predicted[group] / predicted[group].min()) ** (-1 / DOUBT)
        lost = measured[group] / measured[group].min() - 1
        regrets.append(float(odds @ lost / odds.sum()))
    return float(np.mean(regrets))


Corner = tuple[float, Floats]
"""Of a simplex: the value there, and where."""


def descend(value: Callable[[Floats], float], start: Floats) -> Iterator[Corner]:
    """Every improvement that Nelder and Mead's simplex makes, started anew where it ends."""
    best: Corner = value(start), start
    yield best
    while True:
        before = best[0]
        for corner in _shrink_simplex(value, best):
            best = corner
            yield best
        if best[0] > before - LEAST_GAIN:
            return


def _shrink_simplex(value: Callable[[Floats], float], first: Corner) -> Iterator[Corner]:
    """One simplex with the usual moves, until its corners are alike."""

    def at(point: Floats) -> Corner:
        return value(point), point

    corners = [first, *(at(first[1] + step) for step in FIRST_STEP * np.eye(len(first[1])))]
    best = first[0]
    while True:
        corners.sort(key=lambda corner: corner[0])
        if corners[0][0] < best:
            best = corners[0][0]
            yield corners[0]
        if corners[-1][0] - best < LEAST_GAIN:
            return
        middle = np.mean([point for _, point in corners[:-1]], axis=0)
        away = middle - corners[-1][1]
        moved = at(middle + away)
        if moved[0] < best:
            moved = min(moved, at(middle + 2 * away), key=lambda corner: corner[0])
        elif moved[0] >= corners[-2][0]:
            side = 0.5 if moved[0] < corners[-1][0] else -0.5
            moved = at(middle + side * away)
        if moved[0] < corners[-1][0]:
            corners[-1] = moved
        else:
            corners[1:] = [at((point + corners[0][1]) / 2) for _, point in corners[1:]]


def fit(path: str, others: Sequence[str], weight: float) -> Iterator[dict[str, Any]]:
    """A record an improvement of each start; one of the constants found and one of those in use."""
    sets = {name: (rows, Steps(rows, tables)) for name, rows, tables in _read_sets(path, others)}
    _hold_against_predictor(*sets["fitted"], read_tables(Path(path).parent))
    objective = Objective(*sets["fitted"], weight)

    def value_at(point: Floats) -> float:
        return objective.value(Constants.of(point))

    found: list[Corner] = []
    for number, start in enumerate(STARTS):
        for value, point in descend(value_at, start.logarithms):
            yield {"start": number, "objective": round(value, 7), **_rounded(Constants.of(point))}
        found.append((value, point))
    best = Constants.of(min(found, key=lambda corner: corner[0])[1])
    for name, constants in (("found", best), ("in use", IN_USE)):
        errors = {
            key: summarise(rows, steps.milliseconds(constants))
            for key, (rows, steps) in sets.items()
        }
        value = round(objective.value(constants), 7)
        known = {"constants": name, "weight": weight, "objective": value}
        yield {**known, **_rounded(constants), **errors}


def _read_sets(
    path: str, others: Sequence[str]
) -> Iterator[tuple[str, list[Row], tuple[CollectiveTable, ...]]]:
    """The rows that are fitted to and those of that file that are not, then the other files."""
    rows, tables = read_rows(path), read_tables(Path(path).parent)
    is_fitted = [row.devices <= HOST_DEVICES and row.layers in FITTED_LAYERS for row in rows]
    if not any(is_fitted):
        layers = " or ".join(map(str, FITTED_LAYERS))
        raise InputError(f"{path}: must have rows of one node with {layers} layers, got none")
    yield "fitted", [row for row, fits in zip(rows, is_fitted, strict=True) if fits], tables
    if not all(is_fitted):
        yield (
            "held_out",
            [row for row, fits in zip(rows, is_fitted, strict=True) if not fits],
            tables,
        )
    for other in others:
        yield Path(other).name, read_rows(other), read_tables(Path(other).parent)


def _hold_against_predictor(
    rows: Sequence[Row], steps: Steps, tables: tuple[CollectiveTable, ...]
) -> None:
    predictor = Predictor(tables)
    expected = [predictor.milliseconds(row) for row in rows[::SAMPLE]]
    np.testing.assert_allclose(steps.milliseconds(IN_USE)[::SAMPLE], expected, rtol=1e-9)


def _rounded(constants: Constants) -> dict[str, float]:
    return {name: float(f"{value:.5g}") for name, value in asdict(constants).items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the records; 2 where a file cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("file", metavar="FILE", help="measured steps, of which half are fitted to")
    parser.add_argument("others", nargs="*", metavar="OTHER", help="more steps, all held out")
    parser.add_argument("--weight", type=float, default=WEIGHT, help="of the regret (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    chosen = parser.parse_args(arguments)
    try:
        for record in fit(chosen.file, chosen.others, chosen.weight):
            words = "  ".join(f"{key} {value}" for key, value in record.items())
            print(json.dumps(record) if chosen.json else words, flush=True)
    except (InputError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
