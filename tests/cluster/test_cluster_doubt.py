"""What is hardly meant in a cluster file is said, and the file is read."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli.entry import main
from meshwright.cluster.build import fully_connected
from meshwright.cluster.file import read_cluster
from meshwright.errors import InputWarning

TEXT = """format: meshwright.cluster
version: 1
name: two
devices:
  - {{name: a, type: h100, host: x}}
  - {{name: b, type: h100, host: y}}
links:
  - {{source: a, target: b, bytes_per_second: 400 Gb/s}}
  - {{source: b, target: a, bytes_per_second: {rate}, latency_seconds: {latency}}}
{more}"""


def save(folder: Path, rate: Any = "400 Gb/s", latency: Any = "5 us", more: str = "") -> Path:
    path = folder / "two.yaml"
    path.write_text(TEXT.format(rate=rate, latency=latency, more=more))
    return path


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 400}, "link 'b' -> 'a': bytes_per_second is below 1 MB/s, got 400 B/s"),
        ({"rate": "400 PB/s"}, "link 'b' -> 'a': bytes_per_second is above 100 TB/s, got "),
        ({"latency": 5}, "link 'b' -> 'a': latency_seconds is above 100 ms, got 5 s"),
        ({"latency": "0 us"}, "link 'b' -> 'a': latency_seconds is zero"),
        (
            {"more": "  - {source: b, target: a, bytes_per_second: 1 GB/s}"},
            "link 'b' -> 'a': stands 2 times; a route takes one of them",
        ),
    ],
    ids=str,
)
def test_what_is_hardly_meant_is_said(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    path = save(tmp_path, **given)
    with pytest.warns(InputWarning) as caught:
        cluster = read_cluster(path)
    assert len(cluster.devices) == 2
    (warning,) = caught
    assert str(warning.message).startswith(f"{path}: {said}")


def test_arguments_of_builders_are_doubted(tmp_path: Path) -> None:
    path = tmp_path / "built.yaml"
    arguments = "{num_devices: 2, device_type: h100, bytes_per_second: 1e9, latency_seconds: 0}"
    header = "format: meshwright.cluster\nversion: 1\nbuild: fully_connected\n"
    path.write_text(f"{header}arguments: {arguments}\n")
    with pytest.warns(InputWarning, match="arguments: latency_seconds is zero") as caught:
        read_cluster(path)
    assert len(caught) == 1


def test_many_links_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "four.json"
    fully_connected(num_devices=4, device_type="h100", bytes_per_second=1.0).save(path)
    with pytest.warns(InputWarning, match="'host0.0' -> .* and 11 more: bytes_per_") as caught:
        read_cluster(path)
    assert len(caught) == 1


def test_usual_links_are_not_doubted(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cluster = read_cluster(save(tmp_path))
    assert (len(cluster.links), caught) == (2, [])


def test_commands_say_it_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(tmp_path, rate=400)
    assert main(["cluster", "show", str(path)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"meshwright: warning: {path}: link 'b' -> 'a': bytes_per_second is")


@pytest.mark.parametrize(
    ("text", "doubt"),
    [
        ("hosts: [{count: 2, devices: t4, nics: 400}]",
         "hosts[0].nics is below 1 MB/s, got 400 B/s"),
        ("hosts: [{devices: t4, pcie: 1e15}]", "hosts[0].pcie is above 100 TB/s, got 1,000 TB/s"),
        ("hosts: [{devices: 2 x h100, nvlink: 450}]",
         "hosts[0].nvlink is below 1 MB/s, got 450 B/s"),
        ("hosts: [{devices: t4, latency: 5}]", "hosts[0].latency is above 100 ms, got 5 s"),
        ("hosts: [{devices: t4}]\nnetwork_latency: 0", "network_latency is zero"),
        ("racks: [{hosts: [{devices: t4}], oversubscription: 0.5}]",
         "racks[0].oversubscription is below 1, got 0.5"),
        ("racks: [{hosts: [{devices: t4}], uplink: 80}]",
         "racks[0].uplink is below 1 MB/s, got 80 B/s"),
    ],
)  # fmt: skip
def test_the_short_form_is_doubted_by_its_fields(text: str, doubt: str, tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(text)
    with pytest.warns(InputWarning) as caught:
        read_cluster(path)
    line = len(text.splitlines())  # each has its fault in the last
    assert [str(each.message) for each in caught] == [f"{path}: line {line}: {doubt}"]
