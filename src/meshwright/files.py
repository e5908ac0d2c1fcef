"""Reads and writes files: whole or not at all, gzip by content, limited in size, never pickle.

Knows nothing of what the files mean.
"""

import gzip
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from meshwright.errors import InputError, quoted

T = TypeVar("T")

MAX_BYTES = 1 << 30
"""A file may be this large, unpacked. A graph of a million ops takes about a tenth of it."""
MAX_YAML_BYTES = 16 << 20
"""YAML is read about a hundred times slower than JSON; larger data belongs in JSON."""
MAX_YAML_DEPTH = 100
"""No file of ours nests deeper than ten."""


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, unpacked when it is gzip."""
    path = Path(path)
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: truncated or damaged gzip file ({error})") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None
    except ValueError as error:  # a NUL byte in the name
        raise InputError(f"{quoted(str(path))}: not a file name ({error})") from None
    if len(data) > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES} bytes unpacked")
    return data


def decode_json(data: bytes, kind: type[T], where: str) -> T:
    """JSON bytes as `kind`, checked field by field."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None


def convert(document: object, kind: type[T], where: str) -> T:
    """Plain objects (from YAML) as `kind`, checked field by field."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply") from None


def decode_document(data: bytes, where: str) -> object:
    """JSON when the text starts like JSON, YAML otherwise, as plain objects."""
    if data.lstrip()[:1] in (b"{", b"["):
        return decode_json(data, object, where)
    if len(data) > MAX_YAML_BYTES:
        raise InputError(f"{where}: YAML larger than {MAX_YAML_BYTES} bytes; write it as JSON")
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        _refuse_deep(data, loader, where)
        return yaml.load(data, Loader=loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where}: not YAML ({error})") from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise InputError(f"{where}: not YAML ({type(error).__name__}: {error})") from None


def _refuse_deep(data: bytes, loader: type, where: str) -> None:
    """Count the depth event by event: the loader itself recurses, and the C one has no limit."""
    depth = 0
    for event in yaml.parse(data, Loader=loader):
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
            if depth > MAX_YAML_DEPTH:
                raise InputError(f"{where}: YAML nested deeper than {MAX_YAML_DEPTH}")
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write a file whole or not at all: beside its place first, then renamed into it."""
    path = Path(path)
    if path.suffix == ".gz":
        data = gzip.compress(data, mtime=0)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
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
