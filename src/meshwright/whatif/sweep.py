"""Plans one model for many numbers of devices, batches or bandwidths, and says which is best.

Each axis has values; every combination is a point. The first axis is that of the curve, the others
make several curves. Every point is planned anew, with a bound beside its step.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from meshwright.argument import shown
from meshwright.change.amount import Amount
from meshwright.change.apply import change_request
from meshwright.change.kind import Batch, Change
from meshwright.change.read import read_change
from meshwright.errors import InputError, quoted
from meshwright.interpreter import num_cores
from meshwright.plan.request import Request
from meshwright.table import as_frame, as_text
from meshwright.units import format_seconds
from meshwright.whatif.ask import Inquiry, Report, ask_all, within_budget
from meshwright.whatif.outcome import Outcome, Question
from meshwright.whatif.price import Price, check_prices
from meshwright.whatif.record import SWEEP_FORMAT, VERSION, OutcomeRecord, PointRecord, SweepRecord

MAX_POINTS = 256
"""More are refused: each is a search."""


class Objective(StrEnum):
    """What the best point is best by."""

    TIME = "time"
    """The shortest step a sample."""
    COST = "cost"
    """The lowest cost a sample."""
    MEMORY = "memory"
    """The most memory left on the fullest device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What is varied, and its values."""

    name: str
    """In words: devices, batch, link leaf0."""
    option: str
    """One of the options that changes are read by, with `word` before each value."""
    word: str
    """What the option's text says before the value, such as 'leaf0='."""
    values: tuple[str, ...]

    def changes(self) -> list[tuple[str, Change]]:
        """Each value with the change that it stands for."""
        return [(value, read_change(self.option, self.word + value)) for value in self.values]


def read_axis(option: str, text: str) -> Axis:
    """The axis that an option with values with commas between them asks for: 'leaf0=1x,2x,4x'."""
    if not isinstance(text, str):
        raise InputError(f"{option}: must be a text such as '8,16,32', got {shown(text)}")
    word, sign, listed = text.rpartition("=")
    values = tuple(each.strip() for each in listed.split(",") if each.strip())
    if not values:
        raise InputError(f"{option}: must have values, such as 8,16,32, got {quoted(text)}")
    if len(set(values)) < len(values):
        raise InputError(f"{option}: values must differ, got {quoted(text)}")
    name = f"{option} {word}" if word else option
    return Axis(name=name, option=option, word=word + sign, values=values)


