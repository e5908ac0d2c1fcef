"""Reads and writes run files. Knows fields, not what makes a run legal.

    {"format": "meshwright.run", "version": 1, "device_names": ["h0.d0", "h1.d0"],
     "measured_step": 4, "step_seconds": [0.21, 0.2, ...], "losses": [6.9, 6.7, ...],
     "start": [0.0, 0.0012, null, ...], "finish": [0.0011, 0.0031, null, ...],
     "is_emulated": false, "software": {"torch": "2.11.0"}, "calls": {"mm_3": "{...}"}}

A number that is not known is null. Gzip when the name ends in .gz. Users call `Run.save` and
`Run.load`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypedDict

import msgspec
import numpy as np

from meshwright.array import Floats
from meshwright.errors import InputError, quoted
from meshwright.files import Name, decode_json, probe_json, read_bytes, write_bytes

FORMAT = "meshwright.run"
VERSION = 1

_Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Bounded, so that every value can be shown in a message: Python prints no number of any size."""


class RunFields(TypedDict):
    """The arguments of a Run."""

    device_names: tuple[str, ...]
    losses: tuple[float, ...]
    step_seconds: tuple[float, ...]
    start: Floats
    finish: Floats
    is_emulated: bool
    software: Mapping[str, str]
    measured_step: int
    calls: Mapping[str, str]


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


def read_fields(path: str | Path) -> RunFields:
    """The fields of the run in a file: first what kind of file it is, then all of it."""
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
    return RunFields(
        device_names=document.device_names,
        losses=tuple(_numbers(document.losses).tolist()),
        step_seconds=tuple(_numbers(document.step_seconds).tolist()),
        start=_numbers(document.start),
        finish=_numbers(document.finish),
        is_emulated=document.is_emulated,
        software=document.software,
        measured_step=document.measured_step,
        calls=document.calls,
    )


def write_fields(path: str | Path, fields: RunFields) -> None:
    """Write the fields of a run."""
    document = _RunDocument(
        format=FORMAT,
        version=VERSION,
        device_names=fields["device_names"],
        measured_step=int(fields["measured_step"]),
        step_seconds=_plain(fields["step_seconds"]),
        losses=_plain(fields["losses"]),
        start=_plain(fields["start"].tolist()),
        finish=_plain(fields["finish"].tolist()),
        is_emulated=bool(fields["is_emulated"]),
        software=dict(sorted(fields["software"].items())),
        calls=dict(fields["calls"]),
    )
    try:
        data = msgspec.json.encode(document)  # NaN and infinity become null
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(f"{path}: not all text is Unicode ({error})") from None
    write_bytes(path, data + b"\n")


def _plain(numbers: Sequence[float]) -> list[float | None]:
    return [float(each) for each in numbers]


def _numbers(values: list[float | None]) -> Floats:
    return np.array([np.nan if each is None else each for each in values], dtype=np.float64)
