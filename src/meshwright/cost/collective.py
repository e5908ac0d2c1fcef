"""Times collectives on a set of devices of a cluster. Knows nothing about graphs or plans.

The size of a message is what NCCL's tests call it: of an all-reduce and a broadcast the vector, of
an all-gather and a reduce-scatter the whole (gathered) vector, of an all-to-all all that one
device holds, a p-th of which goes to each, of a shift what each device sends to the one after it
in the order given. The first device given is the root of a broadcast.

Every formula is a line: a latency plus seconds for each byte. So a `CollectiveModel`, which is
where the work is, can be kept for a set of devices and asked for any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cost.algorithm import (
    Blocks,
    chain_rounds,
    channel_rounds,
    direct_rounds,
    halving_doubling_rounds,
    hierarchical_rounds,
    ring_rounds,
    shift_rounds,
    tree_broadcast_rounds,
    tree_rounds,
)
from meshwright.cost.limit import Limits
from meshwright.cost.ring import order_hosts
from meshwright.cost.rounds import Exchange, Round, price_rounds
from meshwright.cost.table import table_seconds
from meshwright.errors import InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


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
    TABLE = "table"
    """Whatever was measured."""


_PASSES = {
    Collective.ALL_REDUCE: 2,
    Collective.ALL_GATHER: 1,
    Collective.REDUCE_SCATTER: 1,
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveCost:
    """One collective of one size, alone on the network."""

    algorithm: Algorithm
    seconds: float
    latency_seconds: float
    """The part of `seconds` that does not depend on bandwidth."""
    amount_bytes: float
    """Bytes through its busiest link in all."""
    links: Ints
    """The links it uses, rising, past the cluster's the limits; none when nothing is moved."""
    link_share: Floats
    """Bytes through each of them over `amount_bytes`, in (0, 1]; through limits it may be more."""
    division: tuple[float, ...] = ()
    """The part of the message on each rail between hosts; empty: it is not divided."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveLine:
    """One algorithm on one set of devices, for any size."""

    algorithm: Algorithm
    latency_seconds: float
    seconds_per_byte: float
    amount_per_byte: float
    """Bytes through the busiest link for each byte of the message."""
    links: Ints
    link_share: Floats
    division: tuple[float, ...] = ()

    def seconds(self, message_bytes: float) -> float:
        """Latency plus the size times seconds a byte."""
        return self.latency_seconds + message_bytes * self.seconds_per_byte

    def cost(self, message_bytes: float) -> CollectiveCost:
        """The cost of one size."""
        is_used = message_bytes > 0
        return CollectiveCost(
            algorithm=self.algorithm,
            seconds=self.seconds(message_bytes),
            latency_seconds=self.latency_seconds,
            amount_bytes=message_bytes * self.amount_per_byte,
            links=self.links if is_used else self.links[:0],
            link_share=self.link_share if is_used else self.link_share[:0],
            division=self.division,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveModel:
    """A collective on a set of devices: its algorithms' lines, and a table that overrides them."""

    lines: tuple[CollectiveLine, ...]
    table: CollectiveTable | None
    link_bytes_per_second: Floats
    """Of every link of the cluster."""

    def cost(self, message_bytes: float) -> CollectiveCost:
        """What the table says, else the fastest algorithm for this size, the first of equals."""
        if not 0 <= message_bytes < np.inf:
            raise InputError(
                f"collective: message_bytes must be finite and not negative, got {message_bytes}"
            )
        fastest = min(self.lines, key=lambda line: line.seconds(message_bytes))
        if self.table is None:
            return fastest.cost(message_bytes)
        return self._table_cost(fastest, message_bytes)

    def _table_cost(self, line: CollectiveLine, message_bytes: float) -> CollectiveCost:
        """The measured time, spread over links as the fastest formula does.

        Where the measurement beats what the links allow, it counts as fewer bytes: the links are
        full then, and never more than full.
        """
        assert self.table is not None
        seconds = table_seconds(self.table, message_bytes)
        formula = line.cost(message_bytes)
        latency = min(formula.latency_seconds, seconds) if message_bytes else seconds
        amount = formula.amount_bytes
        if len(formula.links):
            rates = self.link_bytes_per_second[formula.links] / formula.link_share
            amount = min(amount, (seconds - latency) * float(rates.min()))
        count = len(formula.links) if amount > 0 else 0
        return CollectiveCost(
            algorithm=Algorithm.TABLE,
            seconds=seconds,
            latency_seconds=latency,
            amount_bytes=amount,
            links=formula.links[:count],
            link_share=formula.link_share[:count],
        )


def collective_cost(
    cluster: Cluster,
    collective: Collective,
    devices: Sequence[int],
    message_bytes: float,
    algorithm: Algorithm | None = None,
) -> CollectiveCost:
    """Cost of a collective of one size, by the fastest algorithm where none is given."""
    return collective_model(cluster, collective, devices, algorithm).cost(message_bytes)


