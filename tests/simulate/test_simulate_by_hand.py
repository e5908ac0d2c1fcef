"""Step times worked out by hand. Bandwidth is one byte a second unless said: bytes are seconds."""

import pytest

from link_use import link_utilisation
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Allocation, Discipline, Part, Plan, Sync, place_ops
from meshwright.program.program import Kind
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from small import connected, dag, layers, rails, stages, star

US = 1e-6


def placed(graph: Graph, devices: list[int], priorities: tuple[float, ...] = ()) -> Plan:
    names = [f"d{i}" for i in range(max(devices) + 1)]
    return place_ops(graph.op_names, devices, names, priorities)


def seconds(graph: Graph, cluster: Cluster, plan: Plan, sharing: str = "none") -> float:
    return simulate(graph, cluster, plan, sharing=sharing).step_seconds


def fork() -> Graph:
    """QuickP's example: an op of 5 us feeds ops of 10 and 5 us, 5 us of transfer to each."""
    return dag([5 * US, 10 * US, 5 * US], {(0, 1): 5 * US, (0, 2): 5 * US})


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([0, 0, 0], 20 * US),  # 5 + 10 + 5, one after the other
        ([0, 0, 1], 15 * US),  # the short one leaves: max(5 + 10, 5 + 5 + 5)
        ([0, 1, 0], 20 * US),  # the long one leaves: 5 + 5 + 10
        ([0, 1, 1], 25 * US),  # both leave: 5 + 5 + 10 + 5
    ],
)
@pytest.mark.parametrize("sharing", ["none", "fair"])
def test_fork_takes_15_us_at_best_on_two_devices_and_20_on_one(
    devices: list[int], expected: float, sharing: str
) -> None:
    # Two tensors to d1 go one after the other under "fair", while it computes on the first.
    assert seconds(fork(), connected(2), placed(fork(), devices), sharing) == pytest.approx(
        expected
    )


def test_chain_over_two_devices_pays_for_its_transfer() -> None:
    graph = dag([3, 4, 5], {(0, 1): 2, (1, 2): 7})
    assert seconds(graph, connected(2), placed(graph, [0, 1, 1])) == 3 + 2 + 4 + 5


def test_join_waits_for_the_slower_way() -> None:
    graph = dag([3, 4, 1], {(0, 2): 9, (1, 2): 1})
    # d0: 3, sent until 12; d1: 4, its tensor is already there: max(12, 4) + 1
    assert seconds(graph, connected(2), placed(graph, [0, 1, 1])) == 13


def test_latency_counts_once_a_transfer() -> None:
    graph = dag([1, 1], {(0, 1): 2})
    assert seconds(graph, connected(2, latency=0.5), placed(graph, [0, 1])) == 1 + 0.5 + 2 + 1


def test_transfers_overlap_with_compute() -> None:
    # d0 sends for 10 s while it computes o1 for 6 s; d1 needs both.
    graph = dag([1, 6, 1], {(0, 2): 10, (1, 2): 1})
    # o0 done 1, its tensor at 11; o1 done 7, its tensor at 8 (or shared 9): o2 11..12
    assert seconds(graph, connected(2), placed(graph, [0, 0, 1])) == 12


def test_a_tensor_with_two_readers_on_a_device_is_sent_once() -> None:
    builder = GraphBuilder("two readers")
    ops = [builder.add_op(f"o{i}", seconds={"any": 1.0}) for i in range(3)]
    builder.add_tensor(ops[0], 4.0, ops[1:])
    graph = builder.finish()
    timeline = simulate(graph, connected(2), placed(graph, [0, 1, 1]), sharing="fair")
    assert (timeline.program.instructions["kind"] == Kind.SEND).sum() == 1
    assert timeline.step_seconds == 1 + 4 + 1 + 1


def test_two_tensors_to_one_device_go_one_after_the_other() -> None:
    graph = dag([0, 1, 1], {(0, 1): 4, (0, 2): 4})
    plan = placed(graph, [0, 1, 1])
    assert seconds(graph, connected(2), plan, "none") == 4 + 1 + 1
    assert seconds(graph, connected(2), plan, "fair") == 8 + 1  # the first reader is done by 5


