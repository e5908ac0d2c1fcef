"""Ways between hosts and the interfaces they begin at."""

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from cluster_strategies import networks, small_clusters
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.build import multi_rail
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Interface, Link
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.file import read_cluster
from meshwright.errors import InputError

RAILS = multi_rail(num_hosts=3, num_rails=2, devices_per_host=1)


def path_names(cluster: Cluster, source: int, target: int) -> list[list[str]]:
    """The nodes that each way passes."""
    return [
        [cluster.links[way[0]].source, *(cluster.links[link].target for link in way)]
        for way in cluster.ways.links[source, target]
    ]


def test_every_rail_is_a_way() -> None:
    assert path_names(RAILS, 2, 0) == [["host2", "rail0", "host0"], ["host2", "rail1", "host0"]]
    assert len(RAILS.ways.links) == 6


def test_where_no_switch_joins_two_hosts_the_route_is_the_way() -> None:
    cluster = find_cluster("hierarchical-1x2x2")
    near, far = path_names(cluster, 0, 1), path_names(cluster, 0, 2)
    assert [len(way) for way in near] == [3]  # nodes
    assert [len(way) for way in far] == [5]
    route = cluster.routing.links(0, cluster.num_devices // 2).tolist()
    assert tuple(route[1:-1]) == cluster.ways.links[0, 2][0]


def joined(*links: tuple[str, str]) -> Cluster:
    """Hosts h0 and h1 of one device each, and switches s0, s1."""
    ends = [("d0", "h0"), ("d1", "h1"), *links]
    return Cluster(
        name="joined",
        types={"t4": DEVICE_TYPES["t4"]},
        devices=tuple(
            Device(name=f"d{i}", type="t4", host=f"h{i}", memory_bytes=1.0) for i in range(2)
        ),
        switches=("s0", "s1"),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=1.0)
            for one, other in ends
            for source, target in ((one, other), (other, one))
        ),
    )


def test_parallel_links_to_one_switch_are_ways_of_their_own() -> None:
    cluster = joined(("h0", "s0"), ("h0", "s0"), ("h1", "s0"), ("h1", "s0"), ("h1", "s1"))
    ways = cluster.ways.links[0, 1]
    assert len(ways) == 2
    assert not set(ways[0]) & set(ways[1])
    names = [each.name for each in cluster.interface_of.values()]
    assert names == ["eth0", "eth1", "eth0", "eth1", "eth2"]


def test_devices_with_links_of_their_own_have_no_way() -> None:
    cluster = find_cluster("uniform-9")
    assert set(cluster.ways.links.values()) == {()}
    assert not cluster.interface_of


@given(cluster=networks() | small_clusters())
def test_ways_of_a_pair_share_no_link_and_lead_from_host_to_host(cluster: Cluster) -> None:
    hosts = cluster.hosts
    assert set(cluster.ways.links) == {
        (one, other) for one in range(len(hosts)) for other in range(len(hosts)) if one != other
    }
    for (source, target), ways in cluster.ways.links.items():
        used = [link for way in ways for link in way]
        assert len(used) == len(set(used))
        for way in ways:
            assert cluster.links[way[0]].source == hosts[source]
            assert cluster.links[way[-1]].target == hosts[target]
            for link, following in pairwise(way):
                assert cluster.links[link].target == cluster.links[following].source


def test_too_many_hosts_are_refused() -> None:
    with pytest.raises(InputError, match="at most 512 hosts, got 600"):
        _ = multi_rail(num_hosts=600, num_rails=1, devices_per_host=1).ways


def test_default_interfaces_are_numbered_by_host() -> None:
    found = [(each.host, each.name, each.address) for each in RAILS.interface_of.values()]
    assert found[:4] == [
        ("host0", "eth0", "10.77.0.1/24"),
        ("host0", "eth1", "10.77.1.1/24"),
        ("host1", "eth0", "10.77.0.2/24"),
        ("host1", "eth1", "10.77.1.2/24"),
    ]


OWN = (
    Interface(host="host0", switch="rail1", name="ens2f1", address="10.0.1.5/16", bridge="br1"),
    Interface(host="host0", switch="rail0", name="ens2f0", address="10.0.0.5/16"),
)


def test_interfaces_that_a_cluster_names_stand_for_its_links(tmp_path: Path) -> None:
    cluster = replace(RAILS, interfaces=OWN)
    ends = {cluster.links[link].target: each for link, each in cluster.interface_of.items()}
    assert ends == {"rail1": OWN[0], "rail0": OWN[1]}
    cluster.save(tmp_path / "c.yaml")
    assert Cluster.load(tmp_path / "c.yaml").interfaces == OWN


