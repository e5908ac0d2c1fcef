"""The drawing of a cluster: tiers, links and their use, and the model's parts."""

import numpy as np
import pytest
from pages import Planned, pipeline, replicas

import meshwright as mw
from link_use import link_use
from meshwright.graph.graph import Phase
from meshwright.page.network import draw_network
from meshwright.page.strip import draw_strips
from meshwright.plan.plan import place_ops
from meshwright.simulate.simulate import simulate


@pytest.mark.parametrize("case", [pipeline(), replicas()])
def test_links_are_as_busy_as_their_bytes_make_them(case: Planned) -> None:
    graph, cluster, plan = case
    timeline = simulate(graph, cluster, plan, with_links=True)
    found = draw_network(cluster, timeline)
    for link, rate in enumerate(cluster.link_bytes_per_second.tolist()):
        when, used = link_use(timeline, link)
        moved = float((np.diff(np.append(when, timeline.device_seconds)) * used).sum())
        busy = moved / rate / timeline.step_seconds
        assert found.link_busy[link] == pytest.approx(busy, rel=1e-6, abs=1e-9)
    assert found.device_busy == pytest.approx(timeline.device_utilisation)


def test_nodes_stand_in_tiers() -> None:
    graph, cluster, plan = pipeline()
    found = draw_network(cluster, simulate(graph, cluster, plan))
    # Two devices, two hosts, one switch.
    assert found.tier == (0, 0, 1, 1, 2)
    tree = mw.cluster("hierarchical-2x2x2")
    small = mw.load_graph("mlp")
    placed = place_ops(small.op_names, [0] * small.num_ops, [tree.devices[0].name])
    tiers = draw_network(tree, simulate(small, tree, placed)).tier
    assert sorted(set(tiers)) == [0, 1, 2, 3]


def test_links_between_two_nodes_are_one_line() -> None:
    graph, cluster, plan = pipeline()
    found = draw_network(cluster, simulate(graph, cluster, plan))
    assert len(found.cables) == len(cluster.links) / 2
    for cable in found.cables:
        assert cable.count == (1, 1)
        assert cable.bytes_per_second[0] == cable.bytes_per_second[1] > 0
    one, other = (found.busiest_at(cluster)[device] for device in range(2))
    assert one == other == found.link_busy.max()


def test_a_strip_has_every_op_under_its_part() -> None:
    graph, _, plan = pipeline()
    strips = draw_strips(graph, plan)
    assert [strip.phase for strip in strips] == ["forward", "backward", "update"]
    assert sum(strip.num_ops for strip in strips) == graph.num_ops
    forward = strips[0]
    # Two stages of two layers each.
    assert [(stretch.part, stretch.first, stretch.count) for stretch in forward.stretches] == [
        (0, 0, 2), (1, 2, 2),
    ]  # fmt: skip
    assert forward.stretches[0].where == "embedding to layer 1"
    assert forward.is_whole


def test_where_layers_are_divided_modules_say_where() -> None:
    graph, cluster, _ = pipeline()
    names = [device.name for device in cluster.devices]
    places = [int(phase != Phase.FORWARD) for phase in graph.phase.tolist()]
    strips = draw_strips(graph, place_ops(graph.op_names, places, names))
    first = graph.module[0] or graph.op_names[0]
    assert strips[0].stretches[0].where.startswith(first)