def test_the_smaller_of_two_flows_leaves_first_and_the_larger_speeds_up() -> None:
    # Half of d0's way up each: 1 byte is through at 2, then 2 of 3 bytes are left: 2 + 2 = 4.
    graph = dag([0, 1, 1], {(0, 1): 1, (0, 2): 3})
    timeline = simulate(graph, star([1, 1, 1]), placed(graph, [0, 1, 2]), sharing="fair")
    receives = timeline.program.instructions["kind"] == Kind.RECEIVE
    assert sorted(timeline.finish[receives]) == [2, 4]


def test_a_late_flow_takes_its_share_from_then_on() -> None:
    # 4 bytes from 0 on, 1 byte from 1 on: 1 of 4 is through at 1, then half each: the small one is
    # through at 3, the large one has 2 left and the link alone: 5.
    graph = dag([0, 1, 0, 0], {(0, 2): 4, (1, 3): 1})
    timeline = simulate(graph, star([1, 1, 1]), placed(graph, [0, 0, 1, 2]), sharing="fair")
    receives = timeline.program.instructions["kind"] == Kind.RECEIVE
    assert sorted(timeline.finish[receives]) == [3, 5]


def test_max_min_gives_the_unbottlenecked_flow_the_rest() -> None:
    # d0 (4 B/s up) sends 3 bytes to d1 (1 B/s down) and 9 to d2 (4 B/s down): 1 and 3 B/s.
    graph = dag([0, 0, 0], {(0, 1): 3, (0, 2): 9})
    timeline = simulate(graph, star([4, 1, 4]), placed(graph, [0, 1, 2]), sharing="fair")
    assert timeline.step_seconds == pytest.approx(3)


def test_priority_runs_the_more_urgent_of_two_ready_ops() -> None:
    # o1 feeds a long op on d1, o2 does not: with o1 first 1 + 2 + 1 + 9, with o2 first 2 more.
    graph = dag([1, 2, 2, 9], {(0, 1): 0, (0, 2): 0, (1, 3): 1})
    cluster = connected(2)
    assert seconds(graph, cluster, placed(graph, [0, 0, 0, 1], (4, 3, 2, 1))) == 13
    assert seconds(graph, cluster, placed(graph, [0, 0, 0, 1], (4, 2, 3, 1))) == 15


def test_fifo_runs_what_was_ready_first_whatever_its_priority() -> None:
    # While o0 (4 s) runs on d0, o2 becomes ready at 2 and o4 at 3: FIFO takes o2 before o4.
    graph = dag([4, 2, 5, 1, 1], {(1, 2): 0, (1, 3): 0, (3, 4): 0})
    devices = [0, 1, 0, 1, 0]
    priorities = (9, 9, 1, 9, 2)
    plan = place_ops(graph.op_names, devices, ["d0", "d1"], priorities, Discipline.FIFO)
    timeline = simulate(graph, connected(2, bandwidth=1e30), plan, sharing="none")
    start = dict(zip(graph.op_names, timeline.start[: graph.num_ops], strict=True))
    assert (start["o2"], start["o4"]) == (4, 9)
    plan = place_ops(graph.op_names, devices, ["d0", "d1"], priorities, Discipline.PRIORITY)
    timeline = simulate(graph, connected(2, bandwidth=1e30), plan, sharing="none")
    start = dict(zip(graph.op_names, timeline.start[: graph.num_ops], strict=True))
    assert (start["o2"], start["o4"]) == (5, 4)


def test_order_waits_for_its_turn_and_can_so_be_faster() -> None:
    # On d1: o1 (10 s) is ready at 0, o3 (1 s) at 1 and feeds 10 s on d0. Waiting 1 s for o3 gives
    # 1 + 1 + 10 = 12 on both; starting o1 at once delays o3 to 10: 10 + 1 + 10 = 21.
    graph = dag([1, 10, 1, 10], {(0, 2): 0, (2, 3): 0})
    devices = [0, 1, 1, 0]
    cluster = connected(2, bandwidth=1e30)
    for discipline, expected in ((Discipline.ORDER, 12), (Discipline.PRIORITY, 21)):
        plan = place_ops(graph.op_names, devices, ["d0", "d1"], (4, 1, 3, 2), discipline)
        assert seconds(graph, cluster, plan) == expected


