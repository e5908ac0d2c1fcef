"""The bars of a report are the instructions of its timeline."""

from collections import Counter

import numpy as np
import pytest
from pages import Planned, pipeline, replicas

from meshwright.explain.cause import cause_codes
from meshwright.page import bar
from meshwright.page.bar import CAUSES, Bars, BarSet, draw_bars
from meshwright.plan.plan import Part, Plan
from meshwright.program.program import Kind
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline


def drawn(case: Planned) -> tuple[Timeline, Bars]:
    graph, cluster, plan = case
    timeline = simulate(graph, cluster, plan, with_links=True)
    return timeline, draw_bars(timeline, cluster, plan)


def named(bars: Bars, each: BarSet) -> list[tuple[str, str, int, int]]:
    """Bars as what they are, their kinds and their times in nanoseconds."""
    columns = (each.label, each.cause, each.microbatch, each.start, each.finish)
    return [
        (
            bars.labels[label] + (f" [mb {mb}]" if bars.has_microbatches else ""),
            str(CAUSES[cause]),
            start,
            finish,
        )
        for label, cause, mb, start, finish in zip(*(c.tolist() for c in columns), strict=True)
    ]


@pytest.mark.parametrize("case", [pipeline(), replicas(3), pipeline(4)])
def test_every_instruction_of_a_device_is_a_bar_of_its_rows(case: Planned) -> None:
    timeline, bars = drawn(case)
    program, causes = timeline.program, cause_codes(timeline.program, case[2])
    rows = program.instructions
    found: Counter[tuple[int, str, str, int, int]] = Counter()
    for track in bars.tracks:
        if not track.is_link:
            found.update((track.device, *each) for each in named(bars, bars.sets[track.bars]))
    expected = Counter(
        (
            int(rows["device"][k]),
            program.describe(k),
            str(CAUSES[causes[k]]),
            round(timeline.start[k] * 1e9),
            round(timeline.finish[k] * 1e9),
        )
        for k in range(len(rows))
        if rows["kind"][k] not in (Kind.SEND, Kind.RECEIVE)
    )
    assert found == expected


def test_transfers_are_bars_of_the_links_that_they_cross() -> None:
    timeline, bars = drawn(pipeline())
    rows = timeline.program.instructions
    sends = [k for k in range(len(rows)) if rows["kind"][k] == Kind.SEND and rows["device"][k] == 0]
    for link in ("h0.d0 -> h0", "h0 -> switch", "switch -> h1", "h1 -> h1.d0"):
        own = [track for track in bars.tracks if track.name.split(" (")[0] == link]
        found = Counter(name for track in own for name, *_ in named(bars, bars.sets[track.bars]))
        assert found == Counter(timeline.program.describe(k) for k in sends)


def test_no_two_bars_of_a_row_overlap() -> None:
    for case in (pipeline(4), replicas(4)):
        _, bars = drawn(case)
        for each in bars.sets:
            assert (each.start[1:] >= each.finish[:-1]).all()
            assert (each.finish >= each.start).all()


def test_the_path_is_the_timelines() -> None:
    timeline, bars = drawn(pipeline())
    names = [name for name, *_ in named(bars, bars.path)]
    assert names == [timeline.program.describe(row) for row in timeline.critical_path]
    for place, track in enumerate(bars.path_track.tolist()):
        own = bars.sets[bars.tracks[track].bars]
        assert bars.path.label[place] in own.label
    assert bars.path.finish[-1] == round(timeline.device_seconds * 1e9)


def test_devices_that_do_the_same_have_one_set_of_bars() -> None:
    timeline, bars = drawn(replicas(6))
    computes = [track for track in bars.tracks if track.name.endswith(".d0") and not track.is_link]
    assert len(computes) == 6
    assert len({track.bars for track in computes}) == 1
    assert bars.num_bars > len(computes) * len(bars.sets[computes[0].bars].start)
    assert timeline.program.num_devices == 6


def test_a_long_step_has_coarser_ticks() -> None:
    graph, cluster, plan = pipeline()
    timeline = simulate(graph, cluster, plan)
    slow = {name: 1e5 * seconds for name, seconds in graph.seconds.items()}
    from dataclasses import replace

    longer = simulate(replace(graph, seconds=slow), cluster, plan)
    bars = draw_bars(longer, cluster, plan)
    assert bars.tick_seconds > 1e-9
    assert bars.num_ticks < 2**31
    assert bars.num_ticks * bars.tick_seconds == pytest.approx(longer.step_seconds, rel=1e-6)
    assert longer.step_seconds > timeline.step_seconds


def test_too_many_bars_are_shown_as_a_trace_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster, plan = pipeline(8)
    monkeypatch.setattr(bar, "MAX_BARS", 40)
    monkeypatch.setattr(bar, "_COARSER", (60,))
    timeline = simulate(graph, cluster, plan)
    bars = draw_bars(timeline, cluster, plan)
    assert bars.remarks
    assert any(label.startswith("2 x ") for label in bars.labels)


def test_ticks_keep_every_bar_within_the_step() -> None:
    timeline, bars = drawn(pipeline())
    assert max(int(each.finish.max(initial=0)) for each in bars.sets) <= bars.num_ticks
    assert bars.num_ticks == int(np.rint(timeline.step_seconds * 1e9))


def test_a_plan_of_one_device_has_no_links() -> None:
    graph, cluster, _ = pipeline()
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    _, bars = drawn((graph, cluster, plan))
    assert not any(track.is_link for track in bars.tracks)
