"""The benchmark of vTrain's tables: its step by formulas, its measures by hand, a line a row."""

import importlib
import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from meshwright.cost import fitted
from meshwright.graph.graph import Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import LayerKind

HEADER = (
    "# GPUs,global batch,micro batch,hidden size,attention heads,# layers,sequence length,"
    "tensor parallelism,data parallelism,pipeline parallelism,iteration time (ms)"
)


@pytest.fixture
def vtrain(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    return importlib.import_module("vtrain")


@pytest.fixture
def fit(vtrain: ModuleType) -> ModuleType:
    assert vtrain.__name__ == "vtrain"  # whose folder is on the path
    return importlib.import_module("vtrain_fit")


def layer(vtrain: ModuleType, *, is_fused: bool = True) -> LayerKind:
    shape = vtrain.Shape(
        hidden=256, heads=4, layers=3, sequence=128, vocabulary=1000, batch=2, is_fused=is_fused
    )
    return find_layers(vtrain.megatron_step(shape)).kind_of(1)


def rows(vtrain: ModuleType, tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "steps.csv"
    path.write_text("\n".join([HEADER, *lines]) + "\n", encoding="utf-8")
    assert len(vtrain.read_rows(str(path))) == len(lines)
    return path


def test_a_layer_multiplies_what_megatrons_does(vtrain: ModuleType) -> None:
    # Forward 24 b s h^2 + 4 b s^2 h (Narayanan et al., 2021, appendix), backward twice as much.
    graph = layer(vtrain).graph
    forward = 24 * 2 * 128 * 256**2 + 4 * 2 * 128**2 * 256
    assert graph.flops[graph.phase == Phase.FORWARD].sum() == forward
    assert graph.flops[graph.phase == Phase.BACKWARD].sum() == 2 * forward


def test_a_team_adds_up_twice_forward_and_twice_backward(vtrain: ModuleType) -> None:
    kind = layer(vtrain)
    assert (len(kind.reduced), len(kind.spread), kind.heads) == (2, 2, 4)


def test_softmax_that_is_not_fused_has_four_more_kernels_each_way(vtrain: ModuleType) -> None:
    fused, apart = (layer(vtrain, is_fused=each) for each in (True, False))
    launches = [vtrain.count_launches(each, 1) for each in (fused, apart)]
    assert launches == [(14, 27), (18, 31)]


def test_every_row_gets_a_line_and_every_file_a_summary(
    vtrain: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two of the published rows; they are 3 % and 4 % off.
    path = rows(
        vtrain, tmp_path, "2,4,1,2048,16,12,1024,1,2,1,121.4", "4,4,1,2048,16,12,1024,2,1,2,121.7"
    )
    assert vtrain.main([str(path), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record.get("row") for record in records] == [0, 1, None]
    for record in records[:2]:
        assert record["predicted_ms"] == pytest.approx(record["measured_ms"], rel=0.1)
    assert records[2]["rows"] == 2


def test_steps_grow_by_a_microbatch_at_a_time(vtrain: ModuleType, tmp_path: Path) -> None:
    lines = [f"1,{batch},1,256,4,2,128,1,1,1,1.0" for batch in (1, 2, 4)]
    read = vtrain.read_rows(str(rows(vtrain, tmp_path, *lines)))
    one, two, four = vtrain.predict_rows(read, ()).tolist()
    assert four - two == pytest.approx(2 * (two - one))


def test_a_file_with_other_columns_is_refused_in_one_line(
    vtrain: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    assert vtrain.main([str(path)]) == 2
    assert "must hold vTrain's columns" in capsys.readouterr().err


def test_regret_is_what_the_row_predicted_fastest_takes_longer(
    vtrain: ModuleType, tmp_path: Path
) -> None:
    # The second row is predicted fastest and takes 12 for 10: 0.2. The third has a micro batch of
    # its own, so it is a group by itself (0), unless micro batches are free: then 12 for 6 is 1.
    path = rows(
        vtrain,
        tmp_path,
        "2,4,1,256,4,2,128,1,2,1,10.0",
        "2,4,1,256,4,2,128,2,1,1,12.0",
        "2,4,2,256,4,2,128,2,1,1,6.0",
    )
    read, predicted = vtrain.read_rows(str(path)), np.array([9.0, 8.0, 8.5])
    assert vtrain.mean_regret(read, predicted) == pytest.approx(0.1)
    assert vtrain.mean_regret(read, predicted, ("micro_batch",)) == pytest.approx(1.0)


def test_equal_values_share_their_rank(vtrain: ModuleType) -> None:
    # Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, variances 4.5 and 5.
    found = vtrain.rank_correlation(np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0]))
    assert found == pytest.approx(4.5 / (4.5 * 5) ** 0.5)


def test_steps_of_other_constants_are_what_the_predictor_says(
    vtrain: ModuleType, fit: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bound by launches and not, unaligned and not, teams, stages, replicas, several nodes.
    path = rows(
        vtrain,
        tmp_path,
        "1,2,1,256,4,2,128,1,1,1,1.0",
        "1,2,2,2048,16,2,1024,1,1,1,1.0",
        "8,8,2,2048,16,4,1024,2,2,2,1.0",
        "16,8,1,2048,16,4,1024,8,1,2,1.0",
    )
    read = vtrain.read_rows(str(path))
    steps = fit.Steps(read, ())
    np.testing.assert_allclose(
        steps.milliseconds(fit.IN_USE), vtrain.predict_rows(read, ()), rtol=1e-9
    )
    other = replace(fit.STARTS[1], share=0.5, misaligned=4.0, forward_launch_seconds=9e-5)
    monkeypatch.setitem(fitted.CALIBRATIONS, "a100-80", other.calibration)
    monkeypatch.setattr(vtrain, "FORWARD_LAUNCH_SECONDS", other.forward_launch_seconds)
    monkeypatch.setattr(vtrain, "BACKWARD_LAUNCH_SECONDS", other.backward_launch_seconds)
    expected = vtrain.predict_rows(read, ())
    np.testing.assert_allclose(steps.milliseconds(other), expected, rtol=1e-9)
    assert (np.abs(expected / steps.milliseconds(fit.IN_USE) - 1) > 0.01).all()


def test_the_search_ends_in_the_valley_it_is_in(fit: ModuleType) -> None:
    # Kinks and a bend, as the error has; least at (1, 2), where it is 3.
    def value(point: np.typing.NDArray[np.float64]) -> float:
        x, y = point.tolist()
        return float(3 + abs(x - 1) + 5 * (y - 1 - x**2) ** 2)

    corners = list(fit.descend(value, np.zeros(2)))
    values = [corner[0] for corner in corners]
    assert values == sorted(values, reverse=True)
    assert values[-1] == pytest.approx(3, abs=1e-4)
    assert corners[-1][1] == pytest.approx([1, 2], abs=1e-2)


def test_smooth_regret_weighs_rows_by_how_fast_they_seem(fit: ModuleType) -> None:
    # Equal predictions: half of 0.2. A second group is e^10 sure of its best row.
    predicted = np.array([5.0, 5.0, 1.0, float(np.exp(10 * fit.DOUBT))])
    measured = np.array([10.0, 12.0, 7.0, 14.0])
    found = fit.smooth_regret(predicted, measured, [[0, 1], [2, 3]])
    assert found == pytest.approx((0.1 + 1 / (1 + np.exp(10))) / 2)


def test_a_fit_prints_its_improvements_then_what_it_found_and_what_is_in_use(
    vtrain: ModuleType, fit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(
        vtrain, tmp_path, "1,2,2,2048,16,12,1024,1,1,1,200.0", "1,2,2,2048,16,16,1024,1,1,1,260.0"
    )
    assert fit.main([str(path), "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for start in range(len(fit.STARTS)):
        values = [each["objective"] for each in records if each.get("start") == start]
        assert values == sorted(values, reverse=True)
    found, in_use = records[-2:]
    assert (found["constants"], in_use["constants"]) == ("found", "in use")
    assert found["objective"] < 1e-5  # one row, four constants
    assert found["objective"] <= in_use["objective"]
    assert found["held_out"]["rows"] == 1


def test_a_file_without_rows_to_fit_to_is_refused(
    vtrain: ModuleType, fit: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rows(vtrain, tmp_path, "1,2,1,256,4,2,128,1,1,1,1.0")
    assert fit.main([str(path)]) == 2
    assert "must have rows of one node with 12 or 20 layers" in capsys.readouterr().err
