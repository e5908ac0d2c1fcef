"""Levels of clusters whose tiers are known."""

from meshwright.cluster import build
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.level import levels


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
