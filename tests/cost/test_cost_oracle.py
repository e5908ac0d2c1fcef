"""Collectives against a slow second opinion that moves every chunk by itself.

The oracle keeps, for each device and chunk, whose contributions it holds; so that it also shows
that the schedules do what their names say. It prices rounds with plain loops over routes.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cost.collective import Algorithm, Collective, CollectiveCost, collective_cost
from meshwright.cost.ring import order_hosts

CHIP = DeviceType(
    name="chip", flops_per_second={"fp32": 1e12}, memory_bytes=1e9, memory_bytes_per_second=1e9
)
MESSAGE = 1000.0
Chunk = tuple[int, int]
Transfer = tuple[int, int, float]


class Holdings:
    """Who holds whose contribution to which chunk, and every round of transfers so far."""

    def __init__(self, devices: Sequence[int], num_chunks: int) -> None:
        self.num_chunks = num_chunks
        self.devices = devices
        self.held = {each: [{each} for _ in range(num_chunks)] for each in devices}
        self.rounds: list[list[Transfer]] = []

    def move(self, sends: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """One round: (source, target, chunks); all read what was there before the round."""
        before = {each: [set(who) for who in held] for each, held in self.held.items()}
        for source, target, chunks in sends:
            for chunk in chunks:
                self.held[target][chunk] |= before[source][chunk]
        size = MESSAGE / self.num_chunks
        self.rounds.append([(s, t, len(chunks) * size) for s, t, chunks in sends])

    def is_complete(self) -> bool:
        everyone = set(self.devices)
        return all(who == everyone for held in self.held.values() for who in held)


def ring_sends(ring: Sequence[int], chunks: Sequence[Sequence[int]], step: int) -> list:  # type: ignore[type-arg]
    """The step-th round of a ring: the i-th device passes on the chunk that came last."""
    count = len(ring)
    return [(ring[i], ring[(i + 1) % count], chunks[(i - step) % count]) for i in range(count)]


def ring_all_reduce(cluster: Cluster, devices: Sequence[int]) -> Holdings:
    ring = [each for block in order_hosts(cluster, tuple(devices)) for each in block]
    state = Holdings(ring, len(ring))
    for step in range(2 * (len(ring) - 1)):
        state.move(ring_sends(ring, [[chunk] for chunk in range(len(ring))], step))
    return state


def halving_doubling_all_reduce(cluster: Cluster, devices: Sequence[int]) -> Holdings:
    order = [each for block in order_hosts(cluster, tuple(devices)) for each in block]
    power = 2 ** int(np.log2(len(order)))
    extra = len(order) - power
    state = Holdings(order, power)
    every = list(range(power))
    folds = [(order[2 * i + 1], order[2 * i]) for i in range(extra)]
    active = [order[2 * i] for i in range(extra)] + order[2 * extra :]
    if folds:
        state.move([(extra, partner, every) for extra, partner in folds])
    mine = dict.fromkeys(range(power), every)
    exchanges = []
    for bit in range(power.bit_length() - 1):
        half = {
            rank: [c for c in mine[rank] if (c >> bit & 1) == (rank >> bit & 1)] for rank in mine
        }
        peers = [(rank, rank ^ 1 << bit) for rank in mine]
        state.move([(active[a], active[b], half[b]) for a, b in peers])
        exchanges.append((peers, half))
        mine = half
    for peers, half in reversed(exchanges):
        state.move([(active[a], active[b], half[a]) for a, b in peers])
    if folds:
        state.move([(partner, extra, every) for extra, partner in folds])
    return state


def hierarchical_all_reduce(cluster: Cluster, devices: Sequence[int]) -> Holdings:
    blocks = order_hosts(cluster, tuple(devices))
    ranks = [sorted(block) for block in blocks]
    hosts, size = len(blocks), len(blocks[0])
    state = Holdings([each for block in blocks for each in block], size * hosts)

    def part(owner: int) -> list[int]:
        return [owner * hosts + piece for piece in range(hosts)]

    # Chunks are numbered so that a device ends the first phase with the part of its local rank.
    def local(block: Sequence[int], rank: Sequence[int], step: int) -> list:  # type: ignore[type-arg]
        chunks = [part(rank.index(block[(place + 1) % size])) for place in range(size)]
        return ring_sends(block, [chunks[(i - 2) % size] for i in range(size)], step)

    pairs = list(zip(blocks, ranks, strict=True))
    for step in range(size - 1):
        state.move([s for block, rank in pairs for s in local(block, rank, step)])
    for step in range(2 * (hosts - 1)):
        sends = []
        for place in range(size):
            ring = [rank[place] for rank in ranks]
            sends += ring_sends(ring, [[chunk] for chunk in part(place)], step)
        state.move(sends)
    for step in range(size - 1, 2 * (size - 1)):
        state.move([s for block, rank in pairs for s in local(block, rank, step)])
    return state


def price(cluster: Cluster, rounds: Sequence[Sequence[Transfer]]) -> tuple[float, dict[int, float]]:
    """Seconds and bytes by link: latency + max(transfer alone, most loaded link), added up."""
    seconds, total = 0.0, defaultdict[int, float](float)
    for transfers in rounds:
        load = defaultdict[int, float](float)
        latency = alone = 0.0
        for source, target, size in transfers:
            route = cluster.routing.links(source, target).tolist()
            latency = max(latency, sum(cluster.links[link].latency_seconds for link in route))
            alone = max(alone, size / min(cluster.links[link].bytes_per_second for link in route))
            for link in route:
                load[link] += size
        busy = max(size / cluster.links[link].bytes_per_second for link, size in load.items())
        seconds += latency + max(alone, busy)
        for link, size in load.items():
            total[link] += size
    return seconds, total


def assert_agrees(cost: CollectiveCost, seconds: float, loads: dict[int, float]) -> None:
    assert cost.seconds == pytest.approx(seconds)
    carried = dict(zip(cost.links.tolist(), cost.link_share * cost.amount_bytes, strict=True))
    assert carried == pytest.approx(loads)
    assert cost.amount_bytes == pytest.approx(max(loads.values()))
    assert cost.link_share.max() == pytest.approx(1)


rates = st.integers(1, 100).map(float)
latencies = st.integers(0, 5).map(float)
message_sizes = st.one_of(st.just(0.0), st.floats(1, 1e12))


@st.composite
def host_networks(draw: st.DrawFn, is_even: bool = False) -> Cluster:
    """One to three hosts on a switch, every link with its own rate and latency."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    if is_even:
        sizes = [draw(st.integers(2, 4))] * draw(st.integers(2, 3))
    joins = [(f"h{host}", "s") for host in range(len(sizes))]
    devices: list[Device] = []
    for host, size in enumerate(sizes):
        for _ in range(size):
            name = f"d{len(devices)}"
            devices.append(Device(name=name, type="chip", host=f"h{host}", memory_bytes=1e9))
            joins.append((name, f"h{host}"))
    return make_cluster(draw, devices, joins, ("s",), False)


