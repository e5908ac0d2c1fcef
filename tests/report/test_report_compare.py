"""Where prediction and measurement part. Bandwidth is one byte a second: bytes are seconds."""

import re
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from measured_run import chain, hosts, run_of
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, place_ops
from meshwright.program.program import Kind
from meshwright.report.breakdown import Breakdown, break_down
from meshwright.report.compare import Comparison, compare
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from small import connected, dag, layers, stages

MB = 1e6


def placed(graph: Graph, devices: list[int]) -> Plan:
    return place_ops(graph.op_names, devices, [f"d{i}" for i in range(max(devices) + 1)])


def two() -> Timeline:
    """o0 for 1 s on d0, 4 s of transfer, o1 for 2 s on d1."""
    graph = dag([1, 2], {(0, 1): 4})
    return simulate(graph, connected(2), placed(graph, [0, 1]))


@cache
def pipeline() -> Timeline:
    graph = layers(4, activation=2, gradient=1)
    plan = stages(graph, [["d0", "d1"], ["d2", "d3"]], "1f1b", 3)
    return simulate(graph, connected(4, bandwidth=3), plan)


def seconds(breakdown: Breakdown) -> tuple[float, ...]:
    return (
        breakdown.compute_seconds,
        breakdown.communication_seconds,
        breakdown.waiting_seconds,
        breakdown.overhead_seconds,
    )


def measured(timeline: Timeline, start: list[float], finish: list[float]) -> Timeline:
    run = run_of(timeline, start=np.array(start), finish=np.array(finish))
    return measured_timeline(timeline.program, run)


def test_a_chain_of_two_devices_waits_for_compute_and_then_for_the_network() -> None:
    first, second = break_down(two())
    # d0: computes for 1 s; then the step goes on: 4 s on the network and 2 s on d1.
    assert seconds(first) == pytest.approx((1, 4, 2, 0))
    assert seconds(second) == pytest.approx((2, 4, 1, 0))


def test_what_starts_late_although_all_is_there_is_overhead() -> None:
    # o0 0.5..2, the transfer 2..7, o1 8..10. Rows: o0, o1, send, receive.
    late = measured(two(), [0.5, 8, 2, 0], [2, 10, 2.5, 7])
    first, second = break_down(late)
    # d0: 0.5 s before o0, although it waits for nothing. After it: the network until 7, d1 until
    # 10. What d1 loses between 7 and 8 is d1's overhead, and d0 waits for it.
    assert seconds(first) == pytest.approx((1.5, 5, 3, 0.5))
    assert seconds(second) == pytest.approx((2, 5, 2, 1))


def test_what_is_sent_late_is_waited_for() -> None:
    # o0 until 1, the send begins at 3: d1 waits for d0 to get round to it.
    late = measured(two(), [0, 7, 3, 0], [1, 9, 7, 7])
    assert seconds(break_down(late)[1]) == pytest.approx((2, 4, 3, 0))


def test_launches_that_take_longer_than_devices_are_overhead() -> None:
    timeline = two()
    object.__setattr__(timeline.program, "host_seconds", np.array([10.0, 0.0]))
    assert [seconds(each)[3] for each in break_down(timeline)] == pytest.approx([3, 3])


@given(data=st.data())
@settings(max_examples=40)
def test_breakdowns_add_up_to_the_step_on_every_device(data: st.DataObject) -> None:
    timeline = pipeline()
    shape = timeline.program.num_instructions
    jitter = data.draw(hnp.arrays(np.float64, (2, shape), elements=st.floats(0, 0.5)))
    start = np.sort(np.stack((timeline.start, timeline.finish)) + jitter, axis=0)
    run = run_of(timeline, start=start[0], finish=start[1])
    for each in (timeline, measured_timeline(timeline.program, run)):
        for breakdown in break_down(each):
            assert min(seconds(breakdown)) >= -1e-12
            assert breakdown.total_seconds == pytest.approx(each.step_seconds)
    for breakdown, busy in zip(break_down(timeline), timeline.busy_seconds, strict=True):
        assert breakdown.compute_seconds == pytest.approx(busy)
        assert breakdown.overhead_seconds == pytest.approx(0, abs=1e-9)


def test_a_prediction_that_came_true_has_nothing_to_report() -> None:
    timeline = pipeline()
    came_true = measured_timeline(timeline.program, run_of(timeline))
    comparison = compare(timeline, came_true, connected(4, bandwidth=3))
    assert comparison.error == pytest.approx(0)
    assert [text for text in comparison.findings if "agree" not in text] == []
    assert sum(abs(each.difference_seconds) for each in comparison.groups) == pytest.approx(0)
    for device in comparison.devices:
        assert seconds(device.predicted) == pytest.approx(seconds(device.measured), abs=1e-9)
    assert comparison.measured.total_seconds == pytest.approx(4 * timeline.step_seconds)