def test_an_order_against_the_graph_is_refused_by_name() -> None:
    graph = dag([1, 1], {(0, 1): 0})
    plan = place_ops(graph.op_names, [0, 0], ["d0"], (1, 2), Discipline.ORDER)
    with pytest.raises(InputError, match="'o0' on d0 and 1 other instructions wait for each other"):
        simulate(graph, connected(1), plan)


def test_gpipe_over_two_stages_with_transfers() -> None:
    # Microbatches take 1 forward, 2 backward on a stage and 1 between stages (2 in all each).
    # d0: F 0-1 1-2; d1: F 2-3 3-4, B 4-6 6-8; arrive 7, 9: d0: B 7-9, 9-11.
    graph = layers(2, forward=2, backward=4, activation=2)
    plan = stages(graph, [["d0"], ["d1"]], "gpipe", 2)
    for sharing in ("none", "fair"):
        for granularity in ("op", "part"):
            timeline = simulate(graph, connected(2), plan, sharing=sharing, granularity=granularity)
            assert timeline.step_seconds == 11


def test_one_f_one_b_over_two_stages_with_transfers() -> None:
    # d0: F 0-1 1-2; d1: F 2-3 B 3-5 F 5-6 B 6-8 (its second input came at 3); gradients at 6 and 9:
    # d0: B 6-8 9-11.
    graph = layers(2, forward=2, backward=4, activation=2)
    plan = stages(graph, [["d0"], ["d1"]], "1f1b", 2)
    assert seconds(graph, connected(2), plan) == 11


def test_data_parallel_halves_compute_and_adds_a_ring() -> None:
    # Two replicas: forward and backward (1 + 2) / 2, then 2 (p - 1) / p x 6 bytes = 6 s.
    graph = layers(1, gradient=6)
    plan = stages(graph, [["d0", "d1"]], sync=Sync.RING)
    for granularity in ("op", "part"):
        timeline = simulate(graph, connected(2), plan, granularity=granularity)
        assert timeline.step_seconds == pytest.approx(1.5 + 6)


def test_unequal_shares_finish_together_on_unequal_devices() -> None:
    # d1 is twice as slow; with 2/3 and 1/3 of the batch both compute for 2 s, then the ring.
    builder = GraphBuilder("shares")
    op = builder.add_op("f0", phase=Phase.BACKWARD, seconds={"fast": 3.0, "slow": 6.0})
    update = builder.add_op("u0", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.0})
    builder.add_tensor(op, 6.0, [update], partial=True, fixed_bytes=6.0)
    graph = builder.finish()
    cluster = connected(2, types=["fast", "slow"])
    plan = stages(graph, [["d0", "d1"]], shares=(2 / 3, 1 / 3))
    assert seconds(graph, cluster, plan) == pytest.approx(2 + 6)


def test_parameter_server_receives_sums_and_broadcasts() -> None:
    # Three replicas compute 1 s each; two send 6 bytes to the first on their own links (6 s), the
    # sum is free; the broadcast to two others on links of their own costs at least 6 s more.
    graph = layers(1, gradient=6)
    plan = stages(graph, [["d0", "d1", "d2"]], sync=Sync.PARAMETER_SERVER)
    timeline = simulate(graph, connected(3), plan, sharing="fair")
    rows = timeline.program.instructions
    assert timeline.finish[rows["kind"] == Kind.SUM] == pytest.approx(1 + 6)
    assert timeline.step_seconds >= 1 + 6 + 6


