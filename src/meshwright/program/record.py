"""The arrays that the compiled half of lowering works on, and its smallest steps.

The smallest steps that bring a tensor to a device are a transfer and a join of pieces.

Kernels make no arrays: lowering runs them twice, first to count what they would write (`writes`
False), then to write it.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Float, Int, inlined
from meshwright.program.program import Kind

# Plain numbers, because compiled code stores these in int8 fields.
_SEND, _RECEIVE = int(Kind.SEND), int(Kind.RECEIVE)

OP = np.dtype(
    [
        ("part", np.int32),
        ("split", np.int8),  # a Split; NONE where replicas duplicate the op
        ("action", np.int8),
        ("microbatches", np.int32),  # 1 for updates
        ("instance", np.int32),  # its instructions: instance + microbatch * replicas + replica
        ("seconds", np.int32),  # where its times begin, one a replica
        ("rank", np.float64),  # its place among the ops of an action, or by the plan's priority
        ("turn", np.float64),  # the same for collectives, which run in an order the graph allows
        ("workspace_bytes", np.float64),  # for one microbatch, all rows
        ("whole_workspace_bytes", np.float64),  # of these, what does not shrink with the rows
    ],
    align=True,
)
TENSOR = np.dtype(
    [
        ("source", np.int32),
        ("first_use", np.int32),  # its readers: from here to the next tensor's
        ("bucket", np.int32),  # gradients that are synchronised together; -1: none
        ("is_partial", np.bool_),
        ("has_rows", np.bool_),  # samples stand beside each other in it, so that it can be cut
        ("adds_up", np.bool_),  # a gradient that backward sums up over samples
        ("bytes", np.float64),  # of a whole microbatch
        ("fixed_bytes", np.float64),  # the part of these that does not shrink with the rows
        ("beside", np.float64),  # of a joined tensor, the share of all but its largest member
    ],
    align=True,
)
"""One tensor; arrays of it have one entry more than tensors."""
SLOT = np.dtype(
    [("device", np.int32), ("rows_from", np.float64), ("rows_to", np.float64)], align=True
)
"""One replica of one part, of a team one member."""
PART = np.dtype(
    [
        ("slot", np.int32),
        ("width", np.int32),  # slots in a row that are one replica's team
        ("first_unit", np.int32, (4,)),  # by action: its first op; -1: none
        ("last_unit", np.int32, (4,)),
    ],
    align=True,
)
"""One part; arrays of it have one entry more than parts."""
BUCKET = np.dtype(
    [
        ("part", np.int32),
        ("instruction", np.int32),  # the first of its own
        ("server", np.int32),  # the replica that sums and broadcasts; -1: all-reduced
        ("bytes", np.float64),
    ],
    align=True,
)
"""Gradients that are synchronised together. Its instructions: one collective a replica, and with a
server also one send and one receive of each other replica, and a sum."""
HELD = np.dtype(
    [
        ("rows_stamp", np.int64),
        ("rows_from", np.float64),
        ("rows_to", np.float64),
        ("rows_buffer", np.int32),
        ("rows_writer", np.int32),
        ("whole_stamp", np.int64),
        ("whole_buffer", np.int32),
        ("whole_writer", np.int32),
    ],
    align=True,
)
"""What a device holds of the tensor and microbatch whose stamp it carries."""

INSTRUCTIONS, BUFFERS, READS, ORDERS, TASKS, STAMP = range(6)
"""Places in the array of counts."""


class Given(NamedTuple):
    """What the kernels read."""

    ops: Array
    tensors: Array
    readers: Array
    """The ops that read each tensor, tensor after tensor."""
    slots: Array
    parts: Array
    buckets: Array
    copy_seconds: Array
    """By device: for each byte that a concatenation or sum reads or writes."""
    host: Array
    """By device: the number of its host."""
    seconds: Array
    """By op and replica."""
    place: Array
    """By slot, action and microbatch: its place in the device's order; zero without a schedule."""
    is_scheduled: Bool
    num_computes: Int


class Made(NamedTuple):
    """What the kernels write, if `writes`; they always count."""

    instructions: Array
    buffers: Array
    reads: Array
    orders: Array
    held: Array
    counts: Array
    writes: Bool


class Wanted(NamedTuple):
    """What one replica of a reader needs of a tensor."""

    tensor: Int
    microbatch: Int
    base: Int
    """The buffer that the source's first replica writes; those of the others follow."""
    part: Int
    """The source's part."""
    first: Int
    """The first slot of that part."""
    replicas: Int
    """How many slots that part has."""
    target: Int
    """The reader's part."""
    replica: Int
    """Which of its replicas reads."""
    slot: Int
    """Where that replica is."""
    device: Int
    reader: Int
    """The instruction that reads."""
    before: Int
    """The instruction that a sum or concatenation for the reader must run before."""
    is_gathered: Bool
    """Whether the tensor is whole only after its last microbatch or a collective."""
    is_partial: Bool
    """Whether each replica of the source has a part of a sum."""


class Found(NamedTuple):
    """A buffer with what is wanted, and the instruction that writes it; -1: nothing is needed."""

    buffer: Int
    writer: Int


