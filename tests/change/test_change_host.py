"""Copies of hosts hang from the same switches by the same links; hosts leave nothing behind."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.change.host import add_host, drop_hosts, keep_devices, makes_of
from meshwright.change.tier import find_tiers
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.errors import InputError

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))
from cluster_strategies import small_clusters

SHORT = b"""{"racks": [{"count": 2, "oversubscription": 2, "hosts":
  [{"count": %d, "devices": "2 x a100-80", "nics": "%s"}]}]}"""


def racks(count: int, nics: str = "25 Gb/s") -> Cluster:
    return decode_cluster(SHORT % (count, nics.encode()), "racks")


def shape(cluster: Cluster, host: str) -> Counter[tuple[str, str, float, float, str]]:
    """The links of a host's nodes, with `HOST` for its name."""
    owner = find_tiers(cluster).host_of
    return Counter(
        (
            link.source.replace(host, "HOST"), link.target.replace(host, "HOST"),
            link.bytes_per_second, link.latency_seconds, link.kind,
        )
        for link in cluster.links
        if host in (owner.get(link.source), owner.get(link.target))
    )  # fmt: skip


@pytest.mark.parametrize("nics", ["25 Gb/s", "2 x 25 Gb/s", "1 x 25 Gb/s"])
def test_a_copy_is_joined_as_its_model(nics: str) -> None:
    before = racks(2, nics)
    after = add_host(before, "host3")
    assert after.hosts == (*before.hosts, "host4")
    assert [each.name for each in after.devices[-2:]] == ["host4.0", "host4.1"]
    assert shape(after, "host4") == shape(after, "host3")
    assert after.links[: len(before.links)] == before.links
    assert after.bandwidth[-1, 0] == before.bandwidth[-1, 0]


def test_a_copy_is_the_host_that_the_file_would_have() -> None:
    one, two = (
        decode_cluster(
            b'{"hosts": [{"count": %d, "devices": "4 x t4", "nics": "25 Gb/s"}]}' % number, "hosts"
        )
        for number in (2, 3)
    )
    added = add_host(one, "host1")
    assert added.devices == two.devices
    assert Counter(added.links) == Counter(two.links)


def test_copies_spread_over_racks() -> None:
    cluster = racks(2)
    for _ in range(4):
        cluster = add_host(cluster, "host0")
    below = Counter(
        each.source for each in cluster.links if each.target.startswith("host")
        and each.source.startswith("rack")
    )  # fmt: skip
    # Two racks of two hosts and four more: four on each, by a NIC each.
    assert set(below.values()) == {4}


def test_all_that_are_joined_stay_so() -> None:
    cluster = decode_cluster(
        b"""{"format": "meshwright.cluster", "version": 1, "build": "fully_connected",
        "arguments": {"num_devices": 3, "device_type": "t4", "bytes_per_second": "10 GB/s"}}""",
        "connected",
    )
    after = add_host(cluster, "host2")
    assert len(after.links) == 4 * 3
    assert {each.bytes_per_second for each in after.links} == {10e9}


def test_names_are_new() -> None:
    testbed = find_cluster("tag-testbed")
    after = add_host(add_host(testbed, "v100-host0"), "v100-host0")
    assert after.hosts[-2:] == ("v100-host1", "v100-host2")


@given(small_clusters(), st.data())
def test_a_copy_that_is_dropped_leaves_what_was_there(
    cluster: Cluster, data: st.DataObject
) -> None:
    model = data.draw(st.sampled_from(cluster.hosts))
    try:
        after = add_host(cluster, model)
    except InputError:
        return
    makes = makes_of(after)
    assert makes[after.hosts[-1]] == makes[model]
    back = drop_hosts(after, after.hosts[-1:], "hosts")
    assert back.devices == cluster.devices
    # A switch that leads from one host to nothing carries nothing, and goes with it.
    assert set(back.switches) <= set(cluster.switches)
    assert set(back.links) <= set(cluster.links)
    if cluster.num_devices > 1:
        assert (back.bandwidth == cluster.bandwidth).all()
        assert (back.latency == cluster.latency).all()


@given(small_clusters(), st.data())
def test_the_devices_that_stay_reach_each_other_as_before(
    cluster: Cluster, data: st.DataObject
) -> None:
    if cluster.devices_relay or len(cluster.hosts) < 2:
        return
    gone = data.draw(
        st.lists(st.sampled_from(cluster.hosts), min_size=1, max_size=len(cluster.hosts) - 1)
    )
    after = drop_hosts(cluster, gone, "hosts")
    kept = [k for k, each in enumerate(cluster.devices) if each.host not in gone]
    assert [cluster.devices[k] for k in kept] == list(after.devices)
    assert (after.bandwidth == cluster.bandwidth[kept][:, kept]).all()


def test_some_devices_of_a_host_stay() -> None:
    after = keep_devices(find_cluster("dgx1-x2"), 2)
    assert [each.name for each in after.devices] == ["host0.0", "host0.1"]
    # One NVLink joins the two, 21.4 GB/s.
    assert after.bandwidth[0, 1] == 21.4e9
