"""What ZeRO 2 and 3 move beside compute, against steps worked out by hand and layer by layer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from team_stages import GRAPH, cost, schedule, stage

from meshwright.cluster.build import hierarchical
from meshwright.cost.collective import Collective
from meshwright.cost.group_price import group_prices
from meshwright.cost.holder import MAX_PIECES, Pieces, ShardTraffic
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.cost.runtime import RUNTIMES, Runtime
from meshwright.cost.stage import Stage, StageCost, stage_cost
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.stack.find import find_layers
from meshwright.plan.part import Recompute
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import TeamStage
from meshwright.simulate.simulate import run_program, simulate
from small import connected, star

PAIR = ((0, 1),)


def sharded(
    forward: Sequence[float], backward: Sequence[float], gather: Sequence[float],
    scatter: Sequence[float], groups: Any = PAIR, **more: Any,
) -> StageCost:  # fmt: skip
    """Layers one by one, seconds of each; two devices gather 2 bytes in a second."""
    own = cost(forward=sum(forward), backward=sum(backward), **more)
    sizes = [2 * each for each in gather]
    return replace(
        own,
        shards=ShardTraffic(
            forward_shares=tuple(each / sum(forward) for each in forward),
            backward_shares=tuple(each / sum(backward) for each in backward[::-1]),
            forward_gathers=(Pieces(groups=groups, message_bytes=tuple(sizes)),),
            backward_gathers=(Pieces(groups=groups, message_bytes=tuple(sizes[::-1])),),
            scatters=(Pieces(groups=groups, message_bytes=tuple(2 * s for s in scatter[::-1])),),
            forward_seconds=0.0,
            backward_seconds=0.0,
            forward_slowdown_seconds=0.0,
            backward_slowdown_seconds=0.0,
        ),
    )


def step_seconds(plan: Plan, *given: TeamStage, sharing: str = "none") -> float:
    cluster = connected(2)
    return run_program(
        lower_stages(GRAPH, cluster, plan, given), cluster, sharing=sharing
    ).step_seconds


def test_weights_come_a_layer_ahead_and_gradients_leave_a_layer_behind() -> None:
    # Forward: gathers 0-.5, .5-1, then with layer 1 from 1.5 on; layers 0.5-1.5, -2.5, -3.5. While
    # the last one computes the first of backward comes again: layers of 2 s until 9.5, and the
    # gradients of the last one half a second later; then the update.
    each = sharded([1] * 3, [2] * 3, [0.5] * 3, [0.5] * 3, update=0.25)
    only = stage([[0], [1]], each)
    assert step_seconds(schedule("gpipe", 1), only) == pytest.approx(10.25)
    cluster = connected(2)
    program = lower_stages(GRAPH, cluster, schedule("gpipe", 1), (only,))
    timeline = run_program(program, cluster, sharing="fair")
    # By fair sharing the same: at most a gather and a scatter are under way, with time to spare.
    assert timeline.step_seconds == pytest.approx(10.25)
    kinds = program.instructions["kind"]
    assert (kinds == Kind.ALL_GATHER).sum() == 2 * 6
    assert (kinds == Kind.REDUCE_SCATTER).sum() == 2 * 3
    # Of 10 s in which a device has work to do it waits for the first gather alone.
    assert timeline.call_seconds == pytest.approx([0.5, 0.5])


def test_what_takes_longer_than_compute_is_exposed() -> None:
    # Gathers of 3 s beside layers of 1 and 2 s: six of them, and the last layer's backward; its
    # gradients a second later.
    only = stage([[0], [1]], sharded([1] * 3, [2] * 3, [3] * 3, [1] * 3))
    assert step_seconds(schedule("gpipe", 1), only) == pytest.approx(6 * 3 + 2 + 1)


def test_without_prefetching_nothing_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    eager = {**RUNTIMES, "eager": Runtime(name="eager", gathered_ahead=0)}
    monkeypatch.setattr("meshwright.program.team.lower.RUNTIMES", eager)
    monkeypatch.setattr("meshwright.plan.plan.RUNTIMES", eager)
    only = stage([[0], [1]], sharded([1] * 3, [2] * 3, [0.5] * 3, [0.0, 0.0, 0.0]))
    plan = replace(schedule("gpipe", 1), runtime="eager")
    assert step_seconds(plan, only) == pytest.approx(9 + 6 * 0.5)


def test_gathers_share_links_with_what_stages_send() -> None:
    # Two stages of two replicas on a switch of 1 B/s a way. Stage 1's weights are gathered from the
    # start on, 2 bytes into each device; stage 0's output, 2 bytes for each, is sent at 1 s. Alone
    # that has come at 3 s. Shared, it has half of the link: beside this gather until 3, then beside
    # that for backward, and is there at 5.
    first = stage([[0], [1]], cost(output=2))
    second = stage([[2], [3]], sharded([1], [2], [2.0], [0.0], groups=((2, 3),)))
    for sharing, ends in (("none", 3 + 1), ("fair", 5 + 1)):
        cluster = star([1.0] * 4)
        program = lower_stages(GRAPH, cluster, schedule("1f1b", 1), (first, second))
        timeline = run_program(program, cluster, sharing=sharing)
        rows = program.instructions
        forward = (rows["kind"] == Kind.COMPUTE) & (rows["device"] == 2)
        assert timeline.finish[forward].min() == pytest.approx(ends)


SECONDS = st.floats(0.0, 3.0)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, MAX_PIECES), st.integers(1, 3))
def test_steps_are_those_of_a_walk_over_layers(data: Any, count: int, microbatches: int) -> None:
    draw = st.lists(SECONDS, min_size=count, max_size=count)
    busy = st.lists(st.floats(0.1, 3.0), min_size=count, max_size=count)
    forward, backward = data.draw(busy), data.draw(busy)
    gather, scatter = data.draw(draw), data.draw(draw)
    gather[0] = scatter[0] = 1.0  # something moves
    found = step_seconds(
        schedule("1f1b", microbatches),
        stage([[0], [1]], sharded(forward, backward, gather, scatter)),
    )
    layers = list(range(count))
    one = [(each, False) for each in layers] + [(each, True) for each in reversed(layers)]
    # Ends of all gathers, computes and scatters so far.
    come, done, gone = [0.0], [0.0, 0.0], 0.0
    for layer, is_back in one * microbatches:
        come.append(max(come[-1], done[-2]) + gather[layer])
        done.append(max(done[-1], come[-1]) + (backward if is_back else forward)[layer])
        if is_back:
            gone = max(gone, done[-1]) + scatter[layer]
    assert found == pytest.approx(max(gone, done[-1]))


def many_layers(rate: float, **more: Any) -> tuple[Any, Any, Stage]:
    """24 equal layers on four hosts of a device each, whose network has this rate."""
    stack = find_layers(
        gpt(
            hidden=256, heads=4, layers=24, sequence=128, vocabulary=512, positions=128, batch=16,
            precision="bf16",
        )
    )  # fmt: skip
    cluster = hierarchical(
        devices_per_host=1, branching=[4], device_bytes_per_second=rate, host_bytes_per_second=rate
    )
    given = Stage(layers=range(1, 25), devices=(0, 1, 2, 3), team=Team(), zero=3, samples=4, **more)
    return stack, cluster, given


@pytest.mark.parametrize("rate", [1e8, 1e9, 3e9, 1e10, 1e11])
def test_runs_of_layers_take_as_long_as_layers_one_by_one(rate: float) -> None:
    stack, cluster, given = many_layers(rate)
    network = group_prices(cluster)
    own = stage_cost(stack, network, given)
    assert own.shards is not None
    assert len(own.shards.forward_shares) == MAX_PIECES
    only = stage([[0], [1], [2], [3]], own)
    program = lower_stages(stack.graph, cluster, schedule("gpipe", 1), (only,))
    found = run_program(program, cluster, sharing="none").device_seconds - own.update_seconds
    kind = cluster.types[cluster.devices[0].type]
    layer = price_layer(stack.kind_of(1), Team(), Recompute.NONE, kind, 4)
    gather, scatter = (
        network.seconds(each, ((0, 1, 2, 3),), size)
        for each, size in (
            (Collective.ALL_GATHER, layer.parameter_bytes),
            (Collective.REDUCE_SCATTER, layer.gradient_bytes),
        )
    )
    come, done, gone = [0.0], [0.0, 0.0], 0.0
    for number in range(48):
        come.append(max(come[-1], done[-2]) + gather)
        own_seconds = layer.backward_seconds if number >= 24 else layer.forward_seconds
        done.append(max(done[-1], come[-1]) + own_seconds)
        if number >= 24:
            gone = max(gone, done[-1]) + scatter
    assert found == pytest.approx(max(gone, done[-1]), rel=0.03)


def test_no_estimate_is_far_from_what_is_simulated_and_no_bound_above_it() -> None:
    for rate in (1e9, 1e10, 1e11):
        stack, cluster, given = many_layers(rate)
        own = stage_cost(stack, group_prices(cluster), given)
        program = lower_stages(
            stack.graph, cluster, schedule("1f1b", 4), (stage([[0], [1], [2], [3]], own),)
        )
        found = run_program(program, cluster).device_seconds - own.update_seconds
        assert found >= 4 * sum(own.busy_seconds)
        assert found == pytest.approx(4 * (own.forward_seconds + own.backward_seconds), rel=0.1)


def test_compute_slows_beside_what_travels() -> None:
    # All that is gathered and scattered hides; compute loses 0.189 s of each second of it.
    stack, cluster, given = many_layers(1e11)
    network = group_prices(cluster)
    plain, slowed = (
        stage_cost(stack, network, replace(given, runtime=RUNTIMES[name]))
        for name in ("meshwright", "fsdp2")
    )
    assert plain.shards is not None
    assert slowed.shards is not None
    assert plain.shards.forward_slowdown_seconds == 0.0
    bytes_moved = [sum(each.message_bytes) for each in slowed.shards.forward_gathers]
    alone = 24 * network.seconds(Collective.ALL_GATHER, ((0, 1, 2, 3),), bytes_moved[0] / 24)
    assert slowed.shards.forward_slowdown_seconds == pytest.approx(0.189 * alone, rel=1e-6)

    def step(own: StageCost, runtime: str) -> float:
        plan = replace(schedule("1f1b", 4), runtime=runtime)
        program = lower_stages(stack.graph, cluster, plan, (stage([[0], [1], [2], [3]], own),))
        return run_program(program, cluster).device_seconds

    more = step(slowed, "fsdp2") - step(plain, "meshwright")
    both = slowed.shards.forward_slowdown_seconds + slowed.shards.backward_slowdown_seconds
    assert more == pytest.approx(4 * both, rel=0.05)


def test_a_slower_network_makes_zero_3_fall_behind_a_pipeline() -> None:
    # Where the gathers of ZeRO 3 just hide, a network of three quarters shows them; tensor teams in
    # hosts and stages between them hardly notice.
    graph = gpt(
        hidden=2048, heads=16, layers=16, sequence=1024, vocabulary=4096, positions=1024, batch=32,
        precision="bf16",
    )  # fmt: skip

    def seconds(rate: float, **degrees: Any) -> float:
        cluster = hierarchical(
            devices_per_host=4, branching=[4], device_bytes_per_second=3e11,
            host_bytes_per_second=rate, device_type="a100-80",
        )  # fmt: skip
        plan = Plan.from_degrees(graph, cluster, **degrees)
        return simulate(graph, cluster, plan, granularity="layer").device_seconds

    zero: dict[str, Any] = {"data": 16, "zero": 3, "microbatches": 2}
    staged: dict[str, Any] = {"tensor": 4, "pipeline": 4, "microbatches": 16}
    wide, narrow = 4e10, 3e10
    assert seconds(narrow, **zero) > 1.05 * seconds(wide, **zero)
    assert seconds(narrow, **staged) < 1.02 * seconds(wide, **staged)
