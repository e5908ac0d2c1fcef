"""What interfaces carry, worked out by hand; what cannot be configured is refused."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from network_example import (
    GBIT,
    HOSTILE,
    example_cluster,
    example_host,
    example_plan,
)

from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cluster.interface import Interface, check_interface_name
from meshwright.errors import InputError
from meshwright.network.shape import (
    HostNetwork,
    Queue,
    ShapedInterface,
    check_host,
    shape_network,
)
from meshwright.plan.plan import Allocation
from small import TYPE, connected, rails


def allocation(target: str, gbit: float, *shares: float, source: str = "h0") -> Allocation:
    return Allocation(source=source, target=target, bytes_per_second=gbit * GBIT, shares=shares)


def test_an_allocation_is_a_queue_on_each_way_it_uses() -> None:
    # 1.5 Gbit/s by 2/3 and 1/3: a whole link and half of one. 400 Mbit/s on the second alone.
    assert shape_network(example_cluster(), example_plan())[0] == example_host()


def test_hosts_that_only_receive_route_their_answers_and_shape_nothing() -> None:
    _, second, third = shape_network(example_cluster(), example_plan())
    assert second == HostNetwork(
        host="h1",
        interfaces=tuple(
            ShapedInterface(
                name=f"eth{k}",
                address=f"10.77.{k}.2/24",
                kbit_per_second=1_000_000,
                queues=(),
                table=7700 + k,
                peers=(f"10.77.{k}.1",),
            )
            for k in range(2)
        ),
    )
    # The first interface of h2 carries nothing: it is not named, and the other keeps its table.
    assert [(each.name, each.table) for each in third.interfaces] == [("eth1", 7701)]


def test_names_addresses_and_bridges_are_the_clusters() -> None:
    first = shape_network(example_cluster(is_named=True, bridge="br"), example_plan())[0]
    assert [(each.name, each.address, each.bridge) for each in first.interfaces] == [
        ("ens0", "192.168.0.10/24", "br0"),
        ("ens1", "192.168.1.10/24", "br1"),
    ]
    assert [queue.address for queue in first.interfaces[1].queues] == [
        "192.168.1.11",
        "192.168.1.12",
    ]
    assert first.interfaces[0].own_address == "192.168.0.10"


def test_rates_of_the_wire_are_rounded_down() -> None:
    first = shape_network(example_cluster(), example_plan(), 1514 / 1448)[0]
    # 1,000,000 x 1514 / 1448 = 1,045,580.11; 500,000: 522,790.06; 400,000: 418,232.04.
    assert [each.kbit_per_second for each in first.interfaces] == [1_045_580, 1_045_580]
    assert [queue.kbit_per_second for queue in first.interfaces[1].queues] == [522_790, 418_232]


def test_without_shares_an_allocation_is_on_the_route() -> None:
    cluster = example_cluster()
    route = set(cluster.routing.links(0, 1).tolist())
    (used,) = [k for k, way in enumerate(cluster.ways.links[0, 1]) if route.issuperset(way)]
    first = shape_network(cluster, example_plan(allocation("h1", 0.5)))[0]
    assert [(each.name, len(each.queues)) for each in first.interfaces] == [(f"eth{used}", 1)]


def test_parallel_links_to_one_switch_are_interfaces_of_their_own() -> None:
    ends = [(f"d{k}", f"h{k}") for k in range(2)] + [(f"h{k}", "s") for k in (0, 0, 1, 1)]
    cluster = Cluster(
        name="parallel",
        types={"unit": TYPE},
        devices=tuple(
            Device(name=f"d{k}", type="unit", host=f"h{k}", memory_bytes=1.0) for k in range(2)
        ),
        switches=("s",),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=GBIT)
            for one, other in ends
            for source, target in ((one, other), (other, one))
        ),
    )
    first = shape_network(cluster, example_plan(allocation("h1", 2.0, 0.5, 0.5)))[0]
    assert [(each.name, each.queues[0].address) for each in first.interfaces] == [
        ("eth0", "10.77.0.2"),
        ("eth1", "10.77.1.2"),
    ]


@given(
    rates=st.lists(st.integers(1, 1_000_000), min_size=6, max_size=6),
    parts=st.lists(st.integers(0, 1000), min_size=6, max_size=6),
    wire_factor=st.sampled_from([1.0, 1514 / 1448]),
)
def test_queues_have_what_is_allocated_and_fit_their_link(
    rates: list[int], parts: list[int], wire_factor: float
) -> None:
    """Whole kbit/s on every way, as plans have them: none is lost or gained."""
    pairs = [(one, other) for one in range(3) for other in range(3) if one != other]
    split = [(rate * part // 1000, rate) for rate, part in zip(rates, parts, strict=True)]
    plan = example_plan(
        *(
            Allocation(
                source=f"h{one}",
                target=f"h{other}",
                bytes_per_second=125.0 * rate,
                shares=(part / rate, 1 - part / rate),
            )
            for (one, other), (part, rate) in zip(pairs, split, strict=True)
        )
    )
    cluster = example_cluster()
    out = [sum(rate for pair, rate in zip(pairs, rates, strict=True) if pair[0] == k)
           for k in range(3)]  # fmt: skip
    assume(max(out) <= 1_000_000)  # the links into hosts have the same, twice
    into = [sum(rate for pair, rate in zip(pairs, rates, strict=True) if pair[1] == k)
            for k in range(3)]  # fmt: skip
    assume(max(into) <= 1_000_000)
    networks = shape_network(cluster, plan, wire_factor)
    found = {
        (network.host, queue.target, interface.name): queue.kbit_per_second
        for network in networks
        for interface in network.interfaces
        for queue in interface.queues
    }
    for (one, other), (part, rate) in zip(pairs, split, strict=True):
        for name, whole in (("eth0", part), ("eth1", rate - part)):
            exact = whole * wire_factor
            assert 0 <= exact - found.get((f"h{one}", f"h{other}", name), 0) < 1 + 1e-6
            if wire_factor == 1.0:
                assert found.get((f"h{one}", f"h{other}", name), 0) == whole
    for network in networks:
        for interface in network.interfaces:
            taken = sum(queue.kbit_per_second for queue in interface.queues)
            assert taken <= interface.kbit_per_second


def test_a_plan_without_allocations_is_refused() -> None:
    plan = replace(example_plan(), allocations=())
    with pytest.raises(InputError, match=r"no allocations.*plan with --allocate"):
        shape_network(example_cluster(), plan)


def test_more_than_a_link_has_is_refused_at_both_ends() -> None:
    plan = example_plan(allocation("h1", 0.6, 1.0, 0.0), allocation("h2", 0.5, 1.0, 0.0))
    with pytest.raises(
        InputError,
        match=r"^link 'h0' -> 's0': allocations must not exceed its 1000000 kbit/s, got 1100000$",
    ):
        shape_network(example_cluster(), plan)
    plan = example_plan(
        allocation("h2", 0.6, 1.0, 0.0), allocation("h2", 0.5, 1.0, 0.0, source="h1")
    )
    with pytest.raises(InputError, match=r"^link 's0' -> 'h2': .* got 1100000$"):
        shape_network(example_cluster(), plan)


def test_pairs_without_a_way_or_an_interface_are_refused() -> None:
    with pytest.raises(InputError, match=r"must have a way between them"):
        shape_network(connected(2), example_plan(allocation("h1", 1e-9)))
    cluster = example_cluster(is_named=True)
    cluster = replace(cluster, interfaces=cluster.interfaces[:3])  # not that of h1 to s1
    with pytest.raises(
        InputError, match=r"^allocation 'h0' -> 'h1': link 'h1' -> 's1' must have an interface"
    ):
        shape_network(cluster, example_plan())


def test_hosts_and_shares_must_be_the_clusters() -> None:
    with pytest.raises(InputError, match=r"the cluster has no host 'h9'"):
        shape_network(example_cluster(), example_plan(allocation("h9", 0.1)))
    with pytest.raises(InputError, match=r"a share for each of 2 ways, got 3"):
        shape_network(example_cluster(), example_plan(allocation("h1", 0.1, 1.0, 0.0, 0.0)))


def test_less_than_a_kbit_is_refused() -> None:
    with pytest.raises(InputError, match=r"'h1': rate must be at least 1 kbit/s, got 0"):
        shape_network(example_cluster(), example_plan(allocation("h1", 1e-7, 1.0, 0.0)))


def test_both_ends_of_a_way_must_be_in_one_network() -> None:
    cluster = example_cluster(is_named=True)
    far = replace(cluster.interfaces[2], address="192.168.7.1/24")
    cluster = replace(cluster, interfaces=(*cluster.interfaces[:2], far, *cluster.interfaces[3:]))
    with pytest.raises(
        InputError, match=r"must be in one network .* got 192.168.0.10/24 and 192.168.7.1/24"
    ):
        shape_network(cluster, example_plan())


def test_names_and_addresses_that_stand_twice_are_refused() -> None:
    cluster = example_cluster(is_named=True)
    first, second, *rest = cluster.interfaces
    for field in ("name", "address"):
        same = replace(second, **{field: getattr(first, field)})
        with pytest.raises(InputError, match=rf"an interface's {field} must be its own"):
            replace(cluster, interfaces=(first, same, *rest))


def test_routes_that_differ_need_shares() -> None:
    """Eight devices a host: where their routes take different switches no way is the route."""
    cluster = rails(2, per_host=8, rail=GBIT)
    taken = {
        way
        for source in range(8)
        for target in range(8, 16)
        for way in cluster.ways.links[0, 1]
        if set(way) <= set(cluster.routing.links(source, target).tolist())
    }
    assert len(taken) == 2  # routes are spread by destination
    with pytest.raises(InputError, match=r"must say its shares of 2 ways"):
        shape_network(cluster, example_plan(allocation("h1", 0.1)))


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_of_hosts_are_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        check_host(name)
    assert "\n" not in str(caught.value)
    for make in (
        lambda: HostNetwork(host=name, interfaces=()),
        lambda: Queue(number=1, target=name, address="10.0.0.1", kbit_per_second=1),
    ):
        with pytest.raises(InputError):
            make()


@pytest.mark.parametrize("name", [*HOSTILE, "all", "default", "sixteen-letters-"])
def test_hostile_names_of_interfaces_are_refused(name: str) -> None:
    with pytest.raises(InputError):
        check_interface_name(name, "name")
    good = example_host().interfaces[0]
    with pytest.raises(InputError):
        replace(good, name=name)
    for address in (name, f"{name}/24"):
        with pytest.raises(InputError):
            replace(good, address=address)
        with pytest.raises(InputError):
            replace(good, peers=(address,))
    if name:
        with pytest.raises(InputError):
            replace(good, bridge=name)


@given(name=st.text(max_size=20))
def test_a_hosts_name_is_plain_or_refused(name: str) -> None:
    cluster = rails(3, rail=GBIT)
    assume(name and name not in cluster.nodes)
    renamed = Cluster(
        name=name,
        types=cluster.types,
        devices=tuple(
            replace(each, host=name) if each.host == "h0" else each for each in cluster.devices
        ),
        switches=cluster.switches,
        links=tuple(
            replace(
                each,
                source=name if each.source == "h0" else each.source,
                target=name if each.target == "h0" else each.target,
            )
            for each in cluster.links
        ),
    )
    plan = example_plan(allocation("h1", 0.5, 1.0, 0.0, source=name))
    is_plain = name[0].isalnum() and all(each.isalnum() or each in "._-" for each in name)
    if is_plain and name.isascii():
        assert shape_network(renamed, plan)[0].host == name
    else:
        with pytest.raises(InputError) as caught:
            shape_network(renamed, plan)
        assert str(caught.value).isprintable()


def test_an_interface_is_checked_by_the_cluster_too() -> None:
    with pytest.raises(InputError):
        Interface(host="h0", switch="s0", name="-x", address="10.0.0.1/24")


def test_a_queue_needs_a_class_and_an_interface_a_rate() -> None:
    good = example_host().interfaces[1]
    with pytest.raises(InputError, match=r"number must be 1 to 65532, got 65533"):
        replace(good.queues[0], number=65_533)
    with pytest.raises(
        InputError, match=r"not have more than the link's 899999 kbit/s, got 900000"
    ):
        replace(good, kbit_per_second=899_999)
