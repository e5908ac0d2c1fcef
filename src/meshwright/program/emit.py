"""The compiled half of lowering: who needs which tensor where, and what brings it there.

Walks the tensors once. For every reader on every replica it finds the rows or the whole tensor on
the reader's device, or emits what brings it there: a transfer, pieces from several replicas that
are concatenated or summed, or a collective when all replicas of the source need it. What a device
has received it keeps for later readers of the same tensor.
"""

import numpy as np

from meshwright.compiled import Bool, Int, compiled, inlined
from meshwright.graph.graph import Split
from meshwright.program.find import find_copy, find_rows, find_whole
from meshwright.program.program import Kind
from meshwright.program.record import (
    BUFFERS,
    STAMP,
    Found,
    Given,
    Made,
    Wanted,
    add_buffer,
    add_order,
    add_read,
    await_whole,
    early_of,
    instance,
    rows_bytes,
)  # fmt: skip
from meshwright.program.schedule import Action

# Plain numbers, because compiled code compares these with int8 fields.
_BATCH, _NONE, _SUM = int(Split.BATCH), int(Split.NONE), int(Split.SUM)
_UPDATE = int(Action.UPDATE)
_COMPUTE = int(Kind.COMPUTE)


@compiled
def emit_computes(given: Given, made: Made) -> None:
    """Write a COMPUTE for every op, microbatch and replica."""
    for op in range(len(given.ops)):
        part = given.ops[op].part
        first = given.parts[part].slot
        replicas = given.parts[part + 1].slot - first
        for m in range(given.ops[op].microbatches):
            for r in range(replicas):
                number = given.ops[op].instance + m * replicas + r
                slot = given.slots[first + r]
                row = made.instructions[number]
                row.kind = _COMPUTE
                row.device = slot.device
                row.op = op
                row.tensor = -1
                row.microbatch = m
                row.replica = r
                row.peer = -1
                row.group = -1
                row.task = number
                row.stream = slot.device
                row.seconds = given.seconds[given.ops[op].seconds + r]
                whole = given.ops[op].whole_workspace_bytes
                rows = slot.rows_to - slot.rows_from
                row.workspace_bytes = whole + (given.ops[op].workspace_bytes - whole) * rows
                place = given.place[first + r, given.ops[op].action, m]
                row.priority = -(place * (len(given.ops) + 1.0) + given.ops[op].rank)
                row.rows_from = slot.rows_from
                row.rows_to = slot.rows_to


@compiled
def emit_tensors(given: Given, made: Made) -> None:
    """Emit buffers, reads, orders and all communication."""
    for t in range(len(given.tensors) - 1):
        source = given.tensors[t].source
        part = given.ops[source].part
        replicas = given.parts[part + 1].slot - given.parts[part].slot
        microbatches = given.ops[source].microbatches
        has_now, has_later = _find_readers(given, t)
        # What updates read is added up over microbatches and, in buckets, over replicas.
        gathers = has_later and (microbatches > 1 or given.tensors[t].bucket >= 0)
        first = 0 if has_now or not gathers else microbatches
        for m in range(first, microbatches + gathers):
            is_gathered = m == microbatches
            base = _add_outputs(given, made, t, 0 if is_gathered else m, replicas)
            if is_gathered:
                _accumulate(given, made, t, base, replicas)
            made.counts[STAMP] += 1
            for u in range(given.tensors[t].first_use, given.tensors[t + 1].first_use):
                reader = given.readers[u]
                is_later = gathers and given.ops[reader].action == _UPDATE
                if is_later == is_gathered:
                    turn = 0 if is_gathered else m
                    _serve_reader(given, made, t, turn, reader, base, is_gathered)


@inlined
def _find_readers(given: Given, t: Int) -> tuple[Bool, Bool]:
    """Whether any reader wants the tensor of every microbatch, and whether one is an update."""
    has_now, has_later = False, False
    is_update = given.ops[given.tensors[t].source].action == _UPDATE
    for u in range(given.tensors[t].first_use, given.tensors[t + 1].first_use):
        if given.ops[given.readers[u]].action == _UPDATE and not is_update:
            has_later = True
        else:
            has_now = True
    return has_now, has_later


