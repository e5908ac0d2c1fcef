"""Times between rungs: what was measured where it can be, and what bounds rely on everywhere."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.coarsening import contract
from meshwright.graph.graph import Graph, Split
from meshwright.graph.ladder import clean_times, read_ladder

NAN = float("nan")
times = st.floats(0, 1e3)


def ops(*seconds: float, split: Split = Split.BATCH) -> Graph:
    """Ops one after another with times on one type at batch 16."""
    builder = GraphBuilder("ops", batch=16)
    for number, each in enumerate(seconds):
        builder.add_op(f"op{number}", split=split, seconds={"box": each})
        if number:
            builder.add_tensor(number - 1, 8.0, [number])
    return builder.finish()


def test_times_are_lines_between_rungs_and_beyond_the_last() -> None:
    whole = np.array([10.0])
    ladder = {8.0: np.array([6.0]), 4.0: np.array([5.0])}

    def seconds(samples: float) -> float:
        return float(read_ladder(whole, 16.0, ladder, samples)[0])

    assert [seconds(each) for each in (16, 8, 4)] == [10, 6, 5]
    assert seconds(12) == 8  # half way from 6 to 10
    assert seconds(6) == 5.5
    assert seconds(2) == 4.5  # on from 6 and 5: a quarter of a second a sample
    assert seconds(1e-9) == pytest.approx(4)
    assert seconds(32) == 18  # on from 6 and 10: half a second a sample


def test_an_op_without_a_rung_is_not_known_and_one_without_some_has_lines_between_the_others() -> (
    None
):
    ladder = {8.0: np.array([NAN, NAN]), 4.0: np.array([4.0, NAN])}
    read = read_ladder(np.array([16.0, 1.0]), 16.0, ladder, 8.0)
    assert read[0] == 8  # 4 + (16 - 4) / 3
    assert np.isnan(read[1])


def test_what_cannot_run_at_the_batch_and_what_has_no_time_there_has_no_rungs() -> None:
    ladder = {8.0: np.array([1.0, 1.0])}
    assert np.isnan(read_ladder(np.array([np.inf, NAN]), 16.0, ladder, 8.0)).all()


def test_noise_moves_rungs_as_little_as_shares_need() -> None:
    # At 16 samples 10 s: 8 take at least 5 s and at most 10 s, 4 at least half of what 8 take.
    measured = np.array([[1.0, 3.0], [4.0, 12.0], [10.0, 10.0]])
    cleaned = clean_times(np.array([4.0, 8.0, 16.0]), measured, 2)
    assert cleaned.tolist() == [[2.5, 5.0], [5.0, 10.0], [10.0, 10.0]]


def test_rungs_above_the_batch_are_held_to_it() -> None:
    cleaned = clean_times(np.array([4.0, 8.0, 16.0]), np.array([[4.0], [3.0], [90.0]]), 0)
    assert cleaned[:, 0].tolist() == [4, 4, 8]


@given(
    whole=times,
    rungs=st.dictionaries(st.sampled_from([1.0, 2.0, 4.0, 7.0, 24.0, 40.0]), times, min_size=1),
    samples=st.lists(st.floats(1e-3, 80.0), min_size=2, max_size=6),
)
def test_a_share_takes_no_more_than_the_whole_and_no_less_than_its_share(
    whole: float, rungs: dict[float, float], samples: list[float]
) -> None:
    ladder = {size: np.array([each]) for size, each in rungs.items()}
    asked = sorted([*samples, 16.0])
    found = [float(read_ladder(np.array([whole]), 16.0, ladder, each)[0]) for each in asked]
    slack = 1e-9 * (1 + whole)
    assert found[asked.index(16.0)] == whole
    for (low, less), (high, more) in pairwise(zip(asked, found, strict=True)):
        assert less <= more + slack
        assert less >= more * low / high - slack


@given(fixed=times, slope=times, rungs=st.sets(st.sampled_from([1.0, 2.0, 4.0, 24.0]), min_size=1))
def test_a_line_is_read_as_it_is(fixed: float, slope: float, rungs: set[float]) -> None:
    def line(samples: float) -> np.ndarray:
        return np.array([fixed + slope * samples])

    ladder = {size: line(size) for size in rungs}
    for samples in (0.5, 3.0, 16.0, 20.0, 64.0):
        assert read_ladder(line(16.0), 16.0, ladder, samples) == pytest.approx(line(samples))


def test_another_batch_reads_its_times_off_the_ladder_and_keeps_the_old_one_as_a_rung() -> None:
    graph = replace(ops(10.0, 10.0), ladders={"box": {4.0: np.array([5.0, NAN])}})
    half = graph.at_batch(8)
    # 5 + (10 - 5) / 3, and in proportion where there is no rung.
    assert half.seconds["box"] == pytest.approx([20 / 3, 5.0])
    assert sorted(half.ladders["box"]) == [4, 16]
    again = half.at_batch(16)
    assert again.seconds["box"].tolist() == [10, 10]
    quarter = graph.at_batch(4)
    assert quarter.seconds["box"].tolist() == [5, 2.5]
    assert list(quarter.ladders["box"]) == [16.0]


def test_another_batch_leaves_times_of_what_does_not_divide_the_batch() -> None:
    graph = replace(ops(10.0, split=Split.NONE), ladders={"box": {4.0: np.array([5.0])}})
    assert graph.at_batch(8).seconds["box"].tolist() == [10]


def test_merged_ops_have_the_sums_of_their_rungs() -> None:
    graph = ops(10.0, 20.0, 30.0, 40.0)
    graph = replace(graph, ladders={"box": {8.0: np.array([6.0, NAN, NAN, NAN])}})
    coarse = contract(graph, np.array([0, 0, 1, 1], dtype=np.int32)).graph
    assert coarse.seconds["box"].tolist() == [30, 70]
    # 6, and of the second op, which has no rung, half of its 20; the others have none.
    assert np.array_equal(coarse.ladders["box"][8.0], [16.0, NAN], equal_nan=True)


@pytest.mark.parametrize(
    ("ladders", "message"),
    [
        ({"other": {8.0: 1.0}}, "'other' must be of a type of device that seconds has"),
        ({"box": {16.0: 1.0}}, "other than the batch, got 16.0"),
        ({"box": {0.0: 1.0}}, "must be at samples from 1e-06"),
        ({"box": {NAN: 1.0}}, "other than the batch, got nan"),
        ({"box": {8.0: -1.0}}, "op 'op0': ladder of 'box' must be from 0 to"),
        ({"box": {8.0: np.inf}}, "got inf at 8 samples"),
    ],
)
def test_rungs_that_say_nothing_are_refused(
    ladders: dict[str, dict[float, float]], message: str
) -> None:
    rungs = {kind: {at: np.array([s]) for at, s in each.items()} for kind, each in ladders.items()}
    with pytest.raises(InputError, match=message):
        replace(ops(10.0), ladders=rungs)
