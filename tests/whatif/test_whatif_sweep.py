"""A sweep plans every combination; efficiency, costs and the best point are worked out by hand."""

import json
import math

import pytest

import meshwright as mw
from json_schema import is_valid
from meshwright.cli.curve import draw_curves
from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.whatif.curve import list_curves
from meshwright.whatif.outcome import Outcome, Step
from meshwright.whatif.sweep import (
    Objective,
    Point,
    Sweep,
    _with_efficiency,
    choose_point,
    read_axis,
)


def point(seconds: float, devices: int, *, price: float = math.nan, room: float = 0.5) -> Point:
    outcome = Outcome(
        name=f"devices {devices}", cluster="c", num_devices=devices, batch=32.0, kept=None,
        planned=Step(seconds=seconds, headroom=room), bound_seconds=seconds / 2, stop=Stop.ENDED,
        price_per_hour=price,
    )  # fmt: skip
    return Point(values={"devices": str(devices)}, outcome=outcome, efficiency=1.0)


def test_an_axis_has_values_with_commas() -> None:
    axis = read_axis("link", "leaf0=1x, 2x,400Gb/s")
    assert (axis.name, axis.values) == ("link leaf0", ("1x", "2x", "400Gb/s"))
    assert [str(change) for _, change in axis.changes()] == [
        "leaf0 1x",
        "leaf0 2x",
        "leaf0 50 GB/s",
    ]
    assert read_axis("devices", "8,16").values == ("8", "16")


@pytest.mark.parametrize(
    ("text", "message"),
    [("leaf0=", "link: must have values"), ("", "must have values"), ("a=2x,2x", "must differ")],
)
def test_an_axis_without_values_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_axis("link", text)


def test_efficiency_is_against_the_fewest_devices_of_a_curve() -> None:
    # 32 samples in 4 s on 2 devices are 4 a second and device; in 1 s on 16 devices 2.
    points = [point(1.0, 16), point(4.0, 2), point(math.inf, 1, room=-1.0)]
    axis = read_axis("devices", "16,2,1")
    found = _with_efficiency([axis], [each.values for each in points], [p.outcome for p in points])
    assert [each.efficiency for each in found[:2]] == [0.5, 1.0]
    assert found[2].efficiency == 0.0


POINTS = (
    point(4.0, 2, price=4.0, room=0.1),
    point(1.5, 4, price=8.0, room=0.5),
    point(1.0, 8, price=16.0, room=0.7),
    point(0.5, 16, price=32.0, room=-0.1),
)
"""A step costs 16, 12 and 16 of 3600; the last does not fit."""


@pytest.mark.parametrize(
    ("objective", "deadline", "best"),
    [
        (Objective.TIME, math.inf, 2),
        (Objective.COST, math.inf, 1),
        (Objective.MEMORY, math.inf, 2),
        (Objective.TIME, 2.0, 1),  # the cheapest that meets it
        (Objective.TIME, 1.2, 2),
        (Objective.MEMORY, 4.0, 2),
        (Objective.COST, 0.7, None),
    ],
)
def test_the_best_point(objective: Objective, deadline: float, best: int | None) -> None:
    assert choose_point(POINTS, objective, deadline) == best


def test_without_prices_a_deadline_is_met_by_the_fastest() -> None:
    points = (point(2.0, 2), point(1.0, 4))
    assert choose_point(points, Objective.TIME, 3.0) == 1


def test_a_sweep_plans_every_point() -> None:
    found = mw.sweep(
        "mlp", "dgx1-x2", method="data", workers=1, budget_seconds=20,
        devices="4,8,16", batch="32,64", prices=["v100-32=1/h"],
    )  # fmt: skip
    assert [(each.outcome.num_devices, each.outcome.batch) for each in found.points] == [
        (4, 32), (4, 64), (8, 32), (8, 64), (16, 32), (16, 64),
    ]  # fmt: skip
    for each in found.points:
        assert each.outcome.bound_seconds <= each.outcome.planned.seconds
        assert each.outcome.kept is None
        assert each.outcome.price_per_hour == each.outcome.num_devices
    assert [found.points[number].efficiency for number in (0, 1)] == [1.0, 1.0]
    document = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    schema = mw.schema("sweep")
    assert is_valid(document, schema, schema)
    assert document["points"][0]["values"] == {"devices": "4", "batch": "32"}
    assert [curve.name for curve in list_curves(found)] == ["batch 32", "batch 64"]
    assert [x for x, _ in list_curves(found)[0].points] == [4, 8, 16]
    lines = list(draw_curves(found))
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].strip() == "o batch 32, x batch 64, . bound"
    assert sum(line.count("o") for line in lines[2:-3]) >= 1


def test_a_batch_grows_with_the_devices() -> None:
    answer = mw.plan("mlp", "dgx1-x2", method="data", budget_seconds=1)
    found = mw.sweep(answer, devices="8,16", weak=True, workers=1)
    assert answer.request is not None
    whole = answer.request.graph.batch
    assert [each.outcome.batch for each in found.points] == [whole / 2, whole]


def test_points_that_cannot_be_are_notes() -> None:
    found = mw.sweep("mlp", "dgx1-x2", method="data", devices="9,8", workers=1)
    assert [each.outcome.num_devices for each in found.points] == [8]
    assert found.notes == ("devices 9: devices: must be whole hosts (of 8 each), got 9 of 16",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "sweep: must have something to vary"),
        ({"devices": "9,10"}, "sweep: no point can be planned: devices 9"),
        ({"devices": "8", "objective": "cost"}, "objective cost: must have prices"),
        ({"devices": "8", "objective": "speed"}, "objective: must be one of time, cost, memory"),
        ({"devices": "8", "deadline_seconds": 0.0}, "deadline: must be positive"),
        ({"batch": ",".join(map(str, range(1, 300)))}, "must have at most 256 points, got 299"),
        ({"size": "8"}, "unknown change 'size'"),
        ({"devices": 8}, "devices: must be a text such as '8,16,32', got 8"),
        ({"devices": ["8", "16"]}, "sweep: axes must differ, got devices, devices"),
    ],
)
def test_wrong_sweeps_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as found:
        mw.sweep("mlp", "dgx1-x2", method="data", **given)  # type: ignore[arg-type]
    assert message in str(found.value)


def test_a_model_needs_a_cluster() -> None:
    with pytest.raises(InputError, match="no such plan"):
        mw.sweep("mlp", devices="8")


def test_one_point_has_no_curve() -> None:
    sweep = Sweep(
        model="m", method="data", axes=(read_axis("devices", "2"),), points=POINTS[:1],
        objective=Objective.TIME, deadline_seconds=math.inf, best=0, budget_seconds=1.0,
    )  # fmt: skip
    assert list(draw_curves(sweep)) == []