def slower(
    compute: float = 1.0, rate: float = 100 * MB, gradient: float = 0.0, replicas: bool = False
) -> Comparison:
    """A chain of four layers on two hosts at 100 MB/s against one with another `compute` on the
    second host's mm, and another rate."""
    sizes = [4 * MB] * 4
    expected = chain([0.01] * 4, sizes, gradient)
    actual = chain([0.01, 0.01, 0.01 * compute, 0.01], sizes, gradient)
    names = ["h0.d0", "h1.d0"]
    cluster = hosts(100 * MB, 0.0)
    if replicas:
        plan = Plan(parts=(Part(ops=expected.op_names, devices=tuple(names)),))
    else:
        where = [int(int(name[1:]) >= 2) for name in expected.op_names]
        plan = place_ops(expected.op_names, where, names)
    timeline = simulate(expected, cluster, plan)
    real = simulate(actual, hosts(rate, 0.0), plan)
    return compare(timeline, measured_timeline(timeline.program, run_of(real)), cluster)


def test_slow_compute_is_found_with_device_op_and_module() -> None:
    comparison = slower(compute=1.5)
    # f2 takes 15 ms and b2 30: 5 and 10 ms more than predicted, of 60 ms of compute on h1.d0.
    assert comparison.error == pytest.approx(-0.015 / comparison.measured_seconds)
    assert comparison.findings[0] == (
        "the step took 215 ms, predicted 200 ms: the prediction is 7.0% too short"
    )
    found = next(text for text in comparison.findings if text.startswith("compute"))
    assert found == (
        "compute on h1.d0 took 25% longer than predicted (75 ms instead of 60 ms): "
        "mm_backward +10 ms, most in layer2, mm +5 ms, most in layer2"
    )
    assert (comparison.groups[0].sort, comparison.groups[0].name) == ("compute", "mm_backward")
    assert comparison.groups[0].difference_seconds == pytest.approx(0.01)
    assert comparison.groups[0].count == 2
    assert "h0.d0 waited for other devices 75 ms instead of 60 ms" in comparison.findings


def test_slow_transfers_are_found_with_pair_and_rate() -> None:
    comparison = slower(rate=80 * MB)
    texts = [text for text in comparison.findings if text.startswith("transfers")]
    assert sorted(texts) == [
        "transfers h0.d0 -> h1.d0 reached 80 MB/s instead of 100 MB/s",
        "transfers h1.d0 -> h0.d0 reached 80 MB/s instead of 100 MB/s",
    ]
    assert {each.sort for each in comparison.groups[:2]} == {"transfer"}
    assert comparison.groups[0].message_bytes == 4 * MB
    assert not any(text.startswith("compute") for text in comparison.findings)


def test_slow_collectives_are_found_with_size_and_devices() -> None:
    comparison = slower(rate=50 * MB, gradient=8 * MB, replicas=True)
    (group,) = [each for each in comparison.groups if each.sort == "collective"]
    assert group.name == "all_reduce of 30.52 MiB on h0.d0, h1.d0"
    # Two devices send half of 32 MB each way, twice, at 100 or 50 MB/s.
    assert group.predicted_seconds == pytest.approx(0.32)
    assert group.measured_seconds == pytest.approx(0.64)
    assert f"{group.name} took 640 ms instead of 320 ms" in comparison.findings


def test_overhead_of_the_runtime_is_found() -> None:
    timeline = two()
    late = measured(timeline, [0, 6, 1, 0], [1, 8, 5, 5])
    texts = compare(timeline, late, connected(2)).findings
    assert texts == (
        "the step took 8 s, predicted 7 s: the prediction is 12.5% too short",
        "d1 stood idle for 1 s (12% of the step) although nothing was awaited: overhead of the "
        "runtime",
        "d0 waited for other devices 3 s instead of 2 s",
    )


def test_devices_that_do_nothing_are_left_out() -> None:
    graph = dag([1, 2], {(0, 1): 4})
    timeline = simulate(graph, connected(3), placed(graph, [0, 2]))
    real = measured_timeline(timeline.program, run_of(timeline))
    names = [each.name for each in compare(timeline, real, connected(3)).devices]
    assert names == ["d0", "d2"]


def test_concatenations_are_compared_as_copies() -> None:
    graph = layers(2, activation=1)
    plan = stages(graph, [["d0", "d1"], ["d2"]], "1f1b", 1)
    timeline = simulate(graph, connected(3), plan)
    rows = np.flatnonzero(timeline.program.instructions["kind"] == Kind.CONCATENATE)
    start, finish = np.array(timeline.start), np.array(timeline.finish)
    start[start >= finish[rows[0]]] += 1.0
    finish[finish >= finish[rows[0]]] += 1.0
    late = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
    comparison = compare(timeline, late, connected(3))
    (found,) = [text for text in comparison.findings if text.startswith("compute")]
    assert re.search(r"compute on d2 took 33% longer .*: concatenate \+(1 s|1,000 ms)$", found)
    (found,) = [text for text in comparison.findings if text.startswith("concatenate")]
    assert re.fullmatch("concatenate took (1 s|1,000 ms) longer than predicted", found)


def test_timelines_of_other_programs_are_refused() -> None:
    one, other = two(), pipeline()
    with pytest.raises(InputError, match="timeline fair: must be of the devices of cluster conn"):
        compare(one, one, connected(3))
    graph = dag([1], {})
    small = simulate(graph, connected(4, bandwidth=3), placed(graph, [0]))
    with pytest.raises(InputError, match=r"must be of one program, got \d+ and 1 instructions"):
        compare(other, small, connected(4))
