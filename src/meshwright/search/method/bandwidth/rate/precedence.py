"""What of a placed and ordered plan waits for what, as a graph whose arcs take time.

An arc takes fixed seconds and, where it stands for traffic between hosts, an amount of bytes over
the rate of a pair, or what else limits these if that takes longer. Every path through the graph is
then a constant and an amount for each pair, and the step takes as long as the longest. Knows no
networks: which rates can be had together is `meshwright.search.method.bandwidth.rate.room`'s to
say.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, Records
from meshwright.compiled import Array, Float, Int, compiled, inlined
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
        """The paths at some places."""
        return Paths(constants=self.constants[places], amounts=self.amounts[places])


def no_paths(num_pairs: int) -> Paths:
    """No paths yet, for so many pairs."""
    return Paths(constants=np.zeros(0), amounts=np.zeros((0, num_pairs)))


def make_precedence(num_nodes: int, num_pairs: int, arcs: Records) -> Precedence:
    """From arcs in any order."""
    assert bool(np.all(arcs["source"] < arcs["target"])), "arcs lead to larger numbers"
    order, first_in = gather_rows(arcs["target"], num_nodes)
    return Precedence(arcs=arcs[order], first_in=first_in, num_pairs=num_pairs)


class LongestPathState(NamedTuple):
    """Everything that the walks over a Precedence work on."""

    first_in: Array
    arcs: Array
    slowness: Array
    """By pair, seconds a byte."""
    head: Array
    """By node the longest time from the start."""
    tail: Array
    """By node the longest time to the end."""
    before: Array
    """By node the last arc of the longest path to it; -1 where none leads there."""
    after: Array
    """By node the first arc of the longest path from it; -1 where none leads on."""
    lengths: Array
    """By pair the longest path that it is on."""
    best: Array
    """By pair its arc on that path; -1 where another path that was taken shows as much."""
    constants: Array
    amounts: Array
    """The paths that were found: path by path, and path by pair."""


class Walker:
    """Finds the longest paths of one Precedence again and again."""

    def __init__(self, precedence: Precedence) -> None:
        self.precedence = precedence
        count, pairs = len(precedence.first_in) - 1, precedence.num_pairs
        self._state = LongestPathState(
            first_in=precedence.first_in,
            arcs=precedence.arcs,
            slowness=np.zeros(pairs),
            head=np.zeros(count),
            tail=np.zeros(count),
            before=np.zeros(count, np.int32),
            after=np.zeros(count, np.int32),
            lengths=np.zeros(pairs),
            best=np.zeros(pairs, np.int32),
            constants=np.zeros(MAX_PATHS),
            amounts=np.zeros((MAX_PATHS, pairs)),
        )

    def walk(self, rates: Floats, at_least: float = 1.0) -> tuple[float, Paths]:
        """The step's seconds and long paths, the longest first.

        Of each pair that is used the longest path that it is on, if it takes `at_least` that
        part of the longest.
        """
        self._state.slowness[:] = 1.0 / rates
        seconds, count = walk_longest(self._state, at_least)
        constants, amounts = self._state.constants[:count], self._state.amounts[:count]
        return seconds, Paths(constants=constants.copy(), amounts=amounts.copy())

    def mix(self, rates: Floats, seconds: float) -> Paths:
        """All paths as one, the weight of each e times less for so many seconds that it is shorter.

        After `walk`. Where very many paths are nearly longest it says what thousands of them would.
        """
        self._state.slowness[:] = 1.0 / rates
        self._state.amounts[0] = 0.0
        constant = mix_longest(self._state, 1.0 / seconds)
        return Paths(constants=np.array([constant]), amounts=self._state.amounts[:1].copy())


@inlined
def _arc_seconds(state: LongestPathState, e: Int) -> Float:
    arcs = state.arcs
    if arcs[e].pair < 0:
        return arcs[e].fixed
    return arcs[e].fixed + max(arcs[e].least, arcs[e].amount * state.slowness[arcs[e].pair])


@compiled
def walk_longest(state: LongestPathState, at_least: float) -> tuple[Float, Int]:
    """The longest path, and of each pair the longest that it is on; for `Walker.walk`."""
    arcs, head, tail, before = state.arcs, state.head, state.tail, state.before
    after, lengths, best = state.after, state.lengths, state.best
    longest = 0.0
    end = np.int64(-1)
    for node in range(len(head)):
        head[node], tail[node], before[node], after[node] = 0.0, 0.0, -1, -1
        for e in range(state.first_in[node], state.first_in[node + 1]):
            arrival = head[arcs[e].source] + _arc_seconds(state, e)
            if before[node] < 0 or arrival > head[node]:
                head[node], before[node] = arrival, e
        if head[node] > longest:
            longest, end = head[node], np.int64(before[node])
    for pair in range(len(lengths)):
        lengths[pair], best[pair] = -1.0, -1
    for e in range(len(arcs) - 1, -1, -1):
        source, pair = arcs[e].source, arcs[e].pair
        left = _arc_seconds(state, e) + tail[arcs[e].target]
        if after[source] < 0 or left > tail[source]:
            tail[source], after[source] = left, e
        if pair >= 0 and arcs[e].amount > 0.0 and head[source] + left > lengths[pair]:
            lengths[pair], best[pair] = head[source] + left, e
    if end < 0:
        return longest, 0
    count = np.int64(0)
    for pair in range(-1, len(lengths)):
        through = end
        if pair >= 0:
            if (
                best[pair] < 0
                or lengths[pair] < at_least * longest
                or count == len(state.constants)
            ):
                continue
            through = np.int64(best[pair])
        length = longest if pair < 0 else lengths[pair]
        state.constants[count] = 0.0
        for other in range(len(lengths)):
            state.amounts[count, other] = 0.0
        at = through
        while at >= 0:
            _pass(state, at, count, length)
            at = np.int64(before[arcs[at].source])
        at = np.int64(after[arcs[through].target])
        while at >= 0:
            _pass(state, at, count, length)
            at = np.int64(after[arcs[at].target])
        count += 1
    return longest, count


@inlined
def _pass(state: LongestPathState, e: Int, count: Int, length: Float) -> None:
    """Add an arc to a path; a pair whose longest path this one is needs no other."""
    arcs = state.arcs
    state.constants[count] += arcs[e].fixed
    pair = arcs[e].pair
    if pair < 0:
        return
    if arcs[e].amount * state.slowness[pair] < arcs[e].least:
        state.constants[count] += arcs[e].least
    else:
        state.amounts[count, pair] += arcs[e].amount
    if state.lengths[pair] <= length * (1.0 + 1e-12):
        state.best[pair] = -1


@compiled
def mix_longest(state: LongestPathState, sharpness: Float) -> Float:
    """The constant of the mixture of all paths, for `Walker.mix`; its amounts into row 0.

    `head` becomes the soft maximum of what leads to each node, `tail` the weight of paths there.
    """
    first_in, arcs, head, tail = state.first_in, state.arcs, state.head, state.tail
    top, constant = 0.0, 0.0
    for node in range(len(head)):
        head[node], tail[node] = 0.0, 0.0
        low, high = first_in[node], first_in[node + 1]
        for e in range(low, high):
            arrival = head[arcs[e].source] + _arc_seconds(state, e)
            if e == low or arrival > head[node]:
                head[node] = arrival
        if high > low + 1:
            total = 0.0
            for e in range(low, high):
                arrival = head[arcs[e].source] + _arc_seconds(state, e)
                total += np.exp(sharpness * (arrival - head[node]))
            head[node] += np.log(total) / sharpness
        top = max(top, head[node])
    everything = 0.0
    for node in range(len(head)):
        if state.after[node] < 0:
            tail[node] = np.exp(sharpness * (head[node] - top))
            everything += tail[node]
    for node in range(len(head) - 1, -1, -1):
        if state.after[node] < 0:
            tail[node] /= everything
        if tail[node] < 1e-12:
            continue
        total = 0.0  # one but for rounding, which would add up along paths
        for e in range(first_in[node], first_in[node + 1]):
            arrival = head[arcs[e].source] + _arc_seconds(state, e)
            total += np.exp(sharpness * (arrival - head[node]))
        for e in range(first_in[node], first_in[node + 1]):
            source, pair = arcs[e].source, arcs[e].pair
            arrival = head[source] + _arc_seconds(state, e)
            part = tail[node] * np.exp(sharpness * (arrival - head[node])) / total
            tail[source] += part
            constant += part * arcs[e].fixed
            if pair >= 0 and arcs[e].amount * state.slowness[pair] < arcs[e].least:
                constant += part * arcs[e].least
            elif pair >= 0:
                state.amounts[0, pair] += part * arcs[e].amount
    return constant
