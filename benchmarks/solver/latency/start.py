"""First splits: the authors' greedy, and the best cut of one line of blocks into pieces.

A *block* is what cannot be taken apart on a line: the ops of colour classes that feed each other in
a cycle (usually one class, mostly one op).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshwright.compiled import compiled
from solver.latency.problem import Floats, Ints, Problem


def make_blocks(problem: Problem) -> tuple[list[list[int]], list[list[int]]]:
    """The ops of each block, and the blocks that read each block; blocks are in line."""
    block_of = _components(problem)
    numbers: dict[int, int] = {}
    for op in range(problem.num_ops):
        numbers.setdefault(block_of[op], len(numbers))
    blocks: list[list[int]] = [[] for _ in numbers]
    readers: list[set[int]] = [set() for _ in numbers]
    for op in range(problem.num_ops):
        mine = numbers[block_of[op]]
        blocks[mine].append(op)
        readers[mine].update(numbers[block_of[v]] for v in problem.readers(op))
    return blocks, [sorted(each - {i}) for i, each in enumerate(readers)]


def _components(problem: Problem) -> list[int]:
    """By op the number of its class's strongly connected component (Kosaraju's two passes)."""
    members = problem.classes()
    after = [{int(problem.class_of[v]) for u in ops for v in problem.readers(u)} for ops in members]
    before: list[set[int]] = [set() for _ in members]
    for number, found in enumerate(after):
        for each in found:
            before[each].add(number)
    left_in: list[int] = []
    _walk_depth_first(range(len(members)), after, [False] * len(members), left_in)
    root = [-1] * len(members)
    is_seen = [False] * len(members)
    for number in reversed(left_in):
        found_now: list[int] = []
        _walk_depth_first([number], before, is_seen, found_now)
        for each in found_now:
            root[each] = number
    return [root[number] for number in problem.class_of.tolist()]


def _walk_depth_first(
    starts: Sequence[int], after: list[set[int]], is_seen: list[bool], left_in: list[int]
) -> None:
    """Append what is reached and was not seen, each after all that is reached from it."""
    for start in starts:
        if is_seen[start]:
            continue
        is_seen[start] = True
        stack = [(start, iter(sorted(after[start])))]
        while stack:
            number, rest = stack[-1]
            following = next((each for each in rest if not is_seen[each]), None)
            if following is None:
                left_in.append(number)
                stack.pop()
            else:
                is_seen[following] = True
                stack.append((following, iter(sorted(after[following]))))


def line_up(readers: list[list[int]], preference: Floats) -> list[int]:
    """Blocks in a topological line, depth first; of those that are ready at once, the preferred
    last, so that it comes off the stack first."""
    waits = [0] * len(readers)
    for found in readers:
        for each in found:
            waits[each] += 1
    ready = sorted((b for b in range(len(readers)) if waits[b] == 0), key=lambda b: preference[b])
    line = []
    while ready:
        block = ready.pop()
        line.append(block)
        woken = []
        for each in readers[block]:
            waits[each] -= 1
            if waits[each] == 0:
                woken.append(each)
        ready += sorted(woken, key=lambda b: preference[b])
    return line


def greedy_slots(problem: Problem, blocks: list[list[int]], line: Sequence[int]) -> Ints:
    """The authors' greedy (appendix F): fill one accelerator after the other along the line.

    Slot d is the one piece of device d. A block that no accelerator can hold or run goes to a CPU,
    and the piece ends there.
    """
    slot_of = np.full(problem.num_ops, -1, np.int32)
    device, used = -1, np.inf
    for block in line:
        size = float(problem.bytes[blocks[block]].sum())
        can_run = bool(np.isfinite(problem.accelerator_ms[blocks[block]]).all())
        if size > problem.memory_bytes or not can_run:
            used = np.inf
            continue
        if used + size > problem.memory_bytes:
            device, used = device + 1, 0.0
        if device < problem.num_devices:
            slot_of[blocks[block]] = device
            used += size
    return slot_of


def cut_line(problem: Problem, blocks: list[list[int]], line: Sequence[int]) -> Ints:
    """The best cut of a line into at most one piece a device, the rest on CPUs, as if one thing ran
    at a time: a dynamic programme over how far the line is done and how many devices are used.
    """
    position = np.empty(problem.num_ops, np.int32)
    ops = np.empty(problem.num_ops, np.int32)
    start = np.zeros(len(line) + 1, np.int32)
    count = 0
    for place, block in enumerate(line):
        for op in blocks[block]:
            ops[count], position[op] = op, place
            count += 1
        start[place + 1] = count
    shape = (len(line) + 1, problem.num_devices + 1)
    best, came_from = np.full(shape, np.inf), np.full(shape, -1, np.int32)
    seen, left = np.zeros(problem.num_ops, np.int32), np.zeros(problem.num_ops, np.int32)
    arguments: Any = (
        ops, start, position, problem.cpu_ms, problem.accelerator_ms, problem.cost_ms,
        problem.bytes, problem.in_start, problem.in_op, problem.out_start,
        problem.memory_bytes, best, came_from, seen, left,
    )  # fmt: skip
    _cut(*arguments)
    return _read_cut(problem, ops, start, best, came_from)


def _read_cut(problem: Problem, ops: Ints, start: Ints, best: Floats, came_from: Ints) -> Ints:
    slot_of = np.full(problem.num_ops, -1, np.int32)
    place, devices = len(start) - 1, int(np.argmin(best[-1]))
    while place > 0:
        earlier = int(came_from[place, devices])
        if earlier >= 0:  # a piece from there to here
            devices -= 1
            slot_of[ops[start[earlier] : start[place]]] = devices
            place = earlier
        else:
            place -= 1
    return slot_of


@compiled
def _cut(
    ops: Any, start: Any, position: Any, cpu: Any, accelerator: Any, cost: Any, size: Any,
    in_start: Any, in_op: Any, out_start: Any, memory: float, best: Any, came_from: Any,
    seen: Any, left: Any,
) -> None:  # fmt: skip
    """best[i, d]: the least time to do the first i blocks with d devices. `came_from` is where the
    last piece began, or -1 for a block on the CPUs."""
    num_blocks, num_devices = len(start) - 1, best.shape[1] - 1
    best[0, 0] = 0.0
    for i in range(num_blocks):
        on_cpu = 0.0
        for k in range(start[i], start[i + 1]):
            on_cpu += cpu[ops[k]]
        for d in range(num_devices + 1):
            if best[i, d] + on_cpu < best[i + 1, d]:
                best[i + 1, d] = best[i, d] + on_cpu
                came_from[i + 1, d] = -1
        work, moved, used = 0.0, 0.0, 0.0
        for j in range(i, num_blocks):
            for k in range(start[j], start[j + 1]):
                op = ops[k]
                work += accelerator[op]
                used += size[op]
                # Blocks hold ops in the graph's order, so what an op reads within has come before.
                left[op] = out_start[op + 1] - out_start[op]
                if left[op] > 0:
                    moved += cost[op]
                for e in range(in_start[op], in_start[op + 1]):
                    source = in_op[e]
                    if position[source] >= i:
                        left[source] -= 1
                        if left[source] == 0:
                            moved -= cost[source]
                    elif seen[source] != i + 1:
                        seen[source] = i + 1
                        moved += cost[source]
            if used > memory or work == np.inf:
                break
            for d in range(num_devices):
                if best[i, d] + work + moved < best[j + 1, d + 1]:
                    best[j + 1, d + 1] = best[i, d] + work + moved
                    came_from[j + 1, d + 1] = i
