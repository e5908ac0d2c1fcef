"""The method `pipeline`: never slower than what it tries, legal, and clear where nothing fits."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, read_graph
from meshwright.plan.answer import Stop
from meshwright.plan.check import resolve
from meshwright.plan.plan import ScheduleKind
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.block import find_blocks
from meshwright.search.method.pipeline.cutter import Options
from meshwright.search.method.pipeline.stage.problem import DeviceKind, make_problem
from meshwright.search.method.pipeline.stage.split import solve_split
from meshwright.search.portfolio import search_by
from meshwright.simulate.simulate import simulate
from meshwright.zoo.shipped import read_shipped
from synthetic import synthetic_gpt

consecutive = partial(search_by, "consecutive")
pipedream = partial(search_by, "pipedream")
pipeline = partial(search_by, "pipeline")


def chain(count: int, batch: float = 8, trains: bool = True) -> Graph:
    """So many layers of a second forward, two seconds backward, and a tensor of 8 bytes between."""
    builder = GraphBuilder("chain", batch)
    for number in range(count):
        builder.add_op(f"f{number}", seconds={"any": 1.0}, state_bytes=10.0, saved_bytes=8.0)
        if number:
            builder.add_tensor(number - 1, 8.0, [number])
    for number in range(count - 1, -1, -1) if trains else ():
        op = builder.add_op(
            f"b{number}", phase=Phase.BACKWARD, partner=number, seconds={"any": 2.0}
        )
        if number < count - 1:
            builder.add_tensor(op - 1, 8.0, [op])
    return builder.finish()


@pytest.mark.slow
@given(graphs(max_ops=12), clusters(max_devices=4), st.sampled_from(["fair", "none"]))
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_no_pipeline_is_slower_than_the_usual_ones(
    graph: Graph, cluster: Cluster, sharing: str
) -> None:
    answer = pipeline(graph, cluster, sharing=sharing)
    usual = [method(graph, cluster, sharing=sharing) for method in (consecutive, pipedream)]
    fastest = min(each.step_seconds for each in usual)
    assert answer.step_seconds <= fastest * (1 + 1e-9)
    if answer.plan is None:
        assert answer.stop is Stop.INFEASIBLE
        assert answer.binding
        return
    resolve(graph, cluster, answer.plan)
    timeline = simulate(graph, cluster, answer.plan, sharing=sharing)
    assert answer.step_seconds == pytest.approx(timeline.step_seconds)
    assert answer.bound_seconds <= answer.step_seconds * (1 + 1e-9)


def test_the_same_seed_gives_the_same_plan() -> None:
    graph, cluster = read_shipped("unet", 8), make_cluster(["fast"] * 4, rate=1e9)
    first, second = (pipeline(graph, cluster, seed=3, budget_seconds=60) for _ in range(2))
    assert first.plan == second.plan
    assert first.statistics == second.statistics


def test_equal_layers_share_devices_evenly() -> None:
    # Links so fast that they cost nothing, 8 microbatches of 12/8 s on one device: with zero bubble
    # or without, no plan beats 12 layers x 3 s / 4 devices = 9 s.
    cluster = make_cluster(["fast"] * 4, rate=1e9)
    answer = pipeline(chain(12), cluster)
    assert answer.plan is not None
    assert answer.step_seconds == pytest.approx(9.0, rel=1e-3)


def test_fewer_ops_than_stages_leave_devices_idle_or_replicate() -> None:
    answer = pipeline(chain(2, batch=2), make_cluster(["fast"] * 8, rate=1e9))
    assert answer.plan is not None
    assert len(answer.plan.parts) <= 2


def test_a_pipeline_without_backward_is_found() -> None:
    answer = pipeline(chain(8, trains=False), make_cluster(["fast"] * 4, rate=1e9))
    assert answer.plan is not None
    assert answer.step_seconds < 8.0


def test_one_device_runs_everything() -> None:
    answer = pipeline(chain(3), make_cluster(["fast"]))
    assert answer.plan is not None
    assert answer.step_seconds == pytest.approx(9.0)


def test_devices_that_no_product_of_stages_and_replicas_uses_up() -> None:
    answer = pipeline(chain(10), make_cluster(["fast"] * 7, rate=1e9))
    assert answer.plan is not None
    # Uneven replicas: 30 s / 7 devices is a bound that 4 or 6 devices cannot reach.
    assert answer.step_seconds < 30 / 6


def test_a_batch_that_replicas_do_not_divide_is_split_all_the_same() -> None:
    answer = pipeline(chain(6, batch=7), make_cluster(["fast"] * 4, rate=1e9))
    assert answer.plan is not None
    assert answer.plan.schedule is not None
    assert 7 % answer.plan.schedule.microbatches == 0


def test_wanted_microbatches_are_used() -> None:
    answer = pipeline(chain(6), make_cluster(["fast"] * 2, rate=1e9), microbatches=(4,))
    assert answer.plan is not None
    assert answer.plan.schedule is not None
    assert answer.plan.schedule.microbatches == 4


def test_every_replica_has_a_sample() -> None:
    answer = pipeline(chain(3, batch=2), make_cluster(["fast"] * 6, rate=1e9))
    assert answer.plan is not None
    assert answer.plan.schedule is not None
    most = max(len(part.devices) for part in answer.plan.parts)
    assert most * answer.plan.schedule.microbatches <= 2


def test_too_many_microbatches_are_refused_with_the_reason() -> None:
    answer = pipeline(chain(4), make_cluster(["fast"] * 2, rate=1e9), microbatches=(16,))
    assert answer.plan is None
    assert answer.stop is Stop.INFEASIBLE
    assert "16" in answer.binding
    assert "batch of 8" in answer.binding


def test_what_fits_no_device_is_said_with_the_bytes_that_are_missing() -> None:
    answer = pipeline(chain(6), make_cluster(["fast"] * 2, rate=1e9, memory_bytes=20.0))
    assert answer.plan is None
    assert answer.stop is Stop.INFEASIBLE
    assert "missing" in answer.binding
    assert answer.statistics["missing_bytes"] > 0


def test_stages_fit_where_replicas_would_not() -> None:
    # All state is 120 bytes, a device holds 60: three stages or more.
    answer = pipeline(chain(12), make_cluster(["fast"] * 4, rate=1e9, memory_bytes=60.0))
    assert answer.plan is not None
    assert len(answer.plan.parts) >= 3
    assert max(answer.peak_bytes) <= 60.0


def test_small_devices_get_small_stages() -> None:
    cluster = make_cluster(["fast"] * 3, rate=1e9, memory_bytes=100.0)
    devices = tuple(
        replace(device, memory_bytes=size)
        for device, size in zip(cluster.devices, (30.0, 100.0, 100.0), strict=True)
    )
    answer = pipeline(chain(10), replace(cluster, devices=devices))
    assert answer.plan is not None
    limits = np.array([30.0, 100.0, 100.0])
    assert (np.array(answer.peak_bytes) <= limits * (1 + 1e-9)).all()


def test_slow_devices_get_small_stages() -> None:
    # Two types: "slow" takes 4 s where "fast" takes 1 s.
    builder = GraphBuilder("mixed", 16)
    for number in range(10):
        builder.add_op(f"f{number}", seconds={"fast": 1.0, "slow": 4.0})
        if number:
            builder.add_tensor(number - 1, 1.0, [number])
    graph, cluster = builder.finish(), make_cluster(["fast", "slow"], rate=1e9)
    answer = pipeline(graph, cluster)
    assert answer.plan is not None
    by_device = {part.devices: len(part.ops) for part in answer.plan.parts}
    assert by_device[("d0",)] == 8  # 8 s and 8 s: the best of both
    assert by_device[("d1",)] == 2


def test_ops_that_no_device_can_run_are_refused() -> None:
    builder = GraphBuilder("nowhere", 2)
    builder.add_op("f", seconds={"any": math.inf})
    answer = pipeline(builder.finish(), make_cluster(["fast"] * 2))
    assert answer.stop is Stop.INFEASIBLE
    assert "no device type" in answer.binding


def test_types_that_run_different_ops_share_a_pipeline() -> None:
    # The first op runs on "fast" only, the last on "slow" only: no device runs all.
    builder = GraphBuilder("apart", 4)
    builder.add_op("first", seconds={"fast": 1.0, "slow": math.inf})
    builder.add_op("last", seconds={"fast": math.inf, "slow": 1.0})
    builder.add_tensor(0, 1.0, [1])
    answer = pipeline(builder.finish(), make_cluster(["fast", "slow"], rate=1e9))
    assert answer.plan is not None
    assert [part.ops for part in answer.plan.parts] == [("first",), ("last",)]


def test_a_skip_connection_may_cross_stages() -> None:
    builder = GraphBuilder("skip", 8)
    for number in range(8):
        builder.add_op(f"f{number}", seconds={"any": 1.0})
        if number:
            targets = [number, 7] if number == 1 else [number]
            builder.add_tensor(number - 1, 1.0, targets)
    answer = pipeline(builder.finish(), make_cluster(["fast"] * 4, rate=1e9), microbatches=(8,))
    assert answer.plan is not None
    assert answer.step_seconds < 8.0


def test_an_interrupted_search_gives_its_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("meshwright.search.method.pipeline.pipeline.neighbours", interrupt)
    answer = pipeline(chain(6), make_cluster(["fast"] * 2, rate=1e9))
    assert answer.plan is not None
    assert answer.stop is Stop.INTERRUPTED


PARTS = {
    "clusters": "cutter.gather_blocks",
    "refines": "cutter.refine_split",
    "tries_usual": "pipeline.usual_candidates",
    "interleaves": "pipeline._PipelineSearch._interleaved_candidates",
    "maps": "pipeline.mapped_homes",
    "tunes": "pipeline.neighbours",
}
"""By option, what does that part of the search."""


@pytest.mark.parametrize("left_out", [(), ("refines", "tunes"), ("maps", "clusters"), tuple(PARTS)])
def test_every_part_of_the_search_can_be_left_out(
    monkeypatch: pytest.MonkeyPatch, left_out: tuple[str, ...]
) -> None:
    ran = set()
    for option, name in PARTS.items():
        folder = "meshwright.search.method.pipeline."
        part = resolve_name(folder + name)

        def run(*given: Any, _option: str = option, _part: Any = part, **more: Any) -> Any:
            ran.add(_option)
            return _part(*given, **more)

        monkeypatch.setattr(folder + name, run)
    options = Options(
        num_clusters=0 if "clusters" in left_out else 8,
        **{option: option not in left_out for option in PARTS if option != "clusters"},  # type: ignore[arg-type]
    )
    graph, cluster = read_shipped("unet", 8), find_cluster("dgx1")
    answer = pipeline(graph, cluster, options=options, num_workers=0)
    assert ran == set(PARTS) - set(left_out)
    assert answer.plan is not None
    resolve(graph, cluster, answer.plan)


def test_interleaved_stages_save_memory_against_gpipe_and_time_against_1f1b() -> None:
    # A device holds 48 bytes: 1F1B takes 12.4 s, GPipe with three stages a device does not fit.
    cluster = make_cluster(["fast"] * 4, rate=1e9, memory_bytes=48.0)
    answer = pipeline(chain(12), cluster)
    assert answer.plan is not None
    assert answer.plan.schedule is not None
    assert answer.plan.schedule.kind is ScheduleKind.INTERLEAVED
    assert answer.step_seconds < 12.0


@pytest.mark.parametrize(
    ("name", "published"), [("vgg16", 0.170179), ("resnet50", 0.111497), ("alexnet", 0.022186)]
)
def test_pipedream_s_profiles_are_split_as_well_as_by_their_authors(
    shared: Path, name: str, published: float
) -> None:
    # 4 devices at 10 GB/s; m replicas take (compute + 4 (m - 1) w / (B m)) / m, transfers nothing.
    graph = read_graph(shared / "pipedream" / name / "graph.txt")
    blocks = find_blocks(graph, ties_loose=False)
    compute = blocks.add_up(make_instance(graph, make_cluster(["fast"])).seconds[:, 0])
    weights = blocks.add_up(graph.parameter_bytes)
    kinds = [
        DeviceKind(
            name=f"x{m}",
            count=4,
            width=m,
            pool="devices",
            seconds=(compute + 4 * (m - 1) * weights / (10e9 * m)) / m,
            wire_share=0.0,
        )
        for m in range(1, 5)
    ]
    problem = make_problem(
        kinds=kinds, num_bytes=np.zeros(blocks.num_blocks), edges=blocks.edges, wires=()
    )
    found = solve_split(problem)
    assert found.stop is Stop.PROVED
    assert found.seconds <= published * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "graph", [read_shipped("resnet50", 64), synthetic_gpt(800)], ids=["resnet50", "gpt"]
)
def test_real_models_are_never_slower_than_the_usual_pipelines(graph: Graph) -> None:
    cluster = find_cluster("titan-v-4x4")
    answer = pipeline(graph, cluster)
    usual = [method(graph, cluster) for method in (consecutive, pipedream)]
    assert answer.step_seconds <= min(each.step_seconds for each in usual) * (1 + 1e-9)
