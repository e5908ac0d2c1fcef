"""Finds a hung rank within a bounded time, names it and ends the process.

Every rank posts what it does to the store; a rank that has waited too long reads the posts of those
it waits for. Knows nothing of instructions: the runtime says what it does by plain attributes.

Two threads: one talks to the store, one judges. The store lives in one of the processes, and when
that one is stopped every call blocks, whatever its timeout (torch 2.13); the judge must go on.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import msgspec

from meshwright.errors import MeshwrightError
from meshwright.execute.fault import Report, name_rank, show_line, tell
from meshwright.execute.progress import NOBODY, Progress
from meshwright.execute.stall import Post, Stall, find_reached, find_stall
from meshwright.execute.thread import start_thread

LOST_TICKS = 5
"""Posts of a rank that may be missing before it counts as gone, once a connection was lost."""

_Numbered = tuple[int, Post]
"""A post as it stands in the store, after its number."""


class Store(Protocol):
    """What the watch asks of a store; torch's TCPStore and PrefixStore have it."""

    def set(self, key: str, value: str, /) -> object:
        """Keep a value under a key."""

    def get(self, key: str, /) -> bytes:
        """The value of a key that is there."""

    def check(self, keys: list[str], /) -> bool:
        """Whether all the keys are there."""

    def add(self, key: str, amount: int, /) -> int:
        """Count up; the count afterwards."""


