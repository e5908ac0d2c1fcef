"""Evaluates items in this process and in others on the same machine.

This process never waits for others to start, and does itself what they fail to do: one that dies
or hangs costs time and changes nothing. Knows nothing about what is evaluated.
"""

import math
import pickle
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Condition, Thread
from time import perf_counter
from typing import IO, Any

from meshwright.interpreter import can_start_python, num_cores
from meshwright.search.pool.worker import (
    VERSION,
    Context,
    Evaluated,
    Found,
    Item,
    NewContext,
    Order,
    evaluate,
    pack,
    send,
    start_worker,
)

_MAX_WORKERS = 32
"""The most processes of a pool, since each holds a copy of the context."""
_IDLE_SECONDS = 0.25
"""How long this process evaluates items before it starts others; shorter searches start none."""
_IN_HAND = 2
"""Items that a worker has at a time: it evaluates one while it is told the next."""
_AHEAD = 8
"""Items a process that are worth evaluating before their turn."""
_PATIENCE = 4
"""Rather than wait for a worker for longer than so many items of usual length, this process
evaluates the item, too."""
_LEAST_PATIENCE = 0.25
"""Seconds that a worker has for an item in any case: the machine may be busy."""
_END_SECONDS = 1.0
"""How long a worker's thread may take to end after its process has been killed."""


class Processes(AbstractContextManager["Processes"]):
    """An engine of this process and others on the other cores of this machine."""

    def __init__(self, workers: int | None = None, *, idle_seconds: float = _IDLE_SECONDS) -> None:
        """`workers` counts the processes with this one; None: one a core. The others start after
        this process has evaluated items for `idle_seconds` in all."""
        wanted = min(num_cores(), _MAX_WORKERS) if workers is None else workers
        self.workers = max(1, wanted)
        self.processes: list[LocalWorker] = []
        self._num_to_start = self.workers - 1
        self._idle_seconds = idle_seconds
        self._seconds_here = 0.0
        self._board = _Board(self.workers)
        self._shared = _Shared(context=None)

    def run(
        self, function: Callable[[Context, Item], Found], context: Context, items: Sequence[Item]
    ) -> list[Found]:
        """Implements `meshwright.search.pool.engine.Engine.run`."""
        shared = self._share(context)
        calls = [_Call(function, shared, item) for item in items]
        self._board.offer(shared, calls)
        found = []
        try:
            for number, call in enumerate(calls):
                if number > 0:
                    self.start()
                outcome = self._settle(call, lambda: False)
                assert outcome is not None
                found.append(outcome.result())
        finally:
            self._board.offer(shared, ())
        return found

    def take(
        self,
        function: Callable[[Context, Item], Found],
        context: Context,
        items: Sequence[Item],
        is_over: Callable[[], bool],
    ) -> Found | None:
        """Returns `function(context, item)` of the first item; the others may be asked for next.

        Processes that would be idle evaluate those, in their order, and what comes of them is kept
        for their turn, which they are known by: items are hashable. `is_over` is asked while a
        worker has the first item in hand; where it says so, None is returned.
        """
        shared = self._share(context)
        calls = [
            shared.ahead.setdefault((function, item), _Call(function, shared, item))
            for item in items
        ]
        self._board.offer(shared, calls)
        if (outcome := self._settle(calls[0], is_over)) is None:
            return None
        del shared.ahead[function, items[0]]
        found: Found = outcome.result()
        return found

    @property
    def reach(self) -> int:
        """How many items it is of use to show to `take` at a time."""
        return 1 + _AHEAD * (1 + len(self.processes)) if self.processes else 1

    def start(self) -> None:
        """Starts the other processes, once this one has evaluated items for long enough.

        `run` calls it; who calls `take` decides whether there is time left that is worth it.
        """
        if self._seconds_here == 0.0 or self._seconds_here < self._idle_seconds:
            return
        number, self._num_to_start = self._num_to_start, 0
        if number and can_start_python():
            with suppress(OSError):  # where no process can be started, this one works alone
                for _ in range(number):
                    self.processes.append(LocalWorker(self._board))

    def close(self) -> None:
        """Ends the workers, whatever they are doing."""
        self._num_to_start = 0
        for worker in self.processes:
            worker.process.kill()
        self._board.close()
        for worker in self.processes:
            worker.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _share(self, context: Any) -> "_Shared":
        if self._shared.context is not context:
            self._shared = _Shared(context=context)
        return self._shared

    def _settle(self, call: "_Call", is_over: Callable[[], bool]) -> Evaluated | None:
        """Returns what comes of a call; None where time ran out while a worker had it."""
        while not (call.is_in_hand and is_over()):
            mine = self._board.next_here(call)
            if mine is None:
                return call.outcome
            began = perf_counter()
            outcome = evaluate(mine.function, mine.shared.context, mine.item)
            mine.shared.seconds.append(perf_counter() - began)
            self._seconds_here += mine.shared.seconds[-1]
            self._board.finish(mine, outcome)
        return None


