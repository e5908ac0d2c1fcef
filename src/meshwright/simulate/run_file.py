"""Reads and writes run files. Knows fields, not what makes a run legal.

    {"format": "meshwright.run", "version": 1, "device_names": ["h0.d0", "h1.d0"],
     "measured_step": 4, "step_seconds": [0.21, 0.2, ...], "losses": [6.9, 6.7, ...],
     "start": [0.0, 0.0012, null, ...], "finish": [0.0011, 0.0031, null, ...],
     "is_emulated": false, "software": {"torch": "2.11.0"}, "calls": {"mm_3": "{...}"}}

A number that is not known is null. Gzip when the name ends in .gz. Users call `Run.save` and
`Run.load`.
"""

from math import nan
from pathlib import Path
from typing import Annotated, Any

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import Name, decode_json, probe_json, read_bytes, write_bytes

FORMAT = "meshwright.run"
VERSION = 1

_Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Bounded, so that every value can be shown in a message: Python prints no number of any size."""


class _RunHeader(msgspec.Struct):
    format: str = ""
    version: _Int = 0


class _RunDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    version: _Int
    device_names: tuple[Name, ...]
    measured_step: _Int
    step_seconds: list[float | None]
    losses: list[float | None] = []
    start: list[float | None]
    finish: list[float | None]
    is_emulated: bool
    software: dict[Name, Name] = {}
    calls: dict[Name, str] = {}


_FIELDS = tuple(
    each for each in _RunDocument.__struct_fields__ if each not in ("format", "version")
)
"""The fields of a run, as `Run` calls them, too."""
_NUMBERS = ("losses", "step_seconds", "start", "finish")
"""The fields that are lists of numbers, in which null stands for one that is not known."""


def read_fields(path: str | Path) -> dict[str, Any]:
    """The arguments of the `Run` in a file: first what kind of file it is, then all of it."""
    data, where = read_bytes(path), str(path)
    header = probe_json(data, _RunHeader, where)
    if header.format != FORMAT:
        raise InputError(
            f"{where}: not a run file, format must be {FORMAT!r}, got {quoted(header.format)}"
        )
    if header.version != VERSION:
        raise InputError(
            f"{where}: run files of version {VERSION} can be read, got version {header.version}"
        )
    document = decode_json(data, _RunDocument, where)
    fields = {name: getattr(document, name) for name in _FIELDS}
    for name in _NUMBERS:
        fields[name] = [nan if each is None else each for each in fields[name]]
    return fields


def write_fields(path: str | Path, run: object) -> None:
    """Write the fields of a run."""
    fields = {name: getattr(run, name) for name in _FIELDS}
    fields |= {name: [float(each) for each in fields[name]] for name in _NUMBERS}
    fields |= {"software": dict(sorted(fields["software"].items())), "calls": dict(fields["calls"])}
    for name, kind in (("measured_step", int), ("is_emulated", bool)):
        fields[name] = kind(fields[name])
    document = _RunDocument(format=FORMAT, version=VERSION, **fields)
    try:
        data = msgspec.json.encode(document)  # NaN and infinity become null
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(f"{path}: not all text is Unicode ({error})") from None
    write_bytes(path, data + b"\n")