def test_parameter_servers_take_turns() -> None:
    # Two layers, 40 MB of gradient each, a bucket each: the first goes to d0, the second to d1.
    # Backward of layer 1 ends at 1 s, of layer 0 at 2 s; 40 MB take 4 s, and d1 sends to d0 while
    # d0 sends to d1. d0 has the first bucket's sum at 5 and sends it back until 9; d1, which has
    # all of the second at 6, is in that broadcast and sums up after it, then sends until 13.
    graph = layers(2, forward=0.0, backward=2.0, gradient=4e7)
    plan = stages(graph, [["d0", "d1"]], sync=Sync.PARAMETER_SERVER)
    timeline = simulate(graph, connected(2, bandwidth=1e7), plan, sharing="none")
    rows, finish = timeline.program.instructions, timeline.finish
    sums = rows["kind"] == Kind.SUM
    assert dict(zip(rows["device"][sums].tolist(), finish[sums], strict=True)) == pytest.approx(
        {0: 5, 1: 9}, rel=1e-6
    )
    roots = [timeline.program.groups[each] for each in rows["group"][rows["group"] >= 0][::2]]
    assert roots == [(0, 1), (1, 0)]
    assert timeline.step_seconds == pytest.approx(13, rel=1e-6)


def test_replicas_that_duplicate_run_all_of_the_batch_and_exchange_nothing() -> None:
    # Forward 1 s and the gradient 3 s on both of them.
    graph = weight_gradient()
    plan = stages(graph, [["d0", "d1"]], sync=Sync.DUPLICATE)
    timeline = simulate(graph, connected(2), plan)
    rows = timeline.program.instructions
    assert timeline.step_seconds == pytest.approx(1 + 3)
    assert (rows["kind"] == Kind.COMPUTE).all()
    assert (rows["rows_from"] == 0).all()
    assert (rows["rows_to"] == 1).all()


def test_duplicated_gradients_gather_their_inputs_and_move_no_gradient() -> None:
    # Forward 1 / 2 s on each of two replicas, then each gathers the other's half of a 4-byte
    # activation (2 s) and computes the whole gradient, 3 s; nothing of the 100-byte gradient moves.
    graph = weight_gradient()
    devices = ("d0", "d1")
    around = Part(ops=("f0", "u0"), devices=devices)
    plan = Plan(parts=(around, Part(ops=("w0",), devices=devices, sync=Sync.DUPLICATE)))
    timeline = simulate(graph, connected(2), plan)
    assert timeline.step_seconds == pytest.approx(0.5 + 2 + 3)
    # Each holds its half of the activation and the gathered one, then the gradient, too.
    assert timeline.peak_bytes == pytest.approx((4 + 100, 4 + 100))


@pytest.mark.parametrize(
    ("sources", "targets", "sends", "expected"),
    [
        # Each has all rows: halves of them are where they are read, for nothing.
        (["d0", "d1"], ["d1", "d0"], [], 1 + 0.5),
        # Halves go out from one each.
        (["d0", "d1"], ["d2", "d3"], [3, 3], 1 + 3 + 0.5),
        # The third on d1 is there; the others come from d0, d0 and d1 in turn.
        (["d0", "d1"], ["d1", "d2", "d3"], [2, 2], 1 + 2 + 1 / 3),
        # One reader of the whole batch gets it from one of them.
        (["d0", "d1"], ["d2"], [6], 1 + 6 + 1),
    ],
)
def test_readers_take_their_rows_of_what_replicas_duplicate(
    sources: list[str], targets: list[str], sends: list[float], expected: float
) -> None:
    graph = dag([1, 1], {(0, 1): 6})
    parts = (
        Part(ops=("o0",), devices=tuple(sources), sync=Sync.DUPLICATE),
        Part(ops=("o1",), devices=tuple(targets)),
    )
    timeline = simulate(graph, connected(4), Plan(parts=parts), sharing="none")
    rows = timeline.program.instructions
    picked = rows[rows["kind"] == Kind.SEND]
    assert sorted(picked["bytes"]) == pytest.approx(sends)
    assert len(set(picked["device"].tolist())) == min(len(picked), len(sources))
    assert (rows["kind"] == Kind.CONCATENATE).sum() == 0
    assert timeline.step_seconds == pytest.approx(expected)


