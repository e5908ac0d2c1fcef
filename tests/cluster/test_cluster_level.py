"""Levels of clusters whose tiers are known."""

import pytest
from cluster_strategies import networks, small_clusters
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster import build
from meshwright.cluster import cluster as cluster_module
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.level import levels, link_tree


def test_one_device_has_no_levels() -> None:
    assert levels(find_cluster("h100-x1")) == ()


def test_dgx1_hosts_have_two_levels() -> None:
    # The double NVLinks 0-3, 0-4, 1-2, 1-5, 2-3, 4-7, 5-6, 6-7 join all eight of a host.
    inner, outer = levels(find_cluster("dgx1-x2"))
    assert inner.bytes_per_second == 43.2e9
    assert inner.groups == (tuple(range(8)), tuple(range(8, 16)))
    assert outer.bytes_per_second == 1.4e9
    assert outer.groups == (tuple(range(16)),)


def test_oversubscribed_spines_make_a_third_level() -> None:
    # Two hosts of two a leaf: 450 in a host, 50 in a leaf, 2 * 50 / 2 / 4 = 12.5 across.
    cluster = build.spine_leaf(
        num_spines=2, num_leaves=2, hosts_per_leaf=2, devices_per_host=2, oversubscription=4
    )
    found = levels(cluster)
    assert [each.bytes_per_second for each in found] == [450e9, 50e9, 12.5e9]
    assert [len(each.groups) for each in found] == [4, 2, 1]


def test_a_pair_counts_at_its_slower_direction() -> None:
    cluster = build.from_matrix(
        bytes_per_second=[[0, 9, 1], [5, 0, 1], [1, 7, 0]], device_type="t4"
    )
    found = levels(cluster)
    assert [each.bytes_per_second for each in found] == [5.0, 1.0]
    assert found[0].groups == ((0, 1), (2,))


def test_levels_equal_components_at_every_distinct_bandwidth() -> None:
    cluster = find_cluster("random-blk1-24-s3")
    expected: list[tuple[float, set[frozenset[int]]]] = []
    partition = {frozenset([device]) for device in range(24)}
    for rate in sorted(set(cluster.bandwidth[cluster.bandwidth < 1e30].tolist()), reverse=True):
        group = list(range(24))
        for i in range(24):
            for j in range(24):
                if cluster.bandwidth[i, j] >= rate:
                    group = [group[i] if label == group[j] else label for label in group]
        merged = {frozenset(i for i in range(24) if group[i] == label) for label in set(group)}
        if merged != partition:
            partition = merged
            expected.append((rate, merged))
    found = [
        (each.bytes_per_second, {frozenset(g) for g in each.groups}) for each in levels(cluster)
    ]
    assert found == expected


def levels_without_tables(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> object:
    with monkeypatch.context() as patch:
        patch.setattr(cluster_module, "MAX_TABLE_DEVICES", 0)
        vars(cluster).pop("routing", None)
        return levels(cluster)


@settings(max_examples=200, deadline=None)
@given(st.one_of(networks(), small_clusters()))
def test_levels_found_along_links_equal_those_of_all_pairs(cluster: Cluster) -> None:
    expected = levels(cluster)
    with pytest.MonkeyPatch.context() as patch:
        assert levels_without_tables(cluster, patch) == expected


def test_clusters_as_they_are_built_need_no_tables_of_all_pairs() -> None:
    for name in ("h100-x4x40", "dgx1-x3", "torus3d-3x2x3", "fat-tree-k4", "uniform-9", "tag-cloud"):
        assert link_tree(find_cluster(name)) is not None, name


def test_a_tree_along_links_fails_where_short_routes_are_narrow() -> None:
    # Each pair has a direct link of 1, though over the switch, two links, it would be 9.
    slow = build.fully_connected(num_devices=3, device_type="t4", bytes_per_second=1.0)
    fast = build.hierarchical(
        devices_per_host=1, branching=[3], device_type="t4", host_bytes_per_second=9.0
    )
    cluster = build.from_links(
        devices=slow.devices, links=[*slow.links, *fast.links], switches=fast.switches
    )
    assert link_tree(cluster) is None
    assert [each.bytes_per_second for each in levels(cluster)] == [1.0]


@pytest.mark.parametrize("name", ["h100-spineleaf-16384", "tpuv4-fattree-16384", "h100-x8x2048"])
def test_sixteen_thousand_devices_have_levels(name: str) -> None:
    cluster = find_cluster(name)
    inner, outer = levels(cluster)
    assert len(inner.groups) == 2048
    assert outer.groups == (tuple(range(16384)),)
    assert not cluster.has_tables
