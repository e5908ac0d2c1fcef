"""Groups instructions that prediction and measurement should agree on: ops of one kind, transfers
between two devices, collectives of one size. Works on two timelines of one program."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Longs
from meshwright.program.program import JOINS, Kind, Program
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_bytes

_SHOWN_DEVICES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Instructions of one sort, and what they took."""

    sort: str
    """compute, copy, transfer or collective."""
    name: str
    """The kind of op, the pair of devices, or the collective with its size and devices."""
    count: int
    """How many; transfers and collectives count once for all their ends."""
    message_bytes: float
    """Moved by all of them; zero for compute."""
    predicted_seconds: float
    """Of compute and collectives the sum, of transfers the time in which any was under way."""
    measured_seconds: float
    detail: str = ""
    """The module whose ops differ most."""

    @property
    def difference_seconds(self) -> float:
        """By how much it took longer than predicted."""
        return self.measured_seconds - self.predicted_seconds


def group_instructions(predicted: Timeline, measured: Timeline) -> tuple[Group, ...]:
    """All groups, the largest difference first."""
    groups = [
        *group_computing(predicted, measured),
        *_transfers(predicted, measured),
        *_collectives(predicted, measured),
    ]
    return tuple(sorted(groups, key=lambda group: -abs(group.difference_seconds)))


def group_computing(
    predicted: Timeline, measured: Timeline, device: int | None = None
) -> tuple[Group, ...]:
    """Ops and copies by kind, on all devices or on one."""
    rows = predicted.program.instructions
    is_there = np.full(len(rows), True) if device is None else rows["device"] == device
    copies = (
        _sum_group("copy", kind.name.lower(), predicted, measured, members, 0.0)
        for kind in JOINS
        if len(members := np.flatnonzero(is_there & (rows["kind"] == kind)))
    )
    computes = np.flatnonzero(is_there & (rows["kind"] == Kind.COMPUTE))
    return (*_ops(predicted, measured, computes), *copies)


def _ops(
    predicted: Timeline, measured: Timeline, members: npt.NDArray[np.intp]
) -> tuple[Group, ...]:
    program = predicted.program
    rows, graph = program.instructions, program.graph
    names, codes = graph.kind_codes
    kind = codes[rows["op"][members]]
    count = np.bincount(kind, minlength=len(names))
    sums = [_sums(each, members, kind, len(names)) for each in (predicted, measured)]
    details = _worst_modules(predicted, measured, members, kind)
    return tuple(
        Group(
            sort="compute",
            name=names[code] or "op",
            count=int(count[code]),
            message_bytes=0.0,
            predicted_seconds=float(sums[0][code]),
            measured_seconds=float(sums[1][code]),
            detail=details.get(code, ""),
        )
        for code in np.flatnonzero(count).tolist()
    )


def _sums(timeline: Timeline, members: npt.NDArray[np.intp], key: Longs, size: int) -> Floats:
    lengths = timeline.finish[members] - timeline.start[members]
    return np.bincount(key, weights=lengths, minlength=size).astype(np.float64, copy=False)


def _worst_modules(
    predicted: Timeline, measured: Timeline, members: npt.NDArray[np.intp], kind: Longs
) -> dict[int, str]:
    """For each kind of op the module in which the two differ most, if modules are known."""
    graph = predicted.program.graph
    place = {module: number for number, module in enumerate(dict.fromkeys(graph.module))}
    if len(place) < 2:
        return {}
    code = np.array([place[module] for module in graph.module], dtype=np.int64)
    key = kind * np.int64(len(place)) + code[predicted.program.instructions["op"][members]]
    pairs, inverse = np.unique(key, return_inverse=True)
    sums = [_sums(each, members, inverse, len(pairs)) for each in (predicted, measured)]
    smallest_first = np.argsort(np.abs(sums[1] - sums[0]), kind="stable")
    modules = tuple(place)
    # The last entry of a kind stays.
    return {
        int(pair) // len(place): modules[int(pair) % len(place)] for pair in pairs[smallest_first]
    }


def _sum_group(
    sort: str,
    name: str,
    predicted: Timeline,
    measured: Timeline,
    members: npt.NDArray[np.intp],
    message_bytes: float,
) -> Group:
    lengths = [
        float((each.finish[members] - each.start[members]).sum()) for each in (predicted, measured)
    ]
    return Group(
        sort=sort,
        name=name,
        count=len(members),
        message_bytes=message_bytes,
        predicted_seconds=lengths[0],
        measured_seconds=lengths[1],
    )


def _transfers(predicted: Timeline, measured: Timeline) -> Iterator[Group]:
    """By pair of devices. The time in which any is under way does not depend on whether those at
    once share their link or follow each other."""
    program = predicted.program
    rows, names = program.instructions, program.device_names
    sends = np.flatnonzero(rows["kind"] == Kind.SEND)
    pair = rows["device"][sends] * np.int64(program.num_devices) + rows["peer"][sends]
    for each in np.unique(pair).tolist():
        members = sends[pair == each]
        source, target = divmod(each, program.num_devices)
        yield Group(
            sort="transfer",
            name=f"{names[source]} -> {names[target]}",
            count=len(members),
            message_bytes=float(rows["bytes"][members].sum()),
            predicted_seconds=_covered(predicted, members),
            measured_seconds=_covered(measured, members),
        )


def _covered(timeline: Timeline, members: npt.NDArray[np.intp]) -> float:
    """Seconds in which any of these instructions runs."""
    start, finish = timeline.start[members], timeline.finish[members]
    order = np.argsort(start, kind="stable")
    start, finish = start[order], finish[order]
    before = np.concatenate(([0.0], np.maximum.accumulate(finish)[:-1]))
    return float(np.maximum(finish - np.maximum(start, before), 0.0).sum())


def _collectives(predicted: Timeline, measured: Timeline) -> Iterator[Group]:
    """By kind, devices and size: each as its slowest member has it."""
    program = predicted.program
    rows = program.instructions
    members = np.flatnonzero(rows["group"] >= 0)
    if not len(members):
        return
    slowest_last = np.argsort((measured.finish - measured.start)[members], kind="stable")
    by_task = {int(rows["task"][row]): int(row) for row in members[slowest_last].tolist()}
    found: dict[tuple[int, int, float], list[int]] = {}
    for row in by_task.values():
        key = int(rows["kind"][row]), int(rows["group"][row]), float(rows["bytes"][row])
        found.setdefault(key, []).append(row)
    for (kind, group, size), each in found.items():
        text = f"{Kind(kind).name.lower()} of {format_bytes(size)} on"
        name = f"{text} {_devices_text(program, program.groups[group])}"
        chosen = np.array(each, dtype=np.intp)
        yield _sum_group("collective", name, predicted, measured, chosen, size * len(each))


def _devices_text(program: Program, devices: Sequence[int]) -> str:
    names = [program.device_names[each] for each in devices]
    if len(names) <= _SHOWN_DEVICES:
        return ", ".join(names)
    return f"{names[0]}, ..., {names[-1]} ({len(names):,} devices)"