@st.composite
def meshes(draw: st.DrawFn) -> Cluster:
    """Devices in a grid that forward each other's traffic."""
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    devices = [
        Device(name=f"d{i}", type="chip", host="h", memory_bytes=1e9) for i in range(rows * columns)
    ]
    joins = []
    for i in range(rows * columns):
        if (i + 1) % columns:
            joins.append((f"d{i}", f"d{i + 1}"))
        if i + columns < rows * columns:
            joins.append((f"d{i}", f"d{i + columns}"))
    return make_cluster(draw, devices, joins, (), True)


def make_cluster(
    draw: st.DrawFn,
    devices: list[Device],
    joins: list[tuple[str, str]],
    switches: tuple[str, ...],
    devices_relay: bool,
) -> Cluster:
    links = tuple(
        Link(source=a, target=b, bytes_per_second=draw(rates), latency_seconds=draw(latencies))
        for one, other in joins
        for a, b in ((one, other), (other, one))
    )
    return Cluster(
        name="drawn",
        types={"chip": CHIP},
        devices=tuple(devices),
        switches=switches,
        links=links,
        devices_relay=devices_relay,
    )


Oracle = Callable[[Cluster, Sequence[int]], Holdings]
FLAT: list[tuple[Algorithm, Oracle]] = [
    (Algorithm.RING, ring_all_reduce),
    (Algorithm.HALVING_DOUBLING, halving_doubling_all_reduce),
]


