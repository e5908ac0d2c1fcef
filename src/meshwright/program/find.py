"""Finds a tensor, or some of its rows, on the device of a reader, or emits what brings it there.

What a device has already of the tensor and microbatch that are looked for is in `held`.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Bool, Float, Int, inlined, outlined
from meshwright.graph.graph import Split
from meshwright.program.program import Kind
from meshwright.program.record import (
    INSTRUCTIONS,
    STAMP,
    TASKS,
    Found,
    Given,
    Made,
    Wanted,
    add_buffer,
    add_read,
    await_whole,
    begin_row,
    instance,
    join,
    rows_bytes,
    transfer,
)  # fmt: skip

# Plain numbers, because compiled code stores these in int8 fields.
_ALL_REDUCE, _ALL_GATHER = int(Kind.ALL_REDUCE), int(Kind.ALL_GATHER)
_SUM, _CONCATENATE = int(Kind.SUM), int(Kind.CONCATENATE)
_NONE = int(Split.NONE)

_NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


class Covering(NamedTuple):
    """Where the rows, or the terms of a sum, that a reader wants come from."""

    replica: Int
    """The replica of the source that has them all, where one has."""
    num_pieces: Int
    """How many replicas they come from: none, one, or at least two."""


@inlined
def _has_whole(made: Made, device: Int) -> Bool:
    """Whether a device has all of the tensor and microbatch that are looked for."""
    return made.held[device].whole_stamp == made.counts[STAMP]


@inlined
def _held_whole(made: Made, device: Int) -> Found:
    """The whole tensor that a device has."""
    held = made.held[device]
    return Found(np.int64(held.whole_buffer), np.int64(held.whole_writer))


@inlined
def _keep_whole(made: Made, device: Int, found: Found) -> None:
    """Let others find the whole tensor on the device."""
    held = made.held[device]
    held.whole_stamp = made.counts[STAMP]
    held.whole_buffer, held.whole_writer = found.buffer, found.writer


@inlined
def _has_rows(made: Made, device: Int, low: Float, high: Float) -> Bool:
    """Whether a device has these rows of the tensor and microbatch that are looked for."""
    held = made.held[device]
    return (
        held.rows_stamp == made.counts[STAMP]
        and abs(held.rows_from - low) < _NEAR
        and abs(held.rows_to - high) < _NEAR
    )


@inlined
def _keep_rows(made: Made, device: Int, low: Float, high: Float, found: Found) -> None:
    """Let others find these rows on the device."""
    held = made.held[device]
    held.rows_stamp = made.counts[STAMP]
    held.rows_from, held.rows_to = low, high
    held.rows_buffer, held.rows_writer = found.buffer, found.writer


@inlined
def _speaks(given: Given, wanted: Wanted, r: Int) -> Bool:
    """Whether slot `r` of the source is the member of its team that the reader takes from: members
    take from the one with their number, and turn by turn from a smaller team."""
    width = given.parts[wanted.part].width
    return r % width == wanted.replica % given.parts[wanted.target].width % width


@outlined
def _nearest(given: Given, wanted: Wanted) -> Int:
    """Of replicas that all have what is wanted: the one on the reader's device, else one on its
    host, else any; readers take turns. Of teams only the member counts that it takes from."""
    slots, host, first = given.slots, given.host, wanted.first
    near = 0
    for r in range(wanted.replicas):
        if _speaks(given, wanted, r):
            if slots[first + r].device == wanted.device:
                return r
            near += host[slots[first + r].device] == host[wanted.device]
    width, q = given.parts[wanted.part].width, wanted.replica
    count = near if near > 0 else wanted.replicas // width
    turn = q % count if width == 1 else q // given.parts[wanted.target].width % count
    for r in range(wanted.replicas):
        if not _speaks(given, wanted, r):
            continue
        if near == 0 or host[slots[first + r].device] == host[wanted.device]:
            if turn == 0:
                return r
            turn -= 1
    return 0


@inlined
def _cover_rows(given: Given, wanted: Wanted) -> Covering:
    """Where the rows come from: a replica of the source that has them all, or at least two."""
    slots, slot = given.slots, wanted.slot
    if given.ops[given.tensors[wanted.tensor].source].split == _NONE:
        return Covering(np.int64(_nearest(given, wanted)), np.int64(1))
    for each in range(-1, wanted.replicas):
        r = wanted.replica if each < 0 else each
        if (
            r < wanted.replicas
            and _speaks(given, wanted, r)
            and slots[wanted.first + r].rows_from <= slots[slot].rows_from + _NEAR
            and slots[wanted.first + r].rows_to >= slots[slot].rows_to - _NEAR
        ):
            return Covering(np.int64(r), np.int64(1))
    return Covering(np.int64(-1), np.int64(2))


@inlined
def _cover_sum(given: Given, wanted: Wanted) -> Covering:
    """Where the terms of a sum come from that the reader adds; of several the last one."""
    # What all replicas have is one term.
    is_whole = given.ops[given.tensors[wanted.tensor].source].split == _NONE
    replica, num_pieces = np.int64(-1), np.int64(0)
    for r in range(1 if is_whole else wanted.replicas):
        if _taker(given, wanted, r) == wanted.replica:
            replica, num_pieces = np.int64(r), num_pieces + 1
    return Covering(replica, num_pieces)


@outlined
def _taker(given: Given, wanted: Wanted, r: Int) -> Int:
    """Which replica of the reader adds what replica `r` of the source has of a sum.

    The one on its device, else they take turns.
    """
    reader = given.parts[wanted.target].slot
    count = given.parts[wanted.target + 1].slot - reader
    for q in range(count):
        if given.slots[reader + q].device == given.slots[wanted.first + r].device:
            return q
    return r % count


@inlined
def find_rows(given: Given, made: Made, wanted: Wanted) -> Found:
    """The rows of one replica of a reader in another part, or its terms of a sum.

    A buffer that has more rows than these serves as well: its reader takes its own. Of a sum over
    samples the replicas of a reader that goes on summing must add all terms, each once; one that
    adds nothing finds no buffer. Of what all replicas of the source have, the first one's counts.
    """
    device, tensor = wanted.device, given.tensors[wanted.tensor]
    # What a device holds for one reader's replica, it holds for the others of that part.
    low = -1.0 - wanted.target if tensor.adds_up else given.slots[wanted.slot].rows_from
    high = -1.0 - wanted.target if tensor.adds_up else given.slots[wanted.slot].rows_to
    if _has_rows(made, device, low, high):
        held = made.held[device]
        return Found(np.int64(held.rows_buffer), np.int64(held.rows_writer))
    is_whole = given.ops[tensor.source].split == _NONE
    if is_whole and not tensor.adds_up and _has_whole(made, device):
        return _held_whole(made, device)
    found = _bring_rows(given, made, wanted)
    _keep_rows(made, device, low, high, found)
    return found


@inlined
def _bring_rows(given: Given, made: Made, wanted: Wanted) -> Found:
    """Take rows from one replica of the source that has them all, else join the pieces of several;
    of a sum, the terms that the reader adds."""
    device, tensor = wanted.device, given.tensors[wanted.tensor]
    adds_up = tensor.adds_up
    low = 0.0 if adds_up else given.slots[wanted.slot].rows_from
    high = 1.0 if adds_up else given.slots[wanted.slot].rows_to
    covering = _cover_sum(given, wanted) if adds_up else _cover_rows(given, wanted)
    replica = covering.replica
    if covering.num_pieces == 0:
        return Found(np.int64(-1), np.int64(-1))
    if covering.num_pieces > 1:
        terms = covering.num_pieces if adds_up else 0
        return _gather_pieces(given, made, wanted, low, high, adds_up, terms)
    if given.slots[wanted.first + replica].device == device:
        writer = instance(given, tensor.source, wanted.microbatch, replica)
        return Found(wanted.base + replica, writer)
    if wanted.replicas == 1 and _has_whole(made, device):
        return _held_whole(made, device)
    size = tensor.bytes if adds_up else rows_bytes(given, wanted.tensor, high - low)
    found = transfer(given, made, wanted, replica, low, high, size)
    if adds_up and wanted.replicas == 1:  # its only term is the sum, which others here may read
        _keep_whole(made, device, found)
    return found


@outlined
def _gather_pieces(
    given: Given, made: Made, wanted: Wanted, low: Float, high: Float, is_sum: Bool, terms: Int
) -> Found:
    """Pieces from every replica that has some of the rows (or of a sum), joined for the reader;
    `terms`: of a sum, how many it takes of those that readers share; zero: all."""
    t, first = wanted.tensor, wanted.first
    size = given.tensors[t].bytes if is_sum else rows_bytes(given, t, high - low)
    count = terms if terms > 0 else wanted.replicas // given.parts[wanted.part].width
    read_size = size * count if is_sum else size
    kind = _SUM if is_sum else _CONCATENATE
    joined = join(given, made, wanted, kind, low, high, size, read_size)
    for r in range(wanted.replicas):
        piece_low = 0.0 if is_sum else max(low, given.slots[first + r].rows_from)
        piece_high = 1.0 if is_sum else min(high, given.slots[first + r].rows_to)
        if piece_high - piece_low < _NEAR or not _speaks(given, wanted, r):
            continue
        if terms > 0 and wanted.replica != _taker(given, wanted, r):
            continue
        if given.slots[first + r].device == wanted.device:
            add_read(made, joined, wanted.base + r)
            await_whole(given, made, wanted, r, joined)
        else:
            piece = size if is_sum else rows_bytes(given, t, piece_high - piece_low)
            brought = transfer(given, made, wanted, r, piece_low, piece_high, piece)
            add_read(made, joined, brought.buffer)
    return Found(add_buffer(made, wanted.device, joined, t, size), joined)


@inlined
def find_whole(given: Given, made: Made, wanted: Wanted) -> Found:
    """All rows (or the sum) of a tensor whose source is replicated, for one replica of a reader."""
    if not _has_whole(made, wanted.device):
        # The devices of a group would all add what they have, and members of a team have the same.
        reader = given.parts[wanted.target].slot
        is_same = given.parts[wanted.target + 1].slot - reader == wanted.replicas
        is_same = is_same and given.parts[wanted.part].width == 1
        for r in range(wanted.replicas):
            if is_same and given.slots[wanted.first + r].device != given.slots[reader + r].device:
                is_same = False
        if is_same:
            _collect_all(given, made, wanted)
        else:
            found = _gather_pieces(given, made, wanted, 0.0, 1.0, wanted.is_partial, 0)
            _keep_whole(made, wanted.device, found)
    return _held_whole(made, wanted.device)


@outlined
def _collect_all(given: Given, made: Made, wanted: Wanted) -> None:
    """An all-gather (of rows) or all-reduce (of sums) between the replicas of the source."""
    t, m, first = wanted.tensor, wanted.microbatch, wanted.first
    source, size = given.tensors[t].source, given.tensors[t].bytes
    start = made.counts[INSTRUCTIONS]
    for r in range(wanted.replicas):
        device = given.slots[first + r].device
        if made.writes:
            kind = _ALL_REDUCE if wanted.is_partial else _ALL_GATHER
            begin_row(made, start + r, kind, device, t, m, r, len(made.held) + device)
            row = made.instructions[start + r]
            row.group, row.bytes = wanted.part, size
            # One key for all members, so that all devices take collectives in one order.
            place = given.place[first, given.ops[source].action, m]
            row.priority = -(place * (len(given.ops) + 1.0) + given.ops[source].turn)
            row.rows_to = 1.0
        add_read(made, start + r, wanted.base + r)
        await_whole(given, made, wanted, r, start + r)
        buffer = add_buffer(made, device, start + r, t, size)
        _keep_whole(made, device, Found(buffer, start + r))
    made.counts[INSTRUCTIONS] += wanted.replicas
    made.counts[TASKS] += 1


@inlined
def find_copy(given: Given, made: Made, wanted: Wanted) -> Found:
    """A tensor that every replica of the source holds as the reader wants it.

    A sum over a replica's samples is wanted by readers of these samples.
    """
    t, device, slots, slot = wanted.tensor, wanted.device, given.slots, wanted.slot
    r = _nearest(given, wanted)
    if wanted.is_partial:
        for each in range(wanted.replicas):
            low, high = slots[wanted.first + each].rows_from, slots[wanted.first + each].rows_to
            if (
                _speaks(given, wanted, each)
                and abs(low - slots[slot].rows_from) + abs(high - slots[slot].rows_to) < _NEAR
            ):
                r = each
    if slots[wanted.first + r].device == device:
        await_whole(given, made, wanted, r, wanted.reader)
        writer = instance(given, given.tensors[t].source, wanted.microbatch, r)
        return Found(wanted.base + r, writer)
    if not _has_whole(made, device):
        found = transfer(given, made, wanted, r, 0.0, 1.0, given.tensors[t].bytes)
        _keep_whole(made, device, found)
    return _held_whole(made, device)
