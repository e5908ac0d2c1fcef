"""Expected errors: every figure is that of the steps it names, and unknown is called unknown."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Calibration, Cluster
from meshwright.cost.evidence import (
    EVIDENCE,
    FULL,
    HALF,
    Evidence,
    ExpectedError,
    Extent,
    KnownBy,
    TimeShare,
    find_evidence,
    own_evidence,
)
from meshwright.errors import InputError

ROOT = Path(__file__).resolve().parents[2]


def steps_of(row: Evidence) -> list[dict[str, Any]]:
    """The held-out steps that a row is about, by its own words."""
    path, _, words = row.origin.partition(": ")
    lines = [json.loads(line) for line in (ROOT / path).read_text().splitlines()]
    steps = [line for line in lines if "row" in line]
    if "held-out" in path:
        precisions = words.partition(",")[0].split(" and ")
        is_bound = "not bound" not in words
        mine = [step for step in steps if step["row"].rpartition("/")[2] in precisions]
        return [step for step in mine if step["launch_bound"] is is_bound]
    if "unseen" in path:
        free = [step for step in steps if not step["launch_bound"]]
        return [step for step in free if step["row"].endswith("fp32") == (words == "fp32")]
    if "vtrain" in path:
        if words.startswith("several nodes"):
            return [step for step in steps if "multi" in step["file"]]
        single = [step for step in steps if "single" in step["file"]]
        return [step for step in single if step["layers"] in (16, 24)]
    return [line for line in lines if "measured_seconds" in line]


def error_of(row: Evidence, step: dict[str, Any]) -> float:
    if "error" in step:
        return abs(float(step["error"]))
    predicted = "profiled_seconds" if row.source is KnownBy.MEASURED else "fitted_seconds"
    return float(abs(step[predicted] / step["step_seconds"] - 1))


@pytest.mark.parametrize("row", EVIDENCE, ids=lambda row: f"{row.source}, {row.origin}")
def test_every_figure_is_that_of_its_steps(row: Evidence) -> None:
    steps = steps_of(row)
    assert len(steps) == row.num_steps > 0
    mean = sum(error_of(row, step) for step in steps) / len(steps)
    assert row.mean_error == pytest.approx(mean, abs=5e-5)


def test_no_held_out_step_is_left_out() -> None:
    # Of the 16 steps with kernels of their own, launches bound two, of which kernels say nothing.
    unseen = [row for row in EVIDENCE if "unseen" in row.origin]
    assert sum(row.num_steps for row in unseen if row.source is KnownBy.MEASURED) == 14
    held_out = [row for row in EVIDENCE if "held-out" in row.origin]
    assert sum(row.num_steps for row in held_out) == 15 * 4 * 2


def test_ops_go_by_the_nearest_reach_and_the_network_by_its_own() -> None:
    h200 = find_evidence(KnownBy.FITTED, "h200", "bf16", Extent.HOSTS)
    assert h200 is not None
    assert (h200.reach, h200.precisions) == (Extent.DEVICE, HALF)
    a100 = find_evidence(KnownBy.FITTED, "a100-80", "bf16", Extent.HOSTS)
    assert a100 is not None
    assert (a100.reach, a100.num_steps) == (Extent.HOSTS, 26)
    assert find_evidence(KnownBy.NETWORK, "a100-80", "bf16", Extent.HOSTS) is a100
    assert find_evidence(KnownBy.NETWORK, "h200", "bf16", Extent.HOSTS) is None


@pytest.mark.parametrize(
    ("source", "type_name", "precision"),
    [
        (KnownBy.FITTED, "h100", "bf16"),
        (KnownBy.FITTED, "a100-80", "fp32"),
        (KnownBy.MEASURED, "v100-32", "fp32"),
        (KnownBy.LAUNCHES, "a100-80", "bf16"),
        (KnownBy.ESTIMATED, "h200", "bf16"),
    ],
)
def test_what_nobody_measured_has_no_figure(
    source: KnownBy, type_name: str, precision: str
) -> None:
    for reach in Extent:
        assert find_evidence(source, type_name, precision, reach) is None


def share(source: KnownBy, part: float, row: Evidence | None) -> TimeShare:
    return TimeShare(source=source, type="h200", precision=FULL[0], share=part, evidence=row)


def evidence(error: float, steps: int) -> Evidence:
    return Evidence(
        source=KnownBy.FITTED,
        types=("h200",),
        precisions=FULL,
        reach=Extent.DEVICE,
        mean_error=error,
        num_steps=steps,
        origin="here",
    )


def test_errors_are_weighed_by_time_and_gaps_are_said() -> None:
    found = ExpectedError(
        shares=(
            share(KnownBy.FITTED, 0.6, evidence(0.05, 4)),
            share(KnownBy.MEASURED, 0.2, evidence(0.01, 3)),
            share(KnownBy.NETWORK, 0.2, None),
        )
    )
    # (0.6 * 5 % + 0.2 * 1 %) / 0.8 = 4 %.
    assert found.mean == pytest.approx(0.04)
    assert str(found) == (
        "expected error about 4 % (7 held-out steps on h200; unknown for 20 % of the step, "
        "transfers and collectives in fp32 on h200)"
    )


def test_an_error_of_less_than_half_a_step_is_unknown() -> None:
    found = ExpectedError(
        shares=(
            share(KnownBy.MEASURED, 0.4, evidence(0.01, 3)),
            share(KnownBy.ESTIMATED, 0.6, None),
        )
    )
    assert found.mean is None
    assert str(found) == (
        "expected error unknown: no held-out steps of estimated ops in fp32 on h200"
    )


@given(
    parts=st.lists(st.tuples(st.floats(0.01, 1), st.none() | st.floats(0, 0.5)), min_size=1),
)
def test_it_lies_between_the_errors_of_its_classes(parts: list[tuple[float, float | None]]) -> None:
    total = sum(part for part, _ in parts)
    found = ExpectedError(
        shares=tuple(
            share(KnownBy.FITTED, part / total, None if error is None else evidence(error, 1))
            for part, error in parts
        )
    )
    errors = [error for _, error in parts if error is not None]
    if found.mean is not None:
        assert min(errors) - 1e-12 <= found.mean <= max(errors) + 1e-12
    else:
        assert found.known_share < 0.5


def calibration(predicted: float, devices: int = 2, hosts: int = 1, **more: Any) -> Calibration:
    given: dict[str, Any] = {
        "model": "bert",
        "device_type": "h100",
        "num_devices": devices,
        "num_hosts": hosts,
        "precision": "bf16",
        "date": "2026-11-19",
        "predicted_seconds": predicted,
        "measured_seconds": 1.0,
    }
    return Calibration(**given | more)


def test_runs_on_a_cluster_say_what_its_other_predictions_are_worth() -> None:
    rows = own_evidence([calibration(1.04), calibration(0.98), calibration(1.2, hosts=2)])
    within, across = rows
    assert within.mean_error == pytest.approx(0.03)
    assert within.num_steps == 2
    assert across.mean_error == pytest.approx(0.2)
    asked = ("h100", "bf16", Extent.HOST)
    assert find_evidence(KnownBy.MEASURED, *asked, rows) is within
    assert find_evidence(KnownBy.NETWORK, *asked, rows) is within
    assert find_evidence(KnownBy.MEASURED, *asked) is None
    # Of ops that were not measured there, and of other precisions, it says nothing.
    assert find_evidence(KnownBy.FITTED, *asked, rows) is None
    assert find_evidence(KnownBy.MEASURED, "h100", "fp32", Extent.HOST, rows) is None


def test_it_is_said_that_an_error_is_the_cluster_s_own() -> None:
    (row,) = own_evidence([calibration(0.97)])
    share = TimeShare(
        source=KnownBy.MEASURED, type="h100", precision="bf16", share=1.0, evidence=row
    )
    assert str(ExpectedError(shares=(share,))) == (
        "expected error about 3 % (calibrated by runs of bert on it, the last on 2026-11-19)"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"measured_seconds": 0.0}, "measured_seconds must be"),
        ({"num_hosts": 3}, "num_hosts must be from 1 to 2, got 3"),
    ],
)
def test_a_calibration_of_no_run_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibration(1.0, **changes)


def test_calibrations_are_kept_in_the_cluster_s_file(tmp_path: Path) -> None:
    cluster = find_cluster("h100-x2")
    kinds = {name: replace(kind, launch_share=1.5) for name, kind in cluster.types.items()}
    own = replace(cluster, calibrations=(calibration(1.04), calibration(0.9)), types=kinds)
    own.save(tmp_path / "own.yaml")
    again = Cluster.load(tmp_path / "own.yaml")
    assert again.calibrations == own.calibrations
    assert dict(again.types) == kinds
