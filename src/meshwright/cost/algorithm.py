"""Writes collective algorithms as rounds of transfers, in fractions of the message.

Knows which device sends what to which; what that costs is `meshwright.cost.rounds`'s to say.
`blocks` are the devices by host in the order of the ring, as `meshwright.cost.ring` gives them.
"""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Longs
from meshwright.cost.rounds import ExchangeRound, Round

Blocks = tuple[tuple[int, ...], ...]
Latency = Callable[[npt.ArrayLike, npt.ArrayLike], Floats]
"""Seconds from each of some devices to each of others, pair by pair."""


def round_of(sources: npt.ArrayLike, targets: npt.ArrayLike, fraction: float, **more: int) -> Round:
    """A round whose transfers are all of one size."""
    sources = np.asarray(sources, dtype=np.int32)
    return Round(
        sources=sources,
        targets=np.asarray(targets, dtype=np.int32),
        fractions=np.full(len(sources), fraction),
        **more,
    )


def ring_rounds(blocks: Blocks, num_passes: int) -> list[Round]:
    """p - 1 rounds a pass, each device sending 1/p of the message to the next on the ring.

    One pass reduces and scatters, or gathers; an all-reduce takes two (Patarasuk and Yuan,
    "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69, 2009).
    """
    order = np.concatenate(blocks)
    count = len(order)
    following = np.roll(order, -1)
    return [round_of(order, following, 1 / count, repeats=num_passes * (count - 1))]


def shift_rounds(blocks: Blocks) -> list[Round]:
    """One round in which each device sends the message to the next one in the order given."""
    order = np.concatenate(blocks)
    return [round_of(order, np.roll(order, -1), 1.0)]


def halving_doubling_rounds(blocks: Blocks, num_passes: int) -> list[Round]:
    """log2 p rounds a pass: halves with the neighbour, quarters with the one two away, ...

    Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
    IJHPCA 19, 2005: doubling distances keep large messages near, and the gathering
    pass mirrors the reducing one. Where p is no power of two, the devices beyond it first reduce
    into a partner each and get the result from it last; only an all-reduce does so.
    """
    order = np.concatenate(blocks)
    power = 1 << (len(order).bit_length() - 1)
    extra = len(order) - power
    assert extra == 0 or num_passes == 2, "only an all-reduce folds"
    folded, partner = order[1 : 2 * extra : 2], order[0 : 2 * extra : 2]
    active = np.concatenate([partner, order[2 * extra :]])
    rounds = [round_of(folded, partner, 1.0)] if extra else []
    place = np.arange(power)
    distance = 1
    while distance < power:
        other = active[place ^ distance]
        rounds.append(round_of(active, other, 0.5 / distance, repeats=num_passes))
        distance *= 2
    return rounds + ([round_of(partner, folded, 1.0)] if extra else [])


def hierarchical_rounds(blocks: Blocks, num_passes: int) -> list[Round]:
    """Rings within hosts at once, and between them a ring for each local rank, all at once.

    With g devices a host and h hosts: g - 1 rounds of 1/g within a host, then h - 1 rounds of
    1/(g h) between hosts, in which the g rings load the hosts' links together; an all-reduce does
    both twice (reduce-scatter, all-reduce of the shards, all-gather).
    """
    within = np.array(blocks)
    hosts, size = within.shape
    # Local ranks by number, not by place on the host's ring: so they meet on the same rail.
    across = np.sort(within, axis=1)
    return [
        round_of(
            within.ravel(),
            np.roll(within, -1, axis=1).ravel(),
            1 / size,
            repeats=num_passes * (size - 1),
        ),
        round_of(
            across.ravel(),
            np.roll(across, -1, axis=0).ravel(),
            1 / (size * hosts),
            repeats=num_passes * (hosts - 1),
        ),
    ]


