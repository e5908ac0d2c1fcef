"""What several runs find changed: devices, links, and which decision of a plan depends on it."""

from dataclasses import replace

import numpy as np
import pytest

from measured_run import chain, hosts, run_of
from meshwright.cluster.cluster import Cluster
from meshwright.explain.drift import find_dependences
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.report.drift import Drift, find_drifts, with_drift
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

MB = 1e6
RATE = 100 * MB


def staged(layers: int, first: int, microbatches: int = 4) -> Plan:
    """Layers on two hosts, so many on the first."""
    names = [f"{kind}{layer}" for kind in "fb" for layer in range(layers)]
    parts = [
        Part(
            ops=tuple(each for each in names if (int(each[1:]) >= first) == bool(stage)),
            devices=(f"h{stage}.d0",),
        )
        for stage in range(2)
    ]
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=microbatches)
    return Plan(parts=tuple(parts), schedule=schedule)


def slowed(graph: Graph, cluster: Cluster, device: str, factor: float) -> tuple[Graph, Cluster]:
    drift = Drift(devices=(device,), what=device, factor=factor, low=1, high=1, num_runs=2)
    return with_drift(graph, cluster, drift)


def runs(
    graph: Graph, cluster: Cluster, plan: Plan, truths: list[tuple[Graph, Cluster]]
) -> list[tuple[Timeline, Timeline]]:
    """The prediction and each truth as if it had been measured."""
    predicted = simulate(graph, cluster, plan)
    found = []
    for truth in truths:
        run = run_of(simulate(*truth, plan))
        found.append((predicted, measured_timeline(predicted.program, run)))
    return found


def test_a_device_that_all_runs_found_slow_has_changed() -> None:
    graph, cluster, plan = chain([0.01] * 8, [MB] * 8), hosts(RATE, 0.0), staged(8, 4)
    truths = [slowed(graph, cluster, "h1.d0", factor) for factor in (1.5, 1.55, 1.45)]
    (drift,) = find_drifts(cluster, runs(graph, cluster, plan, truths))
    assert drift.devices == ("h1.d0",)
    assert drift.factor == pytest.approx(1.5)
    assert [drift.low, drift.high] == pytest.approx([1.45, 1.55])
    assert str(drift) == "device h1.d0: 1.50 times slower than thought (1.45 to 1.55 in 3 runs)"


@pytest.mark.parametrize(
    "factors",
    [
        [1.5],  # one run says nothing
        [1.05, 1.06],  # less than steps differ by
        [1.2, 0.8],  # on both sides
        [1.15, 2.0],  # further from each other than from what was thought
    ],
)
def test_what_runs_do_not_agree_on_has_not_changed(factors: list[float]) -> None:
    graph, cluster, plan = chain([0.01] * 8, [MB] * 8), hosts(RATE, 0.0), staged(8, 4)
    truths = [slowed(graph, cluster, "h1.d0", factor) for factor in factors]
    assert find_drifts(cluster, runs(graph, cluster, plan, truths)) == ()


@pytest.mark.parametrize(("factor", "side"), [(0.5, "2.00 times slower"), (2, "2.00 times faster")])
def test_a_link_that_all_runs_found_changed_has_changed(factor: float, side: str) -> None:
    graph, cluster, plan = chain([0.01] * 8, [20 * MB] * 8), hosts(RATE, 0.0), staged(8, 4, 1)
    truths = [(graph, hosts(factor * RATE, 0.0)) for _ in range(2)]
    found = find_drifts(cluster, runs(graph, cluster, plan, truths))
    assert found
    for drift in found:
        assert not drift.devices
        assert side in str(drift)
        assert all("switch" in (cluster.links[link].source, cluster.links[link].target)
                   for link in drift.links)  # fmt: skip
    there = with_drift(graph, cluster, found[0])[1]
    link = found[0].links[0]
    assert there.links[link].bytes_per_second == pytest.approx(factor * RATE)


def test_the_boundary_of_stages_depends_on_a_slow_device() -> None:
    graph, cluster, plan = chain([0.01] * 8, [MB] * 8), hosts(RATE * 100, 0.0), staged(8, 4)
    truths = [slowed(graph, cluster, "h1.d0", 3.0)] * 2
    drifts = find_drifts(cluster, runs(graph, cluster, plan, truths))
    (found,) = find_dependences(graph, cluster, plan, drifts)
    # The second host needs three times as long for half of the layers: it should have fewer.
    assert found.slower > 0.5
    assert found.decision
    assert found.gain > 0.05
    assert "a decision depends on it" in str(found)


def test_no_decision_depends_on_what_no_plan_can_avoid() -> None:
    graph, cluster = chain([0.01] * 2, [MB] * 2), hosts(RATE, 0.0, count=1)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("h0.d0",)),))
    truths = [slowed(graph, cluster, "h0.d0", 2.0)] * 2
    drifts = find_drifts(cluster, runs(graph, cluster, plan, truths))
    (found,) = find_dependences(graph, cluster, plan, drifts)
    assert found.slower == pytest.approx(1.0)
    assert found.decision == ""
    assert "no single decision of it would be another" in str(found)


def test_a_slow_device_is_slow_on_as_few_samples_too() -> None:
    graph, cluster = chain([0.01] * 2, [MB] * 2), hosts(RATE, 0.0)
    graph = replace(graph, ladders={"box": {8.0: graph.seconds["box"] / 4}})
    then, there = slowed(graph, cluster, "h1.d0", 2.0)
    name = there.devices[1].type
    assert there.devices[0].type == "box"
    np.testing.assert_allclose(then.ladders[name][8.0], graph.ladders["box"][8.0] * 2)
