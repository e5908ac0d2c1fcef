"""What one placement takes and holds in one order of its ops: the simulator's rules.

A placement's tables are made once; then an order costs some fifty microseconds instead of the
millisecond that building its plan and program takes. Under sharing the simulator's own engine runs.
Memory follows `Timeline`: a buffer is held from the start of what writes it to the last finish of
what reads it, or until the step ends if it lasts, a received copy from the moment at which it can
be sent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meshwright.program.program import Records
from meshwright.search.exhaustive_bound import Problem
from meshwright.search.instance import Floats, Ints
from meshwright.simulate.engine import STREAM, TASK, run_tasks
from meshwright.simulate.tasks import FlowClass, Network, network_arrays

Arrays = tuple[Records, Records, Records, Ints]
"""Of a network: classes of flows, their uses of links, links, and links' classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """A tensor on its way to another device, and there."""

    tensor: int
    source: int
    device: int
    bytes: float
    seconds: float
    """Alone on the network."""
    readers: int
    """Bits: ops on its device."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Placed:
    """One placement: what is where, and what waits for what."""

    problem: Problem
    device: list[int]
    own: list[float]
    """The seconds of each op where it is."""
    copies: list[Copy]
    arrivals: list[list[tuple[int, float]]]
    """Of each op the ops that it reads from, and how long that is on its way."""
    copy_of: list[dict[int, int]]
    """Of each op the copies that it reads, by tensor."""
    waits_for: list[int]
    """Bits: what each op reads from, or whose saved bytes it holds back."""
    local: list[int]
    """Bits, by tensor: readers on the device of its source."""
    saved_for: list[int]
    """Bits: ops on its device that hold back what an op has saved."""
    base_bytes: list[float]
    """By device: held for the whole step."""
    launch_seconds: float

    @cached_property
    def tails(self) -> list[float]:
        """Of each op the longest way on after it."""
        tails = [0.0] * len(self.own)
        for op in range(len(tails) - 1, -1, -1):
            after = self.own[op] + tails[op]
            for source, moved in self.arrivals[op]:
                tails[source] = max(tails[source], moved + after)
        return tails

    @cached_property
    def _passing(self) -> list[list[tuple[int, int, float]]]:
        """By device what it holds for several ops: the bit of the op that makes it (or of which it
        is received), the bits of those on the device that need it (all of them if it lasts), and
        its bytes."""
        items: list[list[tuple[int, int, float]]] = [[] for _ in self.base_bytes]
        for op, d in enumerate(self.device):
            items[d].append((1 << op, self.saved_for[op] or -1, self.problem.saved_bytes[op]))
        for tensor, source in enumerate(self.problem.source):
            size = self.problem.rows_bytes[tensor]
            readers = -1 if self.problem.lasts[tensor] else self.local[tensor]
            items[self.device[source]].append((1 << source, readers, size))
        for copy in self.copies:
            items[copy.device].append((1 << copy.source, copy.readers, copy.bytes))
        return [[item for item in each if item[2] > 0] for each in items]

    def held_bytes(self, op: int, before: int, after: int) -> float:
        """What an op's device holds when it starts, at least, whatever the times.

        `before` are ops that have finished by then, `after` ops that have not started. Buffers that
        only wait to be sent are left out: when they are gone depends on times.
        """
        made, device = 1 << op, self.device[op]
        kept = self.problem.kept_for(op, after)
        held = self.base_bytes[device] + self.problem.workspace_bytes[op]
        for maker, readers, size in self._passing[device]:
            if maker == made or (maker & before and readers & kept):
                held += size
        return held

    @cached_property
    def is_shared(self) -> bool:
        """Whether transfers can be in each other's way."""
        return self.problem.is_fair and len(self.copies) > 1

    @cached_property
    def is_safe(self) -> bool:
        """Whether memory suffices even if all is held at once."""
        held = np.array(self.base_bytes)
        np.add.at(held, self._items[0], self._items[1])
        return bool((held <= self.problem.room_bytes).all())

    @cached_property
    def _items(self) -> tuple[Ints, Floats, Ints, Ints, Ints]:
        """What is held for a while: devices, sizes, the tasks at whose start it begins, and the
        tasks whose last finish ends it, with where each one's begin."""
        items: list[tuple[int, float, int, list[int]]] = []
        problem, num_ops = self.problem, self.problem.num_ops
        every = [*range(num_ops + len(self.copies))]
        for op, d in enumerate(self.device):
            items.append((d, problem.workspace_bytes[op], op, [op]))
            ends = [op, *bits(self.saved_for[op])] if self.saved_for[op] else every
            items.append((d, problem.saved_bytes[op], op, ends))
        for tensor, source in enumerate(problem.source):
            sends = [num_ops + k for k, copy in enumerate(self.copies) if copy.tensor == tensor]
            ends = [source, *bits(self.local[tensor]), *sends]
            ends = every if problem.lasts[tensor] else ends
            items.append((self.device[source], problem.rows_bytes[tensor], source, ends))
        for k, copy in enumerate(self.copies):
            ends = [num_ops + k, *bits(copy.readers)]
            items.append((copy.device, copy.bytes, num_ops + k, ends))
        items = [item for item in items if item[1] > 0]
        lengths = [len(item[3]) for item in items]
        return (
            np.array([item[0] for item in items], np.int32),
            np.array([item[1] for item in items]),
            np.array([item[2] for item in items], np.int32),
            np.array([task for item in items for task in item[3]], np.int32),
            (np.cumsum(lengths) - lengths).astype(np.int32),
        )

    @cached_property
    def _tasks(self) -> tuple[Records, Ints, Ints, Floats, Arrays]:
        """The engine's tasks and what follows them, with a place at each op's end for the next op
        of its device, these places, the bytes of flows, and the network.

        Ops come first, then copies, as lowering numbers them, then one that never runs: what
        follows the last op of a device.
        """
        num_ops, never = len(self.own), len(self.own) + len(self.copies)
        follows: list[list[int]] = [[] for _ in range(never + 1)]
        for k, copy in enumerate(self.copies):
            follows[copy.source].append(num_ops + k)
        for op in range(num_ops):
            for tensor in self.problem.inputs[op]:
                copy_of = self.copy_of[op].get(tensor)
                before = self.problem.source[tensor] if copy_of is None else num_ops + copy_of
                follows[before].append(op)
            follows[op] += bits(self.saved_for[op])
        for op in range(num_ops):
            follows[op].append(never)
        tasks = np.zeros(never + 2, TASK)
        following = np.array([task for each in follows for task in each], np.int32)
        np.add.at(tasks["waits_for"], following, 1)
        tasks["first_next"][1:] = np.cumsum([len(each) for each in follows])
        tasks["stream"] = tasks["flow_class"] = tasks["cause"] = -1
        tasks["seconds"][:num_ops] = self.own
        tasks["waits_for"][never] = never + 1
        flow_bytes = np.zeros(never + 1)
        for k, copy in enumerate(self.copies, num_ops):
            here, there = self.device[copy.source], copy.device
            tasks["seconds"][k] = self.problem.latency[here][there]
            tasks["flow_class"][k] = here * self.problem.num_devices + there
            flow_bytes[k] = copy.bytes
        places = tasks["first_next"][1 : num_ops + 1] - 1
        return tasks, following, places, flow_bytes, _network(self.problem, tasks)

    def judge(
        self, order: Sequence[int], start: list[float], finish: list[float]
    ) -> tuple[float, float]:
        """Bytes that lack and seconds of this order; `start` and `finish` are without sharing."""
        if self.is_shared:
            starts, finishes = self._run(order)
        elif self.is_safe:
            return 0.0, max(self.launch_seconds, *finish)
        else:
            begin = [finish[copy.source] for copy in self.copies]
            moved = [copy.seconds for copy in self.copies]
            starts = np.array(start + begin)
            finishes = np.array(finish + [a + b for a, b in zip(begin, moved, strict=True)])
        seconds = max(self.launch_seconds, float(finishes.max()))
        return (0.0 if self.is_safe else self._lack_bytes(starts, finishes)), seconds

    def _run(self, order: Sequence[int]) -> tuple[Floats, Floats]:
        """Start and finish of every op and copy with shared links."""
        tasks, following, places, flow_bytes, network = self._tasks
        tasks, following = tasks.copy(), following.copy()
        last: dict[int, int] = {}
        for op in order:
            before = last.get(self.device[op])
            if before is not None:
                following[places[before]] = op
                tasks["waits_for"][op] += 1
            last[self.device[op]] = op
        classes, uses, links, link_class = network
        arrays = classes.copy(), uses, links.copy(), link_class
        done, _ = run_tasks(tasks, following, np.zeros(0, STREAM), flow_bytes, arrays)
        assert done == len(tasks) - 2, "an order that follows the graph has run"
        return tasks["start"][:-2], tasks["finish"][:-2]

    def _lack_bytes(self, start: Floats, finish: Floats) -> float:
        """What all devices together miss.

        Memory grows only where something begins. What ends there makes room first, unless it began
        at that moment, too.
        """
        device, size, writer, reader, first = self._items
        begin = start[writer]
        end = np.maximum.reduceat(finish[reader], first)
        moment = begin[:, None]
        is_held = (begin == moment) | ((begin < moment) & (end > moment))
        held = (is_held & (device == device[:, None])) @ size
        most = np.array(self.base_bytes)
        np.maximum.at(most, device, most[device] + held)
        return self.problem.lack_bytes(most.tolist())


