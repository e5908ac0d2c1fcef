"""The benchmark of vTrain's tables: its step by formulas, its measures by hand, a line a row."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

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
    launches = [vtrain._launches(each, 1) for each in (fused, apart)]
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