def test_a_builder_s_file_may_name_interfaces(tmp_path: Path) -> None:
    document = {
        "format": "meshwright.cluster",
        "version": 1,
        "build": "multi_rail",
        "arguments": {"num_hosts": 3, "num_rails": 2, "devices_per_host": 1},
        "interfaces": [
            {"host": "host0", "switch": "rail1", "name": "ib1", "address": "10.0.1.5/16"}
        ],
    }
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump(document))
    assert [each.name for each in read_cluster(path).interface_of.values()] == ["ib1"]


@pytest.mark.parametrize(
    "name",
    ["", "a b", "a;b", "$(x)", "`x`", "a\nb", "a'b", 'a"b', "-x", ".", "..", "a/b", "é", "a" * 16],
)
def test_hostile_names_of_interfaces_and_bridges_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="name must be 1 to 15 letters"):
        replace(OWN[0], name=name)
    if name:
        with pytest.raises(InputError, match="bridge must be 1 to 15 letters"):
            replace(OWN[0], bridge=name)


@given(name=st.text(max_size=20))
def test_an_interface_s_name_is_one_plain_word(name: str) -> None:
    with suppress(InputError):
        found = replace(OWN[0], name=name).name
        assert found.isascii()
        assert found.replace("_", "a").replace("-", "a").replace(".", "a").isalnum()


@pytest.mark.parametrize(
    "address",
    ["", "10.0.0.1", "10.0.0.1/33", "10.0.0.1/32", "::1/64", "10.0.0.1/24; reboot", "010.0.0.1/24",
     "10.0.0.1/255.255.255.0", "10.0.0.1/24\n"],
)  # fmt: skip
def test_addresses_are_of_version_four_with_a_prefix(address: str) -> None:
    with pytest.raises(InputError, match="address must be IPv4 with a prefix"):
        replace(OWN[0], address=address)


def test_interfaces_of_a_cluster_are_told_apart() -> None:
    for change, message in (
        ({"name": "ens2f0"}, "name must be its own, ens2f0 of host 'host0' stands 2 times"),
        ({"address": "10.0.0.5/24"}, "address must be its own, 10.0.0.5 stands 2 times"),
        ({"switch": "rail0"}, "no link from host 'host0' to switch 'rail0' that is not named"),
        ({"host": "host9"}, "no link from host 'host9' to switch 'rail1' that is not named"),
    ):
        with pytest.raises(InputError, match=message):
            replace(RAILS, interfaces=(OWN[1], replace(OWN[0], **change)))


def test_one_way_of_several_links_to_a_switch_may_be_off_the_route() -> None:
    cluster = joined(("h0", "s0"), ("h0", "s0"), ("h1", "s0"))
    one, other = cluster.ways.links[0, 1], cluster.ways.links[1, 0]
    assert (len(one), len(other)) == (1, 1)  # h1 has one link
    for pair, way, ends in (((0, 1), one, (0, 1)), ((1, 0), other, (1, 0))):
        route = cluster.routing.links(*ends).tolist()[1:-1]
        assert (pair in cluster.ways.off_route) == (tuple(route) != way[0])
    direct = joined(("h0", "s0"), ("h1", "s0"), ("h0", "h1"))
    assert direct.ways.off_route == {(0, 1), (1, 0)}  # which needs no switch


def test_one_link_a_host_is_the_route() -> None:
    assert joined(("h0", "s0"), ("h1", "s0")).ways.off_route == frozenset()
    assert RAILS.ways.off_route == frozenset()
    assert find_cluster("hierarchical-1x2x2").ways.off_route == frozenset()


@pytest.mark.parametrize(
    "address",
    ["10.0.0.0/24", "10.0.0.255/24", "127.0.0.1/8", "224.0.0.1/24", "0.0.0.0/0", "250.1.1.1/8"],
)
def test_an_address_that_no_host_can_have_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=f"address must be that of a host .*, got {address}$"):
        Interface(host="h0", switch="s0", name="eth0", address=address)


def test_two_addresses_alone_on_a_cable_are_hosts() -> None:
    for address in ("10.0.0.0/31", "10.0.0.1/31"):
        assert Interface(host="h0", switch="s0", name="eth0", address=address).address == address


@pytest.mark.parametrize("name", ["all", "default", "lo"])
def test_names_of_other_things_than_interfaces_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"and be none of all, default, lo, got '{name}'$"):
        Interface(host="h0", switch="s0", name=name, address="10.0.0.1/24")


def test_an_interface_is_no_port_of_itself() -> None:
    with pytest.raises(InputError, match=r"bridge must not be the interface itself, got eth0$"):
        Interface(host="h0", switch="s0", name="eth0", address="10.0.0.1/24", bridge="eth0")