@inlined
def _add_outputs(given: Given, made: Made, t: Int, m: Int, replicas: Int) -> Int:
    """One buffer a replica of the source for what it makes; returns the first."""
    source = given.tensors[t].source
    base = made.counts[BUFFERS]
    for r in range(replicas):
        slot = given.parts[given.ops[source].part].slot + r
        rows = 1.0
        if given.ops[source].split == _BATCH and not given.tensors[t].is_partial:
            rows = given.slots[slot].rows_to - given.slots[slot].rows_from
        writer = instance(given, source, m, r)
        size = rows_bytes(given, t, rows)
        add_buffer(made, given.slots[slot].device, writer, t, size)
    return base


@inlined
def _accumulate(given: Given, made: Made, t: Int, base: Int, replicas: Int) -> None:
    """Every microbatch adds to the buffers of the first; a bucket then synchronises them."""
    source = given.tensors[t].source
    last = given.ops[source].microbatches - 1
    bucket = given.tensors[t].bucket
    for r in range(replicas):
        for m in range(1, last + 1):
            add_read(made, instance(given, source, m, r), base + r)
        if bucket >= 0:
            first = given.buckets[bucket].instruction
            before = instance(given, source, last, r)
            add_read(made, first + r, base + r)
            add_order(made, before, first + r)
            if given.buckets[bucket].server >= 0:
                early = early_of(given, bucket, r)
                add_read(made, early, base + r)
                add_order(made, before, early)


@inlined
def _serve_reader(
    given: Given, made: Made, t: Int, m: Int, j: Int, base: Int, is_gathered: Bool
) -> None:
    """Let every replica of reader `j` read tensor `t` of microbatch `m`."""
    source = given.tensors[t].source
    part, target = np.int64(given.ops[source].part), np.int64(given.ops[j].part)
    replicas = np.int64(given.parts[part + 1].slot - given.parts[part].slot)
    is_synchronised = is_gathered and given.tensors[t].bucket >= 0
    has_rows, is_partial = given.tensors[t].has_rows, given.tensors[t].is_partial
    is_partial = is_partial and not is_synchronised
    is_spread = is_partial or (has_rows and given.ops[source].split != _NONE)
    wants_whole = given.ops[j].split == _NONE
    gathers = wants_whole and replicas > given.parts[part].width and is_spread
    is_summed = given.tensors[t].adds_up and given.ops[j].split == _SUM
    # Within an action nothing waits for its start; a gather in the middle of it least of all.
    is_within = part == target and given.ops[source].action == given.ops[j].action
    for q in range(given.parts[target + 1].slot - given.parts[target].slot):
        slot = given.parts[target].slot + q
        reader = instance(given, j, m, q)
        first_unit = np.int64(-1)
        unit = given.parts[target].first_unit[given.ops[j].action]
        if given.is_scheduled and not is_within and unit >= 0:
            first_unit = instance(given, unit, m, q)
        before = first_unit if first_unit >= 0 else reader
        wanted = Wanted(
            t, m, base, part, np.int64(given.parts[part].slot), replicas, target, q, slot,
            np.int64(given.slots[slot].device), reader, before, is_gathered, is_partial,
        )  # fmt: skip
        if target == part and not gathers:
            found = Found(base + q, instance(given, source, m, q))
            await_whole(given, made, wanted, q, reader)
        elif (has_rows and not wants_whole) or is_summed:
            found = find_rows(given, made, wanted)
        elif gathers:
            found = find_whole(given, made, wanted)
        else:
            found = find_copy(given, made, wanted)
        if found.buffer >= 0:
            add_read(made, reader, found.buffer)
        if first_unit >= 0 and found.writer >= given.num_computes and first_unit != reader:
            add_order(made, found.writer, first_unit)
