import gzip
import json
import os
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meshwright as mw
from meshwright import files
from meshwright.errors import InputError
from meshwright.files import (
    Fields,
    as_json,
    count_keys,
    decode_json,
    decode_or,
    first_byte,
    need_keys_once,
    probe_json,
    read_bytes,
    write_bytes,
    write_document,
)


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: float
    y: float = 0.0


class Header(msgspec.Struct):
    format: str = ""


class Table(msgspec.Struct, forbid_unknown_fields=True):
    rows: list[int]
    name: str = "none"
    notes: dict[str, str] = {}


@pytest.mark.parametrize("name", ["a.json", "a.json.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    write_bytes(tmp_path / name, b"content")
    assert read_bytes(tmp_path / name) == b"content"
    assert os.listdir(tmp_path) == [name]


def test_gzip_is_by_suffix_when_written_and_by_content_when_read(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.gz", b"content")
    packed = (tmp_path / "a.gz").read_bytes()
    assert gzip.decompress(packed) == b"content"
    (tmp_path / "a.json").write_bytes(packed)
    assert read_bytes(tmp_path / "a.json") == b"content"
    (tmp_path / "b.gz").write_bytes(b"plain")
    assert read_bytes(tmp_path / "b.gz") == b"plain"


def test_packed_files_do_not_depend_on_the_clock(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a.gz", b"content")
    write_bytes(tmp_path / "b.gz", b"content")
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_an_interrupted_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_bytes(path, b"old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match=r"a\.json: cannot be written \(No space left"):
        write_bytes(tmp_path / "a.json", b"new")
    assert os.listdir(tmp_path) == []


def test_a_written_file_has_the_usual_permissions(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"")
    (tmp_path / "b").touch()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_writing_into_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent/a\.json: cannot be written"):
        write_bytes(tmp_path / "absent" / "a.json", b"")


@pytest.mark.parametrize("length", [3, 12, 20])
def test_truncated_gzip_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"some content that is long enough")[:length])
    with pytest.raises(InputError, match=r"a\.gz: truncated or damaged gzip file"):
        read_bytes(path)


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(os.urandom(200)))
    packed[-6] ^= 0xFF  # in the checksum
    path = tmp_path / "a.gz"
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"a\.gz: truncated or damaged gzip file"):
        read_bytes(path)


def test_a_missing_file_a_folder_and_a_bad_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent: cannot be read \(No such file"):
        read_bytes(tmp_path / "absent")
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match=r"not a file name"):
        read_bytes("a\0b")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch(mode=0o000)
    with pytest.raises(InputError, match=r"a: cannot be read \(Permission denied"):
        read_bytes(path)


def test_a_file_that_may_not_be_opened_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match=r"a: cannot be read \(Permission denied"):
        read_bytes(tmp_path / "a")


def test_what_may_never_end_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # nobody ever writes to it
    for path in (tmp_path / "pipe", Path("/dev/zero"), Path("/dev/null")):
        with pytest.raises(InputError, match="must be a regular file, but is a pipe, a socket or"):
            read_bytes(path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        with pytest.raises(InputError, match="socket: cannot be read"):
            read_bytes(tmp_path / "socket")


def test_members_of_gzip_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gz"
    one, two = gzip.compress(b"one"), gzip.compress(b"two" * 100_000)
    path.write_bytes(one + two + one + bytes(70_000))  # padded with zeros, as tapes are
    assert read_bytes(path) == b"one" + b"two" * 100_000 + b"one"
    path.write_bytes(one + b"\0garbage")
    with pytest.raises(InputError, match="truncated or damaged gzip file"):
        read_bytes(path)
    monkeypatch.setattr(files, "MAX_MEMBERS", 3)
    path.write_bytes(gzip.compress(b"") * 4)  # twenty bytes each, that hold nothing
    with pytest.raises(InputError, match="it has more than 3 members"):
        read_bytes(path)


def test_a_large_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    write_bytes(tmp_path / "a", b"x" * 10)
    assert len(read_bytes(tmp_path / "a")) == 10
    write_bytes(tmp_path / "a", b"x" * 11)
    with pytest.raises(InputError, match="a: larger than 10 bytes unpacked"):
        read_bytes(tmp_path / "a")


def test_a_bomb_is_refused_without_unpacking_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    path = tmp_path / "bomb.gz"
    # 8 MiB of zeros pack into 8 kB; the checksum at the end is wrong, so reading on would say so
    packer = zlib.compressobj(wbits=31)
    path.write_bytes((packer.compress(bytes(8 << 20)) + packer.flush())[:-8] + b"wrong123")
    with pytest.raises(InputError, match=r"bomb\.gz: larger than 1,000 bytes unpacked"):
        read_bytes(path)


def test_json_is_checked_field_by_field() -> None:
    assert decode_json(b'{"x": 1}', Point, "f") == Point(1.0)
    for data, message in (
        (b'{"x": "1"}', "f: Expected `float`, got `str` - at `$.x`"),
        (b"{}", "f: Object missing required field `x`"),
        (b'{"x": 1, "z": 2}', "f: Object contains unknown field `z`"),
        (b'{"x": ', "f: Input data was truncated"),
    ):
        with pytest.raises(InputError) as caught:
            decode_json(data, Point, "f")
        assert str(caught.value) == message


class Nested(msgspec.Struct):
    rows: dict[str, dict[str, list[Point]]]


def test_refusals_name_the_keys_of_mappings() -> None:
    data = b'{"rows": {"a": {"b": []}, "c.d": {"e": [], "f[0]": [{"x": 1}, {"x": "2"}]}}}'
    with pytest.raises(InputError) as caught:
        decode_json(data, Nested, "f")
    expected = "f: Expected `float`, got `str` - at `$.rows.c.d.f[0][1].x`"
    assert str(caught.value) == expected
    with pytest.raises(InputError) as caught:
        Fields(data, Nested, "f").read("rows")
    assert str(caught.value) == expected.replace("f: ", "f: rows: ").replace("$.rows", "rows")


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InputError, match="f: nested too deeply"):
        decode_json(b"[" * 100_000, object, "f")


def test_what_a_probe_does_not_name_is_skipped() -> None:
    data = b'{"rows": [' + b"{}," * 1000 + b'[]], "format": "a"}'
    assert probe_json(data, Header, "f") == Header("a")


def test_more_values_than_the_limit_are_refused_before_they_are_built() -> None:
    # Two openings and three commas: an object in a list of four values.
    data = b'[{"a": 1}, 2, 3, "x"]'
    assert len(decode_json(data, list, "f", max_values=5)) == 4
    with pytest.raises(InputError, match="f: must hold at most 4 values, holds more"):
        decode_json(data, list, "f", max_values=4)
    # Where there are too many, that it is no JSON at all is never found out.
    with pytest.raises(InputError, match="f: must hold at most 4 values"):
        decode_json(b"[,,,,,,", list, "f", max_values=4)


def test_what_stands_in_texts_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [",,,,[[[[", '\\",,,,"\\', "\\\\", '{"a": [1, 2, 3]}']
    data = json.dumps(texts).encode()
    for span in (1, 2, 3, 7, 1 << 20):
        monkeypatch.setattr(files, "_SPAN", span)
        assert decode_json(data, list, "f", max_values=4) == texts
        with pytest.raises(InputError, match="at most 3 values"):
            decode_json(data, list, "f", max_values=3)


documents = st.recursive(
    st.none() | st.integers(-9, 9) | st.text(alphabet='a\\",:[]{}', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(alphabet='b\\":,', max_size=4), inner, max_size=4)
    ),
    max_leaves=20,
)


