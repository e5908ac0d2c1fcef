"""The benchmark of times at several numbers of samples: what it predicts, and that it runs."""

from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest

import execution_real
import ladder
from execution_cases import make_cluster
from execution_real import BATCH, RANKS, Size
from measured_run import chain, run_of
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.report.measured_ops import graph_of_steps
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import simulate

pytest.importorskip("torch", reason="real compute needs the torch extra")


def test_steps_that_cost_a_launch_are_predicted_by_several_numbers_of_samples_only() -> None:
    cluster = make_cluster(RANKS, 1000, DEVICE_TYPES["cpu"])
    thought = replace(chain([0.01] * 8, [1e5] * 8, gradient=1e5), seconds={}).at_batch(BATCH)
    seconds = np.linspace(0.01, 0.02, thought.num_ops)
    true = replace(
        thought,
        seconds={"cpu": 0.002 + seconds},
        ladders={"cpu": {1.0: 0.002 + seconds / BATCH}},
    )
    steps = []
    for make in ladder.KNOWN.values():
        plan = make(thought, cluster)
        assert plan is not None
        timeline = simulate(true, cluster, plan)
        steps.append((plan, measured_timeline(timeline.program, run_of(timeline))))
    graphs = {
        "one": graph_of_steps(thought, cluster, steps[:1]),
        "several": graph_of_steps(thought, cluster, steps),
    }
    records = []
    for name, make in ladder.ASKED.items():
        plan = make(thought, cluster)
        assert plan is not None
        truth = simulate(true, cluster, plan).step_seconds
        records.append(ladder.make_record("chain", name, cluster, plan, graphs, [truth]))
    found = ladder.summarise(records)
    assert found["cases"] == len(ladder.ASKED) >= 8
    assert found["several"]["mean_absolute_error"] < 1e-6
    assert found["one"]["mean_absolute_error"] > 0.02
    assert "several +0.0%" in ladder.as_text(records[0])


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Size:
    """Without a network of its own, and with one plan of each sort."""
    monkeypatch.setattr(execution_real, "built", lambda *_: nullcontext())
    for name in ("KNOWN", "ASKED"):
        plans = getattr(ladder, name)
        monkeypatch.setattr(ladder, name, {each: plans[each] for each in [*plans][-1:]})
    return Size(tokens=8, width=64, words=16, channels=4, pixels=8)


def test_a_small_model_is_measured_and_predicted(small: Size) -> None:
    models = {"language": execution_real.MODELS["language"]}
    records = list(ladder.measure(models, small, 2, profiles=False))
    assert [record["plan"] for record in records] == list(ladder.ASKED)
    for record in records:
        assert set(record["error"]) == {"one", "several"}
        assert record["predicted_seconds"]["several"] > 0
        assert record["measured_seconds"] > 0
