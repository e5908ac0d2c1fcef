"""What waits for what when orders are fixed: the longest path is what the simulator says."""

from dataclasses import replace

import numpy as np
import pytest
from bandwidth_strategies import MB, Case, cases
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Allocation, Plan, Sync
from meshwright.program.lower import lower
from meshwright.program.program import Program
from meshwright.search.method.bandwidth.rate.order import Ordered, fix_order
from meshwright.search.method.bandwidth.rate.precedence import Walker
from meshwright.search.method.bandwidth.rate.rates import HostPairs, find_host_pairs
from meshwright.search.method.bandwidth.rate.traffic import Kinship, list_traffic
from meshwright.simulate.engine import run_tasks
from meshwright.simulate.simulate import simulate
from meshwright.simulate.tasks import EngineInput, network_arrays, prepare_engine
from small import layers, rails, stages

SHARINGS = ("none", "fair")


def run(graph: Graph, cluster: Cluster, plan: Plan, sharing: str) -> tuple[Program, EngineInput]:
    """The tasks of a plan with their times."""
    program = lower(graph, cluster, plan)
    engine = prepare_engine(program, cluster, sharing)
    arrays = network_arrays(engine.network, engine.tasks)
    run_tasks(engine.tasks, engine.following, engine.streams, engine.flow_bytes, arrays)
    return program, engine


def ordered_of(
    case: Case, plan: Plan, sharing: str, *, bundles: bool = True
) -> tuple[Ordered, HostPairs, list[Kinship]]:
    program, engine = run(case.graph, case.cluster, plan, sharing)
    hosts = find_host_pairs(case.cluster)
    traffic = list_traffic(program, case.cluster, hosts, sharing=sharing, prefers_rings=False)
    ordered = fix_order(engine, traffic, sharing=sharing, is_apart=False, bundles=bundles)
    return ordered, hosts, traffic


def even_allocations(cluster: Cluster, part: float) -> tuple[Allocation, ...]:
    """The part of its links that every pair of hosts gets, on all its ways alike."""
    return tuple(
        Allocation(
            source=cluster.hosts[source],
            target=cluster.hosts[target],
            bytes_per_second=part * sum(cluster.link_bytes_per_second[way[0]] for way in ways),
            shares=(1 / len(ways),) * len(ways) if len(ways) > 1 else (),
        )
        for (source, target), ways in cluster.ways.links.items()
    )


@given(cases(max_per_host=1), st.sampled_from(SHARINGS), st.sampled_from((1.0, 0.5, 0.25)))
@settings(max_examples=60, deadline=None)
def test_a_walk_takes_what_the_simulator_does_where_nobody_shares(
    case: Case, sharing: str, part: float
) -> None:
    # With a device a host, wide links of its own and rates that fit on the others together nothing
    # else slows a transfer down: so these are the simulator's times, collectives and queues too.
    assume(case.cluster.links[0].bytes_per_second >= 1000 * MB)
    part = min(part, 1 / (len(case.cluster.hosts) - 1)) if sharing == "fair" else part
    allocations = even_allocations(case.cluster, part)
    plan = replace(case.plan, allocations=allocations)
    ordered, hosts, _ = ordered_of(case, plan, sharing, bundles=False)
    rates = {(each.source, each.target): each.bytes_per_second for each in allocations}
    names = [(case.cluster.hosts[one], case.cluster.hosts[other]) for one, other in hosts.pairs]
    own = np.array([rates[names[next(iter(share))]] for share in ordered.shares])
    seconds, _ = Walker(ordered.precedence).walk(own)
    expected = simulate(case.graph, case.cluster, plan, sharing=sharing).device_seconds
    assert seconds == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(cases(), st.sampled_from(SHARINGS))
@settings(max_examples=40, deadline=None)
def test_no_run_under_allocations_is_faster_than_the_walk(case: Case, sharing: str) -> None:
    allocations = even_allocations(case.cluster, 1 / max(len(case.cluster.hosts) - 1, 1))
    plan = replace(case.plan, allocations=allocations)
    ordered, hosts, _ = ordered_of(case, plan, sharing, bundles=False)
    rates = {(each.source, each.target): each.bytes_per_second for each in allocations}
    names = [(case.cluster.hosts[one], case.cluster.hosts[other]) for one, other in hosts.pairs]
    own = np.array([rates[names[next(iter(share))]] for share in ordered.shares])
    seconds, _ = Walker(ordered.precedence).walk(own)
    simulated = simulate(case.graph, case.cluster, plan, sharing=sharing).device_seconds
    assert seconds <= simulated * (1 + 1e-9)


def test_the_pairs_of_a_ring_are_one() -> None:
    # Four hosts in a ring: every neighbour 2 x 3/4 of the message, all at one rate.
    graph = layers(1, gradient=8 * MB)
    cluster = rails(4, rail=10 * MB)
    plan = stages(graph, [["d0", "d1", "d2", "d3"]], sync=Sync.RING)
    case = Case(graph=graph, cluster=cluster, plan=plan)
    ordered, _, traffic = ordered_of(case, plan, "fair")
    assert len(ordered.shares) == 1
    assert list(ordered.shares[0].values()) == [1.0] * 4
    (amounts,) = {
        tuple(phase.amounts) for each in traffic if not each.queues for phase in each.phases
    }
    assert amounts == pytest.approx([1.5] * 4)
    alone, _, _ = ordered_of(case, plan, "fair", bundles=False)
    assert len(alone.shares) == 4
