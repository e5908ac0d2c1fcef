"""Which task waits for which, and how long transfers take.

Compiled, because a program has several edges an instruction.
"""

from meshwright.compiled import Array, Bool, Int, compiled, inlined
from meshwright.program.program import Kind, StreamRule

# Plain numbers, because compiled code compares these with int8 fields.
_SEND, _RECEIVE, _ORDER = int(Kind.SEND), int(Kind.RECEIVE), int(StreamRule.ORDER)


@compiled
def set_tasks(
    instructions: Array,
    stream_rule: Array,
    tasks: Array,
    latency: Array,
    bandwidth: Array,
    pairs: Array,
) -> Int:
    """Give every task its time, stream and priority.

    Transfers take latency and bytes over bandwidth; if `pairs` (by source and target device) is not
    empty they are flows, numbered there by first use. Returns how many pairs there are.
    """
    num_pairs = 0
    shares = pairs.size > 0
    for k in range(len(instructions)):
        row = instructions[k]
        if row.kind == _RECEIVE:
            continue
        task = tasks[row.task]
        task.priority = row.priority
        if row.stream >= 0 and stream_rule[row.stream] != _ORDER:
            task.stream = row.stream
        if row.kind != _SEND:
            task.seconds = row.seconds
            continue
        task.seconds = latency[row.device, row.peer]
        if shares:
            if pairs[row.device, row.peer] < 0:
                pairs[row.device, row.peer] = num_pairs
                num_pairs += 1
            task.flow_class = pairs[row.device, row.peer]
            task.flow_bytes = row.bytes
        else:
            task.seconds += row.bytes / bandwidth[row.device, row.peer]
    return num_pairs


@compiled
def count_edges(
    instructions: Array, buffers: Array, reads: Array, orders: Array, rows: Array, tasks: Array
) -> Int:
    """Count what each task waits for, and put the end of its successors into `first_next`."""
    _walk(instructions, buffers, reads, orders, rows, tasks, rows, False)
    total = 0
    for task in range(len(tasks)):
        total += tasks[task].first_next
        tasks[task].first_next = total
    return total


@compiled
def fill_edges(
    instructions: Array,
    buffers: Array,
    reads: Array,
    orders: Array,
    rows: Array,
    tasks: Array,
    following: Array,
) -> None:
    """Write every task's successors; afterwards `first_next` is where they begin."""
    _walk(instructions, buffers, reads, orders, rows, tasks, following, True)


@inlined
def _walk(
    instructions: Array, buffers: Array, reads: Array, orders: Array, rows: Array, tasks: Array,
    following: Array, fills: Bool,
) -> None:  # fmt: skip
    for k in range(len(reads)):
        first = instructions[buffers[reads[k].second].writer].task
        _edge(tasks, following, first, instructions[reads[k].first].task, fills)
    for k in range(len(orders)):
        first = instructions[orders[k].first].task
        _edge(tasks, following, first, instructions[orders[k].second].task, fills)
    for k in range(len(rows) - 1):
        before, after = rows[k], rows[k + 1]
        if instructions[before].stream == instructions[after].stream:
            _edge(tasks, following, instructions[before].task, instructions[after].task, fills)


@inlined
def _edge(tasks: Array, following: Array, first: Int, second: Int, fills: Bool) -> None:
    if first == second:
        return
    if fills:
        # Filled from the back: `first_next` starts as the end of the task's successors.
        tasks[first].first_next -= 1
        following[tasks[first].first_next] = second
    else:
        tasks[first].first_next += 1
        tasks[second].waits_for += 1
