"""A cluster file of which any one field is damaged is refused or doubted, by the field's name."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.cluster.file import read_cluster
from meshwright.errors import InputError, InputWarning

Place = tuple[str | int, ...]
"""Where a field is in a document."""
WHOLE: dict[str, Any] = {
    "format": "meshwright.cluster",
    "version": 1,
    "name": "two",
    "types": {
        "fast": {
            "flops_per_second": {"fp32": "67 TFLOP/s", "bf16": 9.9e14},
            "memory_bytes": "80 GB",
            "memory_bytes_per_second": 3.35e12,
            "library_bytes": "64 MiB",
        }
    },
    "devices": [
        {"name": "a", "type": "fast", "host": "x", "memory_bytes": "70 GB"},
        {"name": "b", "type": "fast", "host": "y"},
    ],
    "switches": ["s"],
    "links": [
        {"source": "a", "target": "s", "bytes_per_second": "400 Gb/s", "both_ways": True},
        {"source": "s", "target": "b", "bytes_per_second": 5e10, "latency_seconds": "5 us"},
        {"source": "b", "target": "s", "bytes_per_second": 5e10},
    ],
    "devices_relay": False,
}
SHORT: dict[str, Any] = {
    "format": "meshwright.cluster",
    "version": 1,
    "name": "four",
    "racks": [
        {
            "count": 2,
            "name": "r",
            "oversubscription": 2.5,
            "hosts": [
                {"count": 2, "name": "h", "devices": ["2 x h100", "1 x fast"], "nics": "2 x 8 GB/s"}
            ],
        },
        {
            "uplink": "80 Gb/s",
            "hosts": [
                {
                    "devices": "8 x h100", "nics": "8 x 400 Gb/s", "nvlink": "450 GB/s",
                    "pcie": 4e10, "latency": "2 us",
                }
            ],
        },
    ],
    "types": WHOLE["types"],
    "network_latency": "4 us",
    "switch_latency": 3e-7,
}  # fmt: skip
DOCUMENTS = (WHOLE, SHORT)
QUANTITIES = ("memory_bytes", "per_second", "library_bytes", "latency_seconds", "fp32", "bf16",
              "nics", "nvlink", "pcie", "latency", "uplink")  # fmt: skip


def paths(value: Any, before: Place = ()) -> Iterator[Place]:
    """Every place of a document, its own excluded."""
    if before:
        yield before
    if isinstance(value, (dict, list)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(each, (*before, key))


def changed(path: Place, value: Any, whole: dict[str, Any] = WHOLE) -> dict[str, Any]:
    document = copy.deepcopy(whole)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


def renamed(path: Place, name: str, whole: dict[str, Any]) -> dict[str, Any]:
    document = copy.deepcopy(whole)
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[name] = place.pop(path[-1])
    return document


def said_of(document: dict[str, Any], folder: Path) -> str:
    """What reading it raises or warns of; empty: nothing."""
    path = folder / "file.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", InputWarning)
        try:
            read_cluster(path)
        except InputError as error:
            return str(error).removeprefix(str(path))
    return "; ".join(str(each.message).removeprefix(str(path)) for each in caught)


def names_of(path: Place) -> list[str]:
    """What people would look for: the field, or what it is in."""
    return [str(each) for each in path if isinstance(each, str)][-2:]


@pytest.mark.parametrize("whole", DOCUMENTS, ids=["long", "short"])
def test_the_whole_file_is_read_without_a_word(whole: dict[str, Any], tmp_path: Path) -> None:
    assert said_of(whole, tmp_path) == ""


EVERY = [(whole, path) for whole in DOCUMENTS for path in sorted(paths(whole), key=str)]
FIELDS = [each for each in EVERY if isinstance(each[1][-1], str) and each[1][-1] != "fast"]
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@SHARED
@given(
    chosen=st.sampled_from(EVERY),
    value=st.sampled_from([None, [], {}, {"x": 1}, [1], 1.5, True, "x", ""]),
)
def test_a_value_of_another_kind_is_refused_by_name(
    chosen: tuple[dict[str, Any], Place], value: Any, tmp_path: Path
) -> None:
    whole, path = chosen
    place: Any = whole
    for key in path:
        place = place[key]
    if type(place) is type(value) or is_fine(path, value):
        return
    said = said_of(changed(path, value, whole), tmp_path)
    assert any(name in said for name in names_of(path)), (path, value, said)


def is_fine(path: Place, value: Any) -> bool:
    """Whether the value is another right one, or says that the field is left out."""
    name = str(path[-1])
    if path[0] == "racks":
        if name == "name":
            return value is None or isinstance(value, str)
        if name == "oversubscription" and value == 1.5:
            return True
        return value is None and name in ("nvlink", "pcie", "latency", "uplink", "oversubscription")
    if value is None:
        return name in ("memory_bytes", "latency_seconds") and path[0] != "types"
    if name == "name" and len(path) == 1:
        return isinstance(value, str)
    if name == "library_bytes":
        return bool(value == 1.5)  # some have none, or little
    return value in ([], {}) and name in ("switches", "types")


@SHARED
@given(
    chosen=st.sampled_from([each for each in EVERY if str(each[1][-1]).endswith(QUANTITIES)]),
    value=st.one_of(
        st.sampled_from([-1, -1e12, float("nan"), float("inf"), 0, "0 B", "-3 GB/s", "fast", "5"]),
        st.sampled_from(["400G", "400 gb/s", "80 gigs", "5 parsecs", "1e400", "67 TFLOPS/h"]),
    ),
)
def test_a_quantity_out_of_its_range_is_refused_or_doubted_by_name(
    chosen: tuple[dict[str, Any], Place], value: Any, tmp_path: Path
) -> None:
    whole, path = chosen
    if value in (0, "0 B", "5") and path[-1] == "library_bytes":
        return  # some have none, or little
    said = said_of(changed(path, value, whole), tmp_path)
    assert any(name in said for name in names_of(path)), (path, value, said)


@SHARED
@given(
    chosen=st.sampled_from(FIELDS),
    change=st.sampled_from([lambda n: n + "x", lambda n: n[:-1], lambda n: n.upper() + "_"]),
)
def test_a_misspelt_field_is_refused_by_its_name(
    chosen: tuple[dict[str, Any], Place], change: Any, tmp_path: Path
) -> None:
    whole, path = chosen
    name = change(str(path[-1]))
    said = said_of(renamed(path, name, whole), tmp_path)
    assert name in said or str(path[-1]) in said, (path, name, said)


@pytest.mark.parametrize(
    "path", [("devices", 0, "type"), ("links", 0, "source"), ("links", 1, "target")], ids=str
)
def test_a_name_that_nothing_has_is_refused(path: Place, tmp_path: Path) -> None:
    assert "nobody" in said_of(changed(path, "nobody"), tmp_path)