@inlined
def add_read(made: Made, instruction: Int, buffer: Int) -> None:
    """Let an instruction read a buffer."""
    if made.writes:
        made.reads[made.counts[READS]].first = instruction
        made.reads[made.counts[READS]].second = buffer
    made.counts[READS] += 1


@inlined
def add_order(made: Made, first: Int, second: Int) -> None:
    """Let an instruction finish before another starts."""
    if made.writes:
        made.orders[made.counts[ORDERS]].first = first
        made.orders[made.counts[ORDERS]].second = second
    made.counts[ORDERS] += 1


@inlined
def add_buffer(made: Made, device: Int, writer: Int, tensor: Int, size: Float) -> Int:
    """Add a buffer that an instruction writes; returns its number."""
    number = made.counts[BUFFERS]
    if made.writes:
        made.buffers[number].device = device
        made.buffers[number].writer = writer
        made.buffers[number].tensor = tensor
        made.buffers[number].bytes = size
    made.counts[BUFFERS] += 1
    return number


@inlined
def rows_bytes(given: Given, t: Int, rows: Float) -> Float:
    """The size of a fraction of the rows of a tensor."""
    fixed = given.tensors[t].fixed_bytes
    return fixed + (given.tensors[t].bytes - fixed) * rows


@inlined
def early_of(given: Given, bucket: Int, r: Int) -> Int:
    """What replica `r` does before a server's broadcast: it sends, or on the server sums up."""
    part = given.buckets[bucket].part
    replicas = given.parts[part + 1].slot - given.parts[part].slot
    server = given.buckets[bucket].server
    place = 2 * (replicas - 1) if r == server else r - (r > server)
    return given.buckets[bucket].instruction + replicas + place


@inlined
def instance(given: Given, op: Int, m: Int, replica: Int) -> Int:
    """The instruction that runs an op for a microbatch on a replica."""
    part = given.ops[op].part
    replicas = given.parts[part + 1].slot - given.parts[part].slot
    if given.ops[op].microbatches == 1:
        m = 0
    return given.ops[op].instance + m * replicas + replica


@inlined
def await_whole(given: Given, made: Made, wanted: Wanted, r: Int, number: Int) -> None:
    """An instruction waits for what, besides its writer, makes the buffer on replica `r` whole."""
    if wanted.is_gathered:
        source, bucket = given.tensors[wanted.tensor].source, given.tensors[wanted.tensor].bucket
        if bucket >= 0:
            add_order(made, given.buckets[bucket].instruction + r, number)
        else:
            last = given.ops[source].microbatches - 1
            add_order(made, instance(given, source, last, r), number)


@inlined
def begin_row(
    made: Made, number: Int, kind: Int, device: Int, t: Int, m: Int, replica: Int, stream: Int
) -> None:
    """Say of an instruction that moves or joins a tensor what all of them have."""
    row = made.instructions[number]
    row.kind, row.device, row.stream = kind, device, stream
    row.tensor, row.microbatch, row.replica = t, m, replica
    row.op, row.peer, row.group, row.task = -1, -1, -1, made.counts[TASKS]


@inlined
def transfer(
    given: Given, made: Made, wanted: Wanted, r: Int, low: Float, high: Float, size: Float
) -> Found:
    """Send the rows from `low` to `high` from replica `r` of the source to the reader's device."""
    t, m, device = wanted.tensor, wanted.microbatch, wanted.device
    source, part = given.tensors[t].source, wanted.part
    origin = given.slots[wanted.first + r].device
    send = made.counts[INSTRUCTIONS]
    if made.writes:
        for each in range(2):
            kind, here = (_SEND, origin) if each == 0 else (_RECEIVE, device)
            begin_row(made, send + each, kind, here, t, m, r, -1)
            row = made.instructions[send + each]
            row.peer = device if each == 0 else origin
            row.bytes = size
            row.beside_bytes = size * given.tensors[t].beside
            row.rows_from = low
            row.rows_to = high
    made.counts[INSTRUCTIONS] += 2
    made.counts[TASKS] += 1
    add_read(made, send, wanted.base + r)
    await_whole(given, made, wanted, r, send)
    last = given.parts[part].last_unit[given.ops[source].action]
    if given.is_scheduled and last >= 0 and last != source:
        add_order(made, instance(given, last, m, r), send)
    return Found(add_buffer(made, device, send + 1, t, size), send + 1)


@inlined
def join(
    given: Given, made: Made, wanted: Wanted, kind: Int, low: Float, high: Float, size: Float,
    read_size: Float,
) -> Int:  # fmt: skip
    """A concatenation or sum on the reader's device, just before what needs it."""
    device, before = wanted.device, wanted.before
    number = made.counts[INSTRUCTIONS]
    if made.writes:
        replica = made.instructions[before].replica
        begin_row(made, number, kind, device, wanted.tensor, wanted.microbatch, replica, device)
        row = made.instructions[number]
        row.seconds = given.copy_seconds[device] * (size + read_size)
        row.priority = made.instructions[before].priority + 0.5
        row.rows_from = low
        row.rows_to = high
    made.counts[INSTRUCTIONS] += 1
    made.counts[TASKS] += 1
    return number
