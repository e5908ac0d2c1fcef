"""What a cluster means, against values worked out by hand."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster import build
from meshwright.cluster.catalogue import find_cluster, list_clusters
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.cluster.survey import survey_cluster

RACKS = {
    "racks": [
        {
            "count": 3,
            "oversubscription": 2,
            "hosts": [{"count": 2, "devices": "4 x h100", "nics": "4 x 400 Gb/s"}],
        },
        {"uplink": "80 Gb/s", "hosts": [{"devices": ["2 x t4", "1 x l4"], "nics": "25 GB/s"}]},
    ]
}


def read(document: object) -> Cluster:
    return decode_cluster(yaml.safe_dump(document).encode(), "file")


def test_racks_by_hand() -> None:
    survey = survey_cluster(read(RACKS))
    assert [len(kind.hosts) for kind in survey.kinds] == [6, 1]
    assert [each[:2] for each in survey.kinds[1].devices] == [(2, "t4"), (1, "l4")]
    # A host's four NICs of 50 GB/s. The last rack has one host, so that its link upwards is what
    # leaves the host.
    assert [kind.out_bytes_per_second for kind in survey.kinds] == [(200e9, 200e9), (10e9, 10e9)]
    inside, racks, others = survey.reaches
    assert [each.tier for each in survey.reaches] == ["host", "rack", ""]
    assert [each.num_groups for each in survey.reaches] == [7, 4, 1]
    assert inside.bytes_per_second == (11e9, 450e9)
    assert (racks.bytes_per_second, others.bytes_per_second) == ((50e9, 50e9), (10e9, 50e9))
    # 4 us from NIC to NIC, 0.3 us for each of two links between switches, and from the PCIe hosts
    # half of 2.5 us.
    assert racks.latency_seconds == pytest.approx((4e-6, 4e-6))
    assert others.latency_seconds == pytest.approx((4.6e-6, 5.85e-6))
    # Three devices behind 10 GB/s.
    assert racks.shared_bytes_per_second == pytest.approx(10e9 / 3)
    assert others.shared_bytes_per_second == pytest.approx(10e9 / 3)
    assert survey.narrowest is not None
    assert (survey.narrowest.num_devices, survey.narrowest.bytes_per_second) == (3, 10e9)


def test_nics_of_a_host_belong_to_it_in_racks_of_all_kinds() -> None:
    # Hosts whose NICs are nodes of their own beside hosts whose devices have them.
    hosts = [{"count": 2, "devices": "4 x l40s", "nics": "2 x 100 Gb/s"},
             {"count": 2, "devices": "4 x h100", "nics": "4 x 400 Gb/s"}]  # fmt: skip
    survey = survey_cluster(read({"hosts": hosts}))
    assert [(each.tier, each.num_groups) for each in survey.reaches] == [("host", 4), ("", 1)]
    racks = [{"hosts": [each], "oversubscription": 5} for each in hosts]
    survey = survey_cluster(read({"racks": racks}))
    assert [(each.tier, each.num_groups) for each in survey.reaches] == [
        ("host", 4), ("rack", 2), ("", 1),
    ]  # fmt: skip
    assert [kind.out_bytes_per_second[0] for kind in survey.kinds] == [25e9, 200e9]
    # 2 hosts x 2 x 12.5 GB/s over 5, for 8 devices.
    assert survey.narrowest is not None
    assert survey.narrowest.bytes_per_second == 10e9
    assert survey.reaches[2].shared_bytes_per_second == 1.25e9


def test_an_oversubscribed_leaf_is_the_narrowest_cut() -> None:
    survey = survey_cluster(build.h100_spine_leaf(num_devices=256, oversubscription=4))
    cut = survey.narrowest
    assert cut is not None
    # 16 hosts x 8 NICs x 50 GB/s over 4, for 128 devices.
    assert (cut.tier, len(cut.hosts), cut.bytes_per_second) == ("rack", 16, 1600e9)
    assert cut.share_bytes_per_second == 12.5e9
    assert [each.shared_bytes_per_second for each in survey.reaches] == [None, 50e9, 12.5e9]


def test_tiers_of_a_tree_are_found() -> None:
    cluster = build.hierarchical(devices_per_host=2, branching=(2, 3, 2), oversubscription=(1, 2))
    survey = survey_cluster(cluster)
    assert [(each.tier, each.num_groups) for each in survey.reaches] == [
        ("host", 12), ("rack", 6), ("pod", 2), ("", 1),
    ]  # fmt: skip
    # A host's link carries 50 GB/s for two devices, a rack's 100 for four, a pod's 300 / 2 for 12.
    assert [each.shared_bytes_per_second for each in survey.reaches] == [None, 25e9, 25e9, 12.5e9]


def test_a_torus_is_cut_in_halves() -> None:
    survey = survey_cluster(build.link_torus(shape=(4, 4), devices_per_host=1))
    assert survey.narrowest is not None
    # Each of four columns is cut twice: 8 links of 50 GB/s for 8 devices.
    assert (survey.narrowest.tier, survey.narrowest.bytes_per_second) == ("half", 400e9)


def test_one_host_has_no_cut_and_one_device_reaches_nobody() -> None:
    one, alone = (survey_cluster(find_cluster(name)) for name in ("h100-x8", "h200-x1"))
    assert (one.narrowest, [each.tier for each in one.reaches]) == (None, ["host"])
    assert (alone.narrowest, alone.reaches) == (None, ())


def test_a_sample_of_many_devices_finds_every_tier() -> None:
    survey = survey_cluster(find_cluster("h100-spineleaf-4096-o2"))
    assert survey.is_sampled
    assert [each.tier for each in survey.reaches] == ["host", "rack", ""]
    assert [each.bytes_per_second for each in survey.reaches] == [
        (450e9, 450e9), (50e9, 50e9), (50e9, 50e9),
    ]  # fmt: skip
    assert [each.shared_bytes_per_second for each in survey.reaches] == [None, 50e9, 25e9]


SMALL = [each.example for each in list_clusters() if find_cluster(each.example).num_devices <= 128]


@given(st.sampled_from(SMALL))
def test_reaches_divide_all_pairs_between_them(name: str) -> None:
    cluster = find_cluster(name).plain
    survey = survey_cluster(cluster)
    assert sum(len(kind.hosts) for kind in survey.kinds) == len(cluster.hosts)
    devices = sum(n * len(kind.hosts) for kind in survey.kinds for n, _, _ in kind.devices)
    assert devices == cluster.num_devices
    others = cluster.bandwidth[cluster.bandwidth < float("inf")]
    lows, highs = zip(*(each.bytes_per_second for each in survey.reaches), strict=True)
    assert (min(lows), max(highs)) == (others.min(), others.max())
    if survey.narrowest is not None:
        shares = [each.shared_bytes_per_second for each in survey.reaches]
        assert survey.narrowest.share_bytes_per_second <= min(filter(None, shares))
