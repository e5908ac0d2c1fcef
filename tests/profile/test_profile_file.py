"""Profile files: round trips, one-line refusals, and whatever else a file may hold."""

import gzip
import json
import tempfile
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_profile_table import ADD, MM, MUL, profile, table

from meshwright.errors import InputError
from meshwright.profile.profile import Profile, Table, merge_profiles, read_profile

DOCUMENT: dict[str, Any] = {
    "format": "meshwright.profile",
    "version": 1,
    "tables": [
        {
            "device_type": "h200",
            "device": "NVIDIA H200",
            "software": {"torch": "2.11.0+cu130", "cuda": "13.0"},
            "date": "2026-11-15T06:00:00Z",
            "calls": {MM: 1.5e-05, ADD: 0.0},
            "failed": {MUL: "RuntimeError: no"},
        },
        {
            "device_type": "cpu",
            "device": "Xeon",
            "software": {},
            "date": "2026-11-15T06:00:00+02:00",
            "calls": {},
        },
    ],
}
CONTENT = json.dumps(DOCUMENT).encode()

# As text, since some are not Python values: a marker is replaced by them.
STRANGE = (
    "NaN", "-1", "1e400", "-1e400", '"x"', "null", "true", "[]", "{}", "1" + "0" * 400, "9" * 5000,
    "0.5", '"\\ud800"', "[" * 3000 + "]" * 3000, '""', "Infinity", '"0001-01-01T00:00:00+23:59"',
    '"9999-12-31T23:59:59-23:59"', '"2026-01-01"',
)  # fmt: skip

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
calls = texts.map(
    lambda text: json.dumps({"args": [text], "op": "aten.mm.default"}, separators=(",", ":"))
)
tables = st.builds(
    Table,
    device_type=st.sampled_from(["h200", "cpu", "a100-40"]),
    device=texts,
    software=st.dictionaries(st.sampled_from(["torch", "cuda"]), texts),
    date=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-3))])),
    calls=st.dictionaries(calls, st.floats(0, 1e9)),
)
profiles = st.lists(tables, max_size=3, unique_by=lambda each: each.key).map(
    lambda each: Profile(tables=tuple(each))
)


def write(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps({**DOCUMENT, **changes}))
    return path


@given(made=profiles, suffix=st.sampled_from([".json", ".json.gz"]))
@settings(max_examples=100)
def test_a_saved_profile_comes_back_exactly(made: Profile, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"profile{suffix}"
        made.save(path)
        assert read_profile(path) == made
        assert (path.read_bytes()[:2] == b"\x1f\x8b") == (suffix == ".json.gz")


@given(one=profiles, other=profiles)
@settings(max_examples=100)
def test_merging_loses_no_measured_call(one: Profile, other: Profile) -> None:
    def found(made: Profile) -> set[tuple[object, str]]:
        return {(each.key, call) for each in made.tables for call in each.calls}

    assert found(merge_profiles(one, other)) == found(one) | found(other)


def test_the_documented_form_is_read_and_written(tmp_path: Path) -> None:
    made = read_profile(write(tmp_path / "a.json"))
    first, second = made.tables
    assert first.calls == {MM: 1.5e-05, ADD: 0.0}
    assert first.failed == {MUL: "RuntimeError: no"}
    assert second.date == datetime(2026, 11, 15, 4, tzinfo=UTC)
    made.save(tmp_path / "b.json")
    written = json.loads((tmp_path / "b.json").read_text())
    assert written == {
        **DOCUMENT,
        "tables": [DOCUMENT["tables"][0], {**DOCUMENT["tables"][1], "failed": {}}],
    }


def test_the_same_content_is_the_same_file(tmp_path: Path) -> None:
    one = profile(table(1, {MM: 1.0, ADD: 2.0}, software={"torch": "2", "cuda": "3"}))
    other = profile(table(1, {ADD: 2.0, MM: 1.0}, software={"cuda": "3", "torch": "2"}))
    for name, made in (("a.json.gz", one), ("b.json.gz", other)):
        made.save(tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def _table(**changes: Any) -> list[dict[str, Any]]:
    return [{**DOCUMENT["tables"][0], **changes}]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "meshwright.plan"}, "format must be meshwright.profile, got 'meshwright.plan'"),
        ({"version": 2}, "meshwright.profile version must be 1, got 2; measure again"),
        ({"color": "red"}, "unknown field `color`"),
        ({"tables": _table(calls={MM: "1 s"})}, r"Expected `float`, got `str`.*calls"),
        ({"tables": _table(calls={MM: -1.0})}, "table of h200: seconds of call .* got -1.0"),
        ({"tables": _table(date="yesterday")}, r"Invalid RFC3339.*tables\[0\].date"),
        ({"tables": _table(date="2026-11-15T06:00:00")}, "Expected `datetime` with a timezone"),
        ({"tables": _table(device_type="a b")}, "device type: must be .* got 'a b'"),
        ({"tables": _table() * 2}, "table of h200: must be the only one with software"),
    ],
)
def test_a_refusal_names_the_file_the_place_and_the_rule(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = write(tmp_path / "a.json", **changes)
    with pytest.raises(InputError, match=message) as caught:
        read_profile(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_files_that_are_not_there_or_damaged_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot be read"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "cut.json.gz").write_bytes(gzip.compress(CONTENT)[:-20])
    with pytest.raises(InputError, match="truncated or damaged gzip"):
        read_profile(tmp_path / "cut.json.gz")


def test_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not all text is Unicode"):
        profile(table(1, device="\ud800")).save(tmp_path / "a.json")


def test_the_unharmed_file_is_read(tmp_path: Path) -> None:
    assert len(read_profile(write(tmp_path / "a.json")).tables) == 2