class Watch(Progress):
    """One rank's watch. The main thread stores `doing`, `count` and `waits_for`, nothing else.

    Before it begins something: `watch.doing = text` and `watch.count += 1`; around what blocks:
    `watch.waits_for = peer` (or a tuple of them for a collective), afterwards NOBODY.
    """

    __slots__ = (
        "_devices", "_ended", "_folder", "_heard", "_is_lost", "_make_store", "_posts", "_progress",
        "_rank", "_stall_seconds", "_store", "_store_rank", "_threads", "_tick_seconds",
    )  # fmt: skip

    def __init__(
        self,
        rank: int,
        devices: Sequence[str],
        make_store: Callable[[], Store],
        stall_seconds: float,
        folder: Path | None,
        *,
        store_rank: int = 0,
    ) -> None:
        """Watch `rank`, on `devices[rank]`.

        `make_store` opens a connection of the watch's own (a blocked client blocks all its users)
        to a store that is new with every attempt. `folder` is the launcher's, for the report.
        `store_rank` is the rank whose process holds the store, NOBODY if none does; it must not
        end before the others have stopped.
        """
        super().__init__("the start")
        self._rank = rank
        self._devices = devices
        self._make_store = make_store
        self._stall_seconds = stall_seconds
        self._folder = folder
        self._store_rank = store_rank
        self._tick_seconds = min(1.0, stall_seconds / 10)
        self._ended = threading.Event()
        self._is_lost = False
        self._store: Store | None = None
        self._progress = self._heard = time.monotonic()
        self._posts: dict[int, Post] = {}
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to post and to watch."""
        self._progress = self._heard = time.monotonic()
        for work in (self._talk, self._judge):
            self._threads.append(start_thread(work, f"watch-{work.__name__.strip('_')}"))

    def stop(self) -> None:
        """End both threads; others learn that this rank has ended."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2.0)  # not longer: the store may block for ever
        self._threads.clear()

    def find_lost(self) -> list[int] | None:
        """The ranks that have gone without a word, for the one rank that is to tell; empty for the
        others, None where the store has gone. To be called while the watch goes on.
        """
        changed: dict[int, tuple[int, float]] = {}
        others = [each for each in range(len(self._devices)) if each != self._rank]
        seconds = LOST_TICKS * self._tick_seconds
        try:
            tells = not self._is_lost and self._claims()
            posts = [self._read(each, changed) for each in others if tells]
            time.sleep(seconds)  # also who does not tell: what it runs under ends those beside it
            posts = [self._read(each, changed) for each in others if tells]
        except RuntimeError:
            return None
        return None if self._is_lost else [
            each
            for each, post in zip(others, posts, strict=False)
            if post.silent_seconds >= seconds and not post.has_ended
        ]  # fmt: skip

    def _own_post(self) -> Post:
        waits_for = self.waits_for
        if isinstance(waits_for, int):
            waits_for = () if waits_for == NOBODY else (waits_for,)
        return Post(
            doing=str(self.doing),
            waits_for=tuple(each for each in waits_for if each != self._rank),
            idle_seconds=time.monotonic() - self._progress,
            has_ended=self._ended.is_set(),
        )

    # The judge.

    def _judge(self) -> None:
        before: object = None
        last = time.monotonic()
        while not self._ended.wait(self._tick_seconds):
            now = (self.count, self.waits_for)
            last, slept = time.monotonic(), time.monotonic() - last
            if slept > self._stall_seconds / 2:  # stopped and continued: what it knows is old
                before, self._heard = None, last
            if now != before:
                before, self._progress = now, time.monotonic()
                continue
            stall = self._find_stall()
            if stall is not None and now == (self.count, self.waits_for):
                self._end(stall)

    def _find_stall(self) -> Stall | None:
        own = self._own_post()
        if not own.waits_for or own.idle_seconds < self._stall_seconds:
            return None
        if self._is_lost:
            message = f"{self._describe(own)} and the store is gone"
            return Stall(ranks=(self._rank,), message=message, seconds=own.idle_seconds)
        silent = time.monotonic() - self._heard
        if silent >= self._stall_seconds / 2:
            return self._blame_store(own, silent)
        posts = {**self._posts, self._rank: own}
        reached = find_reached(self._rank, posts, self._stall_seconds)
        if any(each not in posts for each in reached):
            return None  # the talker has not read it yet
        return find_stall(self._rank, posts, self._devices, self._stall_seconds)

    def _blame_store(self, own: Post, silent_seconds: float) -> Stall:
        holder = self._store_rank
        name = "the store" if holder == NOBODY else name_rank(holder, self._devices[holder])
        message = f"{name} is hung: no answer from its store for {silent_seconds:.0f} s; "
        message += self._describe(own)
        return Stall(ranks=(holder,), message=message, seconds=silent_seconds)

    def _describe(self, own: Post) -> str:
        return f"{name_rank(self._rank, self._devices[self._rank])} waits at {own.doing}"

    def _end(self, stall: Stall) -> None:
        """One rank tells; all that wait in vain end. The main thread may be blocked for good.

        Without a store nothing is known of the others; that it has gone is another rank's doing.
        """
        if self._is_lost or self._claims():
            first = stall.ranks[0]
            report = Report(
                rank=first,
                device="" if first == NOBODY else self._devices[first],
                time_seconds=time.time(),
                message=stall.message,
                is_consequence=self._is_lost,
                traceback="",
                silent=() if self._is_lost else stall.ranks,
                silent_seconds=stall.seconds,
            )
            tell(report, self._folder)
        else:
            time.sleep(1.0 + self._tick_seconds)  # whoever tells must not be ended for our end
        os._exit(1)

    def _claims(self) -> bool:
        """Whether this rank is the one that tells: the first to make a file, or to count up."""
        if self._folder is not None:
            try:
                os.close(os.open(self._folder / "stall", os.O_CREAT | os.O_EXCL))
            except OSError as error:  # without the folder, nobody would tell
                return not isinstance(error, FileExistsError)
            return True
        store = self._store
        if store is None:
            return True
        claims: list[bool] = []
        asking = start_thread(lambda: claims.append(_count_up(store)), "watch-claim")
        asking.join(self._stall_seconds / 2)
        return claims[0] if claims else True  # no answer: better told twice than not at all

    # The talker.

    def _talk(self) -> None:
        beat = 0
        changed: dict[int, tuple[int, float]] = {}
        try:
            self._store = self._make_store()
            while not self._is_lost:
                beat += 1
                has_ended = self._ended.is_set()
                own = self._own_post()
                self._send(own, beat)
                if own.waits_for and own.idle_seconds >= self._stall_seconds / 2:
                    self._read_reached(own, changed)
                else:
                    changed.clear()
                    self._posts = {}
                    self._store.check(["watch/claim"])  # only an answer shows that the store lives
                self._heard = time.monotonic()
                if has_ended:
                    return
                self._ended.wait(self._tick_seconds)
        except RuntimeError:  # the store has gone with its process: whoever started us will tell
            self._is_lost = True
        except (MeshwrightError, msgspec.DecodeError) as error:  # somebody else writes to it
            show_line(f"hung ranks cannot be found any more: {error}")
            self._is_lost = True

    def _send(self, post: Post, beat: int) -> None:
        assert self._store is not None
        self._store.set(f"watch/{self._rank}", msgspec.json.encode((beat, post)).decode())

    def _read_reached(self, own: Post, changed: dict[int, tuple[int, float]]) -> None:
        """Read the posts of those that this rank waits for, and of those they wait for."""
        posts = {self._rank: own}
        while missing := [
            each
            for each in find_reached(self._rank, posts, self._stall_seconds)
            if each not in posts
        ]:
            for each in missing:
                posts[each] = self._read(each, changed)
        self._posts = posts

    def _read(self, rank: int, changed: dict[int, tuple[int, float]]) -> Post:
        """A rank's last post; `changed` has its number and when it was first seen."""
        assert self._store is not None
        key = f"watch/{rank}"
        beat, post = 0, Post(doing="the start")
        if self._store.check([key]):  # a get would wait for the key
            beat, post = msgspec.json.decode(self._store.get(key), type=_Numbered)
        now = time.monotonic()
        if rank not in changed or changed[rank][0] != beat:
            changed[rank] = beat, now
        return replace(post, silent_seconds=now - changed[rank][1])


def _count_up(store: Store) -> bool:
    """Whether this is the first to do so."""
    try:
        return store.add("watch/claim", 1) == 1
    except RuntimeError:  # gone with its process, which ended: it was the one to tell
        return False
