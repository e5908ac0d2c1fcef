"""Chains, equal stages and PipeDream's dynamic programme."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs, make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, read_graph
from meshwright.plan.check import resolve
from meshwright.plan.plan import ScheduleKind
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import Chain, make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages, microbatch_choices
from meshwright.search.method.pipeline.pipedream import (
    Tier,
    find_tiers,
    max_blocks,
    partition_chain,
)
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import simulate
from meshwright.zoo.shipped import read_shipped

Seconds = st.sampled_from([1.0, 2.0, 3.0, 10.0])


def blocks(seconds: list[float], weights: list[float], cuts: list[float]) -> Chain:
    return Chain(
        block_of_op=np.arange(len(seconds), dtype=np.int32),
        seconds=np.array(seconds),
        parameter_bytes=np.array(weights),
        cut_bytes=np.array(cuts),
    )


@pytest.mark.parametrize(
    ("name", "published"), [("vgg16", 0.170179), ("resnet50", 0.111497), ("alexnet", 0.022186)]
)
def test_the_authors_results_are_met(shared: Path, name: str, published: float) -> None:
    # 4 devices at 10 GB/s; our chain has the prefixes of one order, theirs all antichains.
    graph = read_graph(shared / "pipedream" / name / "graph.txt")
    chain = make_chain(make_instance(graph, make_cluster(["fast"] * 4)), [0])
    tiers = (Tier(width=4, bytes_per_second=10e9),)
    found = partition_chain(chain, tiers, as_published=True)
    assert found.seconds == pytest.approx(published, rel=1e-5)
    # The paper's own formula lets synchronisation overlap with compute: never slower on these.
    assert partition_chain(chain, tiers).seconds <= found.seconds


def brute_partition(chain: Chain, devices: int, rate: float) -> float:
    """Over all cuts and replicas by the paper's formula."""
    best = np.inf
    count = chain.num_blocks
    for stages in range(1, min(count, devices) + 1):
        for cuts in itertools.combinations(range(1, count), stages - 1):
            bounds = [0, *cuts, count]
            for replicas in itertools.product(range(1, devices + 1), repeat=stages):
                if sum(replicas) != devices:
                    continue
                worst = max((2 * chain.cut_bytes[cut - 1] / rate for cut in cuts), default=0.0)
                for low, high, m in zip(bounds, bounds[1:], replicas, strict=False):
                    compute = chain.seconds[low:high].sum()
                    sync = 2 * (m - 1) * chain.parameter_bytes[low:high].sum() / rate
                    worst = max(worst, max(compute, sync) / m)
                best = min(best, worst)
    return best


@given(
    st.lists(st.tuples(Seconds, Seconds, Seconds), min_size=1, max_size=5),
    st.integers(1, 4),
    st.sampled_from([0.5, 1.0, 10.0]),
)
def test_the_dynamic_programme_is_optimal(
    rows: list[tuple[float, float, float]], devices: int, rate: float
) -> None:
    chain = blocks(*([row[i] for row in rows] for i in range(3)))
    found = partition_chain(chain, (Tier(width=devices, bytes_per_second=rate),))
    assert found.seconds == pytest.approx(brute_partition(chain, devices, rate))
    assert found.ends[-1] == chain.num_blocks
    assert sorted(itertools.chain(*(each.tolist() for each in found.devices))) == [*range(devices)]


def test_levels_nest() -> None:
    # Two hosts of two devices; weights are cheap within a host and dear between: each block goes
    # to one host, on both its devices. 8 seconds on 2 devices: 4 (sync 2 x 1 x 2 / 1 = 4 <= 8).
    chain = blocks([8.0, 8.0], [2.0, 2.0], [0.1, 0.0])
    tiers = (Tier(width=2, bytes_per_second=1.0), Tier(width=2, bytes_per_second=0.1))
    found = partition_chain(chain, tiers)
    assert found.seconds == 4.0
    assert found.ends == (1, 2)
    assert [each.tolist() for each in found.devices] == [[0, 1], [2, 3]]


def test_a_pipeline_within_hosts_is_replicated_across_them() -> None:
    # Sync within a host is dear (rate 0.1), between hosts cheap: each host pipelines both blocks.
    # Inner: stages of 8 s. Outer: 2 replicas of it: max(8, 2 x 1 x 4 / 10) / 2 = 4.
    chain = blocks([8.0, 8.0], [2.0, 2.0], [0.1, 0.0])
    tiers = (Tier(width=2, bytes_per_second=0.1), Tier(width=2, bytes_per_second=10.0))
    found = partition_chain(chain, tiers)
    assert found.seconds == 4.0
    assert [each.tolist() for each in found.devices] == [[0, 2], [1, 3]]


