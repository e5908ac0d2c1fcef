"""Measures between the ranks of a run: rates of flows at once, latencies, collectives.

All ranks are in one process group and serve the first, which says what is measured next and gets
what every rank saw. A flow goes on for a time, not for a size, so that flows of different rates are
there together all the while; its rate is of what arrived in the later part, when all were under
way. Two messages are on their way at any time, so that receivers never make senders wait.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median
from threading import Thread
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from meshwright.execute.gloo import Ranks, start_gather, start_scatter, start_sum, start_swap
from meshwright.execute.group import CommonClock
from meshwright.execute.message import gather, message_device, share

SMALL_BYTES = 1024
LEAST_CHUNK, MOST_CHUNK = 1 << 14, 1 << 24
CHUNK_SECONDS = 0.01
"""What one message of a flow is to take."""
START_SHARE = 0.3
"""The part of a flow's time that does not count: connections find their rates."""
PINGS = 40
"""Of these the first quarter by time counts: a machine with other work to do only adds to some."""
_LAST = 1
_LEAST_TIMES, _MOST_TIMES = 3, 20


class Task(msgspec.Struct, frozen=True):
    """What all ranks do next."""

    kind: str
    """flows, pings, collective or end."""
    pairs: list[tuple[int, int]] = []
    """Senders and receivers, by rank."""
    seconds: float = 0.0
    chunks: list[int] = []
    """Of flows: how many bytes a message of each has."""
    collective: str = ""
    ranks: list[int] = []
    size: int = 0
    """The message of a collective, as tables call it, in bytes."""


