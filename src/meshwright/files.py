"""Reads and writes files: whole or not at all, gzip by content, never pickle.

A file of a few kilobytes can ask for any amount of memory. Its size unpacked, the length of a text
that is decoded at once and the number of values in it are limited, before anything is built of it;
together these limits keep every reader below 2 GB. Knows nothing of what the files mean.
"""

import gzip
import json
import math
import os
import re
import stat
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
import yaml

from meshwright.argument import need_type, shown
from meshwright.errors import InputError, nearest, quoted
from meshwright.from_yaml import yaml_to_json

T = TypeVar("T")
Codes = npt.NDArray[np.uint8]

MAX_BYTES = 512 << 20
"""A file may be this large, packed and unpacked. A graph of a million ops has 200 MB."""
MAX_TEXT_BYTES = 256 << 20
"""JSON that is decoded at once may be this long: texts may take five times as much memory."""
MAX_VALUES = 1 << 22
"""JSON that is decoded at once may hold this many values. Lists, numbers and short texts take up to
100 bytes of memory each."""
MAX_MEMBERS = 1 << 16
"""A gzip file may have this many members; they can be empty."""

MAX_NAME = 4096
"""A name may have this many characters: as many as a path."""
Name = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]

_CHUNK = 1 << 16
"""Bytes that are unpacked at a time."""
_SPAN = 1 << 20
"""Bytes that values are counted in at a time."""
_COMMA, _COLON, _QUOTE, _OPENING = 0x2C, 0x3A, 0x22, 0x7B
"""Of ASCII; an opening bracket is an opening brace without the bit 0x20."""


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, unpacked when it is gzip."""
    need_type(path, (str, Path), "a file", "a path")
    path = Path(path)
    try:
        with _open_regular(path) as stream:
            is_gzip = stream.peek(2)[:2] == b"\x1f\x8b"
            data = _unpack(stream) if is_gzip else stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # a NUL byte in the name
        raise InputError(f"{quoted(str(path))}: not a file name ({error})") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES:,} bytes unpacked")
    return data


def _open_regular(path: Path) -> BufferedReader:
    """Open a file for reading; a pipe or a device, which may never end, is refused."""

    def open_at_once(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe waits for a writer

    stream = open(path, "rb", opener=open_at_once)  # noqa: SIM115
    status = os.fstat(stream.fileno())
    if not stat.S_ISREG(status.st_mode):
        stream.close()
        raise InputError(f"{path}: must be a regular file, but is a pipe, a socket or a device")
    return stream


def _unpack(packed: BufferedReader) -> bytes:
    """The content of a gzip file, member after member; one byte too many when it is too large."""
    content, rest = bytearray(), b""
    for _ in range(MAX_MEMBERS):
        unpacker = zlib.decompressobj(wbits=31)
        while not unpacker.eof:
            rest = rest or packed.read(_CHUNK)
            piece = unpacker.decompress(rest, _CHUNK)
            if not piece and not rest:
                raise EOFError("it ends too early")
            content += piece
            if len(content) > MAX_BYTES:
                return bytes(content)
            rest = unpacker.unconsumed_tail
        rest = _skip_padding(packed, unpacker.unused_data)
        if not rest:
            return bytes(content)
    raise zlib.error(f"it has more than {MAX_MEMBERS} members")


def _skip_padding(packed: BufferedReader, rest: bytes) -> bytes:
    """What follows the zeros after a member: the start of the next one, or nothing."""
    while not (rest := rest.lstrip(b"\0")):
        rest = packed.read(_CHUNK)
        if not rest:
            return rest
    return rest


def first_byte(data: bytes) -> bytes:
    """The first byte that is no white space; empty where there is none."""
    found = _NOT_SPACE.search(data)
    return found[0] if found else b""


_NOT_SPACE = re.compile(rb"\S")


def as_json(data: bytes, where: str) -> bytes:
    """A document that is JSON, when its text starts like JSON, or else YAML, as JSON."""
    if first_byte(data) not in (b"{", b"["):
        return yaml_to_json(data, where)
    need_keys_once(data, where)
    return data


def need_keys_once(data: bytes, where: str) -> None:
    """Refuse JSON in which a key stands in its mapping twice, of which one would be lost; files
    that are too long for people are not looked at, as programs write none twice."""

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len({key for key, _ in pairs}) < len(pairs):
            twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
            raise InputError(f"{where}: key {quoted(twice)} stands in its mapping twice")

    is_long = len(data) > _MAX_WRITTEN or _has_more(_codes(memoryview(data)), _MAX_WRITTEN_VALUES)
    if not is_long:
        with suppress(ValueError, RecursionError):  # of which the decoder says more
            json.loads(data, object_pairs_hook=check)


_MAX_WRITTEN, _MAX_WRITTEN_VALUES = 16 << 20, 1 << 20
"""Bytes and values of documents that people write, or change by hand."""


def decode_json(
    data: bytes | msgspec.Raw,
    kind: type[T],
    where: str,
    *,
    max_values: int = MAX_VALUES,
) -> T:
    """JSON as `kind`, checked field by field; with more values than `max_values` it is refused."""
    view = memoryview(data)
    if view.nbytes > MAX_TEXT_BYTES:
        raise InputError(f"{where}: larger than {MAX_TEXT_BYTES:,} bytes")
    if _has_more(_codes(view), max_values) and _has_more(_codes_outside_texts(view), max_values):
        raise InputError(f"{where}: must hold at most {max_values:,} values, holds more")
    return probe_json(data, kind, where)


def probe_json(data: bytes | msgspec.Raw, kind: type[T], where: str) -> T:
    """JSON as a `kind` that has no lists: what it does not name is skipped, however much it is."""
    try:
        decoded: T = msgspec.json.decode(data, type=kind)
        return decoded
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {name_keys(str(error), data, kind)}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None


_MAX_EXPLAINED = 1 << 20
"""Bytes of a document that is looked through for a fault: people write no longer ones."""
_AT = " - at `"
"""Before the place that the decoder names; `$` is the whole document."""
_UNKNOWN = re.compile("Object contains unknown field `(.*)`")
_STEP = re.compile(r"\.[^.\[\]]+|\[\d+\]|\[\.\.\.\]")
"""Of such a place: a field, a place in a list, some key of a mapping."""


def name_keys(message: str, data: bytes | msgspec.Raw, kind: type[T]) -> str:
    """What a decoder says of a document, with the keys of mappings, the values and the fields most
    like an unknown one, which it leaves out.

    A mapping with one of its keys alone is refused as the whole is if the fault is there.
    """
    head, sign, place = message.partition(f"{_AT}$")
    if memoryview(data).nbytes > _MAX_EXPLAINED:
        return message
    try:
        document = within = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # beyond the fault
        return message
    found = ""
    for step in _STEP.findall(place.removesuffix("`")):
        key: Any = step[1:] if step[0] == "." else step[1:-1]
        if step == "[...]":
            key = _faulty_key(document, within, kind) if isinstance(within, dict) else None
            step = f".{quoted(key)[1:-1]}" if key is not None else ""
        elif step[0] == "[":
            key = int(key)
        try:
            found, within = found + step, within[key]
        except (LookupError, TypeError):  # what the decoder counts otherwise
            return message
    return f"{head}{_got(head, within, kind)}{sign}{found}{'`' if sign else ''}"


def _got(rule: str, value: Any, kind: type[T]) -> str:
    """What a rule leaves out: the value that breaks it, or the field that an unknown one means."""
    if (unknown := _UNKNOWN.fullmatch(rule)) is not None:
        known = _field_names(kind)
        hint = nearest(unknown[1], known) if unknown[1] not in known else ""
        return f", {hint}" if hint.startswith("did") else ""
    has_value = ", got `" in rule or isinstance(value, dict | list)
    return f", got {shown(value)}" if rule.startswith("Expected") and not has_value else ""


def _field_names(kind: Any) -> list[str]:
    """The fields of a form and of those inside it; where those are not decoded yet, its own."""
    try:
        forms = msgspec.json.schema_components((kind,))[1].values()
    except TypeError:  # there is no schema of what is not decoded
        return list(getattr(kind, "__struct_fields__", ()))
    return sorted({name for form in forms for name in form.get("properties", ())})


def _faulty_key(document: Any, mapping: dict[str, Any], kind: Any) -> str | None:
    """The first key of a mapping within a document that is refused; the others are left out."""
    entries = dict(mapping)
    for key, value in entries.items():
        mapping.clear()
        mapping[key] = value
        try:
            msgspec.json.decode(msgspec.json.encode(document), type=kind)
        except msgspec.ValidationError:
            return key
    mapping.clear()
    mapping.update(entries)
    return None


ABSENT = msgspec.Raw()
"""The text of a field that is missing."""


def is_given(field: msgspec.Raw) -> bool:
    """Whether a field is not missing."""
    return bool(memoryview(field).nbytes)


def decode_or(field: msgspec.Raw, kind: type[T], other: T) -> T:
    """What a field holds; `other` where it is missing or holds something else than `kind`."""
    try:
        return decode_json(field, kind, "") if is_given(field) else other
    except InputError:
        return other


class Fields:
    """An object of JSON whose fields are decoded one at a time, each with a limit of its own."""

    def __init__(
        self, data: bytes | msgspec.Raw, kind: type[msgspec.Struct], where: str, prefix: str = ""
    ) -> None:
        """`kind` has the fields; what they hold is not looked at yet. Messages begin with `where`
        and call a field by its name with `prefix` before it."""
        self._where, self._prefix = where, prefix
        text_kind, self._kinds, self._infos = _undecoded(kind)
        self._found: Any = probe_json(data, text_kind, where)

    def read(self, name: str, max_values: int = MAX_VALUES) -> Any:
        """A field's value; its default where it is missing."""
        raw = self.raw(name)
        if not is_given(raw):
            info = self._infos[name]
            return info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
        try:
            return decode_json(raw, self._kinds[name], self.label(name), max_values=max_values)
        except InputError as error:
            place = f"{_AT}{self._prefix}{name}"
            raise InputError(str(error).replace(f"{_AT}$", place, 1)) from None

    def raw(self, name: str) -> msgspec.Raw:
        """A field's text; `ABSENT` where it is missing."""
        found: msgspec.Raw = getattr(self._found, name)
        return found

    def label(self, name: str) -> str:
        """What messages call a field."""
        return f"{self._where}: {self._prefix}{name}"