def bits(ops: int) -> list[int]:
    """The ops of a set."""
    return [op for op in range(ops.bit_length()) if ops >> op & 1]


def place(problem: Problem, device: list[int]) -> Placed:
    """The tables of a placement."""
    copies, copy_of, local = _find_copies(problem, device)
    arrivals: list[list[tuple[int, float]]] = []
    waits_for, saved_for = [0] * problem.num_ops, [0] * problem.num_ops
    for op, tensors in enumerate(problem.inputs):
        moved: dict[int, float] = {}
        for tensor in tensors:
            source = problem.source[tensor]
            copy = copy_of[op].get(tensor)
            way = 0.0 if copy is None else copies[copy].seconds
            moved[source] = max(moved.get(source, 0.0), way)
            waits_for[op] |= 1 << source
        arrivals.append(list(moved.items()))
        partner = problem.partner[op]
        if partner >= 0 and device[partner] == device[op]:
            waits_for[op] |= 1 << partner
            saved_for[partner] |= 1 << op
    base, launch = [0.0] * problem.num_devices, [0.0] * problem.num_devices
    for op, d in enumerate(device):
        base[d] += problem.state_bytes[op]
        launch[d] += problem.launch[op][d]
    for d in set(device):
        base[d] += problem.library_bytes[d]
    return Placed(
        problem=problem,
        device=device,
        own=[problem.seconds[op][d] for op, d in enumerate(device)],
        copies=copies,
        arrivals=arrivals,
        copy_of=copy_of,
        waits_for=waits_for,
        local=local,
        saved_for=saved_for,
        base_bytes=base,
        launch_seconds=max(launch),
    )


