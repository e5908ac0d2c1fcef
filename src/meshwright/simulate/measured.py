"""A measured step as a Timeline: what the executor's clock says of the instructions that the
simulator times with costs.

Decides what instructions that run together have in common, what an unmeasured one counts as, and
what each waited for. Knows nothing of how the times were measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from types import MappingProxyType

import numpy as np

from meshwright.array import Floats, Ints, Longs, places_in
from meshwright.errors import InputError, errors_in, quoted
from meshwright.program.program import Kind, Program, StreamRule
from meshwright.simulate.run_file import read_fields, write_fields
from meshwright.simulate.tasks import FlowNetwork, chain_rows
from meshwright.simulate.timeline import Timeline

TIMED_STEPS = 3
"""The last so many steps of a run are timed instruction by instruction; the middle one is kept."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """What came of running a plan: losses, step times, and one step instruction by instruction."""

    device_names: tuple[str, ...]
    """The cluster's, in its order."""
    losses: tuple[float, ...] = ()
    """One a step; none where nothing was computed."""
    step_seconds: tuple[float, ...]
    """Wall clock, one a step."""
    start: Floats
    """Of each instruction of the plan's program at granularity op, in seconds since the step began;
    NaN: not measured. Of a SEND: when its data was ready to go; of a RECEIVE: when it was posted;
    of a collective: when this member was ready."""
    finish: Floats
    is_emulated: bool = False
    """Whether devices waited for the predicted time instead of computing."""
    software: Mapping[str, str] = field(default_factory=dict)
    """Versions and settings that times depend on, as in a profile."""
    measured_step: int = 0
    """The step that `start` and `finish` are of, from 0."""
    calls: Mapping[str, str] = field(default_factory=dict)
    """By op the kernel call that it was on the rows that it ran on, described as in a profile."""

    def __post_init__(self) -> None:
        for name in ("device_names", "losses", "step_seconds"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name in ("software", "calls"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        for name in ("start", "finish"):
            array = np.array(getattr(self, name), dtype=np.float64)
            array.setflags(write=False)
            object.__setattr__(self, name, array)
        _check_run(self)

    def save(self, path: str | Path) -> None:
        """Write a run file: JSON, gzip when the name ends in .gz."""
        write_fields(path, self)

    @staticmethod
    def load(path: str | Path) -> "Run":
        """Read a run file."""
        fields = read_fields(path)
        with errors_in(path):
            return Run(**fields)


def _check_run(run: Run) -> None:
    if not run.device_names:
        raise InputError("run: must have at least one device")
    if run.start.ndim != 1 or run.start.shape != run.finish.shape:
        raise InputError(
            f"run: start and finish must be equally long lists, got {run.start.shape} and "
            f"{run.finish.shape}"
        )
    if run.losses and len(run.losses) != len(run.step_seconds):
        raise InputError(
            f"run: must have as many losses as steps or none, got {len(run.losses):,} for "
            f"{len(run.step_seconds)} steps"
        )
    for seconds in run.step_seconds:
        if not 0 <= seconds < inf:
            raise InputError(f"run: step_seconds must be finite and not negative, got {seconds}")
    if run.measured_step < 0:
        raise InputError(f"run: measured_step must not be negative, got {run.measured_step}")
    for name, array in (("start", run.start), ("finish", run.finish)):
        bad = np.flatnonzero(np.isinf(array))
        if len(bad):
            raise InputError(f"run: {name}[{bad[0]}] must be finite or NaN, got {array[bad[0]]}")
    bad = np.flatnonzero(run.finish < run.start)
    if len(bad):
        raise InputError(
            f"run: finish[{bad[0]}] must not be before start, got {run.finish[bad[0]]} < "
            f"{run.start[bad[0]]}"
        )


def measured_timeline(program: Program, run: Run) -> Timeline:
    """The measured step of a run of this program.

    A transfer lasts from when both its ends were there until it had arrived, and a collective from
    when its last member was ready, as in a simulation. A stream runs one instruction at a time:
    one that was started earlier has waited in its queue. What was not measured starts and ends when
    all that it waits for is done. Hosts' launches are part of what was measured, so they are no
    bound of their own.
    """
    check_run_fits(program, run)
    first, second = _task_edges(program)
    rows = program.instructions
    num_tasks = int(rows["task"].max(initial=-1)) + 1
    turn = _topological_places(first, second, num_tasks)
    # Clocks are aligned to some microseconds only: what came first began the step.
    began = float(np.fmin.reduce(run.start, initial=0.0))
    start, finish = run.start - began, run.finish - began
    begin, end = _task_times(rows["task"], start, finish, first, second, turn)
    start, finish = _row_times(program, finish, begin, end)
    end = np.zeros(num_tasks)
    np.maximum.at(end, rows["task"], finish)
    return Timeline(
        program=replace(program, host_seconds=np.zeros_like(program.host_seconds)),
        sharing="measured",
        start=start,
        finish=finish,
        cause=_latest_predecessors(program, first, second, start, end, turn),
        flow_class=np.full(num_tasks, -1, dtype=np.int32),
        network=FlowNetwork(classes=(), link_bytes_per_second=np.zeros(0)),
        log=None,
    )


def check_run_fits(program: Program, run: Run) -> None:
    """Refuse a run of another plan, graph or cluster."""
    if run.device_names != program.device_names:
        pairs = zip(run.device_names, program.device_names, strict=False)
        other = next((pair for pair in pairs if pair[0] != pair[1]), None)
        text = f"{quoted(other[0])} for {quoted(other[1])}" if other else len(run.device_names)
        raise InputError(
            f"run: must be of the plan's {program.num_devices:,} devices, got {text}; run the plan "
            f"again"
        )
    if len(run.start) != program.num_instructions:
        raise InputError(
            f"run: must have the plan's {program.num_instructions:,} instructions, got "
            f"{len(run.start):,}; run the plan again"
        )


def _task_edges(program: Program) -> tuple[Longs, Longs]:
    """Pairs of tasks of which the first finishes before the second starts, whatever the times."""
    rows, reads, orders = program.instructions, program.reads, program.orders
    streamed = np.flatnonzero(rows["stream"] >= 0)
    streamed = streamed[program.stream_rule[rows["stream"][streamed]] == StreamRule.ORDER]
    orders = np.concatenate((orders, chain_rows(program, streamed, -rows["priority"])))
    task = rows["task"].astype(np.int64)
    writer = program.buffers["writer"][reads["second"]]
    first = np.concatenate((task[writer], task[orders["first"]]))
    second = np.concatenate((task[reads["first"]], task[orders["second"]]))
    is_pair = first != second
    return first[is_pair], second[is_pair]


def _topological_places(first: Longs, second: Longs, num_tasks: int) -> Longs:
    """Each task's place in an order that follows all edges (Kahn, CACM 5(11), 1962)."""
    start = np.searchsorted(np.sort(first), np.arange(num_tasks + 1)).tolist()
    following = second[np.argsort(first, kind="stable")].tolist()
    waits = np.bincount(second, minlength=num_tasks).tolist()
    order = [task for task in range(num_tasks) if not waits[task]]
    for task in order:  # grows while it is walked
        for each in following[start[task] : start[task + 1]]:
            waits[each] -= 1
            if not waits[each]:
                order.append(each)
    if len(order) < num_tasks:
        raise InputError("plan: its order must follow the graph, but instructions wait in a circle")
    return places_in(order, num_tasks, np.int64)


def _task_times(
    task: Ints,
    start: Floats,
    finish: Floats,
    first: Longs,
    second: Longs,
    turn: Longs,
) -> tuple[Floats, Floats]:
    """Start and finish of every task: its last member's, or what its predecessors leave it."""
    begin, end = np.full(len(turn), np.nan), np.full(len(turn), np.nan)
    np.fmax.at(begin, task, start)
    np.fmax.at(end, task, finish)
    end = np.where(np.isnan(end), begin, end)
    if np.isnan(begin).any():
        _fill_unmeasured(begin, end, first, second, turn)
    return np.minimum(begin, end), end


def _fill_unmeasured(begin: Floats, end: Floats, first: Longs, second: Longs, turn: Longs) -> None:
    by_turn = np.argsort(turn[second], kind="stable")
    before = first[by_turn]
    bounds = np.searchsorted(turn[second][by_turn], np.arange(len(turn) + 1))
    in_turn = np.argsort(turn)
    for task in in_turn[np.isnan(begin[in_turn])].tolist():
        awaited = before[bounds[turn[task]] : bounds[turn[task] + 1]]
        ready = float(end[awaited].max(initial=0.0))
        end[task] = ready if np.isnan(end[task]) else max(float(end[task]), 0.0)
        begin[task] = min(ready, float(end[task]))


def _row_times(
    program: Program, finish: Floats, begin: Floats, end: Floats
) -> tuple[Floats, Floats]:
    """Start and finish of every instruction, no two of a stream at once."""
    rows = program.instructions
    start, last = begin[rows["task"]], end[rows["task"]]
    is_transfer = np.isin(rows["kind"], (Kind.SEND, Kind.RECEIVE))
    finish = np.maximum(start, np.where(np.isnan(finish) | is_transfer, last, finish))
    by_stream = np.lexsort((finish, start, rows["stream"]))
    stream = rows["stream"][by_stream].tolist()
    bounds = [k for k in range(1, len(stream)) if stream[k] != stream[k - 1]]
    for members in np.split(by_stream, bounds):
        if len(members) and rows["stream"][members[0]] >= 0:
            finish[members] = np.maximum.accumulate(finish[members])
            start[members[1:]] = np.maximum(start[members[1:]], finish[members[:-1]])
    return start, finish


def _latest_predecessors(
    program: Program, first: Longs, second: Longs, start: Floats, end: Floats, turn: Longs
) -> Ints:
    """By task the one that finished last of those it waited for, -1: none.

    Clocks may disagree on what came first, so only a task that finished before counts: causes never
    go in a circle.
    """
    rows = program.instructions
    task = rows["task"].astype(np.int64)
    chain = chain_rows(program, np.flatnonzero(rows["stream"] >= 0), start)
    first = np.concatenate((first, task[chain["first"]]))
    second = np.concatenate((second, task[chain["second"]]))
    rank = places_in(np.lexsort((turn, end)), len(end), np.int64)
    is_before = rank[first] < rank[second]
    first, second = first[is_before], second[is_before]
    cause = np.full(len(end), -1, dtype=np.int32)
    earliest_first = np.argsort(rank[first], kind="stable")  # the last entry stays
    cause[second[earliest_first]] = first[earliest_first]
    return cause