def test_a_reader_takes_what_is_duplicated_from_its_own_host() -> None:
    # d0 and d2 hold it, on hosts h0 and h1; d1 is on h0, d3 on h1.
    graph = dag([1, 1], {(0, 1): 6})
    parts = (
        Part(ops=("o0",), devices=("d0", "d2"), sync=Sync.DUPLICATE),
        Part(ops=("o1",), devices=("d3", "d1")),
    )
    rows = simulate(graph, rails(2, per_host=2), Plan(parts=parts)).program.instructions
    sends = rows[rows["kind"] == Kind.SEND]
    pairs = zip(sends["device"].tolist(), sends["peer"].tolist(), strict=True)
    assert sorted(pairs) == [(0, 1), (2, 3)]


def test_what_forward_makes_of_a_loss_is_not_added_up_over_replicas() -> None:
    # Forward 1/2 s, the loss 1/2 s, twice that number 1 s, each of its own half of the batch.
    builder = GraphBuilder("loss")
    f = builder.add_op("f0", seconds={"any": 1.0})
    loss = builder.add_op("l0", split=Split.SUM, seconds={"any": 1.0})
    twice = builder.add_op("t0", split=Split.NONE, seconds={"any": 1.0})
    builder.add_tensor(f, 4.0, [loss])
    builder.add_tensor(loss, 4.0, [twice], fixed_bytes=4.0)
    graph = builder.finish()
    timeline = simulate(graph, connected(2), stages(graph, [["d0", "d1"]]))
    assert (timeline.program.instructions["kind"] == Kind.COMPUTE).all()
    assert timeline.step_seconds == pytest.approx(0.5 + 0.5 + 1)


def weight_gradient() -> Graph:
    builder = GraphBuilder("duplicate")
    f = builder.add_op("f0", seconds={"any": 1.0})
    w = builder.add_op("w0", phase=Phase.BACKWARD, split=Split.SUM, seconds={"any": 3.0})
    u = builder.add_op("u0", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.0})
    builder.add_tensor(f, 4.0, [w])
    builder.add_tensor(w, 100.0, [u], fixed_bytes=100.0)
    return builder.finish()


def rows_between(sources: list[str], targets: list[str]) -> Timeline:
    """Two ops of 1 s with 6 bytes between them, each on replicas."""
    graph = dag([1, 1], {(0, 1): 6})
    parts = (Part(ops=("o0",), devices=tuple(sources)), Part(ops=("o1",), devices=tuple(targets)))
    return simulate(graph, connected(5), Plan(parts=parts), sharing="none")


@pytest.mark.parametrize(
    ("sources", "targets", "sends", "joins", "expected"),
    [
        (["d0"], ["d1", "d2"], [3, 3], 0, 1 + 3 + 0.5),  # halves go out
        (["d0", "d1"], ["d2"], [3, 3], 1, 0.5 + 3 + 1),  # halves are joined
        (["d0", "d1"], ["d2", "d3"], [3, 3], 0, 0.5 + 3 + 0.5),  # rows fit one to one
        (["d0", "d1"], ["d1", "d0"], [3, 3], 0, 0.5 + 3 + 0.5),  # crossed over
        (["d0", "d1"], ["d0", "d1"], [], 0, 0.5 + 0.5),  # where they are
        # Thirds of halves: the middle one gets 1/6 from each, the outer ones 1/3 from one.
        (["d0", "d1"], ["d2", "d3", "d4"], [1, 1, 2, 2], 1, 0.5 + 2 + 1 / 3),
    ],
)
def test_replicas_exchange_exactly_the_rows_they_need(
    sources: list[str], targets: list[str], sends: list[float], joins: int, expected: float
) -> None:
    timeline = rows_between(sources, targets)
    rows = timeline.program.instructions
    assert sorted(rows["bytes"][rows["kind"] == Kind.SEND]) == pytest.approx(sends)
    assert (rows["kind"] == Kind.CONCATENATE).sum() == joins
    assert timeline.step_seconds == pytest.approx(expected)


