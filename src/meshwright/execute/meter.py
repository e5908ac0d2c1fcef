"""Measures between the ranks of a run: rates of flows at once, latencies, collectives.

All ranks are in one process group and serve the first, which says what is measured next and gets
what every rank saw. A flow goes on for a time, not for a size, so that flows of different rates are
there together all the while; its rate is of what arrived in the later part, when all were under
way. Two messages are on their way at any time, so that receivers never make senders wait.
"""

import time
from collections.abc import Sequence
from statistics import median

import msgspec
import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.execute.gloo import Ranks, start_gather, start_scatter, start_sum, start_swap
from meshwright.execute.group import CommonClock
from meshwright.execute.message import gather, message_device, share

SMALL_BYTES = 1024
LEAST_CHUNK, MOST_CHUNK = 1 << 14, 1 << 24
CHUNK_SECONDS = 0.01
"""What one message of a flow is to take."""
START_SHARE = 0.3
"""The part of a flow's time that does not count: connections find their rates."""
PINGS = 15
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
        """What the first rank asks for; what each rank saw, none where it was the end."""
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
        if not sends and not takes:
            return 0.0
        sender = _Sender(task.pairs[sends[0]][1], task.chunks[sends[0]]) if sends else None
        taker = _Taker(task.pairs[takes[0]][0], task.chunks[takes[0]]) if takes else None
        # One thread does both: whichever is done first is served first.
        while sender is not None or taker is not None:
            if sender is not None and sender.step(self.clock.now() - start < task.seconds):
                sender = None
            if taker is not None and taker.step(self.clock.now() - start):
                rate = taker.rate(START_SHARE * task.seconds)
                taker = None
                if sender is None:
                    return rate
                kept = rate
            elif taker is None and takes and sender is None:
                return kept
            time.sleep(0.0002)
        return kept if takes else 0.0

    def _ping(self, task: Task) -> float:
        """Half of the median time of a message there and back."""
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
            return median(times[3:]) / 2
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


class _Sender:
    """The sending end of a flow."""

    def __init__(self, target: int, size: int) -> None:
        self.target = target
        self.boxes = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        self.boxes = [box.to(message_device()) for box in self.boxes]
        self.works: list[object] = []
        self.is_last = False

    def step(self, goes_on: bool) -> bool:
        """Send what there is room for; whether all has been sent."""
        while self.works and self.works[0].is_completed():  # type: ignore[attr-defined]
            self.works.pop(0).wait()  # type: ignore[attr-defined]
        while len(self.works) < 2 and not self.is_last:
            box = self.boxes.pop(0)
            self.boxes.append(box)
            self.is_last = not goes_on
            box[0] = _LAST if self.is_last else 0
            self.works.append(dist.isend(box, self.target))
        return self.is_last and not self.works


def _receive(box: torch.Tensor, source: int) -> dist.Work:
    work = dist.irecv(box, source)
    assert work is not None, "this rank is in the group"
    return work


class _Taker:
    """The receiving end of a flow."""

    def __init__(self, source: int, size: int) -> None:
        self.source, self.size = source, size
        boxes = [torch.zeros(size, dtype=torch.uint8).to(message_device()) for _ in range(2)]
        self.waiting = [(box, _receive(box, source)) for box in boxes]
        self.moments: list[float] = []
        self.is_last = False

    def step(self, now: float) -> bool:
        """Take what has come; whether it was the last. One receive is left over then, which an
        empty message of the sender would be needed for: it is met by the sender's last two."""
        while self.waiting and self.waiting[0][1].is_completed():
            box, work = self.waiting.pop(0)
            work.wait()
            self.moments.append(now)
            if int(box[0]) == _LAST:
                self.is_last = True
            elif not self.is_last:
                self.waiting.append((box, _receive(box, self.source)))
        return self.is_last and not self.waiting

    def rate(self, since: float) -> float:
        """Bytes a second from the first message after a moment to the last but those at the end."""
        kept = [moment for moment in self.moments if moment >= since]
        if len(kept) < 3:
            kept = self.moments[-3:]
        if len(kept) < 2 or kept[-1] <= kept[0]:
            raise InputError("probe: a flow took too short to have a rate")
        return self.size * (len(kept) - 1) / (kept[-1] - kept[0])


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
