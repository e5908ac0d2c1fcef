"""Random small plans on hosts with several interfaces, and random graphs of arcs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Discipline, Plan, Sync, place_ops
from meshwright.search.method.bandwidth.rate.precedence import ARC, Precedence, make_precedence
from meshwright.search.method.bandwidth.rate.room import RateRoom
from small import TYPE, dag, layers, rails, stages

MB = 1e6
"""Rates are some MB/s, sizes some MB, so that whole kbit/s are exact to 1e-4."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan and what it is for."""

    graph: Graph
    cluster: Cluster
    plan: Plan


def unequal_rails(rates: Sequence[Sequence[float]]) -> Cluster:
    """A device a host; `rates[host][k]` is that of its link to switch k, zero: it has none."""
    devices = [
        Device(name=f"d{k}", type="unit", host=f"h{k}", memory_bytes=1e12)
        for k in range(len(rates))
    ]
    ends = [(f"d{host}", f"h{host}", 1e12) for host in range(len(rates))]
    ends += [
        (f"h{host}", f"s{k}", rate)
        for host, own in enumerate(rates)
        for k, rate in enumerate(own)
        if rate
    ]
    return Cluster(
        name="unequal",
        types={"unit": TYPE},
        devices=tuple(devices),
        switches=tuple(f"s{k}" for k in range(len(rates[0]))),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=rate)
            for one, other, rate in ends
            for source, target in ((one, other), (other, one))
        ),
    )


@st.composite
def clusters(draw: st.DrawFn, *, max_per_host: int = 2) -> Cluster:
    """2 to 4 hosts with 1 to 3 interfaces each, and 1 or 2 devices."""
    return rails(
        draw(st.integers(2, 4)),
        num_rails=draw(st.integers(1, 3)),
        per_host=draw(st.integers(1, max_per_host)),
        rail=draw(st.sampled_from((5, 10, 40))) * MB,
        device=draw(st.sampled_from((20, 1000))) * MB,
        latency=draw(st.sampled_from((0.0, 0.01))),
    )


sizes = st.sampled_from((0.0, 1 * MB, 3 * MB, 10 * MB, 40 * MB))
seconds = st.sampled_from((0.0, 0.1, 0.5, 2.0))


@st.composite
def placements(draw: st.DrawFn, /, **limits: int) -> Case:
    """A random graph, each op on one device."""
    cluster = draw(clusters(**limits))
    count = draw(st.integers(2, 10))
    times = draw(st.lists(seconds, min_size=count, max_size=count))
    edges = {
        (source, target): draw(sizes)
        for target in range(1, count)
        for source in draw(st.sets(st.integers(0, target - 1), max_size=3))
    }
    graph = dag(times, edges)
    on = draw(st.lists(st.integers(0, cluster.num_devices - 1), min_size=count, max_size=count))
    discipline = draw(st.sampled_from(tuple(Discipline)))
    names = [device.name for device in cluster.devices]
    plan = place_ops(graph.op_names, on, names, discipline=discipline)
    return Case(graph=graph, cluster=cluster, plan=plan)


@st.composite
def pipelines(draw: st.DrawFn, /, **limits: int) -> Case:
    """Stages of one or two replicas each, with gradients to add up."""
    cluster = draw(clusters(**limits))
    names = [device.name for device in cluster.devices]
    num_stages = draw(st.integers(1, 2))
    width = len(names) // num_stages
    on = [names[k * width : (k + 1) * width] for k in range(num_stages)]
    graph = layers(
        draw(st.integers(num_stages, 3)),
        forward=draw(seconds),
        backward=draw(seconds),
        activation=draw(sizes),
        gradient=draw(st.sampled_from((0.0, 5 * MB))),
        batch=8,
    )
    plan = stages(
        graph, on, draw(st.sampled_from(("gpipe", "1f1b"))), draw(st.integers(1, 3)),
        sync=draw(st.sampled_from((Sync.ALL_REDUCE, Sync.RING))),
    )  # fmt: skip
    return Case(graph=graph, cluster=cluster, plan=plan)


def cases(**limits: int) -> st.SearchStrategy[Case]:
    """Plans of every kind."""
    return st.one_of(placements(**limits), pipelines(**limits))


@st.composite
def arc_graphs(draw: st.DrawFn, max_hosts: int = 4) -> tuple[Precedence, RateRoom]:
    """Random arcs between ends of things on hosts whose exits and entries have one rate a host."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_hosts = draw(st.integers(2, max_hosts))
    pairs = [(a, b) for a in range(num_hosts) for b in range(num_hosts) if a != b]
    number = {pair: k for k, pair in enumerate(pairs)}
    num_nodes = draw(st.integers(2, 40))
    host = generator.integers(num_hosts, size=num_nodes)
    arcs = np.zeros(0, ARC)
    for node in range(1, num_nodes):
        for source in set(generator.integers(0, node, size=2).tolist()):
            arc = np.zeros(1, ARC)
            pair = number.get((int(host[source]), int(host[node])), -1)
            arc["source"], arc["target"], arc["pair"] = source, node, pair
            arc["fixed"] = generator.exponential() * (generator.random() < 0.7)
            if pair >= 0:
                arc["amount"] = generator.exponential() * MB
                arc["least"] = arc["amount"] / MB * (generator.random() < 0.2)
            arcs = np.concatenate((arcs, arc))
    rows = np.zeros((2 * num_hosts, len(pairs)))
    for k, (source, target) in enumerate(pairs):
        rows[source, k] = rows[num_hosts + target, k] = 1.0
    rates = generator.choice((1.0, 2.0, 5.0), size=2 * num_hosts) * MB
    room = RateRoom(pair_of_way=np.arange(len(pairs)), rows=rows, bytes_per_second=rates)
    return make_precedence(num_nodes, len(pairs), arcs), room
