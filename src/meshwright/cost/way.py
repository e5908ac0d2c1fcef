"""Which algorithms and protocols a collective has on a set of devices, and the rounds of each.

Where links are of a kind, only what NCCL does is looked at: rings, trees and sums in switches, all
of them on as many links at once as there are. Knows nothing of what rounds cost.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.kind import EXCHANGES, RINGS, Protocol
from meshwright.cost.algorithm import (
    Blocks,
    Latency,
    chain_rounds,
    channel_rounds,
    direct_rounds,
    halving_doubling_rounds,
    hierarchical_rounds,
    mesh_rounds,
    rail_tree_rounds,
    ring_rounds,
    shift_rounds,
    tree_broadcast_rounds,
    tree_rounds,
)
from meshwright.cost.ring import order_hosts
from meshwright.cost.rounds import ExchangeRound, Round
from meshwright.cost.wire import Wire, find_wires, has_switch
from meshwright.errors import InputError


class Collective(StrEnum):
    """What a set of devices does together."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    SHIFT = "shift"


class Algorithm(StrEnum):
    """How they do it."""

    RING = "ring"
    """Neighbours on a ring; a pipelined chain for a broadcast."""
    TREE = "tree"
    """NCCL's double binary tree, pipelined."""
    HALVING_DOUBLING = "halving_doubling"
    """Exchanges at doubling distances."""
    HIERARCHICAL = "hierarchical"
    """Rings within hosts, and one for each local rank between them."""
    CHANNELS = "channels"
    """Several rings at once, each by another device's card."""
    DIRECT = "direct"
    """Everyone to everyone at once."""
    SWITCH = "switch"
    """Sums in the switch of each host, and trees between hosts."""
    TABLE = "table"
    """The times of a measured table; how they came about is not known."""


PASSES = {
    Collective.ALL_REDUCE: 2,
    Collective.ALL_GATHER: 1,
    Collective.REDUCE_SCATTER: 1,
}
Way = tuple[Algorithm, Wire | None]
"""An algorithm, and the protocol that it sends by; None: links are used as they are."""

PROTOCOLS = {Collective.ALL_TO_ALL: EXCHANGES, Collective.SHIFT: (Protocol.PAIR,)}
"""By which a collective sends; all others by those of rings."""
_MAX_MESH = 8
"""The most devices of a host whose direct links are looked at for rings: 127 sets of them."""


def arrange(cluster: Cluster, collective: Collective, devices: tuple[int, ...]) -> Blocks:
    """The devices by host in the order of the best ring, as algorithms want them.

    A shift is asked for in the order that is given. An exchange needs none, which takes 4 to 24 ms
    to find for a thousand devices.
    """
    if collective in (Collective.ALL_TO_ALL, Collective.SHIFT):
        return (devices,)
    return order_hosts(cluster, devices)


def offered_algorithms(collective: Collective, blocks: Blocks) -> tuple[Algorithm, ...]:
    """The formulas that hold for devices so spread over hosts."""
    if collective is Collective.ALL_TO_ALL:
        return (Algorithm.DIRECT,)
    if collective is Collective.SHIFT:
        return (Algorithm.RING,)
    if collective is Collective.BROADCAST:
        return (Algorithm.RING, Algorithm.TREE)
    offered = [Algorithm.RING]
    count = sum(len(block) for block in blocks)
    if collective is Collective.ALL_REDUCE:
        offered.append(Algorithm.TREE)
    if collective is Collective.ALL_REDUCE or count & (count - 1) == 0:
        offered.append(Algorithm.HALVING_DOUBLING)
    if len(blocks) > 1 and len(blocks[0]) > 1 and len({len(block) for block in blocks}) == 1:
        offered += [Algorithm.HIERARCHICAL, Algorithm.CHANNELS]
    return tuple(offered)


def find_ways(
    cluster: Cluster, collective: Collective, blocks: Blocks, algorithm: Algorithm | None = None
) -> tuple[Way, ...]:
    """The algorithms and protocols that are looked at, or those of one algorithm."""
    offered = offered_algorithms(collective, blocks)
    if cluster.has_kinds and collective is Collective.ALL_REDUCE:
        order = np.array(blocks[0], dtype=np.int32)
        if len(order) > 1 and _is_even(blocks) and has_switch(cluster, order):
            offered = (*offered, Algorithm.SWITCH)
    if algorithm is not None and algorithm not in offered:
        raise InputError(
            f"{collective} on {sum(map(len, blocks)):,} devices of {len(blocks):,} hosts: no "
            f"algorithm {algorithm} for it (known: {', '.join(offered)})"
        )
    if algorithm is not None:
        offered = (algorithm,)
    elif cluster.has_kinds:
        offered = tuple(each for each in offered if _is_in_library(each, collective, blocks))
    usual = PROTOCOLS.get(collective, RINGS)
    return tuple(
        (each, wire)
        for each in offered
        for wire in find_wires(cluster, (Protocol.SWITCH,) if each is Algorithm.SWITCH else usual)
    )


