"""Plays the schedule of a pipeline stage by stage: when each run of devices is done; compiled.

Every device takes its actions in the order of `program.schedule`, each as soon as it is free and
what it needs has come. What it sends takes its turn on the way to each neighbour. Nothing else
shares links here, and replicas are one: the simulator knows better and takes a thousand times as
long.
"""

import numpy as np

from meshwright.array import Floats
from meshwright.compiled import Array, Int, compiled
from meshwright.plan.part import ScheduleKind

_GPIPE, _ONE_F_ONE_B, _INTERLEAVED, _ZERO_BUBBLE = range(4)
_NUMBERS = {
    ScheduleKind.GPIPE: _GPIPE,
    ScheduleKind.ONE_F_ONE_B: _ONE_F_ONE_B,
    ScheduleKind.INTERLEAVED: _INTERLEAVED,
    ScheduleKind.ZERO_BUBBLE: _ZERO_BUBBLE,
}


@compiled
def order_actions(kind: Int, num_runs: Int, microbatches: Int, orders: Array) -> None:
    """Fill the orders of runs (rows): each action as (action x stages + stage) x microbatches +
    microbatch, where actions are forward, backward."""
    num_stages = orders.shape[1] // (2 * microbatches) * num_runs
    chunks = num_stages // num_runs
    per_round = microbatches // max(1, microbatches // num_runs)
    total = chunks * microbatches
    for run in range(num_runs):
        warm_up = total  # GPipe: all forwards first
        if kind == 1:
            warm_up = min(num_runs - run - 1, microbatches)
        elif kind == 2:
            warm_up = min(total, (chunks - 1) * per_round + 2 * (num_runs - 1 - run))
        place = 0
        for step in range(total + warm_up):
            for action in range(2):
                number = step if action == 0 else step - warm_up
                if number < 0 or number >= total:
                    continue
                cycle, within = number // (per_round * chunks), number % (per_round * chunks)
                chunk, microbatch = within // per_round, cycle * per_round + within % per_round
                if kind != 2:
                    chunk, microbatch = 0, number
                if action == 1:
                    chunk = chunks - 1 - chunk
                stage = chunk * num_runs + run
                orders[run, place] = (action * num_stages + stage) * microbatches + microbatch
                place += 1


@compiled
def order_zero_bubble(
    microbatches: Int, seconds: Array, finish: Array, done: Array, free: Array, orders: Array
) -> None:
    """Fill the orders of stages (rows) as `program.schedule` makes them: whenever a stage is free
    it takes what can start first, of equals backward, then forward, then weight gradient.

    `seconds` by stage and action (forward, backward, weight gradient); `finish` by action, stage
    and microbatch, `done` by stage and action and `free` by stage are for this function's use.
    """
    num_stages = len(seconds)
    for stage in range(num_stages):
        free[stage] = 0.0
        for action in range(3):
            done[stage, action] = 0
    for _ in range(3 * num_stages * microbatches):
        first, chosen, taken = np.inf, -1, -1
        for rank in range(3):
            action = 1 if rank == 0 else (0 if rank == 1 else 2)
            for stage in range(num_stages):
                number = done[stage, action]
                if number >= microbatches:
                    continue
                ready = np.inf
                forward, backward, weight = done[stage, 0], done[stage, 1], done[stage, 2]
                if action == 1 and backward < forward:
                    if stage == num_stages - 1:
                        ready = finish[0, stage, backward]
                    elif backward < done[stage + 1, 1]:
                        ready = finish[1, stage + 1, backward]
                elif action == 0:
                    is_full = forward - backward >= num_stages - stage
                    is_full = is_full or forward - weight >= num_stages
                    if not is_full and stage == 0:
                        ready = 0.0
                    elif not is_full and forward < done[stage - 1, 0]:
                        ready = finish[0, stage - 1, forward]
                elif action == 2 and weight < backward:
                    ready = finish[1, stage, weight]
                start = max(ready, free[stage])
                if start < first:
                    first, chosen, taken = start, action, stage
        number = done[taken, chosen]
        place = done[taken, 0] + done[taken, 1] + done[taken, 2]
        orders[taken, place] = (chosen * num_stages + taken) * microbatches + number
        free[taken] = first + seconds[taken, chosen]
        finish[chosen, taken, number] = free[taken]
        done[taken, chosen] += 1


@compiled
def play_orders(
    num_runs: Int,
    microbatches: Int,
    orders: Array,
    seconds: Array,
    carried: Array,
    latency: Array,
    finish: Array,
    place: Array,
    busy: Array,
) -> None:
    """Fill `finish` (by action, stage and microbatch; infinite before) by playing the orders.

    `seconds` by stage and action. `carried` and `latency` by stage: of what goes to the next stage,
    and of its gradient, which comes back. `place` by run, `busy` by run and use (computing,
    sending on, sending back), both zero, are for this function's use.
    """
    num_stages, count = len(seconds), orders.shape[1]
    last = num_stages - 1
    left = num_runs * count
    while left > 0:
        before = left
        for run in range(num_runs):
            while place[run] < count:
                code = orders[run, place[run]]
                microbatch = code % microbatches
                stage = code // microbatches % num_stages
                action = code // microbatches // num_stages
                ready = 0.0
                if action == 0 and stage > 0:
                    ready = finish[3, stage - 1, microbatch]
                elif action == 1 and stage < last:
                    ready = finish[4, stage + 1, microbatch]
                elif action == 1:
                    ready = finish[0, stage, microbatch]
                if ready == np.inf:
                    break
                done = max(ready, busy[run, 0]) + seconds[stage, action]
                busy[run, 0] = done
                finish[action, stage, microbatch] = done
                if action == 0 and stage < last:
                    busy[run, 1] = max(done, busy[run, 1]) + carried[stage]
                    finish[3, stage, microbatch] = busy[run, 1] + latency[stage]
                elif action == 1 and stage > 0:
                    busy[run, 2] = max(done, busy[run, 2]) + carried[stage - 1]
                    finish[4, stage, microbatch] = busy[run, 2] + latency[stage - 1]
                place[run] += 1
                left -= 1
        if left == before:
            return


def replay_seconds(
    kind: ScheduleKind,
    num_runs: int,
    microbatches: int,
    seconds: Floats,
    carried: Floats,
    latency: Floats,
    tails: Floats,
) -> float:
    """When the last run of devices has done its last action and what happens once a step.

    `seconds` by stage and action: forward, backward and, of zero-bubble, weight gradient, which is
    not within backward then. `tails` by stage: those of a run one after the other, when it has
    done all its actions.
    """
    num_stages = len(seconds)
    chunks = num_stages // num_runs
    is_postponed = kind is ScheduleKind.ZERO_BUBBLE
    count = microbatches * (3 if is_postponed else 2 * chunks)
    orders = np.zeros((num_runs, count), dtype=np.int64)
    finish = np.full((5, num_stages, microbatches), np.inf)
    place, busy = np.zeros(num_runs, dtype=np.int64), np.zeros((num_runs, 3))
    if is_postponed:
        done = np.zeros((num_stages, 3), dtype=np.int64)
        order_zero_bubble(microbatches, seconds, finish, done, np.zeros(num_stages), orders)
        finish[:] = np.inf
    else:
        order_actions(_NUMBERS[kind], num_runs, microbatches, orders)
    play_orders(num_runs, microbatches, orders, seconds, carried, latency, finish, place, busy)
    ended = finish[2 if is_postponed else 1].max(axis=1).reshape(chunks, num_runs)
    return float((ended.max(axis=0) + tails.reshape(chunks, num_runs).sum(axis=0)).max())