def read_axes(given: Mapping[str, str | Sequence[str]]) -> list[Axis]:
    """The axes that texts ask for, by option: one, or several."""
    return [
        read_axis(option, text)
        for option, texts in given.items()
        for text in (texts if isinstance(texts, list | tuple) else (texts,))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One combination of values, and what it comes to."""

    values: Mapping[str, str]
    """By the name of the axis."""
    outcome: Outcome
    efficiency: float
    """Throughput a device over that of the fewest devices of the same curve; NaN without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """All points, and the best of them."""

    model: str
    method: str
    axes: tuple[Axis, ...]
    points: tuple[Point, ...]
    objective: Objective
    deadline_seconds: float
    """The longest step that will do; infinity: any."""
    best: int | None
    """Which point is best; None: none will do."""
    budget_seconds: float
    """How long each search could take."""
    notes: tuple[str, ...] = ()
    """Which points have no answer, and why, a line each."""
    was_interrupted: bool = False

    @property
    def facts(self) -> dict[str, str]:
        """The points for people, a line each."""
        return {
            point.outcome.name: format_seconds(point.outcome.best.seconds) for point in self.points
        }

    def __str__(self) -> str:
        return as_text(self.facts)

    def to_dict(self) -> dict[str, Any]:
        """The points for programs; `meshwright schema sweep` tells the fields."""
        return SweepRecord.of(
            self,
            format=SWEEP_FORMAT,
            version=VERSION,
            objective=self.objective.value,
            points=tuple(map(self._record, self.points)),
        ).to_dict()

    def _record(self, point: Point) -> PointRecord:
        first = self.points[0].outcome.samples_per_second
        gain = point.outcome.samples_per_second / first - 1 if first else math.nan
        record = OutcomeRecord.of_outcome(point.outcome, gain)
        return PointRecord.of(record, values=dict(point.values), efficiency=point.efficiency)

    def columns(self) -> dict[str, list[Any]]:
        """The points by column, for tables of other programs."""
        outcomes = [point.outcome for point in self.points]
        return {
            **{axis.name: [point.values[axis.name] for point in self.points] for axis in self.axes},
            "num_devices": [each.num_devices for each in outcomes],
            "batch": [each.batch for each in outcomes],
            "step_seconds": [each.best.seconds for each in outcomes],
            "bound_seconds": [each.bound_seconds for each in outcomes],
            "samples_per_second": [each.samples_per_second for each in outcomes],
            "efficiency": [point.efficiency for point in self.points],
            "headroom": [each.best.headroom for each in outcomes],
            "cost_per_step": [each.cost_per_step for each in outcomes],
            "cost_per_sample": [each.cost_per_sample for each in outcomes],
            "plan": [each.best.description for each in outcomes],
        }

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each point."""
        return as_frame(self.columns())


def sweep_request(
    request: Request,
    axes: Sequence[Axis],
    *,
    objective: Objective = Objective.TIME,
    deadline_seconds: float = math.inf,
    prices: Sequence[Price] = (),
    is_weak: bool = False,
    budget_seconds: float | None = None,
    workers: int | None = None,
    progress: Report | None = None,
) -> Sweep:
    """Plan every combination of the values of the axes.

    `is_weak`: the batch grows with the number of devices. `budget_seconds` is for all searches;
    None gives each the request's own.
    """
    check_prices(prices, request.cluster)
    if objective is Objective.COST and not prices:
        raise InputError("objective cost: must have prices, such as --price h100=2.10/h")
    if not deadline_seconds > 0:
        raise InputError(f"deadline: must be positive, got {deadline_seconds}")
    listed, notes = _list_points(request, axes, is_weak=is_weak)
    at_once = num_cores() if workers is None else workers
    turns = math.ceil(len(listed) / at_once)
    whole = request.budget_seconds * turns if budget_seconds is None else budget_seconds
    limited = within_budget(request, len(listed), whole, at_once)
    inquiry = Inquiry(
        request=limited,
        plan=None,
        prices=tuple(prices),
        keeps=False,
        widens=objective is Objective.MEMORY,
    )
    questions = [question for _, question in listed]
    found = ask_all(inquiry, questions, workers=workers, progress=progress)
    if not found:
        raise KeyboardInterrupt
    points = _with_efficiency(axes, [values for values, _ in listed], found)
    return Sweep(
        model=request.graph.name,
        method=request.method,
        axes=tuple(axes),
        points=points,
        objective=objective,
        deadline_seconds=deadline_seconds,
        best=choose_point(points, objective, deadline_seconds),
        budget_seconds=limited.budget_seconds,
        notes=notes,
        was_interrupted=len(found) < len(listed),
    )


def _list_points(
    request: Request, axes: Sequence[Axis], *, is_weak: bool
) -> tuple[list[tuple[dict[str, str], Question]], tuple[str, ...]]:
    """The points that can be asked for with their values, and why others cannot."""
    if not axes:
        raise InputError("sweep: must have something to vary, such as --devices 8,16,32")
    number = math.prod(len(axis.values) for axis in axes)
    if number > MAX_POINTS:
        raise InputError(f"sweep: must have at most {MAX_POINTS} points, got {number:,}")
    names = [axis.name for axis in axes]
    if len(set(names)) < len(names):
        raise InputError(f"sweep: axes must differ, got {', '.join(names)}")
    listed, notes = [], []
    for chosen in product(*(axis.changes() for axis in axes)):
        values = dict(zip(names, (value for value, _ in chosen), strict=True))
        name = ", ".join(f"{axis} {value}" for axis, value in values.items())
        changes = tuple(change for _, change in chosen)
        try:
            changed = change_request(request, changes)
        except InputError as error:
            notes.append(f"{name}: {error}")
            continue
        if is_weak:
            changes += _grown_batch(request, changed)
        listed.append((values, Question(name=name, changes=changes)))
    if not listed:
        raise InputError(f"sweep: no point can be planned: {notes[0]}")
    return listed, tuple(notes)


def _grown_batch(request: Request, changed: Request) -> tuple[Change, ...]:
    """The change of the batch in proportion to the number of devices."""
    times = changed.cluster.num_devices / request.cluster.num_devices
    return () if times == 1 else (Batch(amount=Amount(factor=times)),)


def _with_efficiency(
    axes: Sequence[Axis], values: Sequence[Mapping[str, str]], found: Sequence[Outcome]
) -> tuple[Point, ...]:
    """The points; those of one curve differ in the first axis alone."""
    curves: dict[tuple[str, ...], list[Outcome]] = {}
    keys = [tuple(value[axis.name] for axis in axes[1:]) for value in values]
    for key, outcome in zip(keys, found, strict=False):
        if outcome.samples_per_second > 0:
            curves.setdefault(key, []).append(outcome)
    points = []
    for key, value, outcome in zip(keys, values, found, strict=False):
        efficiency = math.nan
        if key in curves:
            first = min(curves[key], key=lambda each: each.num_devices)
            efficiency = _per_device(outcome) / _per_device(first)
        points.append(Point(values=value, outcome=outcome, efficiency=efficiency))
    return tuple(points)


def _per_device(outcome: Outcome) -> float:
    return outcome.samples_per_second / outcome.num_devices


def choose_point(
    points: Sequence[Point], objective: Objective, deadline_seconds: float
) -> int | None:
    """The best point of those that fit and meet the deadline; of a tie the first.

    With a deadline and prices, `time` means the cheapest that meets it: who sets one wants no more
    speed than that.
    """
    able = [
        number
        for number, point in enumerate(points)
        if point.outcome.best.fits and point.outcome.best.seconds <= deadline_seconds
    ]
    costs = [points[number].outcome.cost_per_sample for number in able]
    if objective is Objective.MEMORY:
        return max(able, key=lambda number: points[number].outcome.best.headroom, default=None)
    has_prices = bool(able) and not all(map(math.isnan, costs))
    if objective is Objective.COST or (deadline_seconds < math.inf and has_prices):
        known = [number for number, cost in zip(able, costs, strict=True) if not math.isnan(cost)]
        return min(known, key=lambda number: points[number].outcome.cost_per_sample, default=None)
    return max(able, key=lambda number: points[number].outcome.samples_per_second, default=None)
