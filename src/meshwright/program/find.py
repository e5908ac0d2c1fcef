"""Finds a tensor, or some of its rows, on the device of a reader, or emits what brings it there.

Each of these leaves the buffer and the instruction that writes it in `counts`.
"""

from meshwright.compiled import Array, Bool, Float, Int, inlined, outlined
from meshwright.graph.graph import Split
from meshwright.program.here import (
    NEAR,
    has_rows,
    has_whole,
    keep_rows,
    keep_whole,
    take_rows,
    take_whole,
)
from meshwright.program.move import join, transfer, valid_after
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
_ALL_REDUCE, _ALL_GATHER = int(Kind.ALL_REDUCE), int(Kind.ALL_GATHER)
_SUM, _CONCATENATE = int(Kind.SUM), int(Kind.CONCATENATE)
_NONE = int(Split.NONE)


@inlined
def _speaks(given: Given, part: Int, r: Int, target: Int, q: Int) -> Bool:
    """Whether slot `r` of a part is the member of its team that slot `q` of another takes from:
    members take from the one with their number, and turn by turn from a smaller team."""
    width = given.parts[part].width
    return r % width == q % given.parts[target].width % width


@outlined
def _nearest(given: Given, part: Int, target: Int, device: Int, q: Int) -> Int:
    """Of replicas that all have what replica `q` of a reader wants: the one on its device, else one
    on its host, else any; readers take turns. Of teams only the member counts that it takes from.
    """
    slots, host, width = given.slots, given.host, given.parts[part].width
    first = given.parts[part].slot
    replicas = given.parts[part + 1].slot - first
    near = 0
    for r in range(replicas):
        if _speaks(given, part, r, target, q):
            if slots[first + r].device == device:
                return r
            near += host[slots[first + r].device] == host[device]
    count = near if near > 0 else replicas // width
    turn = q % count if width == 1 else q // given.parts[target].width % count
    for r in range(replicas):
        if not _speaks(given, part, r, target, q):
            continue
        if near == 0 or host[slots[first + r].device] == host[device]:
            if turn == 0:
                return r
            turn -= 1
    return 0


@inlined
def _find_replica(
    given: Given, part: Int, slot: Int, target: Int, q: Int, is_whole: Bool
) -> tuple[Int, Int]:
    """A replica of a source that has all rows of replica `q` of a reader, and 1; or how many pieces
    there are at least: 2."""
    device, slots = given.slots[slot].device, given.slots
    first = given.parts[part].slot
    replicas = given.parts[part + 1].slot - first
    if is_whole:
        return _nearest(given, part, target, device, q), 1
    for each in range(-1, replicas):
        r = q if each < 0 else each
        if (
            r < replicas
            and _speaks(given, part, r, target, q)
            and slots[first + r].rows_from <= slots[slot].rows_from + NEAR
            and slots[first + r].rows_to >= slots[slot].rows_to - NEAR
        ):
            return r, 1
    return -1, 2


@inlined
def _find_term(given: Given, first: Int, terms: Int, target: Int, q: Int) -> tuple[Int, Int]:
    """Of the terms of a sum, the last that replica `q` of a reader adds, and how many it adds."""
    reader = given.parts[target].slot
    count = given.parts[target + 1].slot - reader
    found, taken = -1, 0
    for r in range(terms):
        if _taker(given.slots, first, r, reader, count) == q:
            found, taken = r, taken + 1
    return found, taken


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
    target: Int,
) -> None:
    """The rows of one replica of a reader in another part, or its terms of a sum.

    A buffer that has more rows than these serves as well: its reader takes its own. Of a sum over
    samples the replicas of a reader that goes on summing must add all terms, each once; one that
    adds nothing finds no buffer. Of what all replicas of the source have, the first one's counts.
    """
    device = given.slots[slot].device
    source = given.tensors[t].source
    adds_up = given.tensors[t].adds_up
    # What a device holds for one reader's replica, it holds for the others of that part.
    low = -1.0 - target if adds_up else given.slots[slot].rows_from
    high = -1.0 - target if adds_up else given.slots[slot].rows_to
    if has_rows(made, device, low, high):
        take_rows(made, device)
    elif given.ops[source].split == _NONE and not adds_up and has_whole(made, device):
        take_whole(made, device)
    else:
        _bring_rows(given, made, t, m, base, slot, q, before, is_gathered, target)
        keep_rows(made, device, low, high)


@inlined
def _bring_rows(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    base: Int,
    slot: Int,
    q: Int,
    before: Int,
    is_gathered: Bool,
    target: Int,
) -> None:
    """Take rows from one replica of the source that has them all, else join the pieces of several;
    of a sum, the terms that replica `q` of the reader adds."""
    device = given.slots[slot].device
    source = given.tensors[t].source
    adds_up = given.tensors[t].adds_up
    is_whole = given.ops[source].split == _NONE
    part = given.ops[source].part
    first = given.parts[part].slot
    replicas = given.parts[part + 1].slot - first
    low = 0.0 if adds_up else given.slots[slot].rows_from
    high = 1.0 if adds_up else given.slots[slot].rows_to
    if adds_up:
        covering, taken = _find_term(given, first, 1 if is_whole else replicas, target, q)
    else:
        covering, taken = _find_replica(given, part, slot, target, q, is_whole)
    made.counts[FOUND_BUFFER] = made.counts[FOUND_WRITER] = -1
    if taken > 1:
        terms = taken if adds_up else 0
        _gather_pieces(
            given, made, t, m, base, device, low, high, before, is_gathered, adds_up, target, q,
            terms,
        )  # fmt: skip
    elif taken == 1 and given.slots[first + covering].device == device:
        made.counts[FOUND_BUFFER] = base + covering
        made.counts[FOUND_WRITER] = instance(given, source, m, covering)
    elif taken == 1 and replicas == 1 and has_whole(made, device):
        take_whole(made, device)
    elif taken == 1:
        size = given.tensors[t].bytes if adds_up else rows_bytes(given, t, high - low)
        transfer(given, made, t, m, base + covering, covering, device, low, high, size, is_gathered)
        if adds_up and replicas == 1:  # its only term is the sum, which others here may read
            keep_whole(made, device)