def _find_copies(
    problem: Problem, device: list[int]
) -> tuple[list[Copy], list[dict[int, int]], list[int]]:
    """What is sent, in the order in which lowering sends it; what each op reads of that, by
    tensor; and the readers of each tensor that need no copy."""
    number: dict[tuple[int, bool, int], int] = {}
    copy_of: list[dict[int, int]] = [{} for _ in device]
    local, readers_of = [0] * len(problem.source), [0] * sum(map(len, problem.readers))
    for tensor, readers in enumerate(problem.readers):
        for reader in readers:
            if device[reader] == device[problem.source[tensor]]:
                local[tensor] |= 1 << reader
                continue
            key = tensor, problem.takes_rows(tensor, reader), device[reader]
            copy = copy_of[reader][tensor] = number.setdefault(key, len(number))
            readers_of[copy] |= 1 << reader
    copies = []
    for (tensor, takes_rows, there), copy in number.items():
        source = problem.source[tensor]
        here = device[source]
        size = problem.rows_bytes[tensor] if takes_rows else problem.bytes[tensor]
        seconds = problem.latency[here][there] + size / problem.bandwidth[here][there]
        copies.append(
            Copy(
                tensor=tensor,
                source=source,
                device=there,
                bytes=size,
                seconds=seconds,
                readers=readers_of[copy],
            )
        )
    return copies, copy_of, local


def _network(problem: Problem, tasks: Records) -> Arrays:
    """The engine's arrays of a class of flows for each pair of devices, also of one with itself."""
    cluster = problem.instance.cluster
    classes = []
    for here in range(problem.num_devices):
        for there in range(problem.num_devices):
            route = cluster.routing.links(here, there)
            cap = float(cluster.bandwidth[here, there])
            classes.append(FlowClass(links=route, weights=np.ones(len(route)), cap=cap))
    network = Network(classes=tuple(classes), link_bytes_per_second=cluster.link_bytes_per_second)
    return network_arrays(network, tasks)
