"""Seconds of kernel calls, as they were measured on real devices, in tables.

A call is a line of text that has the op, its shapes, strides, types and plain arguments, and
whether it multiplies in TF32 (see `meshwright.capture.call`). Here it is a key: nothing in it is
ever run.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import inf
from pathlib import Path
from types import MappingProxyType

import msgspec

from meshwright.errors import InputError, errors_in, quoted
from meshwright.profile.file import decode_tables, encode_tables

Measured = Mapping[str, Mapping[str, float]]
"""By device type the seconds of described calls."""

COMPILER = "compiler"
"""The software of tables with times of ops in regions that it compiled."""

THREADS = "threads"
"""The software of tables of CPUs: how many threads a kernel had."""

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,63}")
_OP = re.compile(r'"op":"([^"\\]+)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What was measured on one type of device with one set of software."""

    device_type: str
    """As clusters call it: "h200"."""
    device: str
    """As it calls itself: "NVIDIA H200"."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions and settings that times depend on: {"torch": "2.11.0+cu130", "cuda": "13.0"}."""
    date: datetime
    """Of the last measurement."""
    calls: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each call."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Calls that could not be run by themselves, and why."""
    launch_share: float | None = None
    """What the host took to launch kernels, as a part of what hosts are thought to take; None: not
    measured, as on a CPU, which launches nothing."""
    batches: tuple[int, ...] = ()
    """The numbers of samples of the steps that the calls are of, where that is known: at which ops
    of a step may have been measured besides its own."""

    def __post_init__(self) -> None:
        check_device_type(self.device_type)
        where = f"table of {self.device_type}"
        for name in ("software", "calls", "failed"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        if self.date.tzinfo is None:
            raise InputError(f"{where}: date must have a time zone, got {self.date.isoformat()}")
        for call, seconds in self.calls.items():
            if not 0 <= seconds < inf:
                raise InputError(
                    f"{where}: seconds of call {quoted(call)} must be finite and not negative, "
                    f"got {seconds}"
                )
        if self.launch_share is not None and not 0 < self.launch_share < inf:
            raise InputError(f"{where}: launch_share must be positive, got {self.launch_share}")
        object.__setattr__(self, "batches", tuple(sorted({*self.batches})))
        if self.batches and self.batches[0] < 1:
            raise InputError(f"{where}: batches must be positive, got {self.batches[0]}")
        for call in (*self.calls, *self.failed):
            if not call.startswith("{") or _OP.search(call) is None:
                raise InputError(f"{where}: a call must name its op, got {quoted(call)}")
        for call in self.failed.keys() & self.calls.keys():
            raise InputError(f"{where}: a call must not be timed and failed, got {quoted(call)}")

    @property
    def key(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """What tells it from the other tables of a profile."""
        return self.device_type, tuple(sorted(self.software.items()))

    def has_threads(self, threads: int | None) -> bool:
        """Whether its times are those of so many threads, or depend on no number of them."""
        return threads is None or self.software.get(THREADS, str(threads)) == str(threads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Tables of measured calls, one for each type of device and set of software."""

    tables: tuple[Table, ...] = ()

    def __post_init__(self) -> None:
        found: set[object] = set()
        for table in self.tables:
            if table.key in found:
                raise InputError(
                    f"table of {table.device_type}: must be the only one with software "
                    f"{dict(table.software)}"
                )
            found.add(table.key)

    def find(self, device_type: str, software: Mapping[str, str]) -> Table | None:
        """The table of a type and its software; None: nothing was measured there."""
        wanted = device_type, tuple(sorted(software.items()))
        return next((table for table in self.tables if table.key == wanted), None)

    def measured(self, *, is_compiled: bool = False) -> Measured:
        """By device type the seconds of calls: of tables that have the same one, the newest's.

        `is_compiled`: of ops in compiled regions, as `meshwright compare --write-profile` has them
        from a compiled run; else of ops by themselves.
        """
        return combine_measured([self], is_compiled=is_compiled)

    @property
    def batches(self) -> tuple[int, ...]:
        """The numbers of samples that ops may have been measured at, the largest first."""
        return find_batches([self])

    def save(self, path: str | Path) -> None:
        """Write to a file: JSON, gzip when the name ends in .gz."""
        encode_tables(self.tables, path)


def read_profile(path: str | Path) -> Profile:
    """The profile in a file, checked."""
    tables = decode_tables(path)
    with errors_in(path):
        return Profile(tables=tuple(Table(**each) for each in tables))


def check_device_type(name: str) -> None:
    """Refuse what no cluster file would call a type of device."""
    if _TYPE.fullmatch(name) is None:
        raise InputError(
            f"device type: must be at most 64 letters, digits, dots, dashes, pluses and "
            f"underscores, got {quoted(name)}"
        )


def op_of(call: str) -> str:
    """The name of the op that a call is of: "aten.mm.default"."""
    match = _OP.search(call)
    return match[1] if match else ""


def merge_profiles(old: Profile, new: Profile) -> Profile:
    """All tables of both; those with the same key become one.

    Of two measurements of a call the one in the table with the later date counts, the second's if
    the dates are equal. That a call failed never replaces a measurement.
    """
    tables = {table.key: table for table in old.tables}
    for table in new.tables:
        same = tables.get(table.key)
        tables[table.key] = table if same is None else _merge_tables(same, table)
    return Profile(tables=tuple(tables.values()))


def _merge_tables(one: Table, other: Table) -> Table:
    older, newer = sorted((one, other), key=lambda table: table.date)
    calls = {**older.calls, **newer.calls}
    failed = {**older.failed, **newer.failed}
    return replace(
        newer,
        calls=calls,
        failed={call: why for call, why in failed.items() if call not in calls},
        batches=(*older.batches, *newer.batches),
        launch_share=older.launch_share if newer.launch_share is None else newer.launch_share,
    )


def combine_measured(
    profiles: Iterable[Profile], *, is_compiled: bool = False, threads: int | None = None
) -> Measured:
    """The measured times of several profiles; where they differ, the later one's in the list.

    `is_compiled`: of ops in compiled regions, else of ops by themselves. `threads`: of CPUs with so
    many threads only; None: with any number.
    """
    found: dict[str, dict[str, float]] = {}
    for profile in profiles:
        for table in sorted(profile.tables, key=lambda table: table.date):
            if (COMPILER in table.software) == is_compiled and table.has_threads(threads):
                found.setdefault(table.device_type, {}).update(table.calls)
    return found


def find_batches(profiles: Iterable[Profile]) -> tuple[int, ...]:
    """The numbers of samples of the steps that profiles are of, the largest first."""
    found = {each for profile in profiles for table in profile.tables for each in table.batches}
    return tuple(sorted(found, reverse=True))


def digest_measured(measured: Measured, batches: Sequence[int] = ()) -> str:
    """The same for the same times, whatever the files that they come from."""
    plain = {kind: dict(calls) for kind, calls in measured.items()}
    return hashlib.sha256(msgspec.json.encode([plain, batches], order="sorted")).hexdigest()
