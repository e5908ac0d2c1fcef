import gzip
import os
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright import files
from meshwright.errors import InputError
from meshwright.files import (
    convert,
    decode_document,
    decode_json,
    read_bytes,
    write_bytes,
    write_document,
)


class Point(msgspec.Struct, forbid_unknown_fields=True):
    x: float
    y: float = 0.0


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

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(InputError, match=r"a: cannot be read \(Permission denied"):
        read_bytes(tmp_path / "a")


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
    with pytest.raises(InputError, match=r"bomb\.gz: larger than 1000 bytes unpacked"):
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


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InputError, match="f: nested too deeply"):
        decode_json(b"[" * 100_000, object, "f")


def test_plain_objects_are_checked_field_by_field() -> None:
    assert convert({"x": 1.5}, Point, "f") == Point(1.5)
    with pytest.raises(InputError, match=r"f: Expected `float`, got `str` - at `\$\.x`"):
        convert({"x": "a"}, Point, "f")


def test_documents_are_json_or_yaml() -> None:
    assert decode_document(b' {"x": [1]}', "f") == {"x": [1]}
    assert decode_document(b"x: [1]", "f") == {"x": [1]}
    with pytest.raises(InputError, match="f: not YAML"):
        decode_document(b"x: [1", "f")
    with pytest.raises(InputError, match="f: not YAML"):
        decode_document(b"!!python/object:os.system {}", "f")


def test_large_yaml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_YAML_BYTES", 10)
    with pytest.raises(InputError, match="f: YAML larger than 10 bytes; write it as JSON"):
        decode_document(b"x: 123456789", "f")


@pytest.mark.parametrize("name", ["a.json", "a.yaml", "a.yml", "a.yaml.gz", "a", "b.gz"])
def test_documents_survive_a_round_trip(tmp_path: Path, name: str) -> None:
    document = {"b": [1, 2.5e-7, "on", None, True], "a": {"x": "ü\n"}}
    write_document(tmp_path / name, document)
    data = read_bytes(tmp_path / name)
    assert decode_document(data, "f") == document
    assert data.startswith(b"b:" if "y" in name else b"{")


@given(st.binary(max_size=200))
def test_only_input_errors_escape(data: bytes) -> None:
    with suppress(InputError):
        decode_document(data, "f")


def test_deeply_nested_yaml_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="nested deeper than 100"):
        decode_document(b"a: " + b"[" * 200_000, "deep.yaml")
