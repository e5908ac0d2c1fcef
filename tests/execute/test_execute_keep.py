"""What torchrun is told by ranks that have stopped as asked."""

import os
import signal

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from meshwright.execute import keep
from meshwright.execute.environment import RankPlace


@pytest.mark.parametrize(
    ("place", "is_asked"),
    [
        (RankPlace(is_agents_store=True, max_restarts=2), True),
        (RankPlace(is_agents_store=True), False),  # it ends by itself
        (RankPlace(is_agents_store=True, max_restarts=2, local_rank=1), False),  # another rank asks
        (RankPlace(max_restarts=2), False),  # a launcher of ours knows
    ],
)
def test_torchrun_is_asked_not_to_restart_what_was_stopped(
    monkeypatch: pytest.MonkeyPatch, place: RankPlace, is_asked: bool
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(keep, "read_place", lambda: place)
    monkeypatch.setattr(os, "kill", lambda *words: sent.append(words))
    before = signal.getsignal(signal.SIGTERM)
    keep.stop_restarts()
    signal.signal(signal.SIGTERM, before)
    assert sent == ([(os.getppid(), signal.SIGTERM)] if is_asked else [])
