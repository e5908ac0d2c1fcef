"""The fitted curves of an H200 as a file."""

from pathlib import Path

from calibrate_render import render
from meshwright.cost.h200 import H200, read_calibration


def test_what_calibrate_writes_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "curves.json"
    path.write_text(render(H200, "a command", {"date": "2026-11-15"}))
    assert read_calibration(path) == H200
    assert len(H200.matmul) == 6  # three precisions, rows at multiples of 16 bytes or not
