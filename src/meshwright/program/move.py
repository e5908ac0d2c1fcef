"""The smallest steps that bring a tensor to a device: a transfer, and a join of pieces."""

from meshwright.compiled import Bool, Float, Int, inlined
from meshwright.program.program import Kind
from meshwright.program.record import (
    INSTRUCTIONS,
    TASKS,
    Found,
    Given,
    Made,
    Wanted,
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
    given: Given, made: Made, wanted: Wanted, r: Int, low: Float, high: Float, size: Float
) -> Found:
    """Send the rows from `low` to `high` from replica `r` of the source to the reader's device."""
    t, m, device = wanted.tensor, wanted.microbatch, wanted.device
    source, part = given.tensors[t].source, wanted.part
    origin = given.slots[wanted.first + r].device
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
            row.rows_from = low
            row.rows_to = high
    made.counts[INSTRUCTIONS] += 2
    made.counts[TASKS] += 1
    add_read(made, send, wanted.base + r)
    after = valid_after(given, t, r, wanted.is_gathered)
    if after >= 0:
        add_order(made, after, send)
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
        row = made.instructions[number]
        row.kind = kind
        row.device = device
        row.peer = -1
        row.op = -1
        row.tensor = wanted.tensor
        row.microbatch = wanted.microbatch
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
