"""The part of a program that some of its ops need: of losses, forward without what only backward
and updates read."""

from collections import defaultdict
from collections.abc import Mapping, Set
from dataclasses import replace

import numpy as np

from meshwright.array import Bools, Longs, Records
from meshwright.program.program import PAIR, Kind, Program


def keep_needed(
    program: Program, ops: Set[int], only: Mapping[int, Set[int]]
) -> tuple[Program, Bools]:
    """The program with what these ops need, and by instruction whether it is kept.

    `only`: by op the tensors that it reads, where it does without some of them. Tasks, groups and
    streams keep their numbers; every device keeps the order of what is left to it.
    """
    reads = program.reads[_is_read(program, only)]
    kept = _find_needed(program, reads, ops)
    writer = program.buffers["writer"]
    has_buffer = kept[writer]
    buffers = program.buffers[has_buffer].copy()
    number, buffer_number = np.cumsum(kept) - 1, np.cumsum(has_buffer) - 1
    buffers["writer"] = number[buffers["writer"]]
    call_seconds = program.call_seconds
    smaller = replace(
        program,
        instructions=program.instructions[kept],
        buffers=buffers,
        reads=_renumbered(reads[kept[reads["first"]]], number, buffer_number),
        orders=_renumbered(
            program.orders[kept[program.orders["first"]] & kept[program.orders["second"]]],
            number,
            number,
        ),
        call_seconds=None if call_seconds is None else call_seconds[kept],
    )
    return smaller, kept


def _is_read(program: Program, only: Mapping[int, Set[int]]) -> Bools:
    """By entry of `reads`: whether it is one of those that count."""
    rows, reads = program.instructions, program.reads
    found = np.ones(len(reads), dtype=np.bool_)
    tensor = program.buffers["tensor"][reads["second"]]
    is_compute = rows["kind"] == Kind.COMPUTE
    op = np.where(is_compute, rows["op"], -1)[reads["first"]]
    for each, tensors in only.items():
        here = op == each
        found[here] = np.isin(tensor[here], list(tensors))
    return found


def _find_needed(program: Program, reads: Records, ops: Set[int]) -> Bools:
    """By instruction: whether these ops need it. What shares a task runs together or not at all."""
    rows, writer = program.instructions, program.buffers["writer"]
    before, together = defaultdict(list), defaultdict(list)
    for reader, source in zip(reads["first"].tolist(), writer[reads["second"]], strict=True):
        before[reader].append(source)
    task = rows["task"].tolist()
    for number, each in enumerate(task):
        together[each].append(number)
    kept = np.zeros(len(rows), dtype=np.bool_)
    is_wanted = (rows["kind"] == Kind.COMPUTE) & np.isin(rows["op"], list(ops))
    left = np.flatnonzero(is_wanted).tolist()
    while left:
        number = left.pop()
        if not kept[number]:
            kept[number] = True
            left += [*before[number], *together[task[number]]]
    return kept


def _renumbered(pairs: Records, first: Longs, second: Longs) -> Records:
    made = np.zeros(len(pairs), dtype=PAIR)
    made["first"], made["second"] = first[pairs["first"]], second[pairs["second"]]
    return made