@outlined
def _taker(slots: Array, first: Int, r: Int, reader: Int, count: Int) -> Int:
    """Which replica of a reader adds what replica `r` of a source has of a sum.

    The one on its device, else they take turns.
    """
    for q in range(count):
        if slots[reader + q].device == slots[first + r].device:
            return q
    return r % count


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
    target: Int,
    q: Int,
    terms: Int,
) -> None:
    """Pieces from every replica that has some of the rows (or a partial sum), joined for slot `q`
    of a reader; `terms`: of a sum, how many it takes of those that readers share; zero: all."""
    source = given.tensors[t].source
    part = given.ops[source].part
    first = given.parts[part].slot
    replicas = given.parts[part + 1].slot - first
    size = given.tensors[t].bytes if is_partial else rows_bytes(given, t, high - low)
    count = terms if terms > 0 else replicas // given.parts[part].width
    read_size = size * count if is_partial else size
    kind = _SUM if is_partial else _CONCATENATE
    readers = given.parts[target + 1].slot - given.parts[target].slot
    joined = join(given, made, kind, t, m, device, before, low, high, size, read_size)
    for r in range(replicas):
        piece_low = 0.0 if is_partial else max(low, given.slots[first + r].rows_from)
        piece_high = 1.0 if is_partial else min(high, given.slots[first + r].rows_to)
        if piece_high - piece_low < NEAR:
            continue
        if not _speaks(given, part, r, target, q):
            continue
        if terms > 0 and q != _taker(given.slots, first, r, given.parts[target].slot, readers):
            continue
        if given.slots[first + r].device == device:
            add_read(made, joined, base + r)
            after = valid_after(given, t, r, is_gathered)
            if after >= 0:
                add_order(made, after, joined)
        else:
            piece = given.tensors[t].bytes
            if not is_partial:
                piece = rows_bytes(given, t, piece_high - piece_low)
            transfer(
                given, made, t, m, base + r, r, device, piece_low, piece_high, piece, is_gathered
            )
            add_read(made, joined, made.counts[FOUND_BUFFER])
    made.counts[FOUND_BUFFER] = add_buffer(made, device, joined, t, size)
    made.counts[FOUND_WRITER] = joined


@inlined
def find_whole(
    given: Given,
    made: Made,
    t: Int,
    m: Int,
    base: Int,
    slot: Int,
    target: Int,
    q: Int,
    before: Int,
    is_gathered: Bool,
    is_partial: Bool,
) -> None:
    """All rows (or the sum) of a tensor whose source is replicated, for one replica of a reader."""
    device = given.slots[slot].device
    if not has_whole(made, device):
        source = given.tensors[t].source
        part = given.ops[source].part
        first = given.parts[part].slot
        replicas = given.parts[part + 1].slot - first
        # The devices of a group would all add what they have, and members of a team have the same.
        is_same = given.parts[target + 1].slot - given.parts[target].slot == replicas
        is_same = is_same and given.parts[part].width == 1
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
                given, made, t, m, base, device, 0.0, 1.0, before, is_gathered, is_partial, target,
                q, 0,
            )  # fmt: skip
            keep_whole(made, device)
    take_whole(made, device)


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
    is_partial: Bool,
    reader: Int,
    target: Int,
) -> None:
    """A tensor that every replica of the source holds as the reader wants it.

    A sum over a replica's samples is wanted by readers of these samples.
    """
    device = given.slots[slot].device
    source = given.tensors[t].source
    part = given.ops[source].part
    first = given.parts[part].slot
    replicas = given.parts[part + 1].slot - first
    r = _nearest(given, part, target, device, q)
    if is_partial:
        for each in range(replicas):
            low, high = given.slots[first + each].rows_from, given.slots[first + each].rows_to
            if (
                _speaks(given, part, each, target, q)
                and abs(low - given.slots[slot].rows_from) + abs(high - given.slots[slot].rows_to)
                < NEAR
            ):
                r = each
    if given.slots[first + r].device == device:
        made.counts[FOUND_BUFFER] = base + r
        made.counts[FOUND_WRITER] = instance(given, source, m, r)
        after = valid_after(given, t, r, is_gathered)
        if after >= 0:
            add_order(made, after, reader)
        return
    if not has_whole(made, device):
        transfer(
            given, made, t, m, base + r, r, device, 0.0, 1.0, given.tensors[t].bytes, is_gathered
        )
        keep_whole(made, device)
    take_whole(made, device)
