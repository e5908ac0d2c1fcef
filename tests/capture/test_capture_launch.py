"""How fast a host launches: a step that is timed, over what hosts are thought to take for it."""

import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from meshwright.capture import launch  # noqa: E402
from meshwright.cost.compute import host_seconds  # noqa: E402


def test_the_share_is_the_time_of_a_step_over_what_is_thought(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thought = float(host_seconds(launch.tiny_graph()).sum())
    assert thought > 1e-3, "hundreds of calls, so that a clock can tell"
    steps = []

    def timed(step: Callable[[], None], _device: Any) -> float:
        step()  # it can be taken
        steps.append(step)
        return 1.5 * thought

    monkeypatch.setattr(launch, "time_steps", timed)
    assert launch.measure_launch_share(torch.device("cpu")) == pytest.approx(1.5)
    assert len(steps) == 1


def test_the_median_of_steps_after_some_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each step takes a second more than the one before; the first ten warm up, the median of the
    # thirty that follow is of the 25th and 26th: (24 + 25) / 2 s.
    now, taken = [0.0], [0]

    def step() -> None:
        now[0] += float(taken[0])
        taken[0] += 1

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert launch.time_steps(step, torch.device("cpu")) == 24.5