def test_an_allocation_narrows_transfers_between_its_hosts() -> None:
    graph = dag([1, 1], {(0, 1): 4})
    allocations = (Allocation(source="h0", target="h1", bytes_per_second=0.5),)
    plan = Plan(parts=placed(graph, [0, 1]).parts, allocations=allocations)
    for sharing in ("none", "fair"):
        assert seconds(graph, connected(2), plan, sharing) == 1 + 8 + 1


def test_memory_is_freed_after_the_last_reader() -> None:
    # o0 makes 5 bytes for o1 and o2, o1 makes 2 for o2, o2 makes 1: 5, then 7, then 8 in o2.
    builder = GraphBuilder("memory")
    sizes = (5.0, 2.0, 1.0)
    ops = [builder.add_op(f"o{i}", seconds={"any": 1.0}, state_bytes=10.0) for i in range(3)]
    builder.add_tensor(ops[0], sizes[0], ops[1:])
    builder.add_tensor(ops[1], sizes[1], ops[2:])
    builder.add_tensor(ops[2], sizes[2])
    graph = builder.finish()
    timeline = simulate(graph, connected(1), placed(graph, [0, 0, 0]))
    assert timeline.peak_bytes == (30 + 8,)
    when, held = timeline.memory(0)
    assert list(zip(when, held, strict=True)) == [
        (0, 30), (0, 35), (1, 37), (2, 38), (3, 33), (3, 31), (3, 30),
    ]  # fmt: skip


def test_critical_path_names_what_the_step_waited_for() -> None:
    graph = dag([3, 4, 1], {(0, 2): 9, (1, 2): 1})
    timeline = simulate(graph, connected(2), placed(graph, [0, 1, 1]), sharing="none")
    names = [timeline.program.describe(number) for number in timeline.critical_path]
    assert names == ["o0", "send o0 to d1", "o2"]
    assert dict(timeline.attribution) == {"compute": 4, "transfer": 9, "collective": 0, "wait": 0}


def test_utilisation_is_busy_time_over_step_time() -> None:
    graph = dag([3, 1], {(0, 1): 4})
    plan = placed(graph, [0, 1])
    timeline = simulate(graph, connected(2), plan, sharing="fair", with_links=True)
    assert list(timeline.device_utilisation) == [3 / 8, 1 / 8]
    assert sorted(link_utilisation(timeline)) == [0, 4 / 8]


def test_a_buffer_freed_at_the_moment_of_an_allocation_makes_room_despite_rounding() -> None:
    # d0 frees 5 bytes at 0.1 + 0.2 s, which is a bit more than the 0.3 s at which 4 bytes arrive.
    graph = dag([0.1, 0.2, 0.3, 1.0], {(0, 1): 5.0, (2, 3): 4.0})
    plan = place_ops(graph.op_names, [0, 0, 1, 0], ["d0", "d1"])
    assert simulate(graph, connected(2), plan).peak_bytes[0] == 5


def test_what_no_backward_op_reads_is_held_until_the_step_ends() -> None:
    # `mask` saves 100 bytes of the batch and has no backward op: the caller holds them while
    # `update` works in 50 bytes of its own. `layer` saves 30, which `back` lets go of before that.
    builder = GraphBuilder("batch", 1)
    mask = builder.add_op("mask", seconds={"any": 1}, saved_bytes=100)
    layer = builder.add_op("layer", seconds={"any": 1}, saved_bytes=30)
    back = builder.add_op("back", seconds={"any": 1}, phase=Phase.BACKWARD, partner=layer)
    update = builder.add_op(
        "update", seconds={"any": 1}, phase=Phase.UPDATE, split=Split.NONE, workspace_bytes=50
    )
    for source, reader in ((mask, layer), (layer, back), (back, update)):
        builder.add_tensor(source, 0, [reader])
    graph = builder.finish()
    timeline = simulate(graph, connected(1), placed(graph, [0, 0, 0, 0]))
    when, held = timeline.memory(0)
    assert held[when == 2].tolist()[-1] == 130
    assert timeline.peak_bytes == (150,)
