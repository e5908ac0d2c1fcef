"""The schedule that prices are played by, held against the order that programs have."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.plan.part import Schedule, ScheduleKind
from meshwright.plan.stage import can_interleave
from meshwright.program.schedule import Action, order_steps
from meshwright.search.method.hybrid.replay import replay_seconds


def play_by_hand(
    kind: Any, num_runs: Any, microbatches: Any, seconds: Any, carried: Any, latency: Any
) -> Any:
    """When each run has done its last action: actions start one by one in the program's order."""
    num_stages = len(seconds)
    stages_of = [tuple(range(run, num_stages, num_runs)) for run in range(num_runs)]
    schedule = Schedule(kind=kind, microbatches=microbatches)
    orders = order_steps(schedule, stages_of, [tuple(each) for each in seconds.tolist()])
    done: Any = {}
    came: Any = {}
    ended = [0.0] * num_runs
    ways = {run: [0.0, 0.0] for run in range(num_runs)}
    while any(orders):
        for run, order in enumerate(orders):
            while order:
                action, stage, number = order[0]
                needs: Any = 0.0
                if action is Action.BACKWARD and stage == num_stages - 1:
                    needs = done.get((Action.FORWARD, stage, number))
                elif action is Action.BACKWARD or (action is Action.FORWARD and stage):
                    needs = came.get((action, stage, number))
                if needs is None:
                    break
                order.pop(0)
                ended[run] = max(ended[run], needs) + seconds[stage][action]
                done[action, stage, number] = ended[run]
                to = stage + 1 if action is Action.FORWARD else stage - 1
                if action is not Action.WEIGHT and 0 <= to < num_stages:
                    boundary = min(stage, to)
                    way = ways[run]
                    way[action] = max(way[action], ended[run]) + carried[boundary]
                    came[action, to, number] = way[action] + latency[boundary]
    return ended


@given(st.data())
def test_what_is_played_is_the_order_of_the_program(data: Any) -> None:
    kind = data.draw(st.sampled_from(list(ScheduleKind)))
    num_runs, microbatches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    chunks = 1
    if kind is ScheduleKind.INTERLEAVED:
        num_runs = max(2, num_runs)
        chunks = data.draw(st.integers(2, 4))
        microbatches = max(
            each for each in range(1, microbatches + 1) if can_interleave(each, num_runs)
        )
    count = num_runs * chunks
    numbers = st.integers(0, 8).map(float)
    seconds = np.array([[1 + data.draw(numbers) for _ in range(3)] for _ in range(count)])
    if kind is not ScheduleKind.ZERO_BUBBLE:
        seconds[:, 2] = 0.0
    carried = np.array([data.draw(numbers) for _ in range(count)])
    latency = np.array([data.draw(numbers) for _ in range(count)])
    tails = np.array([data.draw(numbers) for _ in range(count)])
    given_to_it = (kind, num_runs, microbatches, seconds, carried, latency)
    ended = play_by_hand(*given_to_it)
    own = tails.reshape(chunks, num_runs).sum(axis=0)
    expected = max(end + tail for end, tail in zip(ended, own, strict=True))
    assert replay_seconds(*given_to_it, tails) == pytest.approx(expected)


def test_two_stages_of_one_second_fill_and_drain() -> None:
    # Two microbatches of 1 s forward and 2 s backward on each of two stages, nothing on the way:
    # the second stage is busy from 1 s to 7 s, then the first has one backward left.
    seconds, none = np.array([[1.0, 2.0, 0.0]] * 2), np.zeros(2)
    kind = ScheduleKind.ONE_F_ONE_B
    assert replay_seconds(kind, 2, 2, seconds, none, none, none) == 9.0
    # Half a second on the way each time: forward, and the last gradient back.
    assert replay_seconds(kind, 2, 2, seconds, np.array([0.5, 0.0]), none, none) == 10.0
    # A second at the end of the first stage's, which ends last.
    assert replay_seconds(kind, 2, 2, seconds, none, none, np.array([1.0, 0.0])) == 10.0
