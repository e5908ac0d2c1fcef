"""The smallest steps that bring a tensor to a device: a transfer, and a join of pieces."""

from meshwright.compiled import Bool, Float, Int, inlined
from meshwright.program.program import Kind
from meshwright.program.record import (
    FOUND_BUFFER,
    FOUND_WRITER,
    INSTRUCTIONS,
    TASKS,
    Given,
    Made,
    add_buffer,
    add_order,
    add_read,
    instance,
)  # fmt: skip

# Plain numbers, because compiled code stores these in int8 fields.
_SEND, _RECEIVE = int(Kind.SEND), int(Kind.RECEIVE)


@inlined
def valid_after(given: Given, t: Int, r: Int, is_gathered: Bool) -> Int:
    """What must have finished, besides its writer, before the buffer on replica `r` is whole."""
    if not is_gathered:
        return -1
    if given.tensors[t].bucket >= 0:
        return given.buckets[given.tensors[t].bucket].instruction + r
    source = given.tensors[t].source
    return instance(given, source, given.ops[source].microbatches - 1, r)


@inlined
def transfer(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    buffer: Int,
    r: Int,
    device: Int,
    rows_from: Float,
    rows_to: Float,
    size: Float,
    is_gathered: Bool,
) -> None:
    """Send from replica `r` of the source to a device; finds the buffer and receive it emits."""
    source = given.tensors[t].source
    part = given.ops[source].part
    origin = given.slots[given.parts[part].slot + r].device
    send = made.counts[INSTRUCTIONS]
    if made.writes:
        for each in range(2):
            row = made.instructions[send + each]
            row.kind = _SEND if each == 0 else _RECEIVE
            row.device = origin if each == 0 else device
            row.peer = device if each == 0 else origin
            row.op = -1
            row.tensor = t
            row.microbatch = m
            row.replica = r
            row.group = -1
            row.task = made.counts[TASKS]
            row.stream = -1
            row.bytes = size
            row.beside_bytes = size * given.tensors[t].beside
            row.rows_from = rows_from
            row.rows_to = rows_to
    made.counts[INSTRUCTIONS] += 2
    made.counts[TASKS] += 1
    add_read(made, send, buffer)
    after = valid_after(given, t, r, is_gathered)
    if after >= 0:
        add_order(made, after, send)
    last = given.parts[part].last_unit[given.ops[source].action]
    if given.is_scheduled and last >= 0 and last != source:
        add_order(made, instance(given, last, m, r), send)
    made.counts[FOUND_BUFFER] = add_buffer(made, device, send + 1, t, size)
    made.counts[FOUND_WRITER] = send + 1


@inlined
def join(
    given: Given,
    made: Made,
    kind: Int,
    t: Int,
    m: Int,
    device: Int,
    before: Int,
    low: Float,
    high: Float,
    size: Float,
    read_size: Float,
) -> Int:
    """A concatenation or sum on a device, just before the instruction that needs it."""
    number = made.counts[INSTRUCTIONS]
    if made.writes:
        row = made.instructions[number]
        row.kind = kind
        row.device = device
        row.peer = -1
        row.op = -1
        row.tensor = t
        row.microbatch = m
        row.replica = made.instructions[before].replica
        row.group = -1
        row.task = made.counts[TASKS]
        row.stream = device
        row.seconds = given.copy_seconds[device] * (size + read_size)
        row.priority = made.instructions[before].priority + 0.5
        row.rows_from = low
        row.rows_to = high
    made.counts[INSTRUCTIONS] += 1
    made.counts[TASKS] += 1
    return number
