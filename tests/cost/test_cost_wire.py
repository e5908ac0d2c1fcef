"""What NCCL makes of links of a kind, by hand; the figures are those of `cluster.kind`."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Link
from meshwright.cluster.file import decode_cluster
from meshwright.cluster.kind import KINDS, RINGS, Protocol
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import (
    Algorithm,
    Collective,
    CollectiveLine,
    collective_cost,
    collective_model,
)
from meshwright.cost.limit import HostLimit, Limits
from meshwright.errors import InputError
from meshwright.search.method.hybrid.tier import find_tiers

SIZES = [8192 * 4**k for k in range(9)]
SWITCHED = ["a100-80", "h100", "b200"]


def line(
    cluster: Cluster, collective: Collective, protocol: Protocol, algorithm: Algorithm | None = None
) -> CollectiveLine:
    """Of a collective of all devices."""
    model = collective_model(cluster, collective, range(cluster.num_devices), algorithm)
    (found,) = [each for each in model.lines if each.protocol is protocol]
    return found


def test_a_ring_pays_a_call_and_its_steps_and_gets_a_share() -> None:
    # Four A100: 6 steps of 0.94 us after a call of 12.3 us. Of 300 GB/s 0.766 can be reached, and
    # LL128 gets 0.552 of that; 6 quarters of the message pass a link, and 0.45 of one is copied.
    found = line(find_cluster("a100-80-x4"), Collective.ALL_REDUCE, Protocol.LL128)
    assert found.latency_seconds == pytest.approx(12.3e-6 + 6 * 0.94e-6)
    assert found.seconds_per_byte == pytest.approx(6.45 / 4 / (300e9 * 0.766 * 0.552))


def test_a_gather_of_two_copies_its_own_half() -> None:
    found = line(find_cluster("a100-80-x2"), Collective.ALL_GATHER, Protocol.SIMPLE)
    assert found.latency_seconds == pytest.approx(32.5e-6 + 6.67e-6)
    assert found.seconds_per_byte == pytest.approx(1.45 / 2 / (300e9 * 0.766))


def test_a_switch_adds_up_what_each_device_sends_once() -> None:
    # NVLS on eight H100: the message goes up and comes down once, however many take part.
    found = line(find_cluster("h100-x8"), Collective.ALL_REDUCE, Protocol.SWITCH)
    assert found.algorithm is Algorithm.SWITCH
    assert found.latency_seconds == pytest.approx(63.9e-6)
    assert found.seconds_per_byte == pytest.approx(1 / (450e9 * 0.786 * 0.711))
    assert found.amount_per_byte == pytest.approx(1.0)
    model = collective_model(find_cluster("a100-80-x8"), Collective.ALL_REDUCE, range(8))
    assert {each.algorithm for each in model.lines} == {Algorithm.RING}


def test_trees_between_hosts_use_every_card() -> None:
    # Chains along eight devices and back, 14 steps of 0.78 us; up and down between two hosts, 2
    # steps of 7.4 us. A card of 50 GB/s carries an eighth of the message, by LL at 0.026 of the 0.9
    # that can be reached; by LL128 NVLink is slower, with 14 eighths.
    cluster = find_cluster("h100-x8x2")
    found = line(cluster, Collective.ALL_REDUCE, Protocol.LL, Algorithm.TREE)
    assert found.latency_seconds == pytest.approx((5.0 + 14 * 0.78 + 2 * 7.4) * 1e-6)
    assert found.seconds_per_byte == pytest.approx(1 / 8 / (50e9 * 0.9 * 0.026))
    wider = line(cluster, Collective.ALL_REDUCE, Protocol.LL128, Algorithm.TREE)
    assert wider.seconds_per_byte == pytest.approx(14 / 8 / (450e9 * 0.786 * 0.51))
    # Sums in the hosts' switches, of which each card carries an eighth.
    summed = line(cluster, Collective.ALL_REDUCE, Protocol.SWITCH)
    assert summed.latency_seconds == pytest.approx((63.9 + 2 * 40.8) * 1e-6)
    nic = next(place for place, each in enumerate(cluster.links) if each.kind == "network")
    share = dict(zip(summed.links.tolist(), summed.link_share.tolist(), strict=True))
    assert share[nic] == pytest.approx(1 / 8)


def test_steps_of_a_ring_over_hosts_are_slow_and_fast_in_turn() -> None:
    # 15 steps of a gather, of which 2 in 16 are between hosts.
    found = line(find_cluster("h100-x8x2"), Collective.ALL_GATHER, Protocol.LL)
    mean = (14 * 0.78 + 2 * 7.4) / 16
    assert found.latency_seconds == pytest.approx((5.0 + 15 * mean) * 1e-6)


def test_rings_use_all_links_of_a_mesh_at_once() -> None:
    # Each MI300X has seven links of 64 GB/s, of which 0.72 are reached: seven rings. The first of
    # a DGX-1's devices has six links of 25 GB/s.
    found = line(find_cluster("mi300x-x8"), Collective.ALL_REDUCE, Protocol.SIMPLE)
    assert found.seconds_per_byte == pytest.approx(14.45 / 8 / (7 * 64e9 * 0.72))
    found = line(find_cluster("v100-32-x8"), Collective.ALL_REDUCE, Protocol.SIMPLE)
    assert found.seconds_per_byte == pytest.approx(14.45 / 8 / (6 * 25e9 * 0.856))
    # Of its first four, devices 0 and 1 have four links to the others.
    found = line(find_cluster("v100-32-x4"), Collective.ALL_REDUCE, Protocol.SIMPLE)
    assert found.seconds_per_byte == pytest.approx(6.45 / 4 / (4 * 25e9 * 0.856))


def test_a_broadcast_passes_the_message_along_the_rings() -> None:
    found = line(find_cluster("h100-x8"), Collective.BROADCAST, Protocol.SIMPLE)
    assert found.latency_seconds == pytest.approx((17.1 + 7 * 1.08) * 1e-6)
    assert found.seconds_per_byte == pytest.approx(1 / (450e9 * 0.786))


def test_a_transfer_gets_what_is_reached_of_its_links() -> None:
    cluster = find_cluster("h100-x8x2")
    routes = cluster.routes_between([0, 0], [1, 8])
    assert routes.latency.tolist() == pytest.approx([6.9e-6, 39e-6])
    assert routes.bandwidth.tolist() == pytest.approx([450e9 * 0.786, 50e9 * 0.9])
    plain = cluster.plain.routes_between([0], [8])
    assert plain.latency.tolist() == pytest.approx([4e-6])
    assert plain.bandwidth.tolist() == pytest.approx([50e9])


@pytest.mark.parametrize("name", ["h100-x8", "a100-80-x8x4", "v100-32-x8", "l40s-x4", "mi300x-x8"])
def test_no_line_puts_more_on_a_link_than_it_carries(name: str) -> None:
    cluster = find_cluster(name)
    for collective in Collective:
        for each in collective_model(cluster, collective, range(cluster.num_devices)).lines:
            rates = each.amount_per_byte * each.link_share / each.seconds_per_byte
            assert (rates <= cluster.link_bytes_per_second[each.links] * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", ["h100-x8", "b200-x8x2", "l40s-x8", "v100-32-x8"])
def test_lines_that_another_beats_are_left_out(name: str) -> None:
    cluster = find_cluster(name)
    for collective in Collective:
        lines = collective_model(cluster, collective, range(cluster.num_devices)).lines
        ordered = sorted(lines, key=lambda each: each.latency_seconds)
        slopes = [each.seconds_per_byte for each in ordered]
        assert slopes == sorted(slopes, reverse=True)
        assert len(set(slopes)) == len(slopes)


@given(
    st.sampled_from(["a100-80-x8", "h100-x8x2", "v100-32-x8", "l40s-x4"]),
    st.sampled_from([*Collective]),
    st.floats(0, 2e9),
    st.floats(0, 2e9),
)
def test_larger_messages_take_no_less(
    name: str, collective: Collective, one: float, other: float
) -> None:
    cluster = find_cluster(name)
    model = collective_model(cluster, collective, range(cluster.num_devices))
    low, high = sorted((one, other))
    assert model.cost(low).seconds <= model.cost(high).seconds


@pytest.mark.parametrize("kind", SWITCHED)
def test_more_devices_of_a_host_are_never_faster(kind: str) -> None:
    cluster = find_cluster(f"{kind}-x8")
    for size in SIZES:
        seconds = [
            collective_cost(cluster, Collective.ALL_REDUCE, range(count), size).seconds
            for count in range(2, 9)
        ]
        assert seconds == sorted(seconds)


def test_hosts_that_are_alike_cost_alike() -> None:
    cluster = find_cluster("h100-x8x4")
    for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL):
        costs = {
            round(collective_cost(cluster, collective, each, 1 << 20).seconds, 15)
            for each in (range(16), range(16, 32), [*range(8, 16), *range(8)])
        }
        assert len(costs) == 1


def test_groups_of_one_host_that_call_at_once_do_not_slow_each_other() -> None:
    # Behind a switch pairs have links of their own.
    cluster = find_cluster("h100-x8")
    alone = collective_model(cluster, Collective.ALL_REDUCE, [0, 1])
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
    together = axis_model(cluster, Collective.ALL_REDUCE, groups)
    assert [each.seconds(1e6) for each in together.lines] == pytest.approx(
        [each.seconds(1e6) for each in alone.lines]
    )


def test_links_of_no_kind_are_used_as_they_are() -> None:
    cluster = find_cluster("h100-x8").plain
    model = collective_model(cluster, Collective.ALL_REDUCE, range(8))
    assert {each.protocol for each in model.lines} == {Protocol.PLAIN}
    assert {Algorithm.RING, Algorithm.HALVING_DOUBLING} < {each.algorithm for each in model.lines}
    ring = collective_model(cluster, Collective.ALL_REDUCE, range(8), Algorithm.RING).lines[0]
    assert ring.seconds_per_byte == pytest.approx(14 / 8 / 450e9)
    assert ring.latency_seconds == pytest.approx(14 * 1.9e-6)


@pytest.mark.parametrize("name", ["dgx1-x4", "tag-testbed", "cpu-x4", "h100-spineleaf-64"])
def test_clusters_of_papers_and_of_cpus_have_no_kinds(name: str) -> None:
    assert not find_cluster(name).has_kinds


@pytest.mark.parametrize("name", ["h100-x8", "a100-80-x8x4"])
@pytest.mark.parametrize("collective", [Collective.ALL_REDUCE, Collective.ALL_GATHER])
def test_tiers_price_what_links_do(name: str, collective: Collective) -> None:
    cluster = find_cluster(name)
    count = cluster.num_devices
    model = collective_model(cluster, collective, range(count))
    lines = find_tiers(cluster).lines(collective, ((count, 1),))
    for size in SIZES:
        seconds = min(latency + slope * size for latency, slope in lines)
        assert seconds == pytest.approx(model.cost(size).seconds, rel=0.08)


def test_a_file_keeps_the_kinds_of_links(tmp_path: Path) -> None:
    cluster = find_cluster("h100-x8x2")
    cluster.save(tmp_path / "pod.yaml")
    assert Cluster.load(tmp_path / "pod.yaml").links == cluster.links


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InputError, match=r"link 'a' -> 'b': kind must be one of nvlink2, .*'usb'"):
        Link(source="a", target="b", bytes_per_second=1e9, kind="usb")


@pytest.mark.parametrize("name", [name for name in KINDS if name])
def test_faster_protocols_take_longer_to_start(name: str) -> None:
    uses = [KINDS[name].uses[protocol] for protocol in RINGS]
    assert [each.share for each in uses] == sorted(each.share for each in uses)
    assert uses[-1].share == KINDS[name].uses[Protocol.PAIR].share == 1.0
    steps = [each.call_seconds + each.delay * KINDS[name].latency_seconds for each in uses]
    assert steps == sorted(steps)


def test_a_limit_between_hosts_holds_for_every_protocol() -> None:
    # Two hosts of two: of a ring 2 x 6 eighths of the message go from host to host, of trees all of
    # it once, at 1 GB/s each way; no protocol gets more of the limit, nor less latency by it.
    text = b"hosts: [{count: 2, devices: 2 x l40s, nics: 100 Gb/s}]"
    cluster = decode_cluster(text, "file.yaml")
    ends = ((0, 1), (1, 0))
    limits = Limits(
        cluster=cluster,
        limits=tuple(HostLimit(source=a, target=b, bytes_per_second=1e9) for a, b in ends),
    )
    free = collective_model(cluster, Collective.ALL_REDUCE, range(4))
    model = collective_model(cluster, Collective.ALL_REDUCE, range(4), limits=limits)
    assert min(each.seconds_per_byte for each in model.lines) == pytest.approx(1e-9)
    for size in SIZES:
        assert model.cost(size).seconds >= free.cost(size).seconds
    ring = collective_model(cluster, Collective.ALL_REDUCE, range(4), Algorithm.RING, limits)
    assert min(each.seconds_per_byte for each in ring.lines) == pytest.approx(1.5e-9)