def weigh(document: Any) -> tuple[int, int]:
    """How many commas and openings JSON has outside of texts, and how many keys."""
    if not isinstance(document, list | dict):
        return 0, 0
    inner = [
        weigh(each) for each in (document.values() if isinstance(document, dict) else document)
    ]
    keys = len(document) if isinstance(document, dict) else 0
    marks = 1 + max(0, len(document) - 1) + sum(each for each, _ in inner)
    return marks, keys + sum(each for _, each in inner)


@given(document=documents, span=st.integers(1, 40), is_spaced=st.booleans())
def test_values_and_keys_are_counted_exactly(document: Any, span: int, is_spaced: bool) -> None:
    data = json.dumps(document, indent=1 if is_spaced else None).encode()
    marks, keys = weigh(document)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_SPAN", span)
        assert count_keys(data) == keys
        decode_json(data, object, "f", max_values=marks)
        if marks:
            with pytest.raises(InputError, match="must hold at most"):
                decode_json(data, object, "f", max_values=marks - 1)


def test_a_long_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_TEXT_BYTES", 10)
    assert decode_json(b'"12345678"', str, "f") == "12345678"
    with pytest.raises(InputError, match="f: larger than 10 bytes"):
        decode_json(b'"123456789"', str, "f")


def test_fields_are_decoded_one_at_a_time() -> None:
    fields = Fields(b'{"rows": [1, 2], "name": 3}', Table, "f", "table.")
    assert fields.read("rows") == [1, 2]
    assert fields.read("notes") == {}
    with pytest.raises(InputError, match=r"^f: table\.name: Expected `str`, got `int`$"):
        fields.read("name")
    with pytest.raises(InputError, match=r"^f: table\.rows: must hold at most 1 values"):
        fields.read("rows", max_values=1)
    with pytest.raises(InputError, match="missing required field `rows`"):
        Fields(b"{}", Table, "f")
    with pytest.raises(InputError, match="unknown field `z`"):
        Fields(b'{"rows": [], "z": 1}', Table, "f")


