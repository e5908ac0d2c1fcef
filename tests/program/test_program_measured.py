"""Measured times of ops that a team divides are their shares of the times of whole ops."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.graph import ANY_TYPE, Phase, Split
from meshwright.plan.plan import Plan
from meshwright.program.work import prepare_work

DEVICES = 4
PLANS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor": 4},
    "rows": {"tensor": 2, "sequence_parallel": True, "context": 2},
    "tokens": {"context": 4},
    "ring": {"context": 4, "keys": "ring"},
    "again": {"tensor": 4, "recompute": "full"},
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("key", ["h100", ANY_TYPE])
def test_a_shard_is_as_much_slower_than_estimated_as_its_op(name: str, key: str) -> None:
    graph = gpt(hidden=256, heads=8, layers=2, sequence=64, vocabulary=512, batch=8)
    cluster = find_cluster(f"h100-x{DEVICES}")
    factor = np.random.default_rng(0).uniform(0.5, 3.0, size=graph.num_ops)
    times = factor * op_seconds(graph, cluster.types["h100"], graph.batch)
    plan = Plan.from_degrees(graph, cluster, **PLANS[name])
    plain = prepare_work(graph, cluster, plan)
    measured = prepare_work(replace(graph, seconds={key: times}), cluster, plan)
    origin = plain.expansion.origin
    divided = plain.expansion.graph
    is_kept = (origin >= 0) & (divided.flops + divided.bytes_read + divided.bytes_written > 0)
    assert is_kept.sum() > graph.num_ops / 2
    of_op = np.repeat(np.arange(len(origin)), np.diff(plain.seconds_start))
    kept = is_kept[of_op]
    expected = (plain.seconds * factor[origin][of_op])[kept]
    np.testing.assert_allclose(measured.seconds[kept], expected, rtol=1e-9)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("key", ["h100", ANY_TYPE])
def test_a_shard_has_its_part_of_what_its_op_takes_on_as_many_samples(name: str, key: str) -> None:
    graph = gpt(hidden=256, heads=8, layers=2, sequence=64, vocabulary=512, batch=8)
    cluster = find_cluster(f"h100-x{DEVICES}")
    chip = cluster.types["h100"]
    whole, half = (op_seconds(graph, chip, samples) for samples in (8, 4))
    half = np.where(graph.split == Split.NONE, whole, half)
    # A shard of fewer samples takes at most what one of all takes, and at least half of that.
    least = 0.65 * whole / np.where(half > 0, half, np.inf)
    slower = np.clip(np.random.default_rng(0).uniform(1.0, 1.3, graph.num_ops), least, 1.3)
    slower = np.where(graph.split == Split.NONE, 1.3, slower)
    plan = Plan.from_degrees(graph, cluster, **PLANS[name], microbatches=2)
    plain = prepare_work(graph, cluster, plan)
    laddered = replace(graph, seconds={key: 1.3 * whole}, ladders={key: {4.0: slower * half}})
    measured = prepare_work(laddered, cluster, plan)
    origin, divided = plain.expansion.origin, plain.expansion.graph
    is_kept = (origin >= 0) & (divided.flops + divided.bytes_read + divided.bytes_written > 0)
    of_op = np.repeat(np.arange(len(origin)), np.diff(plain.seconds_start))
    kept = is_kept[of_op] & (divided.phase != Phase.UPDATE)[of_op]
    expected = (plain.seconds * slower[origin][of_op])[kept]
    np.testing.assert_allclose(measured.seconds[kept], expected, rtol=1e-9)
