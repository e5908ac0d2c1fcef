"""The JSON Schema of cluster files accepts what readers accept, and refuses damage of form."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_cluster_damage import EVERY, FIELDS, QUANTITIES, Place, changed, is_fine, renamed

from json_schema import CHECKS, NOTES, is_valid
from meshwright.cluster.catalogue import find_cluster, list_clusters
from meshwright.cluster.file import BUILDERS, decode_cluster
from meshwright.cluster.schema import cluster_schema
from meshwright.errors import InputError
from meshwright.files import as_json
from meshwright.form import DIALECT, list_fields

SCHEMA = cluster_schema()
SEEDS = sorted((Path(__file__).parent.parent / "fuzz" / "seeds" / "cluster-yaml").iterdir())
FORMS = ("HostsDocument", "LongDocument", "BuilderDocument")
SHARED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
Chosen = tuple[dict[str, Any], Place]


def fits(document: Any) -> bool:
    return is_valid(document, SCHEMA, SCHEMA)


def is_read(document: Any) -> bool:
    try:
        decode_cluster(msgspec.json.encode(document), "file")
    except InputError:
        return False
    return True


def test_it_is_a_schema_that_programs_can_read() -> None:
    assert SCHEMA["$schema"] == DIALECT
    assert msgspec.json.decode(msgspec.json.encode(SCHEMA)) == SCHEMA
    assert set(FORMS) <= set(SCHEMA["$defs"])
    for definition in SCHEMA["$defs"].values():
        assert set(definition) <= {*CHECKS, *NOTES, "additionalProperties"}
        assert definition["additionalProperties"] is False


@pytest.mark.parametrize("name", [entry.example for entry in list_clusters()])
def test_clusters_of_the_catalogue_fit_as_saved(name: str, tmp_path: Path) -> None:
    find_cluster(name).save(tmp_path / "saved.json")
    assert fits(msgspec.json.decode((tmp_path / "saved.json").read_bytes()))


@pytest.mark.parametrize("path", SEEDS, ids=lambda path: path.name)
def test_files_of_all_forms_fit(path: Path) -> None:
    document = msgspec.json.decode(as_json(path.read_bytes(), str(path)))
    assert is_read(document)
    assert fits(document)


def test_builders_are_those_that_files_may_name() -> None:
    file = {"format": "meshwright.cluster", "version": 1, "build": "torus"}
    assert fits(file)
    assert not fits(file | {"build": "from_hosts"})
    assert SCHEMA["$defs"]["BuilderDocument"]["properties"]["build"]["enum"] == list(BUILDERS)


@SHARED
@given(
    chosen=st.sampled_from(EVERY),
    value=st.sampled_from([None, [], {}, {"x": 1}, [1], 1.5, True, "x", ""]),
)
def test_a_value_of_another_kind_does_not_fit(chosen: Chosen, value: Any) -> None:
    whole, path = chosen
    place: Any = whole
    for key in path:
        place = place[key]
    document = changed(path, value, whole)
    if is_read(document):
        assert fits(document), (path, value)
    elif type(place) is not type(value) and not is_fine(path, value) and value not in ("x", ""):
        # Out of its range or, of NICs, needed by other hosts: readers know.
        is_kind = isinstance(value, float) and isinstance(place, str | int | float)
        assert is_kind or (path[-1], value) == ("nics", None) or not fits(document), (path, value)


@SHARED
@given(
    chosen=st.sampled_from([each for each in EVERY if str(each[1][-1]).endswith(QUANTITIES)]),
    value=st.sampled_from(["400G", "400 gb/s", "80 gigs", "5 parsecs", "67 TFLOPS/h", "-3 GB", -1]),
)
def test_a_quantity_without_a_clear_unit_does_not_fit(chosen: Chosen, value: Any) -> None:
    whole, path = chosen
    assert not fits(changed(path, value, whole)), (path, value)


@SHARED
@given(
    chosen=st.sampled_from(FIELDS), change=st.sampled_from([lambda n: n + "x", lambda n: n[:-1]])
)
def test_a_misspelt_field_does_not_fit(chosen: Chosen, change: Any) -> None:
    whole, path = chosen
    document = renamed(path, change(str(path[-1])), whole)
    assert not fits(document), path


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", "3", '{"hosts": []}', '{"hosts": [{}]}', '{"hosts": [{"devices": "8 x "}]}',
     '{"hosts": [{"devices": []}]}',
     '{"hosts": [{"devices": "t4", "count": 0}]}', '{"hosts": [{"devices": "t4"}], "version": 2}',
     '{"racks": [{"hosts": [{"devices": "t4"}], "oversubscription": 0}]}'],
)  # fmt: skip
def test_other_files_neither_fit_nor_are_read(text: str) -> None:
    document = msgspec.json.decode(text)
    assert not is_read(document)
    assert not fits(document)


@pytest.mark.parametrize("form", FORMS)
def test_every_field_is_described_with_unit_and_default(form: str) -> None:
    rows = list(list_fields(SCHEMA, form))
    assert len({row.name for row in rows}) == len(rows)
    for row in rows:
        assert row.description.endswith("."), row
        is_quantity = re.search(r"flops|bytes|seconds|latency|nics|nvlink|pcie|uplink", row.name)
        assert bool(row.unit) == bool(is_quantity), row
        assert (
            row.default
            or "default" in row.description
            or row.name.endswith(("nics", "uplink", "name"))
        ), row


def test_every_class_of_a_form_is_listed() -> None:
    properties = sum(len(each["properties"]) for each in SCHEMA["$defs"].values())
    classes = {"InterfaceDocument": 2, "TypeDocument": 1}  # those of several forms, once in each
    again = sum(len(SCHEMA["$defs"][name]["properties"]) * n for name, n in classes.items())
    assert sum(len(list(list_fields(SCHEMA, form))) for form in FORMS) == properties + again
