"""Warnings are given at the user's line, whatever of ours lies between."""

import warnings
from pathlib import Path

import pytest

import meshwright as mw
from meshwright.cluster.file import read_cluster
from meshwright.errors import InputWarning

ODD = """
format: meshwright.cluster
version: 1
hosts: [{count: 2, devices: 1 x h100, nics: 1 x 1 kB/s}]
"""


@pytest.mark.parametrize("way", ["cluster", "plan", "read"])
def test_a_warning_points_at_the_users_line(way: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(ODD)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if way == "cluster":
            mw.cluster(path)
        elif way == "plan":
            mw.plan("mlp", path, method="single", budget_seconds=0.1)
        else:
            read_cluster(path)
    (found,) = (each for each in caught if each.category is InputWarning)
    assert found.filename == __file__
    assert "is below 1 MB/s" in str(found.message)
