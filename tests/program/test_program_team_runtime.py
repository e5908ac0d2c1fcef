"""Steps of plans under other runtimes than this program's own, worked out by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from team_stages import GRAPH, cost, schedule, stage, together
from test_program_team_random import team_plans

from meshwright.cost.runtime import RUNTIMES
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import TeamStage
from meshwright.simulate.simulate import run_program
from meshwright.units import MIB
from small import connected

BLOCKING = [name for name, each in RUNTIMES.items() if each.blocks_on_transfers]


def step_seconds(
    runtime: str, plan: Plan, *given: TeamStage, sharing: str = "fair", bandwidth: float = 1.0
) -> float:
    cluster = connected(sum(each.devices.size for each in given), bandwidth=bandwidth)
    program = lower_stages(GRAPH, cluster, replace(plan, runtime=runtime), given)
    return run_program(program, cluster, sharing=sharing).step_seconds


def pipeline(depth: int) -> list[TeamStage]:
    """Forward 1 s, backward 2 s, half a second between stages."""
    return [stage([[number]], cost(output=0.5)) for number in range(depth)]


@pytest.mark.parametrize("sharing", ["none", "fair"])
@pytest.mark.parametrize(("depth", "microbatches"), [(2, 3), (3, 2), (4, 8)])
def test_blocking_transfers_are_part_of_every_slot(
    depth: int, microbatches: int, sharing: str
) -> None:
    # GPipe: a stage computes, then sends while the next microbatch comes in, then computes again:
    # slots of 1.5 s, and of 2.5 s on the way back, without a transfer at the very ends. Where
    # transfers overlap they fill the pipeline and empty it, and cost nothing in between.
    plan = schedule("gpipe", microbatches)
    slots = microbatches + depth - 2
    blocked = step_seconds("megatron", plan, *pipeline(depth), sharing=sharing)
    assert blocked == pytest.approx(slots * (1.5 + 2.5) + 1 + 2)
    overlapped = step_seconds("meshwright", plan, *pipeline(depth), sharing=sharing)
    assert overlapped == pytest.approx((slots + 1) * 3 + 2 * (depth - 1) * 0.5)


@pytest.mark.parametrize("runtime", BLOCKING)
def test_a_stage_in_the_middle_waits_twice_a_microbatch(runtime: str) -> None:
    # 1F1B: forward, send it and receive a gradient, backward, send it and receive the next one. If
    # nobody waits, four microbatches are in flight, and one is back after 4 x 3 s and 6 transfers.
    def pace(name: str) -> float:
        few, many = (step_seconds(name, schedule("1f1b", m), *pipeline(4)) for m in (8, 16))
        return (many - few) / 8

    assert pace(runtime) == pytest.approx(3 + 2 * 0.5)
    assert pace("meshwright") == pytest.approx((4 * 3 + 6 * 0.5) / 4)


def test_interleaved_stages_send_meanwhile() -> None:
    given = [stage([[number % 2]], cost(output=0.5)) for number in range(4)]
    plan = schedule("interleaved-1f1b", 4)
    assert step_seconds("megatron", plan, *given) == step_seconds("meshwright", plan, *given)


@pytest.mark.parametrize("runtime", ["megatron", "deepspeed"])
def test_gradients_that_travel_after_backward_are_exposed_in_full(runtime: str) -> None:
    # Forward 0-1, backward 1-3; 100 MiB between two devices in 2 s, until 5; update until 5.4. In
    # four buckets meanwhile it is 3.6.
    gradients = together("all_reduce", [[0, 1]], 100.0 * MIB)
    only = stage([[0], [1]], cost(update=0.4, synchronisations=(gradients,)))
    plan, rate = schedule("gpipe", 1), 50.0 * MIB
    assert step_seconds(runtime, plan, only, bandwidth=rate) == pytest.approx(5.4)
    assert step_seconds("fsdp2", plan, only, bandwidth=rate) == pytest.approx(3.6)
    program = lower_stages(GRAPH, connected(2), replace(plan, runtime=runtime), (only,))
    assert (program.instructions["kind"] == Kind.ALL_REDUCE).sum() == 2  # one on either device


def test_hosts_of_blocking_stages_have_no_lead() -> None:
    # Launches take 4 s of a microbatch, 3 of them forward, where devices would take 1 and 2: stages
    # of 3 and 2. Alone, or where nobody waits, all launches of a step are held against all of it.
    each = replace(cost(host=4.0), forward_host_seconds=3.0)
    given = [stage([[number]], each) for number in range(2)]
    plan = schedule("1f1b", 3)
    assert step_seconds("megatron", plan, *given) == pytest.approx(4 * (3 + 2))
    assert step_seconds("meshwright", plan, *given) == pytest.approx(max(3 * 4, 4 * 3))
    assert step_seconds("megatron", plan, given[0]) == pytest.approx(max(3 * 4, 3 * 3))


@settings(max_examples=60, deadline=None)
@given(team_plans(), st.sampled_from(BLOCKING))
def test_no_plan_is_faster_where_stages_wait_and_none_waits_for_ever(
    drawn: tuple[Plan, list[TeamStage], int], runtime: str
) -> None:
    plan, stages, count = drawn
    cluster = connected(count, bandwidth=50.0 * MIB)
    seconds = {}
    for name in ("meshwright", runtime):
        program = lower_stages(GRAPH, cluster, replace(plan, runtime=name), stages)
        timeline = run_program(program, cluster, sharing="none")
        assert np.isfinite(timeline.finish).all()
        seconds[name] = timeline.step_seconds
    assert seconds[runtime] >= seconds["meshwright"] * (1 - 1e-9)
