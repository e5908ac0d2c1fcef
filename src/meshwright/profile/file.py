"""Reads and writes profile files. Knows fields, not what makes a table legal.

    {"format": "meshwright.profile", "version": 1, "tables": [
      {"device_type": "h200", "device": "NVIDIA H200",
       "software": {"torch": "2.11.0+cu130", "cuda": "13.0"}, "date": "2026-11-15T06:00:00Z",
       "calls": {"{\\"args\\":[...],\\"kwargs\\":{},\\"op\\":\\"aten.mm.default\\"}": 1.5e-05, ...},
       "failed": {"{...}": "RuntimeError: ..."}, "batches": [16, 32, 64]}]}

A call is a key: text that is compared and never run. Gzip when the name ends in .gz.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import Name, decode_json, probe_json, read_bytes, write_bytes

FORMAT = "meshwright.profile"
VERSION = 1

_Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Date = Annotated[datetime, msgspec.Meta(tz=True)]


_SORTED = ("software", "calls", "failed")
"""The mappings of a table."""


class _ProfileHeader(msgspec.Struct):
    format: str = ""
    version: _Int = 0


class _TableEntry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    device_type: Name
    device: Name
    software: dict[Name, Name]
    date: _Date
    calls: dict[str, float]
    failed: dict[str, str] = {}
    batches: list[_Int] | msgspec.UnsetType = msgspec.UNSET
    launch_share: float | msgspec.UnsetType = msgspec.UNSET


class _ProfileDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: str
    version: int
    tables: list[_TableEntry]


def decode_tables(path: str | Path) -> list[dict[str, Any]]:
    """The arguments of each `Table` in a file."""
    data = read_bytes(path)
    header = probe_json(data, _ProfileHeader, str(path))
    if header.format != FORMAT:
        raise InputError(f"{path}: format must be {FORMAT}, got {quoted(header.format)}")
    if header.version != VERSION:
        raise InputError(
            f"{path}: {FORMAT} version must be {VERSION}, got {header.version}; measure again with "
            f"this version of Meshwright"
        )
    document = decode_json(data, _ProfileDocument, str(path))
    found = map(msgspec.structs.asdict, document.tables)
    return [
        {name: value for name, value in each.items() if value is not msgspec.UNSET}
        for each in found
    ]


def encode_tables(tables: Sequence[object], path: str | Path) -> None:
    """Write tables, calls in the order of their text so that files can be compared."""
    entries = []
    for each in tables:
        fields = {name: getattr(each, name) for name in _TableEntry.__struct_fields__}
        fields["batches"] = list(fields["batches"]) or msgspec.UNSET
        if fields["launch_share"] is None:
            fields["launch_share"] = msgspec.UNSET
        fields |= {name: dict(sorted(fields[name].items())) for name in _SORTED}
        entries.append(_TableEntry(**fields))
    document = _ProfileDocument(format=FORMAT, version=VERSION, tables=entries)
    try:
        data = msgspec.json.encode(document)
    except UnicodeEncodeError as error:  # half of a surrogate pair
        raise InputError(f"{path}: not all text is Unicode ({error})") from None
    write_bytes(path, data + b"\n")
