"""The event engine: when does every task start and finish?

A task is what runs as one: a compute instruction, a transfer with its two ends, a collective with
all its members. It may need a stream (which picks its next task by priority or by first-ready), be
a flow (its time depends on what else uses its links), or simply take its time once everything
before it is done. Streams that run strictly in order are plain edges here.

A task that needs no stream and is no flow costs no event: its finish is known the moment its last
predecessor's is, and is passed on at once. So a program in fixed order without link sharing is one
pass over the edges, and list scheduling has two events an op whatever the number of transfers.
Ties: simultaneous events are all taken in before any stream picks; then by priority or ready
time, then by task number.

State is arrays of records, one record a task, stream or class: a task's fields share a cache line.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Float, Int, compiled, inlined, outlined
from meshwright.kernel.heap import ENTRY, pop, push
from meshwright.simulate.share import FLOW_CLASS, LINK, USE, collect, place, set_rates

BY_PRIORITY = 0
BY_READY_TIME = 1

TASK = np.dtype(
    [
        ("seconds", np.float64),  # its time; of a flow what comes before it uses links: latency
        ("priority", np.float64),  # larger first
        ("ready", np.float64),  # found: when all it waits for is done
        ("start", np.float64),  # found
        ("finish", np.float64),  # found
        ("stream", np.int32),  # the stream it needs, or -1
        ("flow_class", np.int32),  # its class of flows, or -1
        ("waits_for", np.int32),  # edges that end here and still hold it back
        ("cause", np.int32),  # found: the task it waited for last, or -1
        ("first_next", np.int32),  # its successors: from here to the next task's
    ],
    align=True,
)
"""One task, a cache line long; arrays of it have one entry more than tasks, to end the last one's
successors."""

STREAM = np.dtype(
    [
        ("free_at", np.float64),
        ("queue", np.int32),  # its ready tasks: a heap from here on
        ("size", np.int32),  # how many
        ("last_task", np.int32),
        ("rule", np.int8),  # BY_PRIORITY or BY_READY_TIME
        ("is_asked", np.bool_),
    ],
    align=True,
)

_TIE = 1.0 + 1e-12
"""Times closer than this are one moment: sums in different orders differ in the last bits."""

_STACK, _EVENTS, _ASKED, _CLASSES, _CHANGED, _DONE, _LOGGED = range(7)
"""Places in the array of counts."""

LOG = np.dtype(
    [("seconds", np.float64), ("rate", np.float64), ("flow_class", np.int32)], align=True
)
"""At this moment the flows of a class together changed to this rate."""


class EngineState(NamedTuple):
    """Everything the engine works on."""

    tasks: Array
    following: Array
    """Successors, task after task."""
    streams: Array
    stack: Array
    """Tasks whose finish is known and whose successors have not heard of it."""
    events: Array
    """Heap of moments: a task (ready, or a flow's first byte), or past these a stream (free)."""
    queue: Array
    """Heaps of ready tasks, one a stream."""
    asked: Array
    """Streams that may have something to start now."""
    classes: Array
    uses: Array
    links: Array
    link_class: Array
    """Classes, link after link."""
    flow_bytes: Array
    """By task; empty when no task is a flow."""
    flows: Array
    """Heaps of flows by the service that completes them, one a class."""
    class_heap: Array
    changed: Array
    """Classes whose number of flows is another one; then all whose rates were set."""
    reached: Array
    counts: Array
    log: Array


def run_tasks(
    tasks: Array,
    following: Array,
    streams: Array,
    flow_bytes: Array,
    network: tuple[Array, Array, Array, Array],
    *,
    with_log: bool = False,
) -> tuple[int, Array]:
    """Run all tasks, writing what is found into `tasks`.

    `flow_bytes` is by task; `network` is classes, uses, links and the classes of links. Returns how
    many tasks ran (fewer than there are when some wait for each other) and the log of rates.
    """
    classes, uses, links, link_class = network
    assert tasks.dtype == TASK and streams.dtype == STREAM and classes.dtype == FLOW_CLASS
    assert uses.dtype == USE and links.dtype == LINK
    num_tasks, num_classes = len(tasks) - 1, len(classes) - 1
    # Room for all tasks: memory that is never touched costs nothing, counting would.
    num_flows = num_tasks if num_classes else 0
    num_queued = num_tasks
    log = np.empty(4 * num_flows if with_log else 0, LOG)
    while True:
        before = [array.copy() for array in (tasks, streams, classes, links)] if with_log else []
        state = EngineState(
            tasks, following, streams, np.empty(num_tasks, np.int32),
            np.empty(num_tasks + len(streams), ENTRY), np.empty(num_queued, ENTRY),
            np.empty(len(streams), np.int32), classes, uses, links, link_class,
            flow_bytes, np.empty(num_flows, ENTRY), np.empty(num_classes, np.int32),
            np.empty(num_classes, np.int32), np.empty(len(links), np.int32),
            np.zeros(7, np.int64), log,
        )  # fmt: skip
        _run(state, with_log)
        logged = int(state.counts[_LOGGED])
        if logged <= len(log):
            return int(state.counts[_DONE]), log[:logged]
        # The log was too short, and the kernel cannot make a longer one: once more, with room.
        log = np.empty(logged, LOG)
        for array, old in zip((tasks, streams, classes, links), before, strict=True):
            array[:] = old


@compiled
def _run(state: EngineState, with_log: Bool) -> None:
    for task in range(len(state.tasks) - 1):
        if state.tasks[task].waits_for == 0:
            _make_ready(state, task, 0.0)
    now = 0.0
    while True:
        _pass_on(state, now)
        if state.counts[_ASKED] > 0:
            _pick(state, now)
            continue
        if state.counts[_CHANGED] > 0:
            num_set = _share(state, now)
            if with_log:
                _write_log(state, num_set, now)
        now = np.inf
        if state.counts[_EVENTS] > 0:
            now = state.events[0].key
        if state.counts[_CLASSES] > 0:
            now = min(now, state.classes[state.class_heap[0]].done_at)
        if now == np.inf:
            return
        _take_events(state, now)
        if state.counts[_CLASSES] > 0:
            _take_finished_flows(state, now)


@inlined
def _make_ready(state: EngineState, task: Int, now: Float) -> None:
    """All that the task waits for is done by its `ready`, which may lie ahead."""
    ready = state.tasks[task].ready
    if state.tasks[task].stream >= 0:
        if ready <= now * _TIE:
            _enqueue(state, task)
        else:
            push(state.events, 0, state.counts[_EVENTS], ready, task)
            state.counts[_EVENTS] += 1
        return
    state.tasks[task].start = ready
    after = ready + state.tasks[task].seconds
    if state.tasks[task].flow_class >= 0:
        push(state.events, 0, state.counts[_EVENTS], after, task)
        state.counts[_EVENTS] += 1
    else:
        _finish(state, task, after)


@inlined
def _finish(state: EngineState, task: Int, time: Float) -> None:
    """The task's finish is known; its successors hear of it in `_pass_on`."""
    state.tasks[task].finish = time
    state.stack[state.counts[_STACK]] = task
    state.counts[_STACK] += 1
    state.counts[_DONE] += 1


@inlined
def _pass_on(state: EngineState, now: Float) -> None:
    while state.counts[_STACK] > 0:
        state.counts[_STACK] -= 1
        task = state.stack[state.counts[_STACK]]
        finish = state.tasks[task].finish
        for e in range(state.tasks[task].first_next, state.tasks[task + 1].first_next):
            after = np.int64(state.following[e])
            if finish > state.tasks[after].ready or state.tasks[after].cause < 0:
                state.tasks[after].ready = max(finish, state.tasks[after].ready)
                state.tasks[after].cause = task
            state.tasks[after].waits_for -= 1
            if state.tasks[after].waits_for == 0:
                _make_ready(state, after, now)


@inlined
def _enqueue(state: EngineState, task: Int) -> None:
    stream = np.int64(state.tasks[task].stream)
    key = -state.tasks[task].priority
    if state.streams[stream].rule == BY_READY_TIME:
        key = state.tasks[task].ready
    push(
        state.queue,
        np.int64(state.streams[stream].queue),
        np.int64(state.streams[stream].size),
        key,
        task,
    )
    state.streams[stream].size += 1
    _ask(state, stream)


@inlined
def _ask(state: EngineState, stream: Int) -> None:
    """Note that a stream may have something to start now."""
    if not state.streams[stream].is_asked:
        state.streams[stream].is_asked = True
        state.asked[state.counts[_ASKED]] = stream
        state.counts[_ASKED] += 1


@inlined
def _pick(state: EngineState, now: Float) -> None:
    """A stream that was asked starts its best ready task, if it is free and has one."""
    state.counts[_ASKED] -= 1
    stream = np.int64(state.asked[state.counts[_ASKED]])
    state.streams[stream].is_asked = False
    size = np.int64(state.streams[stream].size)
    free_at = state.streams[stream].free_at
    if size == 0 or free_at > now * _TIE:
        return
    task = pop(state.queue, np.int64(state.streams[stream].queue), size)
    state.streams[stream].size = size - 1
    ready = state.tasks[task].ready
    if free_at > ready and state.streams[stream].last_task >= 0:
        state.tasks[task].cause = state.streams[stream].last_task
    start = max(now, max(free_at, ready))
    finish = start + state.tasks[task].seconds
    state.tasks[task].start = start
    state.streams[stream].free_at = finish
    state.streams[stream].last_task = task
    _finish(state, task, finish)
    if finish <= now * _TIE:
        _ask(state, stream)
    else:
        push(state.events, 0, state.counts[_EVENTS], finish, len(state.tasks) + stream)
        state.counts[_EVENTS] += 1


@inlined
def _take_events(state: EngineState, now: Float) -> None:
    while state.counts[_EVENTS] > 0 and state.events[0].key <= now * _TIE:
        code = pop(state.events, 0, state.counts[_EVENTS])
        state.counts[_EVENTS] -= 1
        if code >= len(state.tasks):
            _ask(state, code - len(state.tasks))
        elif state.tasks[code].stream >= 0:
            _enqueue(state, code)
        elif state.flow_bytes[code] <= 0.0:
            _finish(state, code, now)
        else:
            _start_flow(state, code, now)


@outlined
def _start_flow(state: EngineState, task: Int, now: Float) -> None:
    each = np.int64(state.tasks[task].flow_class)
    if state.classes[each].size == 0:
        state.classes[each].served = 0.0
        state.classes[each].entered = 0.0
        state.classes[each].rate = 0.0
    _serve(state, each, now)
    # One after the other, as on one connection.
    goal = max(state.classes[each].served, state.classes[each].entered) + state.flow_bytes[task]
    state.classes[each].entered = goal
    push(
        state.flows,
        np.int64(state.classes[each].queue),
        np.int64(state.classes[each].size),
        goal,
        task,
    )
    state.classes[each].size += 1
    _change(state, each)


@inlined
def _serve(state: EngineState, each: Int, now: Float) -> None:
    """Bring a class's service up to date."""
    state.classes[each].served += state.classes[each].rate * (now - state.classes[each].served_at)
    state.classes[each].served_at = now


@inlined
def _change(state: EngineState, each: Int) -> None:
    """Note that a class's number of flows is another one."""
    if not state.classes[each].is_changed:
        state.classes[each].is_changed = True
        state.changed[state.counts[_CHANGED]] = each
        state.counts[_CHANGED] += 1


@outlined
def _take_finished_flows(state: EngineState, now: Float) -> None:
    while state.counts[_CLASSES] > 0:
        each = np.int64(state.class_heap[0])
        if state.classes[each].done_at > now * _TIE:
            break
        base = np.int64(state.classes[each].queue)
        goal = state.flows[base].key
        state.classes[each].served = goal  # exactly, not what rounding makes of rate x time
        state.classes[each].served_at = now
        while state.classes[each].size > 0 and state.flows[base].key <= goal * _TIE:
            task = pop(state.flows, base, np.int64(state.classes[each].size))
            state.classes[each].size -= 1
            _finish(state, task, now)
        state.classes[each].done_at = np.inf
        state.counts[_CLASSES] = place(
            state.class_heap, state.classes, state.counts[_CLASSES], each
        )
        _change(state, each)


@outlined
def _share(state: EngineState, now: Float) -> Int:
    """New rates for every class that shares links with one that changed; they end in `changed`."""
    for k in range(state.counts[_CHANGED]):
        state.classes[state.changed[k]].is_changed = False
    num_set, num_reached = collect(
        state.classes,
        state.uses,
        state.links,
        state.link_class,
        state.changed,
        state.counts[_CHANGED],
        state.reached,
    )
    state.counts[_CHANGED] = 0
    for k in range(num_set):
        _serve(state, np.int64(state.changed[k]), now)
    set_rates(
        state.classes, state.uses, state.links, state.changed, num_set, state.reached, num_reached
    )
    for k in range(num_set):
        each = np.int64(state.changed[k])
        state.classes[each].done_at = np.inf
        if state.classes[each].size > 0:
            left = state.flows[state.classes[each].queue].key - state.classes[each].served
            state.classes[each].done_at = now + left / state.classes[each].rate
        state.counts[_CLASSES] = place(
            state.class_heap, state.classes, state.counts[_CLASSES], each
        )
    return num_set


@outlined
def _write_log(state: EngineState, num_set: Int, now: Float) -> None:
    """Log the new rates; past the end of the log only count, so that the caller can make room."""
    logged = state.counts[_LOGGED]
    if logged + num_set <= len(state.log):
        for k in range(num_set):
            each = state.changed[k]
            state.log[logged + k].seconds = now
            state.log[logged + k].flow_class = each
            state.log[logged + k].rate = state.classes[each].rate * min(state.classes[each].size, 1)
    state.counts[_LOGGED] += num_set
