"""In which order each device of a pipeline takes its stages and microbatches.

Stages are numbered along the pipeline. An action is one stage's forward (F), backward (B) or weight
gradient (W, only where backward is split) for one microbatch. Knows nothing of ops or times, except
that zero-bubble asks how long the three take to fill the gaps with W.
"""

from collections.abc import Sequence
from enum import IntEnum
from math import inf
from typing import NamedTuple

from meshwright.errors import InputError
from meshwright.plan.plan import Schedule, ScheduleKind


class Action(IntEnum):
    """What a stage does at once."""

    FORWARD = 0
    BACKWARD = 1
    WEIGHT = 2
    UPDATE = 3


class Turn(NamedTuple):
    """One action of one stage for one microbatch."""

    action: Action
    stage: int
    microbatch: int


StageSeconds = tuple[float, float, float]
"""Time of forward, backward and weight gradient of one stage for one microbatch."""


def order_steps(
    schedule: Schedule, stages_of: Sequence[tuple[int, ...]], seconds: Sequence[StageSeconds]
) -> list[list[Turn]]:
    """For each device the order of its steps; `stages_of` lists the stages on each.

    `seconds` (one a stage) is used by zero-bubble only.
    """
    num_stages = len(seconds)
    if schedule.kind is ScheduleKind.GPIPE:
        return [_gpipe(stages, schedule.microbatches) for stages in stages_of]
    if schedule.kind is ScheduleKind.INTERLEAVED:
        return _interleaved(stages_of, num_stages, schedule.microbatches)
    for stages in stages_of:
        if len(stages) > 1:
            raise InputError(
                f"schedule {schedule.kind}: must have one stage a device, one has stages "
                f"{', '.join(map(str, stages))}; use {ScheduleKind.INTERLEAVED} or "
                f"{ScheduleKind.GPIPE}"
            )
    if schedule.kind is ScheduleKind.ONE_F_ONE_B:
        orders = [
            _one_f_one_b(stage, num_stages, schedule.microbatches) for stage in range(num_stages)
        ]
    else:
        orders = _zero_bubble(seconds, schedule.microbatches)
    return [list(orders[stages[0]]) if stages else [] for stages in stages_of]


def _gpipe(stages: tuple[int, ...], microbatches: int) -> list[Turn]:
    """All forwards, then all backwards (Huang et al., 2019)."""
    forward = [Turn(Action.FORWARD, s, m) for s in stages for m in range(microbatches)]
    backward = [Turn(Action.BACKWARD, s, m) for s in reversed(stages) for m in range(microbatches)]
    return forward + backward


def _one_f_one_b(stage: int, num_stages: int, microbatches: int) -> list[Turn]:
    """Warm up, then one forward and one backward in turn (Narayanan et al., 2019)."""
    warm_up = min(num_stages - stage - 1, microbatches)
    steps = [Turn(Action.FORWARD, stage, m) for m in range(warm_up)]
    for m in range(microbatches):
        if m + warm_up < microbatches:
            steps.append(Turn(Action.FORWARD, stage, m + warm_up))
        steps.append(Turn(Action.BACKWARD, stage, m))
    return steps


