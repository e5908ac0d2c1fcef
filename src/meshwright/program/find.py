"""Finds a tensor, or some of its rows, on the device of a reader, or emits what brings it there.

Each of these leaves the buffer and the instruction that writes it in `counts`.
"""

from meshwright.compiled import Bool, Float, Int, inlined, outlined
from meshwright.program.program import Kind
from meshwright.program.record import (
    FOUND_BUFFER,
    FOUND_WRITER,
    INSTRUCTIONS,
    STAMP,
    TASKS,
    Given,
    Made,
    add_buffer,
    add_order,
    add_read,
    instance,
    rows_bytes,
)  # fmt: skip

# Plain numbers, because compiled code stores these in int8 fields.
_SEND, _RECEIVE = int(Kind.SEND), int(Kind.RECEIVE)
_ALL_REDUCE, _ALL_GATHER = int(Kind.ALL_REDUCE), int(Kind.ALL_GATHER)
_SUM, _CONCATENATE = int(Kind.SUM), int(Kind.CONCATENATE)

_NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


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
def _transfer(
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
def _join(
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


@inlined
def find_rows(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    base: Int,
    slot: Int,
    q: Int,
    before: Int,
    is_gathered: Bool,
) -> None:
    """The rows of one replica of a reader in another part."""
    device = given.slots[slot].device
    low, high = given.slots[slot].rows_from, given.slots[slot].rows_to
    if (
        made.held[device].rows_stamp == made.counts[STAMP]
        and abs(made.held[device].rows_from - low) < _NEAR
        and abs(made.held[device].rows_to - high) < _NEAR
    ):
        made.counts[FOUND_BUFFER] = made.held[device].rows_buffer
        made.counts[FOUND_WRITER] = made.held[device].rows_writer
        return
    source = given.tensors[t].source
    first = given.parts[given.ops[source].part].slot
    replicas = given.parts[given.ops[source].part + 1].slot - first
    covering = -1
    if (
        q < replicas
        and given.slots[first + q].rows_from <= low + _NEAR
        and given.slots[first + q].rows_to >= high - _NEAR
    ):
        covering = q
    else:
        for r in range(replicas):
            if (
                given.slots[first + r].rows_from <= low + _NEAR
                and given.slots[first + r].rows_to >= high - _NEAR
            ):
                covering = r
                break
    size = rows_bytes(given, t, high - low)
    if covering >= 0 and given.slots[first + covering].device == device:
        made.counts[FOUND_BUFFER] = base + covering
        made.counts[FOUND_WRITER] = instance(given, source, m, covering)
    elif covering >= 0:
        _transfer(
            given, made, t, m, base + covering, covering, device, low, high, size, is_gathered
        )
    else:
        _gather_pieces(given, made, t, m, base, device, low, high, before, is_gathered, False)
    made.held[device].rows_stamp = made.counts[STAMP]
    made.held[device].rows_from = low
    made.held[device].rows_to = high
    made.held[device].rows_buffer = made.counts[FOUND_BUFFER]
    made.held[device].rows_writer = made.counts[FOUND_WRITER]


@outlined
def _gather_pieces(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    base: Int,
    device: Int,
    low: Float,
    high: Float,
    before: Int,
    is_gathered: Bool,
    is_partial: Bool,
) -> None:
    """Pieces from every replica that has some of the rows (or a partial sum), joined."""
    source = given.tensors[t].source
    first = given.parts[given.ops[source].part].slot
    replicas = given.parts[given.ops[source].part + 1].slot - first
    size = given.tensors[t].bytes if is_partial else rows_bytes(given, t, high - low)
    read_size = size * replicas if is_partial else size
    kind = _SUM if is_partial else _CONCATENATE
    join = _join(given, made, kind, t, m, device, before, low, high, size, read_size)
    for r in range(replicas):
        piece_low = 0.0 if is_partial else max(low, given.slots[first + r].rows_from)
        piece_high = 1.0 if is_partial else min(high, given.slots[first + r].rows_to)
        if piece_high - piece_low < _NEAR:
            continue
        if given.slots[first + r].device == device:
            add_read(made, join, base + r)
            after = valid_after(given, t, r, is_gathered)
            if after >= 0:
                add_order(made, after, join)
        else:
            piece = given.tensors[t].bytes
            if not is_partial:
                piece = rows_bytes(given, t, piece_high - piece_low)
            _transfer(
                given, made, t, m, base + r, r, device, piece_low, piece_high, piece, is_gathered
            )
            add_read(made, join, made.counts[FOUND_BUFFER])
    made.counts[FOUND_BUFFER] = add_buffer(made, device, join, t, size)
    made.counts[FOUND_WRITER] = join


@inlined
def find_whole(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    base: Int,
    slot: Int,
    target: Int,
    before: Int,
    is_gathered: Bool,
    is_partial: Bool,
) -> None:
    """All rows (or the sum) of a tensor whose source is replicated, for one replica of a reader."""
    device = given.slots[slot].device
    if made.held[device].whole_stamp != made.counts[STAMP]:
        source = given.tensors[t].source
        part = given.ops[source].part
        first = given.parts[part].slot
        replicas = given.parts[part + 1].slot - first
        is_same = given.parts[target + 1].slot - given.parts[target].slot == replicas
        for r in range(replicas):
            if (
                is_same
                and given.slots[first + r].device
                != given.slots[given.parts[target].slot + r].device
            ):
                is_same = False
        if is_same:
            _collect_all(given, made, t, m, base, is_gathered, is_partial)
        else:
            _gather_pieces(
                given, made, t, m, base, device, 0.0, 1.0, before, is_gathered, is_partial
            )
            made.held[device].whole_stamp = made.counts[STAMP]
            made.held[device].whole_buffer = made.counts[FOUND_BUFFER]
            made.held[device].whole_writer = made.counts[FOUND_WRITER]
    made.counts[FOUND_BUFFER] = made.held[device].whole_buffer
    made.counts[FOUND_WRITER] = made.held[device].whole_writer


@outlined
def _collect_all(
    given: Given, made: Made, t: Int, m: Int, base: Int, is_gathered: Bool, is_partial: Bool
) -> None:
    """An all-gather (of rows) or all-reduce (of sums) between the replicas of the source."""
    source = given.tensors[t].source
    part = given.ops[source].part
    first = given.parts[part].slot
    replicas = given.parts[part + 1].slot - first
    start = made.counts[INSTRUCTIONS]
    for r in range(replicas):
        device = given.slots[first + r].device
        if made.writes:
            row = made.instructions[start + r]
            row.kind = _ALL_REDUCE if is_partial else _ALL_GATHER
            row.device = device
            row.peer = -1
            row.op = -1
            row.tensor = t
            row.microbatch = m
            row.replica = r
            row.group = part
            row.task = made.counts[TASKS]
            row.stream = len(made.held) + device
            row.bytes = given.tensors[t].bytes
            # One key for all members, so that all devices take collectives in one order.
            place = given.place[first, given.ops[source].action, m]
            row.priority = -(place * (len(given.ops) + 1.0) + given.ops[source].turn)
            row.rows_to = 1.0
        add_read(made, start + r, base + r)
        after = valid_after(given, t, r, is_gathered)
        if after >= 0:
            add_order(made, after, start + r)
        made.held[device].whole_stamp = made.counts[STAMP]
        made.held[device].whole_writer = start + r
        made.held[device].whole_buffer = add_buffer(
            made, device, start + r, t, given.tensors[t].bytes
        )
    made.counts[INSTRUCTIONS] += replicas
    made.counts[TASKS] += 1


@inlined
def find_copy(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    base: Int,
    slot: Int,
    q: Int,
    is_gathered: Bool,
    reader: Int,
) -> None:
    """A tensor that every replica of the source holds as the reader wants it."""
    device = given.slots[slot].device
    source = given.tensors[t].source
    first = given.parts[given.ops[source].part].slot
    replicas = given.parts[given.ops[source].part + 1].slot - first
    local = -1
    if q < replicas and given.slots[first + q].device == device:
        local = q
    else:
        for r in range(replicas):
            if given.slots[first + r].device == device:
                local = r
                break
    if local >= 0:
        made.counts[FOUND_BUFFER] = base + local
        made.counts[FOUND_WRITER] = instance(given, source, m, local)
        after = valid_after(given, t, local, is_gathered)
        if after >= 0:
            add_order(made, after, reader)
        return
    if made.held[device].whole_stamp != made.counts[STAMP]:
        r = q % replicas
        _transfer(
            given, made, t, m, base + r, r, device, 0.0, 1.0, given.tensors[t].bytes, is_gathered
        )
        made.held[device].whole_stamp = made.counts[STAMP]
        made.held[device].whole_buffer = made.counts[FOUND_BUFFER]
        made.held[device].whole_writer = made.counts[FOUND_WRITER]
    made.counts[FOUND_BUFFER] = made.held[device].whole_buffer
    made.counts[FOUND_WRITER] = made.held[device].whole_writer
