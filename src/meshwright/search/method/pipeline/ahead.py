"""Simulates candidates before it is their turn, in processes on the other cores.

Simulation is mostly Python, of which one process runs one thread at a time. What a task comes to
depends on nothing but the task, so who runs it, and when, changes no answer. This process never
waits for others to start, and does itself what they fail to do. Knows nothing about the search.
"""

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Condition, Thread
from time import perf_counter

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.interpreter import can_start_python
from meshwright.search.method.pipeline.attempt import Attempt, Task, attempt
from meshwright.search.method.pipeline.candidate import Key
from meshwright.search.method.pipeline.order import Job, Order
from meshwright.search.pool.pipe import (
    VERSION,
    pack,
    send,
    start_worker,
    usable_cores,
)

_MAX_WORKERS = 7
"""Each holds a copy of the graph."""
_IDLE_SECONDS = 0.25
"""Searches that end sooner start no process."""
_WORTH_SECONDS = 3.0
"""Time that must be left: a worker takes one or two seconds to load what it needs."""
_IN_HAND = 2
"""Tasks of a worker at a time: while it is told the next one, it runs another."""
_AHEAD = 8
"""Tasks a process that may be done before their turn."""
_PATIENCE = 4
"""Simulations of usual length that a task may be in a worker's hand (which may have another to do
first); rather than wait for longer, this process does it, too."""
_END_SECONDS = 1.0
"""For a worker's thread to end, when its process has."""

_TaskKey = tuple[Key, bool]