class RankMeter:
    """The first rank's view of all ranks that measure."""

    def __init__(self, seconds: float = 0.4) -> None:
        self.clock = CommonClock()
        self.seconds = seconds
        self.known: dict[tuple[int, int], float] = {}
        self.groups: dict[tuple[int, ...], object] = {}
        self.is_interrupted = False

    def rates(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """Bytes a second of flows at once; each rank sends one at most, and receives one."""
        chunks = [self._chunk(pair) for pair in pairs]
        task = Task(kind="flows", pairs=list(pairs), seconds=self.seconds, chunks=chunks)
        found = self.do(task)
        rates = [found[target] for _, target in pairs]
        for pair, rate in zip(pairs, rates, strict=True):
            self.known[pair] = rate
        return rates

    def latencies(self, pairs: Sequence[tuple[int, int]]) -> list[float]:
        """Seconds of a small message one way, of pairs at once that have no rank in common."""
        found = self.do(Task(kind="pings", pairs=list(pairs)))
        return [found[source] for source, _ in pairs]

    def collective_seconds(self, collective: str, ranks: Sequence[int], size: int) -> float:
        """The time of a collective of a size on some ranks."""
        task = Task(kind="collective", collective=collective, ranks=list(ranks), size=size)
        return max(self.do(task))

    def end(self) -> None:
        """Let the others go."""
        self.do(Task(kind="end"))

    def serve(self) -> None:
        """On all ranks but the first: do what it says until it ends."""
        while self.do(Task(kind="")):
            pass

    def do(self, own: Task) -> list[float]:
        """What the first rank asks for; what each rank saw, none where it was the end.

        An interrupt comes between two tasks: in the midst of one, others would wait forever.
        """
        if self.is_interrupted and own.kind not in ("", "end"):
            raise KeyboardInterrupt
        task = share(own, Task)
        if task.kind == "end":
            return []
        done = {"flows": self._flow, "pings": self._ping, "collective": self._collective}
        return gather(done[task.kind](task), float)

    def _chunk(self, pair: tuple[int, int]) -> int:
        """Bytes of a message that take about `CHUNK_SECONDS`; where nothing is known of the pair,
        what others of its ends have shown is a hint."""
        near = [rate for ends, rate in self.known.items() if set(ends) & set(pair)]
        rate = self.known.get(pair) or (median(near) if near else 0.0)
        size = int(rate * CHUNK_SECONDS) or LEAST_CHUNK * 4
        return min(max(size, LEAST_CHUNK), MOST_CHUNK) // 8 * 8

    def _flow(self, task: Task) -> float:
        """Send and receive as the task says; the rate of what arrived here."""
        rank = dist.get_rank()
        sends = [n for n, (source, _) in enumerate(task.pairs) if source == rank]
        takes = [n for n, (_, target) in enumerate(task.pairs) if target == rank]
        start = self.clock.start_together()

        def now() -> float:
            return self.clock.now() - start

        sender = None
        if sends:
            target, size = task.pairs[sends[0]][1], task.chunks[sends[0]]
            sender = Thread(target=_send, args=(target, size, now, task.seconds), daemon=True)
            sender.start()
        rate = 0.0
        if takes:
            source, size = task.pairs[takes[0]][0], task.chunks[takes[0]]
            moments = _take(source, size, now)
            rate = find_rate(moments, size, START_SHARE * task.seconds, task.seconds)
        if sender is not None:
            sender.join()
        return rate

    def _ping(self, task: Task) -> float:
        """Half of the time of a message there and back, of the quick ones."""
        rank = dist.get_rank()
        self.clock.start_together()
        for source, target in task.pairs:
            if rank not in (source, target):
                continue
            other = target if rank == source else source
            box = torch.zeros(SMALL_BYTES, dtype=torch.uint8, device=message_device())
            times = []
            for _ in range(PINGS):
                start = time.perf_counter()
                if rank == source:
                    dist.send(box, other)
                    dist.recv(box, other)
                else:
                    dist.recv(box, other)
                    dist.send(box, other)
                _wait_device()
                times.append(time.perf_counter() - start)
            return sorted(times)[PINGS // 4] / 2
        return 0.0

    def _collective(self, task: Task) -> float:
        """The median time of a collective: all ranks start each together."""
        ranks = tuple(task.ranks)
        if ranks not in self.groups:
            # Every rank has to take part in making a group, also those outside of it.
            self.groups[ranks] = dist.new_group(list(ranks))
        group = self.groups[ranks]
        count = len(ranks)
        is_in = dist.get_rank() in ranks
        length = max(1, task.size // 4 // count) * count
        whole = torch.zeros(length, device=message_device())
        times: list[float] = []
        number = _MOST_TIMES
        while len(times) < number:
            self.clock.start_together()
            start = time.perf_counter()
            if is_in:
                _run_collective(task.collective, whole, Ranks(ranks, group))
                _wait_device()
            times.append(time.perf_counter() - start)
            if len(times) == 1:
                slowest = max(gather(times[0], float))
                number = int(min(max(1.0 / max(slowest, 1e-6), _LEAST_TIMES), _MOST_TIMES))
        return median(times[1:]) if is_in else 0.0


def _send(target: int, size: int, now: Callable[[], float], seconds: float) -> None:
    """Send messages until the time is over, then two that say so: one for each receive that the
    other end has posted."""
    boxes = [torch.zeros(size, dtype=torch.uint8).to(message_device()) for _ in range(2)]
    works: list[Any] = []
    left = 2
    while left:
        if len(works) == 2:
            works.pop(0).wait()
            _wait_device()
        box = boxes.pop(0)
        boxes.append(box)
        if now() >= seconds:
            box[0] = _LAST
            left -= 1
        works.append(dist.isend(box, target))
    for work in works:
        work.wait()
    _wait_device()


def _take(source: int, size: int, now: Callable[[], float]) -> list[float]:
    """Take messages until they end; the moments at which they were there."""
    boxes = [torch.zeros(size, dtype=torch.uint8).to(message_device()) for _ in range(2)]
    waiting: list[tuple[torch.Tensor, Any]] = [(box, dist.irecv(box, source)) for box in boxes]
    moments: list[float] = []
    is_over = False
    while waiting:
        box, work = waiting.pop(0)
        work.wait()
        _wait_device()
        moments.append(now())
        is_over = is_over or int(box[0]) == _LAST
        if not is_over:
            waiting.append((box, dist.irecv(box, source)))
    return moments


def find_rate(moments: Sequence[float], size: int, since: float, until: float) -> float:
    """Bytes a second between the first and the last message of a time; of a flow with fewer than
    three in it, between all but its first."""
    kept = [moment for moment in moments if since <= moment <= until]
    if len(kept) < 3:
        kept = list(moments[1:]) if len(moments) > 2 else list(moments)
    if len(kept) < 2 or kept[-1] <= kept[0]:
        return size / max(moments[-1], 1e-9) if moments else 0.0
    return size * (len(kept) - 1) / (kept[-1] - kept[0])


def find_gpu() -> tuple[str, float]:
    """The name and the memory of the GPU that this rank uses."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return properties.name, float(properties.total_memory)


def _wait_device() -> None:
    if message_device().type == "cuda":
        torch.cuda.synchronize()


def _run_collective(collective: str, whole: torch.Tensor, ranks: Ranks) -> None:
    """As plans run it: by gloo in the executor's way, by NCCL in its own."""
    count = len(ranks.ranks)
    parts = whole.chunk(count)
    if collective == "broadcast":
        dist.broadcast(whole, ranks.ranks[0], group=ranks.group)
    elif dist.get_backend() == "nccl":
        if collective == "all_reduce":
            dist.all_reduce(whole, group=ranks.group)
        elif collective == "all_gather":
            dist.all_gather_into_tensor(whole, parts[0].clone(), group=ranks.group)
        elif collective == "reduce_scatter":
            dist.reduce_scatter_tensor(parts[0].clone(), whole, group=ranks.group)
        else:
            dist.all_to_all_single(torch.empty_like(whole), whole, group=ranks.group)
    elif collective == "all_reduce":
        start_sum(whole, ranks).wait()
    elif collective == "all_gather":
        start_gather(parts, parts[ranks.own].clone(), ranks, is_alone=True).wait()
    elif collective == "reduce_scatter":
        start_scatter(
            torch.empty_like(parts[0]), whole.reshape(count, -1), ranks, is_alone=True
        ).wait()
    else:
        given = whole.clone().chunk(count)
        start_swap(parts, given, ranks).wait()
