"""The method `deploy`: never slower than what needs no search, honest on what it cannot do."""

import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
from deploy_cases import chain, hosts

from counted import counted_clock
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.check import resolve
from meshwright.plan.part import Sync
from meshwright.search.method.deploy import deploy as module
from meshwright.search.method.deploy.analysis import analyse
from meshwright.search.method.deploy.evaluate import Evaluator
from meshwright.search.method.deploy.tree import net
from meshwright.search.method.deploy.tree.tree import Tree, uniform_prior
from meshwright.search.portfolio import find_plan, search_by
from meshwright.simulate.simulate import simulate
from meshwright.source import zoo_graph

deploy = partial(search_by, "deploy")

MIXED = hosts([("fast", 1), ("slow", 2)])


def find(graph: Graph, cluster: Cluster, **options: Any) -> Answer:
    given: dict[str, Any] = {"prior": uniform_prior, "budget_seconds": 5.0, **options}
    return deploy(graph, cluster, **given)


def test_two_layers_are_deployed_as_well_as_any_strategy_of_the_menu() -> None:
    graph = chain([8.0, 4.0], [0.1, 40.0], activation=0.5)
    analysis = analyse(graph, MIXED)
    evaluator = Evaluator(analysis)
    choices = [[analysis.actions[k] for k in np.flatnonzero(row)] for row in analysis.allowed]
    best = min(evaluator.rank(each) for each in product(*choices))
    answer = find(graph, MIXED, budget_seconds=30.0)
    assert answer.plan is not None
    assert answer.bound_seconds <= answer.step_seconds <= best[1]
    assert answer.step_seconds < evaluator.reference_seconds
    assert simulate(graph, MIXED, answer.plan).step_seconds == answer.step_seconds


@pytest.mark.parametrize(
    ("model", "batch", "cluster"),
    [
        ("alexnet-32", 32, "mixed-s11"),
        pytest.param("alexnet", 32, "mixed-s2", marks=pytest.mark.slow),
        pytest.param("bert-small", 16, "mixed-s3", marks=pytest.mark.slow),
    ],
)
def test_deploy_is_never_slower_than_what_needs_no_search(
    model: str, batch: int, cluster: str
) -> None:
    graph, devices = zoo_graph(model, batch, precision="fp32"), find_cluster(cluster)
    answer = find_plan(graph, devices, "deploy", budget_seconds=600.0)  # it ends by itself
    for name in ("single", "data", "data-proportional", "horovod", "metis", "heft", "m-sct"):
        other = find_plan(graph, devices, name, budget_seconds=600.0).step_seconds
        assert answer.step_seconds <= other * (1 + 1e-9), name
    assert answer.method == "deploy"
    assert answer.bound_seconds <= answer.step_seconds


def test_the_same_seed_gives_the_same_plan() -> None:
    graph = chain([8.0, 4.0], [0.1, 40.0], activation=0.5)
    first, second = (find(graph, MIXED, seed=3, budget_seconds=60.0) for _ in range(2))
    assert first.plan == second.plan
    assert first.statistics == second.statistics


def test_statistics_tell_what_was_done() -> None:
    graph = chain([8.0, 4.0], [0.1, 40.0], activation=0.5)
    statistics = find(graph, MIXED).statistics
    assert statistics["groups"] == 2
    assert statistics["device_groups"] == 2
    assert statistics["network"] == 0
    assert statistics["iterations"] >= statistics["first_beaten"] >= 1
    assert statistics["simulations"] > 0
    assert statistics["polish_gain"] >= 0


def test_without_polish_the_tree_search_has_the_last_word() -> None:
    graph = chain([8.0, 4.0], [0.1, 40.0], activation=0.5)
    answer = find(graph, MIXED, polishes=False)
    assert "polish_gain" not in answer.statistics
    assert answer.step_seconds >= find(graph, MIXED, budget_seconds=30.0).step_seconds


def test_the_budget_is_kept() -> None:
    graph, cluster = zoo_graph("alexnet-32", 64), find_cluster("tag-testbed")
    with counted_clock() as clock:
        answer = find(graph, cluster, budget_seconds=50 * clock.tick_seconds)
    assert clock.looks <= 50 + 20  # what is begun ends, and has a look when it does
    assert answer.stop is Stop.LIMIT
    assert answer.plan is not None


@pytest.mark.parametrize("batch", [1.0, 2.0, 3.0])
def test_batches_smaller_than_the_devices_are_deployed(batch: float) -> None:
    cluster = hosts([("fast", 2), ("slow", 3)])
    answer = find(chain([4.0, 2.0], [1.0, 1.0], batch=batch), cluster)
    assert answer.plan is not None
    resolve(chain([4.0, 2.0], [1.0, 1.0], batch=batch), cluster, answer.plan)


def test_one_op_is_divided_over_all_devices_and_that_is_proved() -> None:
    builder = GraphBuilder("one", batch=8)
    builder.add_op("only", seconds={"any": 8.0})
    answer = find(builder.finish(), hosts([("fast", 2), ("slow", 2)]))
    assert answer.step_seconds == pytest.approx(2.0)
    assert answer.stop is Stop.PROVED


def test_one_device_runs_everything() -> None:
    graph = chain([8.0, 4.0], [0.1, 40.0])
    answer = find(graph, hosts([("fast", 1)]))
    assert answer.plan is not None
    assert len(answer.plan.parts) == 1
    assert answer.step_seconds == find_plan(graph, hosts([("fast", 1)]), "single").step_seconds