def _is_in_library(algorithm: Algorithm, collective: Collective, blocks: Blocks) -> bool:
    """Whether NCCL has it: its rings use all channels, its trees are between hosts."""
    if algorithm is Algorithm.TREE:
        return collective is Collective.ALL_REDUCE and len(blocks) > 1
    return algorithm in (Algorithm.RING, Algorithm.DIRECT, Algorithm.SWITCH)


def _is_even(blocks: Blocks) -> bool:
    return len({len(block) for block in blocks}) == 1


def collective_rounds(
    cluster: Cluster,
    collective: Collective,
    blocks: Blocks,
    root: int,
    algorithm: Algorithm,
    wire: Wire | None = None,
) -> Sequence[Round | ExchangeRound]:
    """The rounds of an algorithm that is offered for these blocks."""
    latency = partial(_path_seconds, cluster, wire)
    if collective is Collective.ALL_TO_ALL:
        return direct_rounds(blocks)
    if collective is Collective.SHIFT:
        return shift_rounds(blocks)
    if collective is Collective.BROADCAST:
        if algorithm is Algorithm.TREE:
            return tree_broadcast_rounds(latency, blocks, root)
        if wire is None:
            return chain_rounds(latency, blocks, root)
        return _chains(latency, _rings(cluster, blocks, 1))
    if algorithm is Algorithm.SWITCH or (algorithm is Algorithm.TREE and wire and _is_even(blocks)):
        return rail_tree_rounds(latency, blocks, is_switched=algorithm is Algorithm.SWITCH)
    if algorithm is Algorithm.TREE:
        return tree_rounds(latency, blocks)
    if algorithm is Algorithm.HALVING_DOUBLING:
        return halving_doubling_rounds(blocks, PASSES[collective])
    if algorithm is Algorithm.HIERARCHICAL:
        return hierarchical_rounds(blocks, PASSES[collective])
    if algorithm is Algorithm.CHANNELS:
        return channel_rounds(blocks, PASSES[collective])
    assert algorithm is Algorithm.RING
    if wire is not None:
        return _rings(cluster, blocks, PASSES[collective])
    return ring_rounds(blocks, PASSES[collective])


def _path_seconds(
    cluster: Cluster, wire: Wire | None, sources: npt.ArrayLike, targets: npt.ArrayLike
) -> Floats:
    """The latency of each pair of devices."""
    if wire is None:
        return cluster.routes_between(sources, targets).latency
    return wire.path_seconds(cluster, sources, targets)


def _rings(cluster: Cluster, blocks: Blocks, num_passes: int) -> list[Round]:
    """As many rings at once as cards between hosts, or links within one, allow."""
    if len(blocks) > 1:
        if _is_even(blocks) and len(blocks[0]) > 1:
            return channel_rounds(blocks, num_passes)
        return ring_rounds(blocks, num_passes)
    pairs = _direct_pairs(cluster, blocks[0])
    return mesh_rounds(pairs, num_passes) if pairs else ring_rounds(blocks, num_passes)


def _direct_pairs(cluster: Cluster, block: tuple[int, ...]) -> list[tuple[int, int, float]]:
    """The links from device to device in a small host, with their rates; none where not all of
    the devices are joined by them."""
    if not 2 < len(block) <= _MAX_MESH:
        return []
    one, other = np.array([(i, j) for i in block for j in block if i != j]).T
    routes = cluster.routes_between(one, other)
    is_link = routes.hops == 1
    pairs = list(
        zip(one[is_link].tolist(), other[is_link].tolist(), routes.bandwidth[is_link], strict=True)
    )
    reached, met = {block[0]}, 0
    while met < len(reached):
        met = len(reached)
        reached |= {target for source, target, _ in pairs if source in reached}
    return pairs if len(reached) == len(block) else []


def _chains(latency: Latency, rings: list[Round]) -> list[Round]:
    """Rings as pipelined chains, which each pass on all of their part of the message."""
    (ring,) = rings
    steps = ring.repeats
    path = steps * float(latency(ring.sources, ring.targets).mean())
    return [replace(ring, fractions=ring.fractions * (steps + 1), repeats=1, latency_seconds=path)]
