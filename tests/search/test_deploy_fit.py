"""Shares that fit devices of unequal memory."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from deploy_cases import chain, hosts
from hypothesis import given
from hypothesis import strategies as st

from meshwright.search.method.deploy.analysis import analyse
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.fit import fill_up, fitting_strategies
from meshwright.search.portfolio import search_by

deploy = partial(search_by, "deploy")

PORTIONS = st.lists(
    st.tuples(st.floats(0.1, 10), st.one_of(st.integers(0, 20), st.just(float("inf")))),
    min_size=1,
    max_size=6,
)


@given(portions=PORTIONS, batch=st.integers(1, 40))
def test_a_batch_is_filled_up_below_all_limits(
    portions: list[tuple[float, float]], batch: int
) -> None:
    weights, limits = (np.array(each, dtype=np.float64) for each in zip(*portions, strict=True))
    samples = fill_up(batch, weights, limits)
    if limits.sum() < batch:
        assert samples is None
        return
    assert samples is not None
    assert samples.sum() == pytest.approx(batch)
    assert (samples <= limits + 1e-9).all()
    free = samples < limits - 1e-9
    if free.any():  # in proportion where nothing holds them back
        assert samples[free] / weights[free] == pytest.approx((samples / weights)[free][0])


def test_a_small_memory_gets_fewer_samples_and_the_large_one_the_rest() -> None:
    # Two equal devices, 16 samples of 4 bytes each way: the second holds few of them.
    graph = chain([16.0, 16.0], [1.0, 1.0], activation=64.0, batch=16.0)
    cluster = hosts([("fast", 1), ("fast", 1)], memory_bytes=1000.0)
    small = replace(cluster.devices[1], memory_bytes=50.0)
    cluster = replace(cluster, devices=(cluster.devices[0], small))
    evaluator = Evaluator(analyse(graph, cluster))
    assert not evaluator.evaluate(evaluator.data_parallel).fits
    *_, last = fitting_strategies(evaluator)
    assert evaluator.evaluate(last).fits
    first, second = last[0].shares
    assert first > second > 0
    answer = deploy(graph, cluster, budget_seconds=1.0)
    assert answer.plan is not None
    assert answer.step_seconds <= evaluator.evaluate(last).step_seconds * (1 + 1e-9)
