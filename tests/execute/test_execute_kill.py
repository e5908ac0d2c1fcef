"""Runs that are killed with -9 again and again, and whose newest checkpoint is damaged meanwhile.

Each time training must go on from the newest checkpoint that is intact, and in the end everything
must be as if nothing had happened, bit for bit.
"""

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from forked import start_forked
from places import (
    EVERY,
    STEPS,
    Place,
    read_bits,
    resumptions,
    saved_steps,
    training,
)

from waiting import wait_until

pytest.importorskip("torch", reason="execution needs the torch extra")

Started = tuple[Callable[[], None], Callable[[], tuple[int | None, str, list[str]]]]
"""How to kill a run with -9, and how to wait for its end: exit code, output and what it said."""


@dataclass(slots=True)
class Disturbance:
    """Kills runs that keep checkpoints in one folder, and damages every other newest checkpoint."""

    start: Callable[[], Started]
    folder: Path
    draw: random.Random
    damaged: list[tuple[int, int]] = field(default_factory=list)
    """The step of each checkpoint that was damaged, and when its folder was made."""
    expected: int = 0
    """The step that the next run must go on from."""

    def kill_one(self, *, is_damaged: bool) -> None:
        """Start a run and kill it soon after one of its next checkpoints."""
        kill, finish = self.start()
        # Two checkpoints at least, so that there is an older one; and no run may end by itself.
        target = max(self.expected + EVERY * self.draw.randint(0, 2), 2 * EVERY)
        wait_until(lambda: self._intact()[-1:] >= [min(target, STEPS - 3 * EVERY)])
        time.sleep(self.draw.uniform(0, 0.05))
        kill()
        self._check(finish())
        steps = self._intact()
        if is_damaged and len(steps) > 1:
            self._flip_a_bit(steps.pop())
        self.expected = steps[-1]

    def _intact(self) -> list[int]:
        """The steps of checkpoints that were not damaged, or were written again since."""
        found = []
        for step in saved_steps(self.folder):
            with contextlib.suppress(OSError):  # it is being replaced
                made = (self.folder / f"step-{step:08d}").stat().st_mtime_ns
                found += [step] if (step, made) not in self.damaged else []
        return found

    def finish(self) -> dict[str, Any]:
        """Let the last run end by itself; its report."""
        _, finish = self.start()
        ended = finish()
        self._check(ended)
        assert ended[0] == 0, ended
        found: dict[str, Any] = json.loads(ended[1])
        return found

    def _check(self, ended: tuple[int | None, str, list[str]]) -> None:
        """It went on from where it had to; one that was killed may not have come so far."""
        right = [[self.expected] if self.expected else []]
        assert resumptions(ended[2]) in (right if ended[0] == 0 else [*right, []])

    def _flip_a_bit(self, step: int) -> None:
        path = self.folder / f"step-{step:08d}"
        file = self.draw.choice(sorted(path.iterdir()))
        data = bytearray(file.read_bytes())
        data[self.draw.randrange(len(data))] ^= 1 << self.draw.randrange(8)
        file.write_bytes(data)
        self.damaged.append((step, path.stat().st_mtime_ns))


def check(disturbance: Disturbance, moments: int, undisturbed: tuple[str, Path]) -> None:
    """Kill so many runs; the end must be that of the undisturbed one."""
    for moment in range(moments):
        disturbance.kill_one(is_damaged=moment % 2 == 0)
    report = disturbance.finish()
    assert report["losses"] == json.loads(undisturbed[0])["losses"]
    assert read_bits(disturbance.folder) == read_bits(undisturbed[1])
    # A checkpoint is damaged only where an older one is there: rarely, one is just being replaced.
    assert len(disturbance.damaged) >= (moments + 1) // 2 - 1 > 0


def test_a_rank_killed_three_times_ends_with_the_same_bits(place: Place) -> None:
    def start(checkpoints: str = "kept") -> Started:
        words = ["run", "small", "--model", "factories:small", "--json", "--steps", str(STEPS)]
        words += ["--checkpoint", checkpoints, "--every", str(EVERY)]
        forked = start_forked(words, place.folder)
        return forked.process.kill, forked.finish

    code, out, said = start("kept-undisturbed")[1]()
    assert (code, said) == (0, [])
    disturbance = Disturbance(start, place.folder / "kept", random.Random(5))
    check(disturbance, 3, (out, place.folder / "kept-undisturbed"))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["pipeline", "data"])
def test_runs_killed_ten_times_end_with_the_same_bits(place: Place, plan: str) -> None:
    """The launcher is killed, with which all its ranks go, or a rank, after which it ends."""
    code, out, said = place.run(plan, *training("kept-undisturbed"))
    assert code == 0, said
    draw = random.Random(plan)

    def start() -> Started:
        process = place.start(plan, *training("kept"))

        def kill() -> None:
            ranks = place.ranks()
            victims = [process.pid, *ranks.values()]
            os.kill(draw.choice(victims), signal.SIGKILL)

        def finish() -> tuple[int | None, str, list[str]]:
            found, said = process.communicate(timeout=200)
            wait_until(lambda: not place.marked())
            return process.returncode, found, said.splitlines()

        return kill, finish

    disturbance = Disturbance(start, place.folder / "kept", draw)
    check(disturbance, 10, (out, place.folder / "kept-undisturbed"))
