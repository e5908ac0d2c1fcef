"""What is wrong with a file is said with the line that it stands in."""

from pathlib import Path

import pytest

from meshwright.cluster.file import read_cluster
from meshwright.errors import InputError, InputWarning
from meshwright.from_yaml import find_line

SHORT = """\
name: ours
hosts:
- count: 2
  devices: 8 x h100
  nics: 8 x 400 Gb/s
"""
LONG = """\
format: meshwright.cluster
version: 1
name: one
types:
  odd.one:
    flops_per_second: {fp32: 1e13}
    memory_bytes: 16 GB
    memory_bytes_per_second: 900 GB/s
devices: [{name: d0, type: odd.one, host: h0}]
links: []
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "line"),
    [
        (SHORT, "400 Gb/s", "400 Gx/s", 5),
        (SHORT, "8 x h100", "8 x h1000", 4),
        (SHORT, "count: 2", "count: -2", 3),
        (LONG, "16 GB", "16 qB", 7),
        (LONG, "900 GB/s", "fast", 8),
        (LONG, "fp32", "fp23", 5),
    ],
)
def test_a_refusal_names_its_line(text: str, old: str, new: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    read_cluster(path)
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError) as found:
        read_cluster(path)
    assert str(found.value).startswith(f"{path}: line {line}: "), found.value


def test_a_doubt_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(LONG.replace("900 GB/s", "900"))
    with pytest.warns(InputWarning, match=rf"{path}: line 8: types.odd.one"):
        read_cluster(path)


def test_what_no_field_has_gets_no_line(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("name: ours\n")
    with pytest.raises(InputError, match=rf"^{path}: not a cluster file"):
        read_cluster(path)
    assert find_line(b"{", "name") is None
    assert find_line(b"1: 2", "1: two") == 1
