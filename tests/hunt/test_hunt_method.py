"""Every method answers every legal step, and says of its plan what the simulator says."""

import numpy as np
import pytest
from instances import (
    NUM_MODELS,
    NUM_NETWORKS,
    draw_cluster,
    draw_graph,
    small_model,
    small_network,
    spoil_graph,
)

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import is_below
from meshwright.search.method.name import METHODS
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import simulate

BUDGET_SECONDS = 0.1
"""What it finds in the time decides nothing here: any answer has to be true."""


def check_methods(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = draw_graph(rng), draw_cluster(rng)
    for method in METHODS:
        for sharing in ("none", "fair") if seed % 2 else ("fair",):
            check_answer(graph, cluster, method, sharing, seed)


def check_answer(graph: Graph, cluster: Cluster, method: str, sharing: str, seed: int) -> None:
    answer = find_plan(graph, cluster, method, sharing=sharing, budget_seconds=BUDGET_SECONDS)
    if answer.plan is None:
        assert answer.binding, (seed, method)
        return
    timeline = simulate(graph, cluster, answer.plan, sharing=sharing)
    assert answer.step_seconds == timeline.step_seconds, (seed, method, sharing)
    assert is_below(answer.bound_seconds, answer.step_seconds), (seed, method)


def check_spoilt_model(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = spoil_graph(rng, small_model(int(rng.choice([0, NUM_MODELS - 1]))))
    if graph is not None:
        network = small_network(int(rng.integers(NUM_NETWORKS)))
        for method in ("hybrid", "pipeline", "deploy", "consecutive", "heft"):
            check_answer(graph, network, method, "fair", seed)


@pytest.mark.parametrize("seed", range(2))
def test_methods_answer_odd_steps(seed: int) -> None:
    check_methods(seed)


@pytest.mark.parametrize("seed", [0, 1, 119])  # 119: a measured op that a plan divides by tokens
def test_methods_answer_models_of_layers_that_were_spoilt(seed: int) -> None:
    check_spoilt_model(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_methods_answer_a_hundred_spoilt_models(part: int) -> None:
    for seed in range(100 + 25 * part, 125 + 25 * part):
        check_spoilt_model(seed)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_methods_answer_four_hundred_odd_steps(part: int) -> None:
    for seed in range(100 + 50 * part, 150 + 50 * part):
        check_methods(seed)