def test_tiers_of_a_cluster_are_its_levels() -> None:
    cluster = find_cluster("titan-v-4x4")
    tiers, order = find_tiers(cluster, np.arange(16, dtype=np.int32))
    assert [tier.width for tier in tiers] == [4, 4]
    assert tiers[0].bytes_per_second > tiers[1].bytes_per_second
    assert sorted(order.tolist()) == [*range(16)]


def test_large_clusters_use_fewer_blocks() -> None:
    assert max_blocks((Tier(width=8, bytes_per_second=1.0),)) == 256
    assert max_blocks((Tier(width=4096, bytes_per_second=1.0),)) <= 16


@given(st.lists(Seconds, min_size=1, max_size=7), st.data())
def test_equal_stages_have_the_fastest_slowest_stage(
    seconds: list[float], data: st.DataObject
) -> None:
    stages = data.draw(st.integers(1, len(seconds)))
    ends = equal_stages(np.array(seconds), stages)
    assert len(ends) == stages
    assert ends[-1] == len(seconds)

    def slowest(bounds: tuple[int, ...]) -> float:
        return max(sum(seconds[a:b]) for a, b in itertools.pairwise((0, *bounds)))

    options = itertools.combinations(range(1, len(seconds)), stages - 1)
    assert slowest(ends) == pytest.approx(min(slowest((*cut, len(seconds))) for cut in options))


@given(graphs(max_ops=16), clusters(max_devices=4), st.integers(1, 16))
@settings(max_examples=150)
def test_every_cut_of_a_chain_is_legal(graph: Graph, cluster: Cluster, most: int) -> None:
    chain = make_chain(make_instance(graph, cluster), [0], most)
    assert chain.num_blocks <= most
    count = min(chain.num_blocks, cluster.num_devices)
    ends = [*range(1, count), chain.num_blocks]
    devices = [np.array([number]) for number in range(count)]
    plan = stages_plan(graph, cluster, chain, ends, devices, 2)
    resolve(graph, cluster, plan)
    is_forward = graph.phase == Phase.FORWARD
    assert (np.diff(chain.block_of_op[is_forward & (chain.block_of_op >= 0)]) >= 0).all()


def test_tied_weights_wrap_around() -> None:
    # The head shares the embedding's group: head and loss run on the embedding's device.
    builder = GraphBuilder("tied", 8)
    names = ["embedding", *(f"layer{number}" for number in range(8)), "head", "loss"]
    for number, name in enumerate(names):
        group = 0 if name in ("embedding", "head") else -1
        builder.add_op(name, group=group, seconds={"any": 1.0})
        if number:
            builder.add_tensor(number - 1, 1.0, [number])
    graph, cluster = builder.finish(), make_cluster(["fast"] * 4)
    chain = make_chain(make_instance(graph, cluster), [0])
    assert chain.is_wrapped
    assert chain.num_blocks == 9
    assert chain.seconds.tolist() == [3.0] + [1.0] * 8
    ends = equal_stages(chain.seconds, 4)
    plan = stages_plan(graph, cluster, chain, ends, np.split(np.arange(4), 4), 4)
    assert simulate(graph, cluster, plan, granularity="part").step_seconds > 0
    resolve(graph, cluster, plan)
    assert plan.schedule is not None
    assert plan.schedule.kind is ScheduleKind.GPIPE
    assert plan.parts[-1].devices == plan.parts[0].devices
    assert plan.parts[-1].ops == ("head", "loss")


def test_microbatches_divide_the_batch_and_leave_every_replica_a_sample() -> None:
    graph = read_shipped("vgg16", 24)
    assert microbatch_choices(graph, 4, 2) == [1, 2, 4, 8, 12]
    assert microbatch_choices(graph, 4, 24) == [1]
    assert microbatch_choices(read_shipped("vgg16", 1), 2, 4)[0] == 1


def test_pipelines_run_on_real_models() -> None:
    graph, cluster = read_shipped("resnet50", 64), find_cluster("a100-80-x4")
    alone = find_plan(graph, cluster, "single").step_seconds
    for method in ("consecutive", "pipedream"):
        answer = find_plan(graph, cluster, method)
        assert answer.plan is not None
        assert answer.step_seconds < alone
        assert answer.bound_seconds <= answer.step_seconds