def test_groups_go_where_they_can_run() -> None:
    builder = GraphBuilder("picky", batch=8)
    builder.add_op("any", seconds={"any": 8.0})
    builder.add_op("slow", seconds={"slow": 4.0, "fast": math.inf})
    builder.add_tensor(0, 1e-3, [1])
    answer = find(builder.finish(), hosts([("fast", 2), ("slow", 2)]))
    assert answer.plan is not None
    # The first on four devices or, with less to move, on fewer; the second on both slow ones.
    assert answer.step_seconds <= 6.0 + 1e-3
    devices = next(part.devices for part in answer.plan.parts if "slow" in part.ops)
    assert set(devices) <= {"h1.d0", "h1.d1"}


def test_groups_that_no_type_can_run_are_placed_op_by_op() -> None:
    builder = GraphBuilder("torn", batch=8)
    builder.add_op("left", seconds={"fast": 1.0, "slow": math.inf})
    builder.add_op("right", seconds={"fast": math.inf, "slow": 1.0})
    builder.add_op("void", seconds={"any": 0.0})
    builder.add_tensor(0, 1e-6, [1])
    graph = builder.finish()
    answer = find(graph, hosts([("fast", 1), ("slow", 1)]))
    assert answer.plan is not None
    assert answer.step_seconds == pytest.approx(2.0, abs=1e-3)


def test_an_op_that_can_run_nowhere_is_named() -> None:
    builder = GraphBuilder("nowhere", batch=8)
    builder.add_op("fine", seconds={"any": 1.0})
    builder.add_op("impossible", seconds={"any": math.inf})
    answer = find(builder.finish(), MIXED)
    assert answer.stop is Stop.INFEASIBLE
    assert "'impossible'" in answer.binding


def test_a_step_that_data_parallelism_has_no_room_for_is_spread() -> None:
    # 3 layers of 10 bytes of state: two do not fit one device, all do fit three.
    graph = chain([1.0, 1.0, 1.0], [1.0, 1.0, 1.0], state=10.0)
    cluster = hosts([("fast", 1), ("slow", 2)], memory_bytes=16.0)
    assert find_plan(graph, cluster, "data").stop is Stop.INFEASIBLE
    answer = find(graph, cluster)
    assert answer.plan is not None
    assert max(answer.peak_bytes) <= 16.0


def test_a_step_that_fits_nowhere_says_what_is_missing() -> None:
    graph = chain([1.0, 1.0], [1.0, 1.0], state=10.0)
    answer = find(graph, hosts([("fast", 1), ("slow", 1)], memory_bytes=9.0))
    assert answer.plan is None
    assert answer.stop is Stop.INFEASIBLE
    assert "are missing" in answer.binding
    assert answer.statistics["missing_bytes"] > 0


def test_too_many_devices_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DEVICES", 2)
    answer = find(chain([1.0], [1.0]), MIXED)
    assert answer.stop is Stop.INFEASIBLE
    assert answer.binding == "not for this search: 3 devices are more than 2; hybrid takes more"


def test_too_many_replicas_leave_the_plans_that_need_no_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_MAX_REPLICAS", 2)
    monkeypatch.setattr(module, "_MAX_PLACED", 2)
    graph = chain([8.0, 4.0], [0.1, 40.0])
    answer = find(graph, MIXED)
    assert answer.plan is not None
    assert "iterations" not in answer.statistics
    assert answer.notes[0] == "placements without replicas were not tried: there are too many"
    assert answer.notes[1] == "8 ops on 3 devices are too many for a search"
    assert answer.notes[2].startswith("the plan is that of ")
    assert answer.step_seconds <= find_plan(graph, MIXED, "data").step_seconds


def test_ctrl_c_ends_it_with_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Tree.run

    def interrupted(self: Tree, *_: Any) -> None:
        run(self, 20)
        raise KeyboardInterrupt

    monkeypatch.setattr(Tree, "run", interrupted)
    graph = chain([8.0, 4.0], [0.1, 40.0], activation=0.5)
    answer = find(graph, MIXED)
    assert answer.plan is not None
    assert answer.stop is Stop.INTERRUPTED
    assert answer.statistics["iterations"] == 20
    assert "polish_gain" not in answer.statistics
    assert answer.step_seconds < find_plan(graph, MIXED, "data").step_seconds


def test_a_missing_network_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(net, "SHIPPED", tmp_path / "prior.safetensors")
    module._find_prior.cache_clear()
    try:
        for _ in range(2):
            answer = deploy(chain([8.0, 4.0], [0.1, 40.0]), MIXED, budget_seconds=0.5)
            assert answer.statistics["network"] == 0
    finally:
        module._find_prior.cache_clear()
    lines = capfd.readouterr().err.splitlines()
    assert len([line for line in lines if "prior.safetensors" in line]) == 1


def test_synchronisation_follows_the_network() -> None:
    # A gradient of 40 bytes takes long over links of 1 a second, its compute does not: it is
    # computed where it need not be summed.
    graph = chain([64.0, 0.1], [0.01, 400.0], activation=0.01)
    answer = find(graph, MIXED, budget_seconds=10.0)
    assert answer.plan is not None
    heavy = next(part for part in answer.plan.parts if "w1" in part.ops)
    assert heavy.num_replicas == 1 or heavy.sync is Sync.DUPLICATE
    light = next(part for part in answer.plan.parts if "f0" in part.ops)
    assert light.num_replicas == 3
