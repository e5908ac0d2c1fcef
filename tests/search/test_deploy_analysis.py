"""What a deployment is decided on: groups of ops and devices, the menu, sums over groups."""

import numpy as np
import pytest
from deploy_cases import chain, hosts
from hypothesis import given, settings
from hypothesis import strategies as st
from search_strategies import clusters, graphs

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.program.bucket import tie_sums
from meshwright.search.instance import make_instance
from meshwright.search.method.deploy.analysis import analyse, group_ops, split_group
from meshwright.search.method.deploy.menu import MAX_PLACES, balanced_samples, group_devices
from meshwright.search.method.deploy.option import GroupOption
from meshwright.source import zoo_graph
from small import connected


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("tag-testbed", [4, 2, 2, 2, 2, 2, 2]),
        ("tag-cloud", [8, 8, 4, 4, 4, 4]),
        ("dgx1-x2", [8, 8]),
        ("a100-80-x8", [8]),
        ("h200-x1", [1]),
    ],
)
def test_device_groups_are_what_shares_host_and_type(name: str, sizes: list[int]) -> None:
    groups = group_devices(find_cluster(name))
    assert [len(group.devices) for group in groups] == sizes


def test_devices_of_two_types_on_one_host_are_two_groups() -> None:
    cluster = hosts([("fast", 2), ("slow", 3)])
    groups = group_devices(cluster)
    assert [group.devices for group in groups] == [(0, 1), (2, 3, 4)]
    assert [cluster.type_names[group.type] for group in groups] == ["fast", "slow"]


def test_devices_of_a_host_that_reach_each_other_slower_than_others_are_apart() -> None:
    cluster = find_cluster("nvlink50-eth20-x2")
    assert all(len(group.devices) >= 1 for group in group_devices(cluster))
    covered = sorted(device for group in group_devices(cluster) for device in group.devices)
    assert covered == list(range(cluster.num_devices))


@pytest.mark.parametrize("num_devices", [13, 64, 100])
def test_many_equal_hosts_are_joined_to_few_groups(num_devices: int) -> None:
    groups = group_devices(connected(num_devices))
    assert len(groups) <= MAX_PLACES
    covered = sorted(device for group in groups for device in group.devices)
    assert covered == list(range(num_devices))


def test_the_first_action_is_data_parallelism_and_none_stands_twice() -> None:
    analysis = analyse(zoo_graph("bert-small"), find_cluster("tag-testbed"))
    first = analysis.actions[0]
    assert first.option is GroupOption.ALL_REDUCE
    assert first.devices == tuple(range(16))
    assert first.shares == ()
    assert len(set(analysis.actions)) == len(analysis.actions)


def test_all_sets_of_few_device_groups_are_on_the_menu() -> None:
    analysis = analyse(chain([8.0], [1.0]), hosts([("fast", 2), ("slow", 2), ("slow", 1)]))
    sets = {action.places for action in analysis.actions}
    assert sets == {(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)}
    per_set = [action for action in analysis.actions if action.places == (0, 1)]
    assert {action.option for action in per_set} == set(GroupOption)
    one = [action for action in analysis.actions if action.places == (0,)]
    assert (0,) in {action.devices for action in one}


def test_balanced_shares_finish_together() -> None:
    # 12 samples of 1 s on the fast device and 2 s on the slow ones: 6 + 3 + 3 take 6 s each.
    graph = chain([2.0 * 12 / 3], [1.0], batch=12.0)
    cluster = hosts([("fast", 1), ("slow", 2)])
    assert balanced_samples(graph, cluster, np.arange(3)) == pytest.approx([6.0, 3.0, 3.0])
    shares = {action.shares for action in analyse(graph, cluster).actions}
    assert (0.5, 0.25, 0.25) in shares


def test_a_device_that_costs_more_than_it_does_gets_no_samples() -> None:
    # Fixed work keeps the slow device busy for longer than the fast one takes for everything.
    builder = GraphBuilder("fixed", batch=4)
    builder.add_op("f", flops=1.004, fixed_flops=1.0)
    graph = builder.finish()
    samples = balanced_samples(
        graph, hosts([("fast", 1), ("slow", 1)], speeds={"fast": 100.0, "slow": 1.0}), np.arange(2)
    )
    assert samples == pytest.approx([4.0, 0.0])


def test_a_batch_smaller_than_the_cluster_uses_as_many_devices_as_samples() -> None:
    analysis = analyse(chain([8.0], [1.0], batch=2.0), hosts([("fast", 4), ("slow", 4)]))
    for action in analysis.actions:
        if action.option is not GroupOption.MODEL:
            assert len(action.devices) <= 2


def test_ops_that_cannot_run_on_a_type_forbid_its_actions() -> None:
    builder = GraphBuilder("picky", batch=4)
    builder.add_op("anywhere", flops=8.0)
    builder.add_op("fast only", seconds={"fast": 1.0, "slow": float("inf")})
    analysis = analyse(builder.finish(), hosts([("fast", 2), ("slow", 2)]))
    for number, action in enumerate(analysis.actions):
        slow = 1 in action.places
        picky = int(analysis.group_of[1])
        assert analysis.allowed[picky, number] == (not slow)
        assert analysis.can_run(picky, action) == (not slow)


