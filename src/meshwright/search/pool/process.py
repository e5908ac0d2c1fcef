"""Evaluates items in this process and in others on the same machine.

This process never waits for others to start, and does itself what they fail to do: one that dies
or hangs costs time and changes nothing. Knows nothing about what is evaluated.
"""

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Condition, Thread
from time import perf_counter
from typing import IO, Any, Self, TypeVar

from meshwright.interpreter import can_start_python
from meshwright.search.pool.pipe import (
    VERSION,
    pack,
    send,
    start_worker,
    usable_cores,
)

Context = TypeVar("Context")
Item = TypeVar("Item")
Found = TypeVar("Found")

_MAX_WORKERS = 32
"""Each holds a copy of the context."""
_IDLE_SECONDS = 0.25
"""Runs that end sooner start no process."""
_PATIENCE = 4
"""Items of usual length that one may be in a worker's hand; rather than wait for longer, this
process does it, too."""
_LEAST_PATIENCE = 1.0
"""Seconds: a worker may have to read the context first."""
_END_SECONDS = 1.0
"""For a worker's thread to end, when its process has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Says to a worker: this is the context from now on."""

    context: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Says to a worker: evaluate this."""

    function: Callable[[Any, Any], Any]
    item: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an item."""

    value: Any = None
    error: Exception | None = None


def evaluate(function: Callable[[Any, Any], Any], context: Any, item: Any) -> Outcome:
    """What comes of an item, be it an error."""
    try:
        return Outcome(value=function(context, item))
    except Exception as error:
        return Outcome(error=error)


