"""Reads and writes plan files: the fields of a Plan as JSON or YAML, gzip by suffix.

Says what a file may look like; what a part may be is said by `meshwright.plan.part`. Users call
`Plan.save` and `Plan.load`.
"""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypedDict, TypeVar

import msgspec

from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError, errors_in, quoted
from meshwright.files import Name, as_json, decode_json, probe_json, read_bytes, write_document
from meshwright.plan import part as legal

FORMAT = "meshwright.plan"
VERSIONS = (1, 2, 3, 4, 5)
"""The second has teams and selective recomputation, the third allocations over several ways,
statistics of all replicas and rings of keys, the fourth layers in place of ops, the fifth a
runtime. A plan is written as the first that can say it, which earlier releases read."""

E = TypeVar("E", bound=StrEnum)
_Int = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Bounded, so that every value can be shown in a message: Python prints no number of any size."""


class PlanFields(TypedDict):
    """The arguments of a Plan."""

    parts: tuple[legal.Part, ...]
    schedule: legal.Schedule | None
    discipline: legal.Discipline
    allocations: tuple[legal.Allocation, ...]
    batch_statistics: bool
    runtime: str


class _PlanHeader(msgspec.Struct):
    format: str = ""
    version: _Int = 0


class _PartEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    devices: tuple[Name, ...]
    ops: tuple[Name, ...] = ()
    layers: _Int | str | tuple[_Int | str, ...] = ""
    shares: tuple[float, ...] = ()
    sync: str = legal.Sync.ALL_REDUCE.value
    zero: _Int = 0
    recompute: bool | str = False
    priorities: tuple[float, ...] = ()
    tensor: _Int = 1
    context: _Int = 1
    keys: str = legal.Keys.GATHERED.value
    expert: _Int = 1
    sequence: bool = False


class _ScheduleEntry(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    microbatches: _Int


class _AllocationEntry(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    source: Name
    target: Name
    bytes_per_second: float
    shares: tuple[float, ...] = ()


class _PlanDocument(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: str
    version: _Int
    parts: tuple[_PartEntry, ...]
    schedule: _ScheduleEntry | None = None
    discipline: str = legal.Discipline.PRIORITY.value
    allocations: tuple[_AllocationEntry, ...] = ()
    batch_statistics: bool = False
    runtime: str = MESHWRIGHT.name


def read_fields(path: str | Path) -> PlanFields:
    """The fields of the plan in a file, each checked by itself."""
    where = str(path)
    data = as_json(read_bytes(path), where)
    _check_header(probe_json(data, _PlanHeader, where), where)
    document = decode_json(data, _PlanDocument, where)
    parts = tuple(
        _part(entry, f"{path}: part {number}") for number, entry in enumerate(document.parts)
    )
    with errors_in(path):
        return PlanFields(
            parts=parts,
            schedule=_schedule(document.schedule),
            discipline=_choose(legal.Discipline, document.discipline, "discipline"),
            allocations=tuple(
                legal.Allocation(**msgspec.structs.asdict(each)) for each in document.allocations
            ),
            batch_statistics=document.batch_statistics,
            runtime=document.runtime,
        )


def write_fields(path: str | Path, fields: PlanFields) -> None:
    """Write the fields of a plan; what equals its default is left out."""
    entries = tuple(_part_entry(part) for part in fields["parts"])
    schedule, allocations = fields["schedule"], fields["allocations"]
    is_third = fields["batch_statistics"] or any(each.shares for each in allocations)
    document = _PlanDocument(
        format=FORMAT,
        version=max(
            VERSIONS[2 * is_third],
            VERSIONS[4 * (fields["runtime"] != MESHWRIGHT.name)],
            *map(_version, entries),
        ),
        parts=entries,
        schedule=None
        if schedule is None
        else _ScheduleEntry(kind=schedule.kind.value, microbatches=int(schedule.microbatches)),
        discipline=fields["discipline"].value,
        allocations=tuple(
            _AllocationEntry(
                source=each.source,
                target=each.target,
                bytes_per_second=float(each.bytes_per_second),
                shares=tuple(map(float, each.shares)),
            )
            for each in allocations
        ),
        batch_statistics=fields["batch_statistics"],
        runtime=fields["runtime"],
    )
    write_document(path, msgspec.to_builtins(document))


def _check_header(header: _PlanHeader, where: str) -> None:
    if header.format != FORMAT:
        raise InputError(
            f"{where}: not a plan file, format must be {FORMAT!r}, got {quoted(header.format)}"
        )
    if header.version not in VERSIONS:
        known = f"{', '.join(map(str, VERSIONS[:-1]))} and {VERSIONS[-1]}"
        raise InputError(
            f"{where}: plan files of version {known} can be read, got version {header.version}"
        )


def _part(entry: _PartEntry, where: str) -> legal.Part:
    with errors_in(where):
        choices = {
            "sync": _choose(legal.Sync, entry.sync, "sync"),
            "recompute": _recompute(entry.recompute),
            "keys": _choose(legal.Keys, entry.keys, "keys"),
        }
        return legal.Part(**msgspec.structs.asdict(entry) | choices)


def _part_entry(part: legal.Part) -> _PartEntry:
    for name in (*part.ops, *part.devices):
        if not name.isascii():
            _check_text(name)
    return _PartEntry(
        ops=part.ops,
        layers=part.layers,
        devices=part.devices,
        shares=tuple(map(float, part.shares)),
        sync=part.sync.value,
        zero=int(part.zero),
        recompute=_WRITTEN_RECOMPUTE.get(part.recompute, part.recompute.value),
        priorities=tuple(map(float, part.priorities)),
        tensor=int(part.tensor),
        context=int(part.context),
        keys=part.keys.value,
        expert=int(part.expert),
        sequence=bool(part.sequence),
    )


_WRITTEN_RECOMPUTE = {legal.Recompute.NONE: False, legal.Recompute.FULL: True}
"""As version 1 has them."""


def _recompute(value: bool | str) -> legal.Recompute:
    if isinstance(value, str):
        return _choose(legal.Recompute, value, "recompute")
    return legal.Recompute.FULL if value else legal.Recompute.NONE


def _version(entry: _PartEntry) -> int:
    """The first version that can say this."""
    if entry.layers:
        return VERSIONS[3]
    if entry.keys != legal.Keys.GATHERED:
        return VERSIONS[2]
    has_team = (entry.tensor, entry.context, entry.expert, entry.sequence) != (1, 1, 1, False)
    return VERSIONS[has_team or isinstance(entry.recompute, str)]


def _schedule(entry: _ScheduleEntry | None) -> legal.Schedule | None:
    if entry is None:
        return None
    kind = _choose(legal.ScheduleKind, entry.kind, "schedule kind")
    return legal.Schedule(kind=kind, microbatches=entry.microbatches)


def _check_text(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InputError(f"name {quoted(name)}: must be Unicode text to be written") from None


def _choose(kind: type[E], value: str, what: str) -> E:
    try:
        return kind(value)
    except ValueError:
        legal = ", ".join(each.value for each in kind)
        raise InputError(f"{what} must be one of {legal}, got {quoted(value)}") from None
