"""Run files, and measured steps as timelines. Bandwidth is one byte a second: bytes are seconds."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from measured_run import run_of
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, place_ops
from meshwright.program.program import Kind
from meshwright.simulate.measured import Run, measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from small import connected, dag, layers, stages

TWO = dag([1, 2], {(0, 1): 4})
"""An op of 1 s on d0, 4 s of transfer, an op of 2 s on d1: until 7 s."""


def placed(graph: Graph, devices: list[int]) -> Plan:
    return place_ops(graph.op_names, devices, [f"d{i}" for i in range(max(devices) + 1)])


def predicted(sharing: str = "fair") -> Timeline:
    return simulate(TWO, connected(2), placed(TWO, [0, 1]), sharing=sharing)


def pipeline(microbatches: int = 4) -> Timeline:
    graph = layers(4, activation=1, gradient=1)
    plan = stages(graph, [["d0", "d1"], ["d2", "d3"]], "1f1b", microbatches)
    return simulate(graph, connected(4, bandwidth=3), plan)


@cache
def small_pipeline() -> Timeline:
    return pipeline(2)


def rows_of(timeline: Timeline, kind: Kind) -> list[int]:
    return np.flatnonzero(timeline.program.instructions["kind"] == kind).tolist()


def some_run(**changes: Any) -> Run:
    return run_of(predicted(), **changes)


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_run_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    start = np.array(predicted().start)
    start[0] = np.nan
    run = some_run(start=start, is_emulated=True, calls={"o0": '{"op":"x"}'})
    run.save(tmp_path / name)
    back = Run.load(tmp_path / name)
    for field in ("start", "finish"):
        np.testing.assert_array_equal(getattr(back, field), getattr(run, field))
    for field in ("device_names", "losses", "step_seconds", "is_emulated", "measured_step"):
        assert getattr(back, field) == getattr(run, field)
    assert dict(back.software) == dict(run.software)
    assert dict(back.calls) == dict(run.calls)
    assert ((tmp_path / name).read_bytes()[:2] == b"\x1f\x8b") == name.endswith(".gz")


def test_a_loss_that_is_not_a_number_stays_one(tmp_path: Path) -> None:
    some_run(losses=(1.0, np.nan, np.inf)).save(tmp_path / "run.json")
    assert np.isnan(Run.load(tmp_path / "run.json").losses).tolist() == [False, True, True]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device_names": ()}, "run: must have at least one device"),
        ({"finish": np.zeros(2)}, r"run: start and finish must be equally long .* \(4,\) and"),
        ({"losses": (1.0,)}, "run: must have as many losses as steps or none, got 1 for 3 steps"),
        ({"step_seconds": (-1.0,), "losses": ()}, "step_seconds must be finite and not negative"),
        ({"measured_step": -1}, "run: measured_step must not be negative, got -1"),
        ({"start": np.array([np.inf] * 4)}, r"run: start\[0\] must be finite or NaN, got inf"),
        ({"finish": np.full(4, -1.0)}, r"run: finish\[0\] must not be before start, got -1.0 < 0"),
    ],
)
def test_an_illegal_run_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        some_run(**changes)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "meshwright.plan"}, "not a run file, format must be 'meshwright.run', got"),
        ({"version": 2}, "run files of version 1 can be read, got version 2"),
        ({"start": 3}, "Expected `array`, got `int`"),
        ({"speed": 3}, "unknown field `speed`"),
        ({"step_seconds": [None, 1, 1]}, "step_seconds must be finite and not negative, got nan"),
        ({"losses": [1]}, "as many losses as steps"),
    ],
)
def test_a_bad_run_file_is_refused_with_its_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = tmp_path / "run.json"
    some_run().save(path)
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        Run.load(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_text_that_is_not_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not all text is Unicode"):
        some_run(software={"torch": "\ud800"}).save(tmp_path / "run.json")


@pytest.mark.parametrize("make", [predicted, pipeline])
def test_a_run_with_the_times_of_a_simulation_is_that_simulation(make: Any) -> None:
    timeline = make()
    measured = measured_timeline(timeline.program, run_of(timeline))
    np.testing.assert_allclose(measured.start, timeline.start, atol=1e-12)
    np.testing.assert_allclose(measured.finish, timeline.finish, atol=1e-12)
    assert measured.sharing == "measured"
    assert measured.step_seconds == pytest.approx(timeline.step_seconds)
    assert measured.peak_bytes == pytest.approx(timeline.peak_bytes)
    assert sum(measured.attribution.values()) == pytest.approx(timeline.step_seconds)
    assert measured.attribution["wait"] == pytest.approx(0, abs=1e-9)
    assert measured.attribution == pytest.approx(dict(timeline.attribution), abs=1e-9)


def test_a_transfer_lasts_from_when_both_ends_are_there_until_it_has_arrived() -> None:
    timeline = predicted()
    (send,), (receive,) = rows_of(timeline, Kind.SEND), rows_of(timeline, Kind.RECEIVE)
    start, finish = np.array(timeline.start), np.array(timeline.finish)
    start[send], finish[send] = 1.0, 3.0  # left the sender early, by way of a buffer
    start[receive], finish[receive] = 0.0, 5.0  # posted in advance
    measured = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
    for row in (send, receive):
        assert (measured.start[row], measured.finish[row]) == (1.0, 5.0)
    start[receive] = 2.5  # posted late: nothing moves before
    measured = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
    assert (measured.start[send], measured.finish[send]) == (2.5, 5.0)


def test_a_collective_starts_when_its_last_member_is_ready() -> None:
    timeline = pipeline()
    start, finish = np.array(timeline.start), np.array(timeline.finish)
    first, second = rows_of(timeline, Kind.ALL_REDUCE)[:2]
    assert (
        timeline.program.instructions["task"][first]
        == timeline.program.instructions["task"][second]
    )
    ready = timeline.start[second]
    start[first] = ready - 0.125
    finish[first] += 0.25
    measured = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
    assert measured.start[first] == measured.start[second] == ready
    assert measured.finish[first] == finish[first]
    assert measured.finish[second] == finish[second]


def test_what_was_not_measured_starts_and_ends_when_all_it_waits_for_is_done() -> None:
    timeline = predicted()
    start, finish = np.array(timeline.start), np.array(timeline.finish)
    start[[1, 2, 3]] = finish[[1, 2, 3]] = np.nan  # the second op, and the transfer to it
    measured = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
    assert measured.start.tolist() == [0, 1, 1, 1]
    assert measured.finish.tolist() == [1, 1, 1, 1]
    nothing = np.full(4, np.nan)
    run = run_of(timeline, start=nothing, finish=nothing)
    assert measured_timeline(timeline.program, run).step_seconds == 0


def test_half_a_measurement_counts() -> None:
    timeline = predicted()
    (receive,) = rows_of(timeline, Kind.RECEIVE)
    start, finish = np.full(4, np.nan), np.full(4, np.nan)
    start[0], finish[0] = 0.0, 1.0
    finish[receive] = 4.0  # when it arrived, but not when it left: when its data was there
    start[1] = 6.0  # when it began: as if it had taken no time
    measured = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
    assert (measured.start[receive], measured.finish[receive]) == (1, 4)
    assert (measured.start[1], measured.finish[1]) == (6, 6)


def test_the_first_start_begins_the_step_where_clocks_disagree() -> None:
    timeline = predicted()
    early = run_of(timeline, start=timeline.start - 0.5, finish=timeline.finish - 0.5)
    measured = measured_timeline(timeline.program, early)
    np.testing.assert_allclose(measured.start, timeline.start)
    np.testing.assert_allclose(measured.finish, timeline.finish)


def test_a_stream_runs_one_instruction_at_a_time() -> None:
    graph = dag([1, 1, 1], {})
    timeline = simulate(graph, connected(1), placed(graph, [0, 0, 0]))
    times = {"start": np.array([0, 0.5, 1.0]), "finish": np.array([2.0, 3.0, 1.5])}
    measured = measured_timeline(timeline.program, run_of(timeline, **times))
    assert measured.start.tolist() == [0, 2, 3]
    assert measured.finish.tolist() == [2, 3, 3]


def test_the_cause_is_the_predecessor_that_finished_last() -> None:
    # o2 on d1 reads o0 of d0 and follows o1 on d1.
    graph = dag([1, 1, 1], {(0, 2): 1})
    timeline = simulate(graph, connected(2), placed(graph, [0, 1, 1]))
    (send,) = rows_of(timeline, Kind.SEND)
    task = timeline.program.instructions["task"]
    for o1_ends, cause in ((1.5, send), (2.5, 1)):
        start, finish = np.array(timeline.start), np.array(timeline.finish)
        start[1], finish[1] = 0.5, o1_ends
        start[2], finish[2] = 3.0, 4.0
        measured = measured_timeline(timeline.program, run_of(timeline, start=start, finish=finish))
        assert measured.cause[task[2]] == task[cause]
        assert measured.cause[task[0]] == -1
        assert measured.attribution["wait"] > 0


def test_launches_are_no_bound_of_a_measured_step() -> None:
    timeline = predicted()
    object.__setattr__(timeline.program, "host_seconds", np.full(2, 100.0))
    measured = measured_timeline(timeline.program, run_of(timeline))
    assert measured.launch_seconds == 0
    assert measured.step_seconds == pytest.approx(7)


@given(data=st.data())
@settings(max_examples=60)
def test_causes_never_go_in_a_circle_whatever_the_clocks_say(data: st.DataObject) -> None:
    timeline = small_pipeline()
    count = timeline.program.num_instructions
    number = st.floats(-2, 5) | st.just(np.nan) | st.just(1.0)
    start = data.draw(hnp.arrays(np.float64, count, elements=number))
    length = data.draw(hnp.arrays(np.float64, count, elements=st.sampled_from([0.0, 0.5, 3.0])))
    run = run_of(timeline, start=start, finish=start + length)
    measured = measured_timeline(timeline.program, run)
    assert not np.isnan(measured.start).any()
    assert (measured.start >= 0).all()
    assert (measured.finish >= measured.start).all()
    assert len(measured.critical_path) <= len(measured.cause)
    for stream in np.unique(timeline.program.instructions["stream"]).tolist():
        if stream >= 0:
            members = np.flatnonzero(timeline.program.instructions["stream"] == stream)
            members = members[np.lexsort((measured.finish[members], measured.start[members]))]
            assert (measured.start[members[1:]] >= measured.finish[members[:-1]]).all()


def test_a_run_of_another_plan_is_refused() -> None:
    timeline = predicted()
    with pytest.raises(InputError, match="must have the plan's 4 instructions, got 3; run the pl"):
        measured_timeline(timeline.program, some_run(start=np.zeros(3), finish=np.ones(3)))
    with pytest.raises(InputError, match="plan's 2 devices, got 'd9' for 'd1'; run the plan again"):
        measured_timeline(timeline.program, some_run(device_names=("d0", "d9")))
    with pytest.raises(InputError, match="plan's 2 devices, got 3; run the plan again"):
        measured_timeline(timeline.program, some_run(device_names=("d0", "d1", "d2")))
