"""When everything ran: the result of a simulation, and what can be read off it.

Times are per instruction; everything else (memory, use of links, critical path) is worked out on
demand, because searches ask for the step time alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from meshwright.array import Bools, Floats, Ints, Records
from meshwright.program.collective import Lane, find_lanes
from meshwright.program.program import JOINS, Kind, Program
from meshwright.simulate.tasks import FlowNetwork
from meshwright.table import as_frame, as_html
from meshwright.units import format_bytes, format_count, format_percent, format_seconds

_COMPUTING = (Kind.COMPUTE, *JOINS)
_TIE = 1e-12
"""Times closer than this share of the step are one moment."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """Start and finish of every instruction of a program."""

    program: Program
    sharing: str
    start: Floats
    """Seconds, one an instruction. Of a transfer: when its data is ready to go."""
    finish: Floats
    cause: Ints
    """By task: the task that it waited for last, -1 for none."""
    flow_class: Ints
    """By task: its class in `network`, -1 for none."""
    network: FlowNetwork
    log: Records | None
    """If it was recorded: at which moment which class changed to which rate in all."""

    def __post_init__(self) -> None:
        for array in (self.start, self.finish, self.cause, self.flow_class):
            array.setflags(write=False)

    def __repr__(self) -> str:
        return f"Timeline({', '.join(f'{name} {text}' for name, text in self.facts.items())})"

    def _repr_html_(self) -> str:
        return as_html(f"timeline of {self.program.graph.name}", self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """What it predicts, for people."""
        spent = self.attribution
        total = sum(spent.values()) or 1.0
        shares = (f"{name} {format_percent(spent[name] / total)}" for name in spent if spent[name])
        return {
            "step": format_seconds(self.step_seconds),
            "peak": f"{format_bytes(max(self.peak_bytes, default=0.0))} on the fullest of "
            f"{format_count(self.program.num_devices, 'device')}",
            "instructions": f"{self.program.num_instructions:,}",
            "critical path": " + ".join(shares),
        }

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each instruction, in the order of their starts."""
        program, order = self.program, np.argsort(self.start, kind="stable")
        rows = program.instructions[order]
        return as_frame(
            {
                "device": [program.device_names[device] for device in rows["device"]],
                "kind": [Kind(kind).name.lower() for kind in rows["kind"].tolist()],
                "instruction": [program.describe(number) for number in order.tolist()],
                "start_seconds": self.start[order],
                "finish_seconds": self.finish[order],
            }
        )

    @cached_property
    def step_seconds(self) -> float:
        """What a step takes, one after the other: until the last finish, or until the slowest host
        has launched everything.

        Hosts run ahead of their devices, from one step into the next, so that launches cost nothing
        unless they take longer in all.
        """
        return max(self.device_seconds, self.launch_seconds)

    @cached_property
    def device_seconds(self) -> float:
        """From the start of the step to the last finish."""
        return float(self.finish.max()) if len(self.finish) else 0.0

    @property
    def launch_seconds(self) -> float:
        """What the slowest host takes to launch the step."""
        return float(self.program.host_seconds.max(initial=0.0))

    @property
    def is_launch_bound(self) -> bool:
        """Whether devices wait for their hosts."""
        return self.launch_seconds > self.device_seconds

    @cached_property
    def peak_bytes(self) -> tuple[float, ...]:
        """The most memory that each device holds at once."""
        leader = self.program.leader
        peaks = {device: float(self.memory(device)[1].max()) for device in set(leader.tolist())}
        return tuple(peaks[device] for device in leader.tolist())

    def memory(self, device: int) -> tuple[Floats, Floats]:
        """A device's memory over time: from each moment on so many bytes are held.

        Starts with what is held for the whole step. A buffer that is freed at the moment at which
        another is allocated makes room for it.
        """
        device = int(self.program.leader[device])
        when, size, _ = self._memory_events[device]
        held = self.program.state_bytes[device] + np.cumsum(size)
        return np.concatenate(([0.0], when)), np.concatenate(
            ([self.program.state_bytes[device]], held)
        )

    def peak_parts(self, device: int, sort: Ints) -> Floats:
        """Of the most memory that a device holds at once: the bytes of buffers by sort (a number
        for each of the program's buffers), and last those that ops work in."""
        device = int(self.program.leader[device])
        _, size, which = self._memory_events[device]
        until = int(np.argmax(self.memory(device)[1]))
        number = np.append(sort, sort.max(initial=-1) + 1)
        sorts = number[np.minimum(which[:until], len(sort))]
        sums = np.bincount(sorts, weights=size[:until], minlength=int(number[-1]) + 1)
        return sums.astype(np.float64, copy=False)

    def memory_parts(self, device: int, sort: Ints) -> tuple[Floats, Floats]:
        """A device's memory over time by sort: a row for each moment of `memory`, a column for each
        sort and a last one for what ops work in. What is held for the whole step is left out."""
        last = int(sort.max(initial=-1)) + 1
        when, size, sorts = self.memory_changes(device, sort, last)
        change = np.zeros((len(when) + 1, last + 1))
        change[np.arange(1, len(when) + 1), sorts] = size
        return np.concatenate(([0.0], when)), np.cumsum(change, axis=0)

    def memory_changes(self, device: int, sort: Ints, last: int) -> tuple[Floats, Floats, Ints]:
        """When a device's memory changes, by how much, and the sort of what does: `last` is that of
        what ops work in."""
        when, size, which = self._memory_events[int(self.program.leader[device])]
        sorts = np.full(len(which), last, dtype=np.int32)
        is_buffer = which < len(sort)
        sorts[is_buffer] = sort[which[is_buffer]]
        return when, size, sorts

    @cached_property
    def _memory_events(self) -> list[tuple[Floats, Floats, Ints]]:
        """By device the moments and signed sizes of allocations and frees, in order, and the buffer
        of each; numbers after the last buffer's are of what ops work in."""
        program = self.program
        buffers, rows = program.buffers, program.instructions
        freed = self.finish[buffers["writer"]].copy()
        reads = program.reads
        np.maximum.at(freed, reads["second"], self.finish[reads["first"]])
        freed[buffers["lasts"]] = self.device_seconds
        works = np.flatnonzero(rows["workspace_bytes"] > 0)
        begin = np.concatenate((self.start[buffers["writer"]], self.start[works]))
        end = np.concatenate((freed, self.finish[works]))
        size = np.concatenate((buffers["bytes"], rows["workspace_bytes"][works]))
        device = np.concatenate((buffers["device"], rows["device"][works]))

        when = np.concatenate((begin, end))
        change = np.concatenate((size, -size))
        where = np.concatenate((device, device))
        # At one moment, though sums in different orders differ in the last bits: frees of what is
        # older, then allocations, then frees of what lived for that moment only.
        tie = self.device_seconds * _TIE
        moment = np.rint(when / tie) if tie > 0 else when
        lasts = moment[len(begin) :] > moment[: len(begin)]
        rank = np.concatenate((np.ones(len(begin)), np.where(lasts, 0, 2)))
        order = np.lexsort((rank, moment, where))
        bounds = np.searchsorted(where[order], np.arange(program.num_devices + 1))
        when, change, which = when[order], change[order], (order % len(begin)).astype(np.int32)
        pairs = zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        return [
            (np.maximum.accumulate(when[low:high]), change[low:high], which[low:high])
            for low, high in pairs
        ]

    @cached_property
    def busy_seconds(self) -> Floats:
        """For how long each device computes, or waits for its team while it could not."""
        computes = np.isin(self.program.instructions["kind"], _COMPUTING)
        calls = self._calls
        if not calls.any():
            return self._sum_by_device(computes, self.finish - self.start)
        return self._covered_seconds(computes | calls)

    @cached_property
    def call_seconds(self) -> Floats:
        """For how long of that each device waits: for collectives of its team, for weights."""
        rows, calls = self.program.instructions, self.program.call_seconds
        computes = np.isin(rows["kind"], _COMPUTING)
        waits = self.busy_seconds - self._sum_by_device(computes, self.finish - self.start)
        if calls is None:
            return waits
        return waits + self._sum_by_device(rows["kind"] == Kind.COMPUTE, calls)

    @property
    def _calls(self) -> Bools:
        """Instructions by which members of teams talk, or weights are gathered."""
        return np.isin(find_lanes(self.program), (Lane.GATHER, Lane.TEAM))

    def _covered_seconds(self, picked: Bools) -> Floats:
        """By device: for how long any of some instructions runs."""
        found = np.zeros(self.program.num_devices)
        start, finish = self.start[picked], self.finish[picked]
        device = self.program.instructions["device"][picked]
        order = np.lexsort((start, device))
        bounds = np.searchsorted(device[order], np.arange(self.program.num_devices + 1))
        for number, own in enumerate(np.split(order, bounds[1:-1])):
            until = np.maximum.accumulate(finish[own])
            before = np.concatenate(([0.0], until[:-1]))
            found[number] = np.maximum(until - np.maximum(start[own], before), 0.0).sum()
        return np.asarray(found[self.program.leader])

    def _sum_by_device(self, picked: Bools, values: Floats) -> Floats:
        """Sums over some instructions by device; members of a team as their first."""
        sums = np.bincount(
            self.program.instructions["device"][picked],
            weights=values[picked],
            minlength=self.program.num_devices,
        )
        return np.asarray(sums[self.program.leader], dtype=np.float64)

    @property
    def device_utilisation(self) -> Floats:
        """The part of the step for which each device computes."""
        return self.busy_seconds / self.step_seconds if self.step_seconds else self.busy_seconds

    @cached_property
    def critical_path(self) -> tuple[int, ...]:
        """Instructions that each waited for the one before, up to the last finish.

        A task of several instructions (a transfer, a collective) stands once, as its first.
        """
        if not len(self.finish):
            return ()
        rows = self.program.instructions
        first = np.full(len(self.cause), -1, dtype=np.int64)
        first[rows["task"][::-1]] = np.arange(len(rows))[::-1]
        task = int(rows["task"][int(np.argmax(self.finish))])
        path = []
        while task >= 0:
            path.append(int(first[task]))
            task = int(self.cause[task])
        return tuple(reversed(path))

    @cached_property
    def attribution(self) -> Mapping[str, float]:
        """What the critical path's time went to: compute, transfer, collective, wait.

        What teams say to each other within a unit is `collective`.
        """
        calls = self.program.call_seconds
        totals = {"compute": 0.0, "transfer": 0.0, "collective": 0.0, "wait": 0.0}
        now = 0.0
        for number in self.critical_path:
            kind = self.program.instructions["kind"][number]
            name = "compute" if kind in _COMPUTING else "collective"
            name = "transfer" if kind in (Kind.SEND, Kind.RECEIVE) else name
            begin = max(now, float(self.start[number]))
            totals["wait"] += begin - now
            took = float(self.finish[number]) - begin
            within = 0.0 if calls is None else min(float(calls[number]), took)
            totals[name] += took - within
            totals["collective"] += within
            now = float(self.finish[number])
        return MappingProxyType(totals)