class Processes:
    """The cores of this machine."""

    def __init__(self, workers: int | None = None, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        """`workers`: processes, with this one; None: one a core. Others start when runs have gone
        on for `idle_seconds` in all."""
        wanted = min(usable_cores(), _MAX_WORKERS) if workers is None else workers
        self.workers = max(1, wanted)
        self.processes: list[Worker] = []
        self._num_to_start = self.workers - 1
        self._idle_seconds = idle_seconds
        self._seconds_here = 0.0
        self._board = _Board()
        self._last: _Sent | None = None

    def run(
        self,
        function: Callable[[Context, Item], Found],
        context: Context,
        items: Sequence[Item],
    ) -> list[Found]:
        """See `meshwright.search.pool.engine.Engine`."""
        if self._last is None or self._last.context is not context:
            self._last = _Sent(context)
        run = _Run(function=function, sent=self._last, items=items)
        self._board.begin(run)
        try:
            while (number := self._board.next_here(run)) is not None:
                began = perf_counter()
                outcome = evaluate(function, context, items[number])
                run.seconds_here.append(perf_counter() - began)
                self._seconds_here += run.seconds_here[-1]
                self._board.finish(run, number, outcome)
                if self._seconds_here >= self._idle_seconds and run.open:
                    self._start()
        finally:
            self._board.end()
        return run.results()

    def _start(self) -> None:
        number, self._num_to_start = self._num_to_start, 0
        if number and can_start_python():
            with suppress(OSError):  # where no process can be started, this one works alone
                for _ in range(number):
                    self.processes.append(Worker(self._board))

    def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._num_to_start = 0
        for worker in self.processes:
            worker.process.kill()
        self._board.close()
        for worker in self.processes:
            worker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Sent:
    """A context and the message that gives it to a worker."""

    def __init__(self, context: Any) -> None:
        self.context = context

    @cached_property
    def message(self) -> bytes:
        return pack(Given(context=self.context))


@dataclass(eq=False, kw_only=True)
class _Run:
    """Items, and how far they are."""

    function: Callable[[Any, Any], Any]
    sent: _Sent
    items: Sequence[Any]
    open: deque[int] = field(default_factory=deque)
    in_hand: dict[int, float] = field(default_factory=dict)
    """Since when a worker has it."""
    done: dict[int, Outcome] = field(default_factory=dict)
    seconds_here: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open.extend(range(len(self.items)))

    def results(self) -> list[Any]:
        """In the order of items; raises what the first that failed has raised, as one process
        would: whatever comes before it is done."""
        for number in sorted(self.done):
            if (error := self.done[number].error) is not None:
                raise error
        return [self.done[number].value for number in range(len(self.items))]


class _Board:
    """The run that goes on; what this process and the workers' threads share."""

    def __init__(self) -> None:
        self._change = Condition()
        self._run: _Run | None = None
        self.is_closed = False

    def begin(self, run: _Run) -> None:
        """Offer its items."""
        with self._change:
            self._run = run
            self._change.notify_all()

    def end(self) -> None:
        """Offer nothing any more."""
        with self._change:
            self._run = None

    def close(self) -> None:
        """Let all who wait for items go."""
        with self._change:
            self.is_closed = True
            self._change.notify_all()

    def next_here(self, run: _Run) -> int | None:
        """An item for this process: an open one, else one that a worker has for too long; none at
        the end."""
        with self._change:
            while not run.open and run.in_hand:
                oldest = min(run.in_hand, key=lambda each: run.in_hand[each])
                left = run.in_hand[oldest] + _patience(run) - perf_counter()
                if left <= 0:
                    del run.in_hand[oldest]  # done twice, with one result
                    return oldest
                self._change.wait(left)
            return run.open.popleft() if run.open else None

    def take(self, waits_for: "Worker") -> tuple[_Run, int] | None:
        """The next open item, for a worker; none at the end."""
        with self._change:
            while not self.is_closed and waits_for.is_ready:
                if self._run is not None and self._run.open:
                    number = self._run.open.popleft()
                    self._run.in_hand[number] = perf_counter()
                    return self._run, number
                self._change.wait()
            return None

    def finish(self, run: _Run, number: int, outcome: Outcome) -> None:
        """What came of it; after an error nothing else is begun."""
        with self._change:
            run.in_hand.pop(number, None)
            run.done.setdefault(number, outcome)
            if outcome.error is not None:
                run.open.clear()
            self._change.notify_all()

    def give_back(self, run: _Run, number: int) -> None:
        """Nothing came of it: somebody else has to do it."""
        with self._change:
            if run.in_hand.pop(number, None) is not None:
                run.open.appendleft(number)
            self._change.notify_all()


def _patience(run: _Run) -> float:
    usual = sum(run.seconds_here) / max(1, len(run.seconds_here))
    return max(_LEAST_PATIENCE, _PATIENCE * usual)


class Worker:
    """A process, and the thread that talks to it."""

    def __init__(self, board: _Board) -> None:
        self.process = start_worker("meshwright.search.pool.worker")
        self.is_ready = False
        self.num_done = 0
        self._board = board
        self._thread = Thread(target=self._talk, daemon=True)
        self._thread.start()

    @property
    def is_talking(self) -> bool:
        """Whether it may still do items."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Wait for the end of the process, which has been killed."""
        # Its pipes have ended, so the thread has; unless Ctrl-C came while a lock was handed over.
        self._thread.join(_END_SECONDS)
        with self.process, suppress(OSError):  # what was never written cannot be flushed either
            assert self.process.stdin is not None
            self.process.stdin.close()

    def _talk(self) -> None:
        to, answers = self.process.stdin, self.process.stdout
        assert to is not None
        assert answers is not None
        with suppress(Exception):  # whatever it says or no longer says
            self.is_ready = pickle.load(answers) == VERSION
            known: _Sent | None = None
            while (taken := self._board.take(self)) is not None:
                self._hand_on(to, answers, *taken, knows=known is taken[0].sent)
                known = taken[0].sent
        self.is_ready = False

    def _hand_on(
        self, to: IO[bytes], answers: IO[bytes], run: _Run, number: int, *, knows: bool
    ) -> None:
        try:
            if not knows:
                to.write(run.sent.message)
            send(to, Order(function=run.function, item=run.items[number]))
            outcome = pickle.load(answers)
        except BaseException:
            self._board.give_back(run, number)
            raise
        self.num_done += 1
        self._board.finish(run, number, outcome)
