"""Memory over time is the timeline's, by kind, and never less at its fullest."""

from typing import Any

import numpy as np
import pytest
from pages import Planned, pipeline, replicas

import meshwright as mw
from meshwright.page import memory as page_memory
from meshwright.page.memory import KINDS, MemoryCurve, MemoryView, draw_memory
from meshwright.report.hybrid_facts import hybrid_facts
from meshwright.report.peak import peak_items
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline


def layered() -> Planned:
    graph = mw.load_graph("gpt:hidden=256,heads=4,layers=4,sequence=128,batch=16")
    cluster = mw.cluster("a100-80-x8")
    plan = mw.Plan.from_degrees(graph, cluster, tensor=2, pipeline=2, data=2, microbatches=4)
    return graph, cluster, plan.in_ops(graph)


def drawn(case: Planned, granularity: str | None = None) -> tuple[Timeline, MemoryView]:
    graph, cluster, plan = case
    timeline = simulate(graph, cluster, plan, granularity=granularity)
    facts = hybrid_facts(graph, cluster, plan, timeline)
    return timeline, draw_memory(graph, cluster, plan, timeline, facts)


def test_devices_whose_buffers_come_and_go_alike_are_drawn_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    draw = page_memory._draw_curve

    def counted(timeline: Timeline, device: int, *rest: Any) -> MemoryCurve:
        calls.append(device)
        return draw(timeline, device, *rest)

    monkeypatch.setattr(page_memory, "_draw_curve", counted)
    _, view = drawn(replicas(12))
    assert len(view.curve_of) == 12
    assert len(view.curves) == 1
    # What is freed at one moment may be freed in another order; that is known once it is drawn.
    assert len(set(calls)) == len(calls) < 12


CASES = [(pipeline(), None), (replicas(), None), (layered(), "layer"), (layered(), "op")]


@pytest.mark.parametrize(("case", "granularity"), CASES)
def test_kinds_add_up_to_the_memory_of_the_timeline(case: Planned, granularity: str | None) -> None:
    timeline, view = drawn(case, granularity)
    for device, place in view.curve_of.items():
        curve = view.curves[place]
        when, held = timeline.memory(device)
        total = curve.held.sum(axis=1)
        assert total.max() == pytest.approx(timeline.peak_bytes[device])
        # Every point that is shown is a value of the timeline at that moment.
        for moment, size in zip(curve.when.tolist(), total.tolist(), strict=True):
            near = np.abs(when - moment) <= 1e-8 * timeline.device_seconds
            assert np.isclose(held[near], size, rtol=1e-9, atol=1.0).any()
        assert total[-1] == pytest.approx(held[-1])
        assert (np.diff(curve.when) >= 0).all()


@pytest.mark.parametrize(("case", "granularity"), CASES)
def test_what_is_held_for_the_whole_step_is_told_by_kind(
    case: Planned, granularity: str | None
) -> None:
    timeline, view = drawn(case, granularity)
    unknown = KINDS.index("held for the whole step")
    for device, place in view.curve_of.items():
        first = view.curves[place].held.min(axis=0)
        assert first[unknown] == 0
        held = timeline.program.state_bytes[int(timeline.program.leader[device])]
        known = [KINDS.index(name) for name in ("parameters", "optimiser", "libraries")]
        assert first[known].sum() <= held * (1 + 1e-9)


def test_op_by_op_the_kinds_at_the_peak_are_those_of_the_peaks_items() -> None:
    graph, cluster, plan = layered()
    timeline, view = drawn((graph, cluster, plan), "op")
    for device, place in view.curve_of.items():
        held = view.curves[place].held
        top = held[int(np.argmax(held.sum(axis=1)))]
        libraries = cluster.types[cluster.devices[device].type].library_bytes
        items = peak_items(timeline, device, libraries)
        for name, other in (("gathered weights", "buffers"), ("workspace", "workspace")):
            assert top[KINDS.index(name)] == pytest.approx(items[other], abs=1.0)
        for name in ("parameters", "gradients", "optimiser", "libraries", "activations"):
            assert top[KINDS.index(name)] == pytest.approx(items[name], abs=1.0)


def test_devices_that_hold_the_same_share_a_curve() -> None:
    _, view = drawn(replicas(8))
    assert len(view.curves) == 1
    assert list(view.curve_of) == list(range(8))


def test_few_points_keep_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_memory, "_MAX_ALL_POINTS", 1)  # fifty for each device
    case = layered()
    timeline, view = drawn(case, "op")
    for device, place in view.curve_of.items():
        curve = view.curves[place]
        assert len(curve.when) <= 52
        assert curve.held.sum(axis=1).max() == pytest.approx(timeline.peak_bytes[device])
