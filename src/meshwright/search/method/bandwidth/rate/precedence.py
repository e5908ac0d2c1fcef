"""What of a placed and ordered plan waits for what, as a graph whose arcs take time.

An arc takes fixed seconds and, where it stands for traffic between hosts, an amount of bytes over
the rate of a pair, or what else limits these if that takes longer. Every path through the graph is
then a constant and an amount for each pair, and the step takes as long as the longest. Knows no
networks: which rates can be had together is `meshwright.search.method.bandwidth.rate.room`'s to
say.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, Records
from meshwright.compiled import compiled, inlined
from meshwright.kernel.row import gather_rows

ARC = np.dtype(
    [
        ("source", np.int32),
        ("target", np.int32),
        ("pair", np.int32),  # whose rate its bytes have; -1: it has none
        ("fixed", np.float64),  # seconds
        ("amount", np.float64),  # bytes
        ("least", np.float64),  # seconds of these at any rate: what else limits them
    ],
    align=True,
)
"""From the end of something to the end of what waits for it."""

MAX_PATHS = 32
"""As many are taken from one look at the graph."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Precedence:
    """Nodes, numbered so that arcs lead to larger numbers; node 0 is the start of the step."""

    arcs: Records
    """ARCs by target."""
    first_in: Ints
    """Where the arcs to each node begin, one entry more than nodes."""
    num_pairs: int

    def used(self) -> npt.NDArray[np.int64]:
        """The pairs that anything is sent between, rising."""
        pairs = self.arcs["pair"][(self.arcs["pair"] >= 0) & (self.arcs["amount"] > 0)]
        return np.unique(pairs).astype(np.int64)


@dataclass(frozen=True, kw_only=True, eq=False)
class Paths:
    """Paths through a Precedence: each takes its constant and its amounts over the rates."""

    constants: Floats
    amounts: Floats
    """Path x pair, in bytes."""

    def seconds(self, rates: Floats) -> Floats:
        """Of each path; pairs that it does not use may have any rate."""
        slowness = np.divide(1.0, rates, out=np.zeros_like(rates), where=rates > 0)
        return np.asarray(self.constants + self.amounts @ slowness)

    def joined(self, other: "Paths") -> "Paths":
        """These and those of the others that are not among them."""
        rows = np.column_stack((self.constants, self.amounts))
        more = np.column_stack((other.constants, other.amounts))
        known = {row.tobytes() for row in rows}
        new = [row for row in more if row.tobytes() not in known]
        rows = np.concatenate((rows, np.array(new).reshape(len(new), rows.shape[1])))
        return Paths(constants=rows[:, 0], amounts=rows[:, 1:])

    def picked(self, places: npt.NDArray[Any]) -> "Paths":
        """Some of them."""
        return Paths(constants=self.constants[places], amounts=self.amounts[places])


def no_paths(num_pairs: int) -> Paths:
    """None yet."""
    return Paths(constants=np.zeros(0), amounts=np.zeros((0, num_pairs)))


def make_precedence(num_nodes: int, num_pairs: int, arcs: Records) -> Precedence:
    """From arcs in any order."""
    assert bool(np.all(arcs["source"] < arcs["target"])), "arcs lead to larger numbers"
    order, first_in = gather_rows(arcs["target"], num_nodes)
    return Precedence(arcs=arcs[order], first_in=first_in, num_pairs=num_pairs)


class Walker:
    """Finds the longest paths of one Precedence again and again."""

    def __init__(self, precedence: Precedence) -> None:
        self.precedence = precedence
        count = len(precedence.first_in) - 1
        self._times = np.zeros((2, count))
        self._arcs = np.zeros((2, count), np.int32)
        self._lengths = np.zeros(precedence.num_pairs)
        self._best = np.zeros(precedence.num_pairs, np.int32)
        self._constants = np.zeros(MAX_PATHS)
        self._amounts = np.zeros((MAX_PATHS, precedence.num_pairs))

    def walk(self, rates: Floats, at_least: float = 1.0) -> tuple[float, Paths]:
        """The step's seconds and long paths, the longest first.

        Of each pair that is used the longest path that it is on, if it takes `at_least` that
        part of the longest.
        """
        longest: Any = (
            self.precedence.first_in, self.precedence.arcs, 1.0 / rates, self._times[0],
            self._times[1], self._arcs[0], self._arcs[1], self._lengths, self._best, at_least,
            self._constants, self._amounts,
        )  # fmt: skip
        seconds, count = walk_longest(*longest)
        paths = Paths(
            constants=self._constants[:count].copy(), amounts=self._amounts[:count].copy()
        )
        return seconds, paths

    def mix(self, rates: Floats, seconds: float) -> Paths:
        """All paths as one, the weight of each e times less for so many seconds that it is shorter.

        After `walk`. Where very many paths are nearly longest it says what thousands of them would.
        """
        self._amounts[0] = 0.0
        mixed: Any = (
            self.precedence.first_in, self.precedence.arcs, 1.0 / rates, self._arcs[1],
            1.0 / seconds, self._times[0], self._times[1], self._amounts[0],
        )  # fmt: skip
        constant = mix_longest(*mixed)
        return Paths(constants=np.array([constant]), amounts=self._amounts[:1].copy())