def _interleaved(
    stages_of: Sequence[tuple[int, ...]], num_stages: int, microbatches: int
) -> list[list[Turn]]:
    """Interleaved 1F1B (Narayanan et al., 2021, section 2.2): each device holds several stages.

    Device d holds stages d, d + D, d + 2D, ... Microbatches go through in rounds of about D; when D
    does not divide their number the rounds are larger, as in PyTorch's schedule.
    """
    used = [stages for stages in stages_of if stages]
    width = len(set(used))
    per_device = num_stages // max(1, width)
    for stages in used:
        if stages != tuple(range(stages[0] % width, num_stages, width)) or num_stages % width:
            raise InputError(
                f"schedule {ScheduleKind.INTERLEAVED}: with {width:,} devices each must hold every "
                f"{width}th stage, one has stages {', '.join(map(str, stages))}"
            )
    rounds = max(1, microbatches // width)
    if microbatches % rounds:
        raise InputError(
            f"schedule {ScheduleKind.INTERLEAVED}: microbatches must be a multiple of "
            f"{rounds} rounds, got {microbatches}; the nearest that fits is "
            f"{microbatches - microbatches % rounds}"
        )
    per_round = microbatches // rounds
    return [
        _interleaved_steps(stages[0] % width, width, per_device, microbatches, per_round)
        if stages
        else []
        for stages in stages_of
    ]


def _interleaved_steps(
    rank: int, width: int, per_device: int, microbatches: int, per_round: int
) -> list[Turn]:
    total = microbatches * per_device

    def step(action: Action, number: int) -> Turn:
        cycle, within = divmod(number, per_round * per_device)
        chunk, position = divmod(within, per_round)
        if action is Action.BACKWARD:
            chunk = per_device - 1 - chunk
        return Turn(action, chunk * width + rank, cycle * per_round + position)

    warm_up = min(total, (per_device - 1) * per_round + 2 * (width - 1 - rank))
    steps = [step(Action.FORWARD, k) for k in range(warm_up)]
    for k in range(total):
        if k + warm_up < total:
            steps.append(step(Action.FORWARD, k + warm_up))
        steps.append(step(Action.BACKWARD, k))
    return steps


def _zero_bubble(seconds: Sequence[StageSeconds], microbatches: int) -> list[list[Turn]]:
    """Zero-bubble with the memory of 1F1B (Qi et al., 2023: ZB-H1), made greedily.

    As in 1F1B stage s has at most S - s microbatches between forward and backward; every stage may
    have S between forward and weight gradient, which is what the first stage of 1F1B holds.
    Whenever a stage is free it takes the first that is possible of backward, forward, weight
    gradient; the times of the actions decide what is possible when.
    """
    num_stages = len(seconds)
    # Finishes by action and stage: microbatches take their turn, so that a count tells the next.
    forwards: list[list[float]] = [[] for _ in range(num_stages)]
    backwards: list[list[float]] = [[] for _ in range(num_stages)]
    weights: list[list[float]] = [[] for _ in range(num_stages)]
    finishes = (forwards, backwards, weights)
    free_at = [0.0] * num_stages
    orders: list[list[Turn]] = [[] for _ in range(num_stages)]

    def ready_at(stage: int) -> tuple[float, float, float]:
        """When the next backward, forward and weight gradient can start; infinity: not yet."""
        forward, backward = len(forwards[stage]), len(backwards[stage])
        weight = len(weights[stage])
        ready = [inf, inf, inf]
        # Backward waits for the next stage's, on the last one for its own forward.
        before = forwards[stage] if stage == num_stages - 1 else backwards[stage + 1]
        if backward < forward and backward < len(before):
            ready[0] = before[backward]
        is_full = forward - backward >= num_stages - stage or forward - weight >= num_stages
        if forward < microbatches and not is_full:
            if stage == 0:
                ready[1] = 0.0
            elif forward < len(forwards[stage - 1]):
                ready[1] = forwards[stage - 1][forward]
        if weight < backward:
            ready[2] = backwards[stage][weight]
        return ready[0], ready[1], ready[2]

    def candidate(stage: int) -> tuple[float, int, int]:
        free = free_at[stage]
        return min(
            (ready if ready > free else free, rank, stage)
            for rank, ready in enumerate(ready_at(stage))
        )

    candidates = [candidate(stage) for stage in range(num_stages)]
    for _ in range(3 * num_stages * microbatches):
        start, rank, stage = min(candidates)
        action = _PREFERENCE[rank]
        done = finishes[action][stage]
        orders[stage].append(Turn(action, stage, len(done)))
        free_at[stage] = start + seconds[stage][action]
        done.append(free_at[stage])
        for each in range(max(0, stage - 1), min(num_stages, stage + 2)):
            candidates[each] = candidate(each)
    return orders


_PREFERENCE = (Action.BACKWARD, Action.FORWARD, Action.WEIGHT)
