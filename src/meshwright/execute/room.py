"""What a device has free over time, below the most that the simulation has it hold at once.

A rank makes some buffers earlier than the simulation, because it would break what it runs into
small segments otherwise, and lets go of some later, because communication may be slower than was
thought. Both is fine while there is room.
"""

import bisect
from collections.abc import Collection

import numpy as np

from meshwright.program.program import Kind
from meshwright.simulate.timeline import Timeline


class MemoryRoom:
    """One device's memory, to which its rank adds what it holds longer than the simulation."""

    def __init__(self, timeline: Timeline, device: int) -> None:
        self.timeline = timeline
        self.when, self.held = timeline.memory(device)
        self.peak_bytes = float(self.held.max())
        buffers, rows, reads = (
            timeline.program.buffers, timeline.program.instructions, timeline.program.reads,
        )  # fmt: skip
        last = buffers["writer"].copy()
        by_end = np.argsort(timeline.finish[reads["first"]], kind="stable")
        last[reads["second"][by_end]] = reads["first"][by_end]
        here = buffers["device"] == device
        count = len(rows)
        self.made_bytes = rows["workspace_bytes"] + np.bincount(
            buffers["writer"][here], weights=buffers["bytes"][here], minlength=count
        )
        """By instruction: the bytes that are allocated when it starts."""
        self.freed_bytes = rows["workspace_bytes"] + np.bincount(
            last[here], weights=(buffers["bytes"] * ~buffers["lasts"])[here], minlength=count
        )
        """By instruction: the bytes that are freed when it ends."""
        self.late: list[tuple[float, int]] = []
        """Communication that was started and not waited for, by its end."""
        self.last_send = 0.0
        """When the last of the sends so far ends."""

    def has(self, begin: float, end: float, size: float) -> bool:
        """Whether there is room for so many bytes from one moment until another."""
        return bool(self.held[self._between(begin, end)].max(initial=0.0) + size <= self.peak_bytes)

    def take(self, begin: float, end: float, size: float) -> None:
        """Hold so many bytes more from one moment until another."""
        self.held[self._between(begin, end)] += size

    def start(self, instruction: int) -> None:
        """Communication starts; nobody may be waiting for it."""
        start, finish = (
            float(each[instruction]) for each in (self.timeline.start, self.timeline.finish)
        )
        is_short = finish <= start  # what takes no time may depend on what waits at that moment
        if self.timeline.program.instructions["kind"][instruction] == Kind.SEND:
            # A rank sees the end of its sends in the order of their starts.
            finish = self.last_send = max(self.last_send, finish)
        if self.freed_bytes[instruction] > 0 and not is_short:
            bisect.insort(self.late, (finish, instruction))

    def ended(self, moment: float, done: Collection[int]) -> list[int]:
        """What the simulation has ended by then, and nobody has waited for."""
        self.late = [each for each in self.late if each[1] not in done]
        return [instruction for finish, instruction in self.late if finish <= moment]

    def _between(self, begin: float, end: float) -> slice:
        first = max(int(np.searchsorted(self.when, begin, side="right")) - 1, 0)
        return slice(first, max(first + 1, int(np.searchsorted(self.when, end))))
