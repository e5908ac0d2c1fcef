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
    task_of: Array,
    ordered: Array,
    queued: Array,
    flow_bytes: Array,
) -> tuple[Int, Int]:
    """Give every task its time, stream and priority, and every instruction its task.

    Transfers take latency and bytes over bandwidth; if `pairs` (by source and target device) is not
    empty they are flows, numbered there by first use. Where `latency` is empty the caller times
    transfers. `ordered` receives the instructions of
    streams that run in order, `queued` how many each of the others has. Returns how many are
    ordered and how many are parts of collectives.
    """
    _clear(tasks)
    num_ordered = 0
    num_collective = 0
    num_pairs = 0
    for k in range(len(instructions)):
        row = instructions[k]
        task_of[k] = row.task
        if row.kind == _RECEIVE:
            continue
        task = tasks[row.task]
        task.priority = row.priority
        if row.stream >= 0:
            if stream_rule[row.stream] == _ORDER:
                ordered[num_ordered] = k
                num_ordered += 1
            else:
                task.stream = row.stream
                queued[row.stream] += 1
        if row.group >= 0:
            num_collective += 1
        if row.kind != _SEND:
            task.seconds = row.seconds
            continue
        if latency.size == 0:
            continue
        task.seconds = latency[row.device, row.peer]
        if pairs.size > 0:
            if pairs[row.device, row.peer] < 0:
                pairs[row.device, row.peer] = num_pairs
                num_pairs += 1
            task.flow_class = pairs[row.device, row.peer]
            flow_bytes[row.task] = row.bytes
        else:
            alone_bytes = row.bytes - row.beside_bytes
            task.seconds += alone_bytes / bandwidth[row.device, row.peer]
    return num_ordered, num_collective


@inlined
def _clear(tasks: Array) -> None:
    """Set every field: the array comes as the system gave it, which saves writing it twice."""
    for k in range(len(tasks)):
        task = tasks[k]
        task.seconds = 0.0
        task.priority = 0.0
        task.ready = 0.0
        task.start = 0.0
        task.finish = 0.0
        task.stream = -1
        task.flow_class = -1
        task.waits_for = 0
        task.cause = -1
        task.first_next = 0


@compiled
def count_edges(
    task_of: Array, writer_of: Array, reads: Array, orders: Array, chains: Array, tasks: Array
) -> Int:
    """Count what each task waits for, and put the end of its successors into `first_next`.

    `chains` are PAIRs of instructions that follow each other in a stream that runs in order.
    """
    _walk(task_of, writer_of, reads, orders, chains, tasks, task_of, False)
    total = 0
    for task in range(len(tasks)):
        total += tasks[task].first_next
        tasks[task].first_next = total
    return total


@compiled
def fill_edges(
    task_of: Array,
    writer_of: Array,
    reads: Array,
    orders: Array,
    chains: Array,
    tasks: Array,
    following: Array,
) -> None:
    """Write every task's successors; afterwards `first_next` is where they begin."""
    _walk(task_of, writer_of, reads, orders, chains, tasks, following, True)


@inlined
def _walk(
    task_of: Array, writer_of: Array, reads: Array, orders: Array, chains: Array, tasks: Array,
    following: Array, fills: Bool,
) -> None:  # fmt: skip
    for k in range(len(reads)):
        first = task_of[writer_of[reads[k].second]]
        _edge(tasks, following, first, task_of[reads[k].first], fills)
    for k in range(len(orders)):
        _edge(tasks, following, task_of[orders[k].first], task_of[orders[k].second], fills)
    for k in range(len(chains)):
        _edge(tasks, following, task_of[chains[k].first], task_of[chains[k].second], fills)


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


@compiled
def read_times(task_of: Array, tasks: Array, start: Array, finish: Array, cause: Array) -> None:
    """Start and finish of every instruction, and the cause of every task."""
    for k in range(len(task_of)):
        start[k] = tasks[task_of[k]].start
        finish[k] = tasks[task_of[k]].finish
    for k in range(len(cause)):
        cause[k] = tasks[k].cause