def test_a_field_of_another_kind_is_as_good_as_none() -> None:
    assert decode_or(msgspec.Raw(b'"a"'), str, "none") == "a"
    assert decode_or(msgspec.Raw(b"[1]"), str, "none") == "none"
    assert decode_or(msgspec.Raw(), str, "none") == "none"


def test_the_first_byte_is_no_white_space() -> None:
    assert first_byte(b" \r\n\t{}") == b"{"
    assert first_byte(b"  ") == first_byte(b"") == b""


def test_documents_are_json_or_yaml() -> None:
    assert as_json(b' {"x": [1]}', "f") == b' {"x": [1]}'
    assert as_json(b"x: [1]", "f") == b'{"x":[1]}'


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.yml", "a.yaml.gz", "a", "b.gz"])
def test_documents_survive_a_round_trip(tmp_path: Path, name: str) -> None:
    document = {"b": [1, 2.5e-7, "on", None, True], "a": {"x": "ü\n"}}
    write_document(tmp_path / name, document)
    data = read_bytes(tmp_path / name)
    assert json.loads(as_json(data, "f")) == document
    assert data.startswith(b"b:" if "y" in name else b"{")


def test_a_key_that_stands_twice_is_refused_by_name(tmp_path: Path) -> None:
    """Of a plan, a cluster and a graph, wherever in the file; one of the two would be lost."""
    graph, cluster = mw.load_graph("mlp"), mw.cluster("cpu-x2")
    plan = mw.Plan(parts=(mw.Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    reads: dict[str, Callable[[Path], object]] = {
        "graph": mw.load_graph, "cluster": mw.cluster, "plan": mw.Plan.load,
    }  # fmt: skip
    saves = {"graph": graph.save, "cluster": cluster.save, "plan": plan.save}
    for kind, save in saves.items():
        path = tmp_path / f"{kind}.json"
        save(path)
        reads[kind](path)
        text = path.read_text()
        for key in ("version", "names" if kind == "graph" else "devices"):
            path.write_text(text.replace(f'"{key}":', f'"{key}": null, "{key}":', 1))
            with pytest.raises(InputError, match=f"key '{key}' stands in its mapping twice"):
                reads[kind](path)


@pytest.mark.parametrize(
    ("passed", "refused"),
    [
        (b'{"a": {"b": 1}, "c": [{"b": 2}]}', b'{"a": {"b": 1, "b": 2}, "c": []}'),
        (b'[{"b": 2}, {"b": 3}]', b'[{"a": 2, "b": 1, "b": 3}]'),
        (b'{"b": "b", "c": ["b", "b"]}', b'{"b": ["b"], "c": 1, "b": 2}'),
        (b'{"b": 1, "b"', b'{"b": 1, "b": 2}'),  # broken JSON is for others to refuse
        (b"[" * 100_000, b'[[{"b": 1, "b": 2}]]'),
    ],
)
def test_equal_keys_are_refused_in_one_mapping_only(passed: bytes, refused: bytes) -> None:
    need_keys_once(passed, "f")
    with pytest.raises(InputError, match="key 'b' stands in its mapping twice"):
        need_keys_once(refused, "f")