@dataclass(eq=False, kw_only=True)
class _Shared:
    """A context, and what is known of the items that are evaluated in it."""

    context: Any
    seconds: list[float] = field(default_factory=list)
    """How long each item took that this process has evaluated."""
    ahead: dict[tuple[Callable[[Any, Any], Any], Any], "_Call"] = field(default_factory=dict)
    """The calls that `take` was shown and that have not had their turn."""

    @cached_property
    def message(self) -> bytes:
        """The message that gives the context to a worker."""
        return pack(NewContext(context=self.context))

    @property
    def patience(self) -> float:
        """For how many seconds a worker may have an item before this process does it, too."""
        return max(_LEAST_PATIENCE, _PATIENCE * sum(self.seconds) / max(1, len(self.seconds)))


@dataclass(eq=False, slots=True)
class _Call:
    """One item that is to be evaluated, is in a worker's hand, or is done."""

    function: Callable[[Any, Any], Any]
    shared: _Shared
    item: Any
    since: float = math.inf
    """The time at which a worker took it; infinite while no worker has it."""
    outcome: Evaluated | None = None

    @property
    def is_in_hand(self) -> bool:
        """Whether a worker has it and has not answered."""
        return self.since < math.inf

    @property
    def is_open(self) -> bool:
        """Whether it is neither done nor in a worker's hand."""
        return self.outcome is None and not self.is_in_hand


class _Board:
    """The calls that are open; this process and the threads of its workers share it."""

    def __init__(self, num_processes: int) -> None:
        self._num_processes = num_processes
        self._change = Condition()
        self._open: deque[_Call] = deque()
        self._shared: _Shared | None = None
        self._is_closed = False

    def offer(self, shared: _Shared, calls: Iterable[_Call]) -> None:
        """Replaces the open calls by those of these, all of one context, that nobody has begun."""
        with self._change:
            self._shared = shared
            self._open = deque(call for call in calls if call.is_open)
            self._change.notify_all()

    def close(self) -> None:
        """Lets all who wait for calls go."""
        with self._change:
            self._is_closed = True
            self._change.notify_all()

    def next_here(self, wanted: _Call) -> _Call | None:
        """The call that this process evaluates until a wanted one is done; None when it is.

        While a worker has the wanted call, this process does the other open ones; when there are
        none, or the worker takes too long, it does the wanted one itself.
        """
        with self._change:
            while wanted.outcome is None:
                if wanted.is_open:
                    self._open = deque(call for call in self._open if call is not wanted)
                    return wanted
                if self._open:
                    return self._open.popleft()
                left = wanted.since + wanted.shared.patience - perf_counter()
                if left > 0:
                    self._change.wait(left)
                else:
                    wanted.since = math.inf  # done twice perhaps, with one result
            return None

    def next_there(self, known: _Shared | None, num_in_hand: int) -> _Shared | _Call | None:
        """What a worker is told next: a context that it does not know, or a call.

        None means that it first finishes what it has in hand or, if that is nothing, that it ends.
        It gets a second call only while enough others remain for all processes.
        """
        least = self._num_processes if num_in_hand else 0
        with self._change:
            while not self._is_closed:
                if known is not self._shared:
                    return None if num_in_hand else self._shared
                if len(self._open) > least:
                    call = self._open.popleft()
                    call.since = perf_counter()
                    return call
                if num_in_hand:
                    return None
                self._change.wait()
            return None

    def finish(self, call: _Call, outcome: Evaluated | None) -> None:
        """Keeps what came of a call; None: nothing, others have to evaluate it."""
        with self._change:
            call.outcome = call.outcome or outcome
            call.since = math.inf
            self._change.notify_all()


class LocalWorker:
    """A worker process, and the thread that talks to it."""

    def __init__(self, board: _Board) -> None:
        self.process = start_worker()
        self.is_ready = False
        """Whether it has a context and may be given calls."""
        self.num_done = 0
        self._board = board
        self._calls: deque[_Call] = deque()
        self.thread = Thread(target=self._talk, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Waits for the end of the process, which has been killed."""
        # Its pipes have ended, so the thread has; unless Ctrl-C came while a lock was handed over.
        self.thread.join(_END_SECONDS)
        with suppress(OSError), self.process:  # what was never written cannot be flushed either
            pass

    def _talk(self) -> None:
        """Hands on calls until there are none or the process fails; then others do the rest."""
        to, answers = self.process.stdin, self.process.stdout
        assert to is not None
        assert answers is not None
        with suppress(Exception):  # whatever it says or no longer says
            if pickle.load(answers) == VERSION:
                self._hand_on(to, answers)
        self.is_ready = False
        for call in self._calls:
            self._board.finish(call, None)

    def _hand_on(self, to: IO[bytes], answers: IO[bytes]) -> None:
        known: _Shared | None = None
        while True:
            num = len(self._calls)
            told = self._board.next_there(known, num) if num < _IN_HAND else None
            if isinstance(told, _Shared):
                to.write(told.message)
                to.flush()
                self.is_ready = pickle.load(answers) == VERSION
                known = told
            elif told is not None:
                self._calls.append(told)
                send(to, Order(function=told.function, item=told.item))
            elif self._calls:
                outcome = pickle.load(answers)
                self.num_done += 1
                self._board.finish(self._calls.popleft(), outcome)
            else:
                return