@given(graph=graphs(max_ops=20), cluster=clusters(), max_groups=st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_every_op_is_in_one_group_with_those_it_shares_a_device_with(
    graph: Graph, cluster: Cluster, max_groups: int
) -> None:
    instance = make_instance(graph, cluster)
    group = group_ops(instance, max_groups, seed=0)
    assert group.min() >= 0
    assert sorted(set(group.tolist())) == list(range(int(group.max()) + 1))
    for number in set(graph.group.tolist()) - {-1}:
        assert len(set(group[graph.group == number].tolist())) == 1
    units = len(set(instance.unit_of.tolist()))
    assert int(group.max()) + 1 <= min(max_groups, units)


def test_groups_are_numbered_by_falling_time() -> None:
    graph = chain([1.0, 5.0, 3.0], [1.0, 1.0, 1.0])
    analysis = analyse(graph, hosts([("fast", 1), ("slow", 1)]))
    total = analysis.seconds.sum(axis=1)
    assert list(total) == sorted(total, reverse=True)
    assert analysis.group_of[graph.index["f1"]] == 0


def test_zoo_models_have_at_most_sixty_groups_none_over_twice_the_mean_by_much() -> None:
    analysis = analyse(zoo_graph("inception-v3"), find_cluster("tag-testbed"))
    assert analysis.num_groups <= 60
    # METIS may exceed its factor where one unit alone does.
    instance = analysis.instance
    heaviest = np.bincount(instance.unit_of, weights=instance.seconds.mean(axis=1)).max()
    mean = instance.seconds.mean(axis=1).sum() / 60
    largest = np.bincount(analysis.group_of, weights=instance.seconds.mean(axis=1)).max()
    assert largest <= 2.05 * mean + heaviest


def test_idle_and_dangling_ops_go_with_what_they_read() -> None:
    builder = GraphBuilder("idle", batch=4)
    first = builder.add_op("first", flops=4.0)
    same = builder.add_op("same", kind="identity", flops=1.0)
    unread = builder.add_op("unread", flops=0.5)
    second = builder.add_op("second", flops=4.0)
    made = builder.add_op("made")  # of nothing, for `second`
    tensor = builder.add_tensor(first, 1.0, [same])
    builder.add_use(tensor, unread)
    builder.add_tensor(same, 1.0, [second])
    builder.add_tensor(made, 1.0, [second])
    builder.add_tensor(
        second, 1.0, [builder.add_op("update", phase=Phase.UPDATE, split=Split.NONE, flops=1.0)]
    )
    graph = builder.finish()
    analysis = analyse(graph, hosts([("fast", 2)]))
    group = {name: int(analysis.group_of[graph.index[name]]) for name in graph.op_names}
    assert group["same"] == group["first"] == group["unread"]
    assert group["made"] == group["second"]
    assert group["first"] != group["second"]


def test_sums_over_groups_are_those_over_ops() -> None:
    graph = chain([1.0, 2.0, 3.0], [10.0, 20.0, 30.0], activation=5.0, state=7.0)
    analysis = analyse(graph, hosts([("fast", 2), ("slow", 1)]))
    assert analysis.gradient_bytes.sum() == 60.0
    assert analysis.state_bytes.sum() == 21.0
    assert analysis.seconds.sum(axis=0) == pytest.approx([18.0 / 2, 18.0])
    assert analysis.fixed_seconds == pytest.approx(0.0)
    # f0 -> f1 -> f2 and back, 5 bytes each.
    assert analysis.between.sum() == 20.0


def test_what_does_not_shrink_with_the_rows_is_told_apart() -> None:
    builder = GraphBuilder("fixed", batch=4)
    builder.add_op("f", flops=10.0, fixed_flops=2.0)
    builder.add_op("u", phase=Phase.UPDATE, split=Split.NONE, flops=3.0, fixed_flops=3.0)
    graph = builder.finish()
    analysis = analyse(graph, hosts([("slow", 2)]))
    assert analysis.seconds.sum() == pytest.approx(13.0)
    assert analysis.fixed_seconds.sum() == pytest.approx(5.0)


def test_a_group_is_dealt_out_by_speed() -> None:
    graph = chain([1.0] * 9, [1.0] * 9, activation=1.0)
    instance = make_instance(graph, hosts([("fast", 1), ("slow", 1)]))
    ops = np.arange(graph.num_ops, dtype=np.int32)
    place = split_group(instance, ops, np.array([2.0, 1.0]), seed=0)
    layers = {int(graph.op_names[op][1:]): int(place[op]) for op in ops.tolist()}
    assert sum(each == 0 for each in layers.values()) == 6
    for op in ops.tolist():  # co-location
        assert place[op] == layers[int(graph.op_names[op][1:])]


@pytest.mark.parametrize("name", ["bert-small", "transformer", "inception-v3"])
def test_ops_that_must_see_the_same_samples_are_in_one_group(name: str) -> None:
    graph = zoo_graph(name)
    group = analyse(graph, find_cluster("tag-testbed")).group_of
    tied = tie_sums(graph)
    assert (tied != np.arange(graph.num_ops)).any()
    assert (group == group[tied]).all()