def channel_rounds(blocks: Blocks, num_passes: int) -> list[Round]:
    """As many rings as a host has devices, all at once, each with its share of the message.

    NCCL's channels: each ring passes all devices and leaves a host by another device's card, and
    enters the next host by the same rail, since every other host is passed backwards. With g
    devices a host a card carries a g-th of what it does in a single ring.
    """
    within = np.sort(np.array(blocks), axis=1)
    size = within.shape[1]
    sources, targets = [], []
    for channel in range(size):
        path = np.roll(within, -channel, axis=1)
        path[1::2] = path[1::2, ::-1]
        order = path.ravel()
        sources.append(order)
        targets.append(np.roll(order, -1))
    repeats = num_passes * (within.size - 1)
    fraction = 1 / (within.size * size)
    return [round_of(np.concatenate(sources), np.concatenate(targets), fraction, repeats=repeats)]


def direct_rounds(blocks: Blocks) -> list[ExchangeRound]:
    """All-to-all: every device sends 1/p of what it holds to every other, all at once."""
    order = np.concatenate(blocks).astype(np.int32)
    return [ExchangeRound(devices=order, fraction=1 / len(order))]


def chain_rounds(latency: Latency, blocks: Blocks, root: int) -> list[Round]:
    """Broadcast along the ring from the root, in chunks that each device passes on as they come.

    Chunks are small, so that filling the chain costs its latency only.
    """
    order = np.concatenate(blocks)
    order = np.roll(order, -int(np.flatnonzero(order == root)[0]))
    filling = float(latency(order[:-1], order[1:]).sum())
    return [_pipelined([(order[:-1], order[1:], 1.0)], filling)]


def tree_rounds(latency: Latency, blocks: Blocks) -> list[Round]:
    """All-reduce by two binary trees at once, each up and then down with half of the message.

    Chunks are small and pipelined, so that only latency is paid for each level, and up and down
    overlap. Every device sends and gets at most twice the message.
    """
    transfers, longest = [], 0.0
    for order, parent in _double_tree(blocks):
        child, above = _tree_edges(order, parent)
        transfers += [(child, above, 0.5), (above, child, 0.5)]
        rising = _path_latency(latency(order, order[parent]), parent)
        falling = _path_latency(latency(order[parent], order), parent)
        longest = max(longest, rising + falling)
    return [_pipelined(transfers, longest)]


def rail_tree_rounds(latency: Latency, blocks: Blocks, *, is_switched: bool) -> list[Round]:
    """All-reduce by two binary trees between hosts for each local rank, all at once.

    NCCL's trees on hosts with several cards: the trees of each rank carry their part of the message
    by its card. Within a host a chain passes all parts along and back, or its switch adds up what
    every device sends and hands the sum to all of them (NVLS), which takes no steps.
    """
    within = np.sort(np.array(blocks), axis=1)
    hosts, size = within.shape
    order, beside = within.ravel(), np.roll(within, -1, axis=1).ravel()
    transfers: list[tuple[Longs, Longs, float]] = []
    longest = 0.0
    if size > 1 and is_switched:
        transfers.append((order, beside, 1.0))
    elif size > 1:
        share = (size - 1) / size
        transfers += [(order, beside, share), (beside, order, share)]
        longest = 2 * (size - 1) * float(latency(order, beside).mean())
    crossing = 0.0
    for tree, parent in _double_tree(tuple((host,) for host in range(hosts))) if hosts > 1 else ():
        child, above = _tree_edges(tree, parent)
        low, high = within[child].ravel(), within[above].ravel()
        transfers += [(low, high, 0.5 / size), (high, low, 0.5 / size)]
        first = within[:, 0]
        rising = _path_latency(latency(first[tree], first[tree[parent]]), parent)
        crossing = max(crossing, 2 * rising)
    return [_pipelined(transfers, longest + crossing)]