def collective_model(
    cluster: Cluster,
    collective: Collective,
    devices: Sequence[int],
    algorithm: Algorithm | None = None,
    limits: Limits | None = None,
) -> CollectiveModel:
    """The cost of a collective of any size on these devices (their numbers).

    With no algorithm given, a measured table overrides all formulas and else the fastest counts;
    with one given, only that one counts. `limits` are what its traffic between hosts may use.
    """
    chosen = _check_devices(cluster, devices)
    table = find_table(cluster, collective, chosen)
    if algorithm is Algorithm.TABLE and table is None:
        raise InputError(f"cluster {cluster.name}: no table of {collective} on {chosen} is known")
    is_formula = algorithm not in (None, Algorithm.TABLE)
    lines: tuple[CollectiveLine, ...]
    if len(chosen) == 1:
        lines = (_nothing(algorithm or Algorithm.RING),)
    else:
        blocks = arrange(cluster, collective, chosen)
        offered = offered_algorithms(collective, blocks)
        if is_formula and algorithm not in offered:
            raise InputError(
                f"{collective} on {len(chosen):,} devices of {len(blocks):,} hosts: no algorithm "
                f"{algorithm} for it (known: {', '.join(offered)})"
            )
        wanted = (algorithm,) if is_formula and algorithm is not None else offered
        lines = tuple(
            _line(cluster, collective, blocks, chosen[0], each, limits) for each in wanted
        )
    return CollectiveModel(
        lines=open_lines(lines, f"{collective} on {len(chosen):,} devices"),
        table=None if is_formula or len(chosen) == 1 else table,
        link_bytes_per_second=cluster.link_bytes_per_second if limits is None else limits.capacity,
    )


def arrange(cluster: Cluster, collective: Collective, devices: tuple[int, ...]) -> Blocks:
    """The devices by host in the order of the best ring, as algorithms want them.

    A shift is asked for in the order that is given. An exchange needs none, which takes 4 to 24 ms
    to find for a thousand devices.
    """
    if collective in (Collective.ALL_TO_ALL, Collective.SHIFT):
        return (devices,)
    return order_hosts(cluster, devices)


def open_lines(lines: Sequence[CollectiveLine], what: str) -> tuple[CollectiveLine, ...]:
    """The algorithms that limits between hosts leave a rail for; that there is none is refused."""
    found = tuple(line for line in lines if line.seconds_per_byte < np.inf)
    if not found:
        raise InputError(
            f"{what}: must have one way with a rate between all hosts that send to each other, "
            f"but the limits between them have none in common"
        )
    return found


def find_table(
    cluster: Cluster, collective: Collective, devices: Sequence[int]
) -> CollectiveTable | None:
    """The measured table for these devices: one type, one host, that many; None: there is none."""
    kinds = {(cluster.devices[each].type, cluster.devices[each].host) for each in devices}
    if len(kinds) != 1:
        return None
    key = (str(collective), kinds.pop()[0], len(devices))
    for table in cluster.tables:
        if (table.collective, table.device_type, table.num_devices) == key:
            return table
    return None


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


def _check_devices(cluster: Cluster, devices: Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(int(each) for each in devices)
    if not chosen:
        raise InputError("collective: must have at least one device")
    for each in chosen:
        if not 0 <= each < cluster.num_devices:
            raise InputError(
                f"collective: device must be from 0 to {cluster.num_devices - 1}, got {each}"
            )
    if len(set(chosen)) != len(chosen):
        raise InputError(f"collective: devices must be distinct, got {chosen}")
    return chosen


def _nothing(algorithm: Algorithm) -> CollectiveLine:
    """One device has nothing to do."""
    return CollectiveLine(
        algorithm=algorithm,
        latency_seconds=0.0,
        seconds_per_byte=0.0,
        amount_per_byte=0.0,
        links=np.zeros(0, dtype=np.int32),
        link_share=np.zeros(0),
    )


def _line(
    cluster: Cluster,
    collective: Collective,
    blocks: Blocks,
    root: int,
    algorithm: Algorithm,
    limits: Limits | None,
) -> CollectiveLine:
    rounds = collective_rounds(cluster, collective, blocks, root, algorithm)
    return price_line(cluster, algorithm, rounds, limits)


def price_line(
    cluster: Cluster,
    algorithm: Algorithm,
    rounds: Sequence[Round | Exchange],
    limits: Limits | None = None,
) -> CollectiveLine:
    """The line of an algorithm whose rounds are these."""
    price = price_rounds(cluster, rounds, limits)
    amount = float(price.link_loads[price.links < len(cluster.links)].max())
    share = price.link_loads / amount
    price.links.setflags(write=False)
    share.setflags(write=False)
    return CollectiveLine(
        algorithm=algorithm,
        latency_seconds=price.latency_seconds,
        seconds_per_byte=price.seconds_per_byte,
        amount_per_byte=amount,
        links=price.links,
        link_share=share,
        division=price.division,
    )


def collective_rounds(
    cluster: Cluster, collective: Collective, blocks: Blocks, root: int, algorithm: Algorithm
) -> Sequence[Round | Exchange]:
    """The rounds of an algorithm that is offered for these blocks."""
    if collective is Collective.ALL_TO_ALL:
        return direct_rounds(blocks)
    if collective is Collective.SHIFT:
        return shift_rounds(blocks)
    if collective is Collective.BROADCAST:
        if algorithm is Algorithm.RING:
            return chain_rounds(cluster, blocks, root)
        return tree_broadcast_rounds(cluster, blocks, root)
    if algorithm is Algorithm.TREE:
        return tree_rounds(cluster, blocks)
    if algorithm is Algorithm.HALVING_DOUBLING:
        return halving_doubling_rounds(blocks, _PASSES[collective])
    if algorithm is Algorithm.HIERARCHICAL:
        return hierarchical_rounds(blocks, _PASSES[collective])
    if algorithm is Algorithm.CHANNELS:
        return channel_rounds(blocks, _PASSES[collective])
    assert algorithm is Algorithm.RING
    return ring_rounds(blocks, _PASSES[collective])
