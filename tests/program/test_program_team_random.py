"""Random plans with teams: what must hold whatever their stages cost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from team_stages import GRAPH, cost, schedule, stage, together

from meshwright.cost.stage import StageCost
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import TeamStage
from meshwright.simulate.simulate import run_program
from meshwright.units import MIB
from small import connected, star

SECONDS = st.floats(0.0, 4.0)
BYTES = st.floats(0.0, 100.0)


@st.composite
def team_plans(draw: st.DrawFn) -> tuple[Plan, list[TeamStage], int]:
    """A plan, its stages, and how many devices they are on."""
    kind = draw(st.sampled_from(["gpipe", "1f1b", "zero-bubble", "interleaved-1f1b"]))
    is_interleaved = kind == "interleaved-1f1b"
    lines = draw(st.integers(1, 3))
    depth = draw(st.integers(1, 2)) if is_interleaved else 1
    microbatches = lines * draw(st.integers(1, 3)) if is_interleaved else draw(st.integers(1, 5))
    shapes = []
    count = 0
    for _ in range(lines):
        replicas, width = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        shapes.append(np.arange(count, count + replicas * width).reshape(replicas, width))
        count += replicas * width
    stages = [
        stage(
            shapes[number % lines].tolist(),
            draw(_costs(shapes[number % lines].tolist())),
            context=draw(st.sampled_from([1, shapes[number % lines].shape[1]])),
        )
        for number in range(lines * depth)
    ]
    return schedule(kind, microbatches), stages, count


@st.composite
def _costs(draw: st.DrawFn, teams: list[list[int]]) -> StageCost:
    backward = draw(SECONDS)
    groups = list(map(list, zip(*teams, strict=True)))
    is_many = len(teams) > 1
    size = draw(st.sampled_from([0.5, 30.0, 300.0])) * MIB
    sync = (together("all_reduce", groups, size),) if is_many and draw(st.booleans()) else ()
    gather = (together("all_gather", groups, size),) if is_many and draw(st.booleans()) else ()
    return cost(
        forward=draw(SECONDS),
        backward=backward,
        weight=draw(st.floats(0.0, 1.0)) * backward,
        output=draw(BYTES),
        update=draw(SECONDS),
        saved=draw(BYTES),
        workspace=draw(BYTES),
        state=draw(BYTES),
        scattered=draw(st.booleans()),
        synchronisations=sync,
        gathers=gather,
    )


@settings(max_examples=80, deadline=None)
@given(team_plans(), st.sampled_from(["none", "fair"]), st.booleans())
def test_every_plan_runs_to_its_end_and_does_all_its_work(
    drawn: tuple[Plan, list[TeamStage], int], sharing: str, is_star: bool
) -> None:
    plan, stages, count = drawn
    cluster = star([50.0 * MIB] * count) if is_star else connected(count, bandwidth=50.0 * MIB)
    timeline = run_program(lower_stages(GRAPH, cluster, plan, stages), cluster, sharing=sharing)
    assert plan.schedule is not None
    busy = np.zeros(count)
    for each in stages:
        own = each.cost
        whole = own.forward_seconds + own.backward_seconds
        busy[each.devices] += plan.schedule.microbatches * whole + own.update_seconds
    assert np.allclose(timeline.busy_seconds, busy)
    assert timeline.device_seconds >= busy.max() - 1e-9
    for device in range(count):
        held = timeline.memory(device)[1]
        assert held.min() >= timeline.program.state_bytes[device] - 1e-6
        assert np.isclose(held[-1], timeline.program.state_bytes[device])


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), BYTES, st.floats(0.1, 9.0), st.booleans())
def test_sharing_never_makes_a_transfer_alone_faster(
    width: int, other: int, size: float, bandwidth: float, is_star: bool
) -> None:
    count = width + other
    cluster = star([bandwidth] * count) if is_star else connected(count, bandwidth=bandwidth)
    first = stage([list(range(width))], cost(output=size))
    second = stage([list(range(width, count))], cost())
    program = lower_stages(GRAPH, cluster, schedule("gpipe", 1), (first, second))
    alone, shared = (run_program(program, cluster, sharing=each) for each in ("none", "fair"))
    assert shared.step_seconds >= alone.step_seconds * (1 - 1e-9)
    if not is_star:  # no flow meets another
        assert np.isclose(shared.step_seconds, alone.step_seconds)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(1, 3))
def test_all_rows_of_a_boundary_are_sent(replicas: list[int], microbatches: int) -> None:
    count, stages = 0, []
    for each in replicas:  # 60 bytes a microbatch, whoever makes them
        teams = [[count + k] for k in range(each)]
        stages.append(stage(teams, cost(output=60.0 / each)))
        count += each
    plan = schedule("gpipe", microbatches)
    rows = lower_stages(GRAPH, connected(count), plan, stages).instructions
    sent = rows["bytes"][rows["kind"] == Kind.SEND].sum()
    assert np.isclose(sent, 2 * 60.0 * (len(replicas) - 1) * microbatches)
