"""Baselines of the hybrid search as methods: what they plan, prove and refuse."""

import math
from functools import cache, partial
from typing import Any

import pytest
from search_strategies import make_cluster

from meshwright.cluster.build import hierarchical
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid import baseline
from meshwright.search.method.hybrid.baseline import (
    manual_drafts,
    mcmc_drafts,
    simulate_first,
    unaware_drafts,
)
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space
from meshwright.search.method.hybrid.trial import HybridTrials
from meshwright.search.method.name import LAYERED
from meshwright.search.portfolio import find_plan, search_by
from meshwright.simulate.simulate import simulate
from small import dag

hybrid_mcmc = partial(search_by, "hybrid-mcmc")
manual = partial(search_by, "manual")
single = partial(search_by, "single")
unaware = partial(search_by, "unaware")

METHODS = LAYERED[1:]
LONG = 1e6
"""Seconds that no search here uses up."""


@pytest.fixture(autouse=True)
def _short_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walks end by their steps, not by the clock."""
    monkeypatch.setattr(baseline, "mcmc_drafts", partial(mcmc_drafts, most_steps=30))


@cache
def model(layers: int = 4, untie: bool = False) -> Graph:
    return gpt(
        hidden=64, heads=4, layers=layers, sequence=32, vocabulary=128, batch=8, untie=untie,
        precision="bf16", name="small",
    )  # fmt: skip


@cache
def cluster(host_bytes_per_second: float = 1e10) -> Cluster:
    return hierarchical(
        devices_per_host=2, branching=[2], device_bytes_per_second=3e11,
        host_bytes_per_second=host_bytes_per_second,
    )  # fmt: skip


class Never:
    """Trials of which none fits."""

    def __init__(self) -> None:
        self.num_run, self.num_fitting = 0, 0

    def run(self, drafts: list[Any]) -> None:
        self.num_run += len(drafts)


@pytest.mark.parametrize(("until", "expected"), [(0.0, 1), (math.inf, 50)])
def test_drafts_are_simulated_while_there_is_time(until: float, expected: int) -> None:
    trials: Any = Never()
    simulate_first(trials, list[Any](range(50)), Clock(until))
    assert trials.num_run == expected


@pytest.mark.parametrize("untie", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_a_baseline_says_what_the_simulator_says_and_proves_no_more(
    method: str, untie: bool
) -> None:
    graph = model(untie=untie)
    answer = find_plan(graph, cluster(), method, budget_seconds=LONG)
    assert answer.method == method
    assert answer.plan is not None
    assert answer.step_seconds == simulate(graph, cluster(), answer.plan).step_seconds
    assert 0 < answer.bound_seconds <= answer.step_seconds


def test_a_small_model_by_hand_is_data_parallel_with_divided_state() -> None:
    # All of it fits on each device, so that nothing is divided; ZeRO 1 costs nothing.
    answer = manual(model(), cluster())
    expected = Plan.from_degrees(model(), cluster(), data=4, zero=1, microbatches=2)
    choices = [
        simulate(model(), cluster(), Plan.from_degrees(model(), cluster(), data=4, zero=1,
                                                       microbatches=count)).step_seconds
        for count in (1, 2)  # of 8 samples, two or one for each of four replicas
    ]  # fmt: skip
    assert answer.plan is not None
    assert answer.plan.parts[0].zero == expected.parts[0].zero == 1
    assert answer.plan.parts[0].devices == expected.parts[0].devices
    assert answer.step_seconds == min(choices)
    assert answer.stop is Stop.ENDED


def test_a_search_that_sees_no_network_finds_the_same_on_any() -> None:
    # Between hosts 300 GB/s or 1 MB/s: the plan is the same, and far slower.
    alone = unaware(model(), find_cluster("h100-x1"))  # a network without a tier
    assert alone.plan is not None
    fast, slow = unaware(model(), cluster(3e11)), unaware(model(), cluster(1e6))
    assert fast.plan is not None
    assert fast.plan == slow.plan
    found = [
        unaware_drafts(make_space(model(), cluster(rate), Scope()), Clock()) for rate in (3e11, 1e6)
    ]
    assert found[0] == found[1], "what is simulated, schedules included, and in which order"
    assert slow.step_seconds > 10 * fast.step_seconds
    assert single(model(), cluster(1e6)).step_seconds < slow.step_seconds


def test_a_walk_is_never_slower_than_where_it_starts() -> None:
    # By layer, which is how drafts are compared.
    first, found = manual(model(), cluster()), hybrid_mcmc(model(), cluster(), budget_seconds=LONG)
    assert found.statistics["estimate_seconds"] > 0
    assert found.statistics["layer_seconds"] <= first.statistics["layer_seconds"]


@pytest.mark.parametrize("method", METHODS)
def test_a_graph_without_layers_is_not_for_them(method: str) -> None:
    answer = find_plan(dag([1.0], {}), make_cluster(["fast"] * 2), method, budget_seconds=1.0)
    assert answer.plan is None
    assert answer.binding.startswith("not for this search: graph dag: must have repeated layers")


def test_a_model_that_fits_nowhere_is_an_answer() -> None:
    tiny = make_cluster(["fast"] * 2, memory_bytes=1000.0)
    for method in METHODS:
        answer = find_plan(model(), tiny, method, budget_seconds=1.0)
        assert answer.stop is Stop.INFEASIBLE
        assert answer.binding == "none of its plans fits; hybrid looks at more"


@pytest.mark.parametrize(("search", "name"), [(hybrid_mcmc, "_draft_of"), (manual, "")])
def test_ctrl_c_ends_a_baseline_with_the_best_so_far(
    search: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the walk, or when the second draft is simulated."""
    calls = 0

    def interrupted(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt
        return original(*arguments)

    owner, name = (baseline, name) if name else (HybridTrials, "run")
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, interrupted)
    answer: Answer = search(model(), cluster())
    assert answer.plan is not None
    assert answer.stop is Stop.INTERRUPTED


def test_a_walk_of_few_steps_ends_and_one_without_time_is_cut() -> None:
    space = make_space(model(), cluster(), Scope())
    start = manual_drafts(space)[0]
    for clock, stop in ((Clock(), Stop.ENDED), (Clock(0.0), Stop.LIMIT)):
        drafts = mcmc_drafts(space, start, 0, clock, 5)
        assert clock.stop is stop
        assert len(drafts) > 1 or (stop is Stop.LIMIT and drafts == [start])