def several(cluster: Cluster) -> bool:
    return cluster.num_devices > 1


@pytest.mark.parametrize(("algorithm", "oracle"), FLAT)
@given(cluster=st.one_of(host_networks(), meshes()).filter(several))
def test_all_reduce_agrees_with_moving_every_chunk(
    algorithm: Algorithm, oracle: Oracle, cluster: Cluster
) -> None:
    devices = range(cluster.num_devices)
    state = oracle(cluster, devices)
    assert state.is_complete()
    cost = collective_cost(cluster, Collective.ALL_REDUCE, devices, MESSAGE, algorithm)
    assert_agrees(cost, *price(cluster, state.rounds))


@given(cluster=host_networks(is_even=True))
def test_hierarchical_agrees_with_moving_every_chunk(cluster: Cluster) -> None:
    devices = range(cluster.num_devices)
    state = hierarchical_all_reduce(cluster, devices)
    assert state.is_complete()
    method = Algorithm.HIERARCHICAL
    cost = collective_cost(cluster, Collective.ALL_REDUCE, devices, MESSAGE, method)
    assert_agrees(cost, *price(cluster, state.rounds))


@given(cluster=st.one_of(host_networks(), meshes()).filter(several))
def test_all_to_all_agrees_with_walking_every_route(cluster: Cluster) -> None:
    count = cluster.num_devices
    pairs = [(a, b, MESSAGE / count) for a in range(count) for b in range(count) if a != b]
    cost = collective_cost(cluster, Collective.ALL_TO_ALL, range(count), MESSAGE)
    assert_agrees(cost, *price(cluster, [pairs]))


def btree_parent(count: int, rank: int) -> int:
    """ncclGetBtree, line by line."""
    bit = 1
    while bit < count:
        if bit & rank:
            break
        bit <<= 1
    if rank == 0:
        return -1
    up = (rank ^ bit) | (bit << 1)
    return rank ^ bit if up >= count else up


def dtree_parents(count: int, rank: int) -> tuple[int, int]:
    """ncclGetDtree, line by line."""
    if count % 2 == 1:
        shifted = btree_parent(count, (rank - 1 + count) % count)
        return btree_parent(count, rank), -1 if shifted == -1 else (shifted + 1) % count
    mirrored = btree_parent(count, count - 1 - rank)
    return btree_parent(count, rank), -1 if mirrored == -1 else count - 1 - mirrored


@pytest.mark.parametrize("count", [*range(2, 18), 31, 32, 33])
def test_double_tree_is_nccls(count: int) -> None:
    """On one host of equal links: loads of NCCL's trees, and leaves of one are inside the other."""
    devices = tuple(
        Device(name=f"d{i}", type="chip", host="h", memory_bytes=1e9) for i in range(count)
    )
    links = tuple(
        Link(source=a, target=b, bytes_per_second=10.0, latency_seconds=1.0)
        for i in range(count)
        for a, b in ((f"d{i}", "h"), ("h", f"d{i}"))
    )
    cluster = Cluster(name="star", types={"chip": CHIP}, devices=devices, links=links)
    parents = [dtree_parents(count, rank) for rank in range(count)]
    up = [(r, p[k], MESSAGE / 2) for k in (0, 1) for r, p in enumerate(parents) if p[k] >= 0]
    assert len(up) == 2 * (count - 1)
    _, loads = price(cluster, [[*up, *((b, a, size) for a, b, size in up)]])
    depth = max(tree_depth([p[k] for p in parents]) for k in (0, 1))
    cost = collective_cost(cluster, Collective.ALL_REDUCE, range(count), MESSAGE, Algorithm.TREE)
    assert cost.latency_seconds == 2 * 2.0 * depth  # up and down, two links a route
    assert depth <= np.log2(count) + 1
    assert_agrees(cost, cost.latency_seconds + max(loads.values()) / 10, loads)
    assert max(loads.values()) <= 2 * MESSAGE + 1e-9


