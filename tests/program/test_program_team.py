"""Steps of plans with teams, worked out by hand from what their stages cost."""

from dataclasses import replace

import numpy as np
import pytest
from team_stages import GRAPH, cost, schedule, stage, together

from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.plan.plan import Allocation, Plan
from meshwright.program.program import Kind, Program
from meshwright.program.team.lower import lower_stages
from meshwright.program.team.stage import TeamStage
from meshwright.simulate.simulate import run_program, simulate
from meshwright.simulate.timeline import Timeline
from meshwright.units import MIB
from small import TYPE, connected, layers, rails, stages, star

SHARINGS = pytest.mark.parametrize("sharing", ["none", "fair"])


def lower_given(cluster: Cluster, plan: Plan, *given: TeamStage) -> Program:
    return lower_stages(GRAPH, cluster, plan, given)


def run_given(cluster: Cluster, plan: Plan, *given: TeamStage, sharing: str = "fair") -> Timeline:
    return run_program(lower_given(cluster, plan, *given), cluster, sharing=sharing)


@SHARINGS
def test_two_stages_of_two_teams_of_two(sharing: str) -> None:
    # Two bytes go from team to team as one by each of two links, in 1 s; forward 1 s, backward 2.
    # Stage 0: F0 0-1, F1 1-2,                B0 6-8, F2 8-9,  B1 9-11,            B2 14-16.
    # Stage 1:         F0 2-3, B0 3-5, F1 5-6, B1 6-8,         F2 10-11, B2 11-13.
    first = stage([[0, 1], [2, 3]], cost(output=2, update=0.5))
    second = stage([[4, 5], [6, 7]], cost(update=0.5))
    timeline = run_given(connected(8), schedule("1f1b", 3), first, second, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(16.5)
    assert timeline.busy_seconds == pytest.approx(np.full(8, 9.5))


@SHARINGS
def test_replicas_synchronise_after_the_last_backward_and_before_the_update(sharing: str) -> None:
    # As above up to 16; then two rings of two devices at once, 2 bytes each: 2 x 1 byte.
    gradients = together("all_reduce", [[0, 2], [1, 3]], 2.0)
    first = stage([[0, 1], [2, 3]], cost(output=2, update=0.5, synchronisations=(gradients,)))
    second = stage([[4, 5], [6, 7]], cost(update=0.5))
    timeline = run_given(connected(8), schedule("1f1b", 3), first, second, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(18.5)
    assert timeline.attribution["collective"] == pytest.approx(2)


@SHARINGS
def test_gradients_travel_in_buckets_while_backward_runs(sharing: str) -> None:
    # Four buckets of 25 MiB, half a second each between two devices. F 0-1; pieces of backward end
    # at 1.5, 2, 2.5, 3, their buckets half a second later; of four updates of 0.1 s three run from
    # 3 on, the last one from 3.5.
    gradients = together("all_reduce", [[0, 1]], 100.0 * MIB)
    only = stage([[0], [1]], cost(update=0.4, synchronisations=(gradients,)))
    timeline = run_given(
        connected(2, bandwidth=50.0 * MIB), schedule("gpipe", 1), only, sharing=sharing
    )
    assert timeline.step_seconds == pytest.approx(3.6)


@pytest.mark.parametrize(("message", "pieces"), [(10, 1), (26, 2), (100, 4), (4000, 8)])
def test_there_are_at_most_eight_buckets(message: float, pieces: int) -> None:
    gradients = together("all_reduce", [[0, 1]], message * MIB)
    only = stage([[0], [1]], cost(synchronisations=(gradients,)))
    rows = lower_given(connected(2), schedule("gpipe", 2), only).instructions
    reduces = rows[rows["kind"] == Kind.ALL_REDUCE]
    assert len(np.unique(reduces["task"])) == pieces
    assert reduces["bytes"].sum() == pytest.approx(2 * message * MIB)


def test_parameters_are_gathered_after_the_update_and_end_the_step() -> None:
    # ZeRO 1: F 0-1, B 1-3; half of 4 bytes scattered until 5, update until 5.5, half of 6 gathered.
    scatter = together("reduce_scatter", [[0, 1]], 4.0)
    gather = together("all_gather", [[0, 1]], 6.0)
    only = stage([[0], [1]], cost(update=0.5, synchronisations=(scatter,), gathers=(gather,)))
    timeline = run_given(connected(2), schedule("gpipe", 1), only)
    assert timeline.step_seconds == pytest.approx(8.5)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
@pytest.mark.parametrize(("num_stages", "microbatches"), [(2, 3), (4, 4), (3, 8)])
def test_the_bubble_is_one_less_than_stages_over_all_slots(
    kind: str, num_stages: int, microbatches: int
) -> None:
    given = [stage([[2 * s, 2 * s + 1]], cost()) for s in range(num_stages)]
    timeline = run_given(connected(2 * num_stages), schedule(kind, microbatches), *given)
    slots = microbatches + num_stages - 1
    assert timeline.step_seconds == pytest.approx(3 * slots)
    assert 1 - timeline.device_utilisation == pytest.approx(
        np.full(2 * num_stages, (num_stages - 1) / slots)
    )


def test_weight_gradients_fill_the_bubble() -> None:
    # F, B and W a second each. Stage 0: F0 F1 _ B0 W0 B1 W1; stage 1: _ F0 B0 F1 B1 W0 W1.
    given = [stage([[2 * s, 2 * s + 1]], cost(weight=1.0)) for s in range(2)]
    timeline = run_given(connected(4), schedule("zero-bubble", 2), *given)
    assert timeline.step_seconds == pytest.approx(7)


def test_what_weight_gradients_need_is_held_until_then() -> None:
    # As above. Of 3 bytes saved one is needed for W, with half a byte that B makes. Stage 0 has
    # both microbatches and B0's own at 3; stage 1 has at 4 what W0 waits for, and all of the other.
    each = cost(weight=1.0, saved=3.0)
    given = [stage([[s]], each, deferred=(1.0, 0.5)) for s in range(2)]
    timeline = run_given(connected(2), schedule("zero-bubble", 2), *given)
    assert timeline.peak_bytes == (6.5, 5.0)


@SHARINGS
def test_teams_of_other_size_take_what_rows_they_share(sharing: str) -> None:
    # Each of two devices sends 4 bytes as 2 and 2 to a team of two: F0 0-1, F1 3-4, B1 4-6 and as
    # long back: B0 8-10.
    first = stage([[0], [1]], cost(output=4))
    second = stage([[2, 3]], cost())
    timeline = run_given(connected(4), schedule("1f1b", 1), first, second, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(10)


@pytest.mark.parametrize(("sharing", "seconds"), [("none", 10), ("fair", 14)])
def test_flows_of_one_transfer_share_the_links_that_they_have_in_common(
    sharing: str, seconds: float
) -> None:
    # As before, but a device has one link for both its flows: 4 s to go. On the way back each
    # member's link carries two transfers' halves.
    first = stage([[0], [1]], cost(output=4))
    second = stage([[2, 3]], cost())
    timeline = run_given(star([1.0] * 4), schedule("1f1b", 1), first, second, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(seconds)


def test_unequal_replicas_have_their_own_times_and_rows() -> None:
    # A quarter and three quarters: 1 and 3 bytes. The whole is there at 3 + 3; B1 ends at 9, its
    # gradients of 1 and 3 bytes arrive at 10 and 12, and take 2 and 6 s.
    costs = (cost(output=1), cost(forward=3, backward=6, output=3))
    first = stage([[0], [1]], costs, shares=(0.25, 0.75))
    timeline = run_given(connected(3), schedule("gpipe", 1), first, stage([[2]], cost()))
    assert timeline.step_seconds == pytest.approx(18)


def test_side_inputs_travel_forward_only() -> None:
    # 2 + 1 bytes forward: F1 4-5, B1 5-7; 2 bytes back: B0 9-11.
    first = stage([[0]], cost(output=2), side=1.0)
    timeline = run_given(connected(2), schedule("gpipe", 1), first, stage([[1]], cost()))
    assert timeline.step_seconds == pytest.approx(11)


def test_one_team_passes_to_itself_without_a_transfer() -> None:
    first, second = (stage([[0, 1]], cost(output=9)) for _ in range(2))
    timeline = run_given(connected(2), schedule("gpipe", 2), first, second)
    assert timeline.step_seconds == pytest.approx(12)
    assert not (timeline.program.instructions["kind"] == Kind.SEND).any()


def test_latency_is_the_slowest_flows() -> None:
    # F0 0-1; 0.5 s and a byte by each link; F1 2.5-3.5, B1 -5.5; back until 7, B0 until 9.
    first, second = stage([[0, 1]], cost(output=2)), stage([[2, 3]], cost())
    timeline = run_given(connected(4, latency=0.5), schedule("gpipe", 1), first, second)
    assert timeline.step_seconds == pytest.approx(9)


@SHARINGS
def test_allocations_hold_for_teams(sharing: str) -> None:
    # From d0 to d2 half a byte a second are allocated: forward takes 2 s instead of 1.
    plan = replace(
        schedule("gpipe", 1),
        allocations=(Allocation(source="h0", target="h2", bytes_per_second=0.5),),
    )
    first, second = stage([[0, 1]], cost(output=2)), stage([[2, 3]], cost())
    timeline = run_given(connected(4), plan, first, second, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(1 + 2 + 3 + 1 + 2)


@pytest.mark.parametrize(("sharing", "there"), [("none", 1.0), ("fair", 2.0)])
def test_allocations_over_several_ways_hold_for_teams(sharing: str, there: float) -> None:
    # From h0 to h1 a byte a second over two ways: of the two flows of a byte each has it all, or
    # half of it. Back they have a rail each, 1 s.
    allocation = Allocation(source="h0", target="h1", bytes_per_second=1.0, shares=(0.75, 0.25))
    plan = replace(schedule("gpipe", 1), allocations=(allocation,))
    first, second = stage([[0, 1]], cost(output=2)), stage([[2, 3]], cost())
    timeline = run_given(rails(2, per_host=2), plan, first, second, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(1 + there + 3 + 1 + 2, rel=1e-6)


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
@pytest.mark.parametrize("replicas", [1, 2])
@SHARINGS
def test_without_teams_steps_take_what_plain_plans_take(
    kind: str, replicas: int, sharing: str
) -> None:
    graph = layers(4, weight=1.0, activation=2.0, gradient=3.0, batch=8)
    cluster = connected(4 * replicas)
    numbers = [[s * replicas + r for r in range(replicas)] for s in range(4)]
    plan = stages(graph, [[f"d{k}" for k in each] for each in numbers], kind, 4)
    rows = 1 / (4 * replicas)
    given = []
    for devices in numbers:
        gradients = (together("all_reduce", [devices], 3.0),) if replicas > 1 else ()
        each = cost(
            forward=rows,
            backward=3 * rows,
            weight=rows,
            output=2 * rows,
            synchronisations=gradients,
        )
        given.append(stage([[k] for k in devices], each))
    timeline = run_program(lower_stages(graph, cluster, plan, given), cluster, sharing=sharing)
    plain = simulate(graph, cluster, plan, sharing=sharing, granularity="part")
    assert timeline.step_seconds == pytest.approx(plain.step_seconds)
    assert timeline.busy_seconds == pytest.approx(plain.busy_seconds)


@pytest.mark.parametrize("microbatches", [2, 4, 6])
def test_interleaved_stages_take_what_plain_plans_take(microbatches: int) -> None:
    graph = layers(4, activation=2.0, batch=24)
    devices = [["d0"], ["d1"], ["d0"], ["d1"]]
    plan = stages(graph, devices, "interleaved-1f1b", microbatches)
    rows = 1 / microbatches
    each = cost(forward=rows, backward=2 * rows, output=2 * rows)
    given = [stage([[s % 2]], each) for s in range(4)]
    timeline = run_given(connected(2), plan, *given)
    plain = simulate(graph, connected(2), plan, granularity="part")
    assert timeline.step_seconds == pytest.approx(plain.step_seconds)


def test_members_are_as_busy_and_as_full_as_the_first() -> None:
    gradients = together("all_reduce", [[0, 4], [1, 5], [2, 6], [3, 7]], 2.0)
    every = cost(saved=3, state=7, synchronisations=(gradients,))
    only = stage([[0, 1, 2, 3], [4, 5, 6, 7]], every)
    timeline = run_given(connected(9), schedule("gpipe", 2), only)
    assert timeline.busy_seconds.tolist() == [6.0] * 8 + [0.0]
    assert timeline.peak_bytes == (13.0,) * 8 + (0.0,)
    assert timeline.memory(3)[1].tolist() == timeline.memory(0)[1].tolist()


def test_as_many_microbatches_are_held_as_are_in_flight() -> None:
    # 1F1B of two stages: two in flight on the first, one on the second. Besides 5 that are always
    # there and 1 while an action runs, the first holds 3 each and an output of 2 until it is sent:
    # F0 0-1, sent 1-3, F1 1-2: 5 + 1 + 6 + 4. The second's 3 saved have the received 2 in them;
    # F0 3-4, then B0 makes a gradient of 2 and F1's input arrives at 5: 5 + 1 + 3 + 2 + 2.
    first = stage([[0, 1]], cost(output=2, saved=3, workspace=1, state=5))
    second = stage([[2, 3]], cost(saved=3, workspace=1, state=5))
    timeline = run_given(star([0.5, 0.5, 0.5, 0.5]), schedule("1f1b", 2), first, second)
    assert timeline.peak_bytes == (16, 16, 13, 13)


def test_scattered_members_hold_a_share_of_what_is_passed_on() -> None:
    whole, shared = (
        run_given(
            connected(4),
            schedule("gpipe", 1),
            stage([[0, 1]], cost(output=2, scattered=scattered)),
            stage([[2, 3]], cost(scattered=scattered)),
        ).peak_bytes
        for scattered in (False, True)
    )
    assert whole == (2, 2, 4, 4)  # an output, then a gradient; an input with its gradient
    assert shared == (1, 1, 2, 2)


def test_what_teams_say_to_each_other_shows_in_the_attribution() -> None:
    only = stage([[0, 1]], cost(calls=(0.25, 0.5)))
    timeline = run_given(connected(2), schedule("gpipe", 2), only)
    assert timeline.step_seconds == pytest.approx(6)
    assert timeline.call_seconds == pytest.approx(np.array([1.5, 1.5]))
    assert timeline.attribution["collective"] == pytest.approx(1.5)
    assert timeline.attribution["compute"] == pytest.approx(4.5)


def test_hosts_that_launch_longer_bound_the_step() -> None:
    cluster = replace(connected(2), types={"unit": replace(TYPE, is_asynchronous=True)})
    only = stage([[0, 1]], cost(host=10.0))
    timeline = run_given(cluster, schedule("gpipe", 2), only)
    assert timeline.is_launch_bound
    assert timeline.step_seconds == pytest.approx(20)


@SHARINGS
@pytest.mark.parametrize(("runtime", "seconds"), [("meshwright", 10.5), ("megatron", 8.5)])
def test_tied_weights_wait_for_the_gradients_of_the_other_end(
    runtime: str, seconds: float, sharing: str
) -> None:
    # F0 0-1, F1 1-2, B1 2-4, B0 4-6. The last stage's 2 bytes are there at 6, the first's at 8; the
    # sum, where only the last stage makes it, is back at 10.
    given = [stage([[number]], cost(update=0.5)) for number in range(2)]
    cluster = connected(2)
    plan = replace(schedule("gpipe", 1), runtime=runtime)
    program = lower_stages(GRAPH, cluster, plan, given, tied_bytes=2.0)
    timeline = run_program(program, cluster, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(seconds)


def test_every_replica_of_tied_stages_has_a_partner() -> None:
    # One team of the first stage has two copies of 6 bytes, for its context members; each of three
    # replicas of the last has all 6, also under ZeRO, which leaves such updates whole.
    scatter = together("reduce_scatter", [[2, 3, 4]], 6.0)
    first = stage([[0, 1]], cost(), context=2)
    last = stage([[2], [3], [4]], cost(synchronisations=(scatter,)))
    program = lower_stages(GRAPH, connected(5), schedule("gpipe", 1), (first, last), tied_bytes=6.0)
    rows = program.instructions
    sends = rows[(rows["kind"] == Kind.SEND) & (rows["tensor"] < 0)]
    moves = [(int(row["device"]), int(row["peer"]), float(row["bytes"])) for row in sends]
    assert moves == [(0, 2, 12), (0, 3, 12), (0, 4, 12), (2, 0, 6), (3, 0, 6), (4, 0, 6)]


def test_one_team_holds_tied_weights_once() -> None:
    given = [stage([[0, 1]], cost()) for _ in range(2)]
    program = lower_stages(GRAPH, connected(2), schedule("gpipe", 1), given, tied_bytes=6.0)
    assert not (program.instructions["kind"] == Kind.SEND).any()


def test_stages_on_one_device_have_one_team() -> None:
    given = (stage([[0, 1], [2, 3]], cost()), stage([[0, 2], [1, 3]], cost()))
    with pytest.raises(InputError) as caught:
        lower_given(connected(4), schedule("gpipe", 1), *given)
    assert str(caught.value) == (
        "part 1: device 'd2' must be in the same group in every part, stands in another one before"
    )


def test_units_are_described_by_stage_and_piece() -> None:
    gradients = together("all_reduce", [[0, 1]], 50.0 * MIB)
    only = stage([[0], [1]], cost(synchronisations=(gradients,)))
    program = lower_given(connected(2), schedule("gpipe", 2), only)
    said = [program.describe(number) for number in range(0, program.num_instructions, 2)]
    assert said == [
        "stage 0 forward [mb 0]",
        "stage 0 forward [mb 1]",
        "stage 0 backward [mb 0]",
        "stage 0 backward 1/2 [mb 1]",
        "stage 0 backward 2/2 [mb 1]",
        "stage 0 update 1/2 [mb 0]",
        "stage 0 update 2/2 [mb 0]",
        "all_reduce gradients [mb 0]",
        "all_reduce gradients [mb 0]",
    ]


def test_a_pipeline_of_a_thousand_devices_is_full_but_for_its_ends() -> None:
    # 16 stages of 8 teams of 8 and 256 microbatches.
    cluster = load_cluster("h100-spineleaf-1024")
    given = []
    for number in range(16):
        teams = np.arange(64 * number, 64 * (number + 1)).reshape(8, 8)
        gradients = together("all_reduce", teams.T.tolist(), 2e9)
        given.append(stage(teams.tolist(), cost(output=5e7, synchronisations=(gradients,))))
    plan = schedule("1f1b", 256)
    timeline = run_program(lower_given(cluster, plan, *given), cluster)
    assert timeline.step_seconds == pytest.approx(3 * (256 + 15), rel=0.01)