@inlined
def _arc_seconds(arcs: Any, e: Any, slowness: Any) -> Any:
    if arcs[e].pair < 0:
        return arcs[e].fixed
    return arcs[e].fixed + max(arcs[e].least, arcs[e].amount * slowness[arcs[e].pair])


@compiled
def walk_longest(
    first_in: Any, arcs: Any, slowness: Any, head: Any, tail: Any, before: Any,
    after: Any, lengths: Any, best: Any, at_least: float, constants: Any, amounts: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The longest path, and of each pair the longest that it is on; see `Walker.walk`."""
    longest: Any = 0.0
    end: Any = np.int64(-1)
    for node in range(len(head)):
        head[node], tail[node], before[node], after[node] = 0.0, 0.0, -1, -1
        for e in range(first_in[node], first_in[node + 1]):
            arrival = head[arcs[e].source] + _arc_seconds(arcs, e, slowness)
            if before[node] < 0 or arrival > head[node]:
                head[node], before[node] = arrival, e
        if head[node] > longest:
            longest, end = head[node], np.int64(before[node])
    for pair in range(len(lengths)):
        lengths[pair], best[pair] = -1.0, -1
    for e in range(len(arcs) - 1, -1, -1):
        source, pair = arcs[e].source, arcs[e].pair
        left = _arc_seconds(arcs, e, slowness) + tail[arcs[e].target]
        if after[source] < 0 or left > tail[source]:
            tail[source], after[source] = left, e
        if pair >= 0 and arcs[e].amount > 0.0 and head[source] + left > lengths[pair]:
            lengths[pair], best[pair] = head[source] + left, e
    if end < 0:
        return longest, 0
    count: Any = np.int64(0)
    for pair in range(-1, len(lengths)):
        through: Any = end
        if pair >= 0:
            if best[pair] < 0 or lengths[pair] < at_least * longest or count == len(constants):
                continue
            through = np.int64(best[pair])
        length = longest if pair < 0 else lengths[pair]
        constants[count] = 0.0
        for other in range(len(lengths)):
            amounts[count, other] = 0.0
        at: Any = through
        while at >= 0:
            _pass(arcs, at, slowness, constants, amounts, count, lengths, best, length)
            at = np.int64(before[arcs[at].source])
        at = np.int64(after[arcs[through].target])
        while at >= 0:
            _pass(arcs, at, slowness, constants, amounts, count, lengths, best, length)
            at = np.int64(after[arcs[at].target])
        count += 1
    return longest, count


@inlined
def _pass(
    arcs: Any, e: Any, slowness: Any, constants: Any, amounts: Any, count: Any,
    lengths: Any, best: Any, length: Any,
) -> None:  # fmt: skip
    """Add an arc to a path; a pair whose longest path this one is needs no other."""
    constants[count] += arcs[e].fixed
    pair = arcs[e].pair
    if pair < 0:
        return
    if arcs[e].amount * slowness[pair] < arcs[e].least:
        constants[count] += arcs[e].least
    else:
        amounts[count, pair] += arcs[e].amount
    if lengths[pair] <= length * (1.0 + 1e-12):
        best[pair] = -1


@compiled
def mix_longest(
    first_in: Any, arcs: Any, slowness: Any, after: Any, sharpness: Any, soft: Any, mass: Any,
    amounts: Any,
) -> Any:  # fmt: skip
    """The constant of the mixture of all paths, its amounts into `amounts`; see `Walker.mix`.

    `soft` becomes the soft maximum of what leads to each node, `mass` the weight of paths there.
    """
    top, constant = 0.0, 0.0
    for node in range(len(soft)):
        soft[node], mass[node] = 0.0, 0.0
        low, high = first_in[node], first_in[node + 1]
        for e in range(low, high):
            arrival = soft[arcs[e].source] + _arc_seconds(arcs, e, slowness)
            if e == low or arrival > soft[node]:
                soft[node] = arrival
        if high > low + 1:
            total = 0.0
            for e in range(low, high):
                arrival = soft[arcs[e].source] + _arc_seconds(arcs, e, slowness)
                total += np.exp(sharpness * (arrival - soft[node]))
            soft[node] += np.log(total) / sharpness
        top = max(top, soft[node])
    everything = 0.0
    for node in range(len(soft)):
        if after[node] < 0:
            mass[node] = np.exp(sharpness * (soft[node] - top))
            everything += mass[node]
    for node in range(len(soft) - 1, -1, -1):
        if after[node] < 0:
            mass[node] /= everything
        if mass[node] < 1e-12:
            continue
        total = 0.0  # one but for rounding, which would add up along paths
        for e in range(first_in[node], first_in[node + 1]):
            arrival = soft[arcs[e].source] + _arc_seconds(arcs, e, slowness)
            total += np.exp(sharpness * (arrival - soft[node]))
        for e in range(first_in[node], first_in[node + 1]):
            source, pair = arcs[e].source, arcs[e].pair
            arrival = soft[source] + _arc_seconds(arcs, e, slowness)
            part = mass[node] * np.exp(sharpness * (arrival - soft[node])) / total
            mass[source] += part
            constant += part * arcs[e].fixed
            if pair >= 0 and arcs[e].amount * slowness[pair] < arcs[e].least:
                constant += part * arcs[e].least
            elif pair >= 0:
                amounts[pair] += part * arcs[e].amount
    return constant