def tree_depth(parents: Sequence[int]) -> int:
    def depth(rank: int) -> int:
        return 0 if parents[rank] < 0 else 1 + depth(parents[rank])

    return max(depth(rank) for rank in range(len(parents)))


everything = [
    (Collective.ALL_REDUCE, None),
    (Collective.ALL_REDUCE, Algorithm.RING),
    (Collective.ALL_REDUCE, Algorithm.TREE),
    (Collective.ALL_REDUCE, Algorithm.HALVING_DOUBLING),
    (Collective.ALL_GATHER, None),
    (Collective.REDUCE_SCATTER, None),
    (Collective.ALL_TO_ALL, None),
    (Collective.SHIFT, None),
    (Collective.BROADCAST, Algorithm.RING),
    (Collective.BROADCAST, Algorithm.TREE),
]


@pytest.mark.parametrize(("collective", "algorithm"), everything)
@given(
    cluster=st.one_of(host_networks(), meshes()).filter(several),
    sizes=st.tuples(message_sizes, message_sizes),
)
def test_costs_are_monotone_possible_and_need_what_they_must(
    collective: Collective,
    algorithm: Algorithm | None,
    cluster: Cluster,
    sizes: tuple[float, float],
) -> None:
    devices = range(cluster.num_devices)
    small, large = sorted(sizes)
    costs = [collective_cost(cluster, collective, devices, n, algorithm) for n in (small, large)]
    assert costs[0].seconds <= costs[1].seconds
    for size, cost in zip((small, large), costs, strict=True):
        assert_possible(cluster, cost)
        assert_enough(cluster, collective, size, cost)


def assert_possible(cluster: Cluster, cost: CollectiveCost) -> None:
    """At the speed it has alone, no link carries more than it can."""
    assert 0 <= cost.latency_seconds <= cost.seconds
    assert np.all(np.diff(cost.links) > 0)
    assert np.all((cost.link_share > 0) & (cost.link_share <= 1))
    carried = cost.link_share * cost.amount_bytes
    room = cluster.link_bytes_per_second[cost.links] * (cost.seconds - cost.latency_seconds)
    # The latency was added and is taken off again: allow for its rounding.
    slack = 1e-9 * cluster.link_bytes_per_second[cost.links] * cost.seconds
    assert np.all(carried <= room + slack)


def assert_enough(
    cluster: Cluster, collective: Collective, size: float, cost: CollectiveCost
) -> None:
    """Someone sends what any algorithm must send; and the bytes that leave devices are enough."""
    count = cluster.num_devices
    # Bytes that all devices together must send: Patarasuk and Yuan, JPDC 69, 2009.
    needed = {
        Collective.ALL_REDUCE: 2 * (count - 1) * size,
        Collective.ALL_GATHER: (count - 1) * size,
        Collective.REDUCE_SCATTER: (count - 1) * size,
        Collective.ALL_TO_ALL: (count - 1) * size,
        Collective.SHIFT: count * size,
        Collective.BROADCAST: (count - 1) * size,
    }[collective]
    injection = defaultdict[str, float](float)
    for link in cluster.links:
        injection[link.source] += link.bytes_per_second
    best = max(injection[device.name] for device in cluster.devices)
    assert cost.seconds >= needed / count / best * (1 - 1e-9)
    sent = sum(
        share * cost.amount_bytes
        for number, share in zip(cost.links, cost.link_share, strict=True)
        if cluster.links[number].source in cluster.index
    )
    assert sent >= needed * (1 - 1e-9)
    if not cluster.devices_relay:  # nothing is passed on, so that every byte is sent once
        assert sent <= needed * (1 + 1e-9) + size * (collective is Collective.BROADCAST)
