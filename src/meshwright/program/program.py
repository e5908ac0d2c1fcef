"""A Program: for every device its instructions, what they read and write, and what comes first.

The simulator runs it with costs, the executor with tensors. Instructions are records in one array;
a transfer is a SEND on one device and a RECEIVE on the other, a collective one instruction for each
member, and the instructions of one such operation share a `task`. A buffer is allocated when its
writer starts and freed when the last instruction that reads it has finished: there is no FREE
instruction, because in a stream that picks by priority the last reader is known only afterwards.
Devices of a team do the same at the same time, so that only the first of them has instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints, Records
from meshwright.cost.group_price import GroupCall
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Allocation


class Kind(IntEnum):
    """What an instruction does."""

    COMPUTE = 0
    """Run an op (or a unit of ops) for one microbatch."""
    CONCATENATE = 1
    """Join rows that came from several replicas."""
    SUM = 2
    """Add up partial sums that came from several replicas."""
    SEND = 3
    RECEIVE = 4
    ALL_REDUCE = 5
    ALL_GATHER = 6
    BROADCAST = 7
    REDUCE_SCATTER = 8
    ALL_TO_ALL = 9
    SHIFT = 10
    """Send to the next member of a ring, and get what the one before sends."""


JOINS = (Kind.CONCATENATE, Kind.SUM)
"""What a device makes of others' tensors by itself: it is done when the next one begins."""


class StreamRule(IntEnum):
    """How a stream picks its next instruction."""

    PRIORITY = 0
    """Of those that are ready the one with the highest priority."""
    FIFO = 1
    """Of those that are ready the one that has been so longest."""
    ORDER = 2
    """From the highest priority to the lowest, waiting where need be."""


INSTRUCTION = np.dtype(
    [
        ("kind", np.int8),
        ("device", np.int32),
        ("op", np.int32),  # COMPUTE: the op (a number in Program.graph); else -1
        (
            "tensor",
            np.int32,
        ),  # what is moved, joined or summed; -1: an op, or a bucket of gradients
        ("microbatch", np.int32),
        ("replica", np.int32),  # of its part
        ("peer", np.int32),  # SEND: to which device; RECEIVE: from which; else -1
        ("group", np.int32),  # a collective's devices: number in Program.groups; else -1
        ("task", np.int32),  # instructions with one number run together
        ("stream", np.int32),  # -1: starts when it can (transfers: receives are posted in advance)
        ("seconds", np.float64),  # alone on its device; 0 for communication
        ("bytes", np.float64),  # communicated
        ("beside_bytes", np.float64),  # of these: in other transfers, which alone run side by side
        ("workspace_bytes", np.float64),  # held only while it runs
        ("priority", np.float64),
        ("rows_from", np.float64),  # which rows of the microbatch, as fractions
        ("rows_to", np.float64),
    ],
    align=True,
)


def blank_rows(shape: int | tuple[int, ...]) -> Records:
    """Instructions that say nothing yet."""
    rows = np.zeros(shape, INSTRUCTION)
    for name in ("op", "tensor", "peer", "group", "stream"):
        rows[name] = -1
    return rows


BUFFER = np.dtype(
    [
        ("device", np.int32),
        ("writer", np.int32),
        ("tensor", np.int32),  # -1: what a forward op saves besides
        ("lasts", np.bool_),  # held until the step ends; else until its last reader is done
        ("bytes", np.float64),
    ],
    align=True,
)
"""Memory on one device that one instruction writes."""