@cache
def _undecoded(kind: type[msgspec.Struct]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A struct with the same fields as their text stands in a file; their types; their defaults."""
    infos = {each.name: each for each in msgspec.structs.fields(kind)}
    fields: list[Any] = [
        (name, msgspec.Raw) if each.required else (name, msgspec.Raw, ABSENT)
        for name, each in infos.items()
    ]
    text_kind = msgspec.defstruct(
        f"{kind.__name__}Text", fields, forbid_unknown_fields=True, kw_only=True
    )
    return text_kind, get_type_hints(kind, include_extras=True), dict(infos)


def count_keys(data: bytes | msgspec.Raw) -> int:
    """How many keys the mappings of JSON have in all."""
    spans = _codes_outside_texts(memoryview(data))
    return sum(int(np.count_nonzero(codes == _COLON)) for codes in spans)


def _has_more(spans: Iterator[Codes], limit: int) -> bool:
    """Whether more values stand in JSON; it has a comma or an opening bracket for each but one."""
    count = 0
    for codes in spans:
        count += int(np.count_nonzero(codes == _COMMA))
        count += int(np.count_nonzero(codes | 0x20 == _OPENING))
        if count > limit:
            return True
    return False


def _codes(data: memoryview) -> Iterator[Codes]:
    """The bytes of a text, span by span."""
    for start in range(0, data.nbytes, _SPAN):
        yield np.frombuffer(data[start : start + _SPAN], np.uint8)


def _codes_outside_texts(data: memoryview) -> Iterator[Codes]:
    """The bytes of JSON that stand in no text, span by span. Up to where it is no JSON any more,
    texts end where they do for the decoder, so that nothing that it would build is missed."""
    is_inside, is_escaped = 0, False
    for start in range(0, data.nbytes, _SPAN):
        text = bytes(data[start + is_escaped : start + _SPAN]).replace(b"\\\\", b"")
        is_escaped = text.endswith(b"\\")  # what it escapes is the next span's first byte
        codes = np.frombuffer(text.replace(b'\\"', b""), np.uint8)
        inside = np.cumsum(codes == _QUOTE, dtype=np.uint8) + np.uint8(is_inside)
        is_inside = int(inside[-1]) % 2 if len(inside) else is_inside
        yield codes[inside % 2 == 0]


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its place first, then renamed into it."""
    path = Path(path)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:16]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    except ValueError as error:  # a NUL byte in the name
        raise InputError(f"{quoted(str(path))}: not a file name ({error})") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)


def write_document(path: str | Path, document: Mapping[str, Any]) -> None:
    """Write plain objects as YAML (.yaml, .yml) or JSON, gzip when the name ends in .gz."""
    path = Path(path)
    suffixes = path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:]
    if suffixes and suffixes[0] in (".yaml", ".yml"):
        text = yaml.safe_dump(dict(document), sort_keys=False, width=100)
        write_bytes(path, text.encode())
    else:
        write_bytes(path, msgspec.json.encode(document) + b"\n")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def finite(value: float) -> float | None:
    """The number, or None: infinity and NaN are no JSON."""
    return float(value) if math.isfinite(value) else None