class Ahead:
    """Tasks in the order in which they are wanted; to be closed, for workers may run."""

    def __init__(
        self,
        graph: Graph,
        cluster: Cluster,
        sharing: str,
        until: float,
        *,
        num_workers: int | None = None,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        """`num_workers`: processes beside this one; None: one for each other core."""
        self._graph, self._cluster, self.sharing = graph, cluster, sharing
        wanted = min(usable_cores() - 1, _MAX_WORKERS) if num_workers is None else num_workers
        self._num_workers = wanted if until - perf_counter() >= _WORTH_SECONDS else 0
        self._starts_at, self._until = perf_counter() + idle_seconds, until
        self._last: Task | None = None
        self._num_here, self._seconds_here = 0, 0.0
        self._board = _Board()
        self.workers: list[Worker] = []

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._num_workers = 0
        for worker in self.workers:
            worker.process.kill()
        self._board.close()
        for worker in self.workers:
            worker.close()

    @property
    def num_tasks(self) -> int:
        """Of those that are asked for at a time what may be of use."""
        return 1 + _AHEAD * (1 + len(self.workers)) if self.workers else 1

    def start_if_worth(self) -> None:
        """Start workers once the search has gone on for a while and has shown what a task is."""
        now = perf_counter()
        if self._num_workers == 0 or self._last is None or now < self._starts_at:
            return
        number, self._num_workers = self._num_workers, 0
        if now > self._until - _WORTH_SECONDS or not can_start_python():
            return
        job = Job(
            graph=self._graph,
            cluster=self._cluster,
            sharing=self.sharing,
            rehearsal=Order.of(self._last),
        )
        message = pack(job)
        with suppress(OSError):  # where no process can be started, this one works alone
            for _ in range(number):
                self.workers.append(Worker(message, self._board))

    def attempt(self, tasks: Sequence[Task], is_over: Callable[[], bool]) -> Attempt | None:
        """What comes of the first task; the others are those that may follow, in their order.

        None where time runs out while a worker has it in hand.
        """
        self.start_if_worth()
        first, board = tasks[0], self._board
        board.offer(tasks)
        while board.is_in_hand(first):
            if is_over():
                return None
            other = board.take()
            if other is not None:
                board.give_back(other, self._attempt_here(other))
            elif not board.wait_for(first, _PATIENCE * self._usual_seconds):
                break
        return board.pop(first) or self._attempt_here(first)

    @property
    def _usual_seconds(self) -> float:
        return self._seconds_here / max(1, self._num_here)

    def _attempt_here(self, task: Task) -> Attempt:
        self._board.withdraw(task)
        started = perf_counter()
        found = attempt(self._graph, self._cluster, self.sharing, task)
        self._num_here += 1
        self._seconds_here += perf_counter() - started
        self._last = task
        return found


class _Board:
    """Tasks that are open, in hand and done; what this process and the workers' threads share."""

    def __init__(self) -> None:
        self._change = Condition()
        self._open: deque[Task] = deque()
        self._in_hand: dict[_TaskKey, float] = {}
        """Since when a worker has it."""
        self._done: dict[_TaskKey, Attempt] = {}
        self.is_closed = False

    def close(self) -> None:
        """Let all who wait for tasks go."""
        with self._change:
            self.is_closed = True
            self._change.notify_all()

    def offer(self, tasks: Sequence[Task]) -> None:
        """Replace the open tasks by those of these that are neither in hand nor done."""
        with self._change:
            self._open.clear()
            for task in tasks:
                if task.key not in self._done and task.key not in self._in_hand:
                    self._open.append(task)
            self._change.notify_all()

    def withdraw(self, task: Task) -> None:
        """No longer open: it is done here."""
        with self._change:
            if task in self._open:
                self._open.remove(task)

    def take(self) -> Task | None:
        """The next open one, to be done here."""
        with self._change:
            return self._open.popleft() if self._open else None

    def take_in_hand(self, *, waits: bool) -> Task | None:
        """The next open one, for a worker; none where it does not wait, or at the end."""
        with self._change:
            while waits and not self._open and not self.is_closed:
                self._change.wait()
            if self.is_closed or not self._open:
                return None
            task = self._open.popleft()
            self._in_hand[task.key] = perf_counter()
            return task

    def give_back(self, task: Task, found: Attempt | None) -> None:
        """What came of it; None: nothing, somebody else has to do it."""
        with self._change:
            self._in_hand.pop(task.key, None)
            if found is not None:
                self._done[task.key] = found
            self._change.notify_all()

    def pop(self, task: Task) -> Attempt | None:
        """What came of it, if it is done."""
        with self._change:
            return self._done.pop(task.key, None)

    def is_in_hand(self, task: Task) -> bool:
        """Whether a worker has it."""
        with self._change:
            return task.key in self._in_hand

    def wait_for(self, task: Task, seconds: float) -> bool:
        """Wait until a worker has had it for so long; whether none has it any more."""
        with self._change:
            since = self._in_hand.get(task.key, 0.0)
            left = since + seconds - perf_counter()
            return self._change.wait_for(lambda: task.key not in self._in_hand, left)


class Worker:
    """A process, and the thread that talks to it."""

    def __init__(self, job: bytes, board: _Board) -> None:
        self.process = start_worker("meshwright.search.method.pipeline.worker")
        self.is_ready = False
        self.num_done = 0
        self._board = board
        self._tasks: deque[Task] = deque()
        self._thread = Thread(target=self._talk, args=(job,), daemon=True)
        self._thread.start()

    @property
    def is_talking(self) -> bool:
        """Whether it may still do tasks."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Wait for the end of the process, which has been killed."""
        # Its pipes have ended, so the thread has; unless Ctrl-C came while a lock was handed over.
        self._thread.join(_END_SECONDS)
        with self.process, suppress(OSError):  # what was never written cannot be flushed either
            assert self.process.stdin is not None
            self.process.stdin.close()

    def _talk(self, job: bytes) -> None:
        """Hand on tasks until there are none or the process fails; then others do what is left."""
        try:
            self._hand_on(job)
        except Exception:  # whatever it says or no longer says
            self.is_ready = False
        finally:
            for task in self._tasks:
                self._board.give_back(task, None)

    def _hand_on(self, job: bytes) -> None:
        to, answers, tasks = self.process.stdin, self.process.stdout, self._tasks
        assert to is not None
        assert answers is not None
        to.write(job)
        to.flush()
        self.is_ready = pickle.load(answers) == VERSION
        while self.is_ready and not self._board.is_closed:
            while len(tasks) < _IN_HAND:
                task = self._board.take_in_hand(waits=not tasks)
                if task is None:
                    break
                tasks.append(task)
                send(to, Order.of(task))
            if tasks:
                found = pickle.load(answers)
                self.num_done += 1
                self._board.give_back(tasks.popleft(), found)
