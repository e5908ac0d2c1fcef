"""A device whose streams do what they were given only when somebody waits for it."""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch

from meshwright.execute.work import Waitable


def _nothing() -> None:
    pass


class Stream:
    """Work in order, done as late as possible."""

    def __init__(self, lock: threading.RLock) -> None:
        self.lock, self.work, self.done = lock, list[Callable[[], object]](), 0

    def add(self, work: Callable[[], object]) -> None:
        """Give it something to do."""
        with self.lock:
            self.work.append(work)

    def mark(self) -> "Event":
        """An event after all that it was given so far."""
        with self.lock:
            return Event(self, len(self.work))


class Event:
    """A place in a stream."""

    def __init__(self, stream: Stream, place: int) -> None:
        self.stream, self.place = stream, place

    def synchronize(self) -> None:
        """Do what comes before it, and what that waits for."""
        with self.stream.lock:
            while self.stream.done < self.place:
                work = self.stream.work[self.stream.done]
                self.stream.work[self.stream.done] = _nothing  # forget what it held
                self.stream.done += 1
                work()
                del work

    def query(self) -> bool:
        """Whether it is done."""
        return self.stream.done >= self.place


class LateDevice:
    """A main stream and as many beside it as are opened."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.main = self.current = Stream(self.lock)

    def open_side(self) -> "LateSide":
        """A stream beside the main one."""
        return LateSide(self)


class LateSide:
    """A stream beside the main one."""

    def __init__(self, device: LateDevice) -> None:
        self.device, self.stream = device, Stream(device.lock)

    def mark(self) -> Event:
        """An event of the main stream."""
        return self.device.main.mark()

    def fetch(self, tensors: Sequence[torch.Tensor], after: Event) -> list[torch.Tensor]:
        """Copy when the event has come."""
        hosts = [self.room(each) for each in tensors]
        self.bring(zip(tensors, hosts, strict=True), after).synchronize()
        return hosts

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory full of what nobody wants."""
        return torch.full(tensor.shape, 77, dtype=tensor.dtype)

    def bring(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], after: Event) -> Event:
        """Copy later."""
        with self.device.lock:
            self.stream.add(after.synchronize)
            for source, target in pairs:
                self.stream.add(partial(target.copy_, source))
            return self.stream.mark()

    def follow(self, work: Waitable) -> Event:
        """An event of this stream after torch's work."""
        self.device.current = self.stream
        work.wait()
        self.device.current = self.device.main
        return self.stream.mark()

    def hold_back(self, event: Event) -> None:
        """Let the main stream wait."""
        self.device.main.add(event.synchronize)