def mesh_rounds(pairs: Sequence[tuple[int, int, float]], num_passes: int) -> list[Round]:
    """Several rings at once over the links between the devices of one host.

    `pairs` are device, device and the rate of the link from one to the other. As many rings can be
    as the least that leaves any set of the devices has links, and they use all links alike.
    """
    members = sorted({each[0] for each in pairs})
    count = len(members)
    least = min(
        sum(rate for one, other, rate in pairs if one in inside and other not in inside)
        for choice in range(1, 1 << (count - 1))
        for inside in [{members[place] for place in range(count) if choice >> place & 1}]
    )
    sources, targets, rates = zip(*pairs, strict=True)
    return [
        Round(
            sources=np.array(sources, dtype=np.int32),
            targets=np.array(targets, dtype=np.int32),
            fractions=np.array(rates) / (count * least),
            repeats=num_passes * (count - 1),
        )
    ]


def tree_broadcast_rounds(latency: Latency, blocks: Blocks, root: int) -> list[Round]:
    """Broadcast down the two trees, half of the message each; the root hands it to their tops."""
    transfers, longest = [], 0.0
    for order, parent in _double_tree(blocks):
        child, above = _tree_edges(order, parent)
        transfers.append((above, child, 0.5))
        top = int(order[np.flatnonzero(parent == np.arange(len(order)))[0]])
        falling = _path_latency(latency(order[parent], order), parent)
        handing_over = float(latency([root], [top])[0])
        longest = max(longest, falling + handing_over)
        if top != root:
            transfers.append((np.array([root]), np.array([top]), 0.5))
    return [_pipelined(transfers, longest)]


def _pipelined(transfers: Sequence[tuple[Longs, Longs, float]], latency: float) -> Round:
    return Round(
        sources=np.concatenate([source for source, _, _ in transfers]).astype(np.int32),
        targets=np.concatenate([target for _, target, _ in transfers]).astype(np.int32),
        fractions=np.repeat([part for _, _, part in transfers], [len(t[0]) for t in transfers]),
        latency_seconds=latency,
    )


def _double_tree(blocks: Blocks) -> list[tuple[Longs, Longs]]:
    """NCCL's double binary tree over hosts, with a chain inside each host.

    Sanders, Speck, Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    2009: a device is a leaf of one tree where it is inside the other. The first tree enters a host
    at its first device, the second at its last. On one host the trees span the devices, where
    NCCL's would be a chain. Gives (devices, place of each one's parent) of each tree.
    """
    if len(blocks) == 1:
        blocks = tuple((device,) for device in blocks[0])
    hosts = len(blocks)
    first = _binary_tree(hosts)
    place = np.arange(hosts)
    if hosts % 2:  # shifted by one, as ncclGetDtree does for odd numbers
        second = (first[(place - 1) % hosts] + 1) % hosts
    else:  # mirrored
        second = hosts - 1 - first[hosts - 1 - place]
    mirrored = tuple(block[::-1] for block in blocks)
    return [_hang_chains(blocks, first), _hang_chains(mirrored, second)]


def _binary_tree(count: int) -> Longs:
    """Parents in NCCL's tree (ncclGetBtree, src/graph/trees.cc); the top is its own parent.

    The lowest set bit b of a rank is its height: its parent is the rank with bit b cleared and
    the next one set, or, where there is no such rank, the rank with bit b cleared.
    """
    rank = np.arange(count)
    lowest = rank & -rank
    parent = (rank ^ lowest) | (lowest << 1)
    return np.where(parent < count, parent, rank ^ lowest)


def _hang_chains(blocks: Blocks, parent_host: Longs) -> tuple[Longs, Longs]:
    """Devices host by host; each hangs from the one before it, the first from the parent host's."""
    sizes = np.array([len(block) for block in blocks])
    leader = np.cumsum(sizes) - sizes
    parent = np.arange(sizes.sum()) - 1
    parent[leader] = leader[parent_host]
    return np.concatenate(blocks), parent


def _tree_edges(order: Longs, parent: Longs) -> tuple[Longs, Longs]:
    """Device and parent device of every edge."""
    is_edge = parent != np.arange(len(parent))
    return order[is_edge], order[parent[is_edge]]


def _path_latency(edge_latency: Floats, parent: Longs) -> float:
    """The longest sum of edges between the top and any device, by pointer doubling."""
    total, above = edge_latency, parent
    while np.any(above != above[above]):
        total, above = total + total[above], above[above]
    return float(total.max())