PAIR = np.dtype([("first", np.int32), ("second", np.int32)], align=True)
"""Of reads: the instruction and the buffer. Of orders: what runs before what."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Program:
    """What every device does in one step."""

    graph: Graph
    """What `op` and `tensor` number: the graph, or at granularity part the graph of units."""
    part_of_op: Ints
    """By op of `graph`: the part of the plan that holds it, with a schedule the stage."""
    is_again: Bools
    """By op of `graph`: whether it computes again, in backward, what forward did not keep."""
    device_names: tuple[str, ...]
    instructions: Records
    buffers: Records
    reads: Records
    """PAIRs of instruction and buffer; also says that the buffer's writer runs first."""
    orders: Records
    """PAIRs of instructions of which the first finishes before the second starts."""
    stream_rule: npt.NDArray[np.int8]
    """Streams 0 to D - 1 compute on devices 0 to D - 1; then as many for each lane of collectives
    (`meshwright.program.collective.Lane`), or for the one that there is."""
    groups: tuple[tuple[int, ...], ...]
    """Device numbers of collectives."""
    group_algorithm: tuple[str, ...]
    """Algorithm that the plan asks of each group; "" for the fastest."""
    state_bytes: Floats
    """Held on each device for the whole step."""
    host_seconds: Floats
    """What the host of each device takes to launch all of the step's kernels, ahead of them."""
    allocations: tuple[Allocation, ...] = ()
    microbatches: int = 1
    beside: tuple[tuple[tuple[int, ...], ...], ...] = ()
    """Of each group those that do the same at the same moment and share links; empty: none does."""
    teams: tuple[tuple[int, ...], ...] = ()
    """Devices that run as one: the instructions and memory of the first stand for those of every
    member, and a transfer to or from it is the whole team's. Who is in none runs alone."""
    call_seconds: Floats | None = None
    """By instruction: what a team's collectives take of its `seconds`; None: nothing."""
    team_calls: frozenset[GroupCall] = frozenset()
    """Those collectives: what a group of devices does within the time of its units."""

    def __post_init__(self) -> None:
        held = (self.state_bytes, self.host_seconds, self.part_of_op, self.is_again)
        for array in (self.instructions, self.buffers, self.reads, self.orders, *held):
            array.setflags(write=False)
        if self.call_seconds is not None:
            self.call_seconds.setflags(write=False)

    @cached_property
    def leader(self) -> Ints:
        """By device: the one whose instructions it runs, itself outside of teams."""
        leader = np.arange(self.num_devices, dtype=np.int32)
        for team in self.teams:
            leader[list(team)] = team[0]
        return leader

    @property
    def num_devices(self) -> int:
        """How many devices the cluster of the program has."""
        return len(self.device_names)

    @property
    def num_instructions(self) -> int:
        """How many instructions the program has on all devices."""
        return len(self.instructions)

    def describe(self, number: int) -> str:
        """An instruction for people, e.g. "matmul3 [mb 2]" or "send relu1 to h0.d1"."""
        suffix = ""
        if self.microbatches > 1:
            suffix = f" [mb {self.instructions['microbatch'][number]}]"
        return f"{self.name_of(number)}{suffix}"

    def name_of(self, number: int) -> str:
        """An instruction for people, whatever its microbatch."""
        row = self.instructions[number]
        if row["op"] >= 0:
            return self.graph.op_names[int(row["op"])]
        what = "weights" if row["kind"] == Kind.ALL_GATHER else "gradients"
        if row["tensor"] >= 0:
            what = self.graph.op_names[self.graph.tensor_source[row["tensor"]]]
        name = Kind(int(row["kind"])).name.lower()
        if row["peer"] >= 0:
            way = "to" if row["kind"] == Kind.SEND else "from"
            return f"{name} {what} {way} {self.device_names[row['peer']]}"
        return f"{name} {what}"


def freeze_order(
    program: Program, start: Sequence[float] | Floats, finish: Sequence[float] | Floats
) -> Program:
    """The program with every stream in the fixed order of these start times.

    What the executor runs after a simulation has decided the order. Where several start at one
    moment those that take no time came first; of these, streams with an order keep it, in others an
    op comes after those before it in the graph, and a join after what it joins.
    """
    instructions = program.instructions.copy()
    source = np.append(program.graph.tensor_source, -1)[instructions["tensor"]]
    turn = np.where(instructions["op"] >= 0, instructions["op"], source + 0.5)
    stream = np.maximum(instructions["stream"], 0)
    is_ordered = program.stream_rule[stream] == StreamRule.ORDER
    turn = np.where(is_ordered, -instructions["priority"], turn)
    order = np.lexsort((turn, np.asarray(finish), np.asarray(start)))
    instructions["priority"][order] = -np.arange(len(order), dtype=np.float64)
    return replace(
        program,
        instructions=instructions,
        stream_rule=np.full_like(program.stream_rule, StreamRule.ORDER),
    )
