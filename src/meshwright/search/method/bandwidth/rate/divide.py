"""Rounds rates between hosts to whole kbit/s and divides them over the ways of each pair.

No link gets more than its rate. A pair stands on as few ways as can be found, since every division
costs the runtime a message more; pairs of collectives stand on the same ways in the same
proportion, since a collective has one group of connections a way. Knows nothing of plans.

Where every pair's k-th way takes its hosts' k-th links, amounts can be moved between two ways along
chains of pairs, so that room of one host's exit and room of another's entry on different ways come
together. So, if links of a host are equal and its amounts are within all of them together, all have
room (Konig's theorem on colouring the edges of bipartite graphs, for amounts in place of edges).
"""

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations

from meshwright.cluster.cluster import Cluster
from meshwright.plan.part import Allocation
from meshwright.search.method.bandwidth.rate.room import Pair, find_ends

Ways = Mapping[Pair, Sequence[tuple[int, ...]]]
Step = tuple[Pair, int, int]
"""A pair, and from which of its ways to which a part of it moves."""

KBIT_BYTES = 125
"""One kbit/s in bytes a second: what queues of network interfaces are set in."""
_EXACT = 1e-6
"""Of a kbit/s: what rounding of sums may take from a whole number."""
_MANY_PAIRS = 200
"""Of more pairs than that one order is tried, not several."""
_MAX_FIRST = 4
"""So many pairs are given the first choice, one at a time."""
SPARE = 50_000
"""A division is saved where the last of so many parts of a rate would be on a way of its own."""


class Division:
    """Amounts by pair and way, and what is left of links."""

    def __init__(self, ways: Ways, left: Mapping[int, int]) -> None:
        self.ways = ways
        self.left = dict(left)
        self.placed: dict[Pair, list[int]] = {}
        self.lost = 0
        """What had no room."""
        self.fixed: frozenset[Pair] = frozenset()
        """Pairs that stay where they are."""
        self._width = dict(left)
        self._is_aligned = find_ends(ways) is not None
        self._leaving: dict[int, list[Pair]] = {}
        self._entering: dict[int, list[Pair]] = {}
        for pair in sorted(ways):
            self._leaving.setdefault(pair[0], []).append(pair)
            self._entering.setdefault(pair[1], []).append(pair)

    def copied(self, fixed: frozenset[Pair]) -> "Division":
        """The same, to be changed apart from this."""
        other = Division.__new__(Division)
        other.ways, other.fixed, other.lost = self.ways, fixed, self.lost
        other.left = dict(self.left)
        other.placed = {pair: list(parts) for pair, parts in self.placed.items()}
        other._width, other._is_aligned = self._width, self._is_aligned
        other._leaving, other._entering = self._leaving, self._entering
        return other

    def num_parts(self) -> int:
        """How many ways pairs stand on, in all."""
        return sum(amount > 0 for parts in self.placed.values() for amount in parts)

    def room(self, pair: Pair, way: int) -> int:
        """What a pair can get more of on one of its ways."""
        return min(self.left[link] for link in self.ways[pair][way])

    def width(self, pair: Pair, way: int) -> int:
        """What the way carries when nothing else does."""
        return min(self._width[link] for link in self.ways[pair][way])

    def put(self, pair: Pair, way: int, amount: int) -> None:
        """More (or less) of a pair on a way."""
        if amount:
            self.placed.setdefault(pair, [0] * len(self.ways[pair]))[way] += amount
            for link in self.ways[pair][way]:
                self.left[link] -= amount

    def pour(self, pair: Pair, amount: int, spare: int) -> None:
        """Over the ways with most room first; where none has any, after moving others.

        The last `spare` of it are given up where others would have to move for them.
        """
        ways = range(len(self.ways[pair]))
        while amount > spare:
            way = max(ways, key=lambda way: (self.room(pair, way), -way))
            moved = min(amount, self.room(pair, way))
            if moved == 0:
                moved, way = self._make_room(pair, amount)
            if moved == 0:
                self.lost += amount
                return
            self.put(pair, way, moved)
            amount -= moved

    def merge(self) -> None:
        """Put pairs that stand on several ways on fewer where there is room by now."""
        for pair, parts in self.placed.items():
            if pair in self.fixed:
                continue
            for way in sorted(range(len(parts)), key=lambda way: (parts[way], way)):
                others = [k for k in range(len(parts)) if k != way and parts[k] > 0]
                goal = next((k for k in others if self.room(pair, k) >= parts[way] > 0), None)
                if goal is not None:
                    self._move((pair, way, goal), parts[way])

    def _move(self, step: Step, amount: int) -> None:
        pair, source, target = step
        self.put(pair, source, -amount)
        self.put(pair, target, amount)

    def _make_room(self, pair: Pair, amount: int) -> tuple[int, int]:
        """Move others so that a way of the pair has room: how much, and which; (0, 0): no way.

        For all of it if that can be had, else for half, and so on: single units would take for
        ever.
        """
        least = amount if self._is_aligned else 0
        while least > 0:
            for way, other in permutations(range(len(self.ways[pair])), 2):
                here = self.left[self.ways[pair][way][0]]
                there = self.left[self.ways[pair][other][1]]
                if min(here, there) < least:
                    continue
                steps = self._find_chain(pair[1], way, other, least)
                if steps:
                    for step in steps:
                        self._move(step, least)
                    return least, way
            least //= 2
        return 0, 0

    def _find_chain(self, host: int, way: int, other: int, least: int) -> list[Step]:
        """Moves from a way to another and back, in turn, that leave so much room at a host's entry
        on the way; the shortest such chain.

        Each frees what the one before it has filled, and the last fills what has room.
        """
        came: dict[tuple[int, bool], Step | None] = {(host, True): None}
        waiting = deque(came)
        while waiting:
            state = waiting.popleft()
            at, is_entry = state
            source, target = (way, other) if is_entry else (other, way)
            for pair in (self._entering if is_entry else self._leaving).get(at, ()):
                if pair in self.fixed or pair not in self.placed:
                    continue
                if self.placed[pair][source] < least:
                    continue
                step = pair, source, target
                if self.left[self.ways[pair][target][0 if is_entry else 1]] >= least:
                    return [*_steps_to(came, state), step]
                following = pair[0 if is_entry else 1], not is_entry
                if following not in came:
                    came[following] = step
                    waiting.append(following)
        return []


def _steps_to(came: Mapping[tuple[int, bool], Step | None], state: tuple[int, bool]) -> list[Step]:
    """The moves that lead to a state, the first one first."""
    steps: list[Step] = []
    step = came[state]
    while step is not None:
        steps.append(step)
        # A move away from an entry led to an exit, that of the same pair, and the other way round.
        state = (step[0][0], False) if state[1] else (step[0][1], True)
        step = came[state]
    return steps[::-1]


def divide_allocations(
    cluster: Cluster,
    rates: Mapping[Pair, float],
    *,
    together: Collection[Pair] = (),
    faint: Collection[Pair] = (),
    known: Mapping[Pair, Sequence[float]] | None = None,
) -> tuple[Allocation, ...]:
    """Rates (bytes a second by pair of host numbers) in whole kbit/s, divided over ways.

    `together`: pairs that collectives use. `faint`: pairs that nothing is sent between, which get
    what is left on one way, and no more than their rate. `known`: what of each pair could be on
    each of its ways, for networks where that is not easily found.

    Rates below 1 kbit/s are raised to it where there is room. What no division has room for is left
    off: where every host is joined to the same switches, at one rate a host, and rates are within
    the rows, less than 1 kbit/s a way, and a fifty-thousandth of the rate where that saves one.
    """
    ways = cluster.ways.links
    wanted = {
        pair: max(1, int(rate / KBIT_BYTES + _EXACT))
        for pair, rate in sorted(rates.items())
        if rate > 0 and ways[pair]
    }
    used = {link for pair in wanted for way in ways[pair] for link in way}
    capacity = {
        link: int(cluster.link_bytes_per_second[link] / KBIT_BYTES + _EXACT) for link in used
    }
    empty = Division({pair: ways[pair] for pair in wanted}, capacity)
    heavy = {pair: amount for pair, amount in wanted.items() if pair not in faint}
    divisions = list(_divide(empty, heavy, [pair for pair in heavy if pair in together]))
    if known is not None and all(each.lost for each in divisions):
        divisions.append(_put_known(empty, heavy, known))
    best = min(divisions, key=lambda each: (each.lost, each.num_parts()), default=empty)
    for pair in faint:
        if pair in wanted:
            way = max(range(len(ways[pair])), key=lambda way: (best.room(pair, way), -way))
            best.put(pair, way, min(wanted[pair], best.room(pair, way)))
    assert all(left >= 0 for left in best.left.values()), "no link gets more than its rate"
    return tuple(_allocation(cluster, pair, parts) for pair, parts in sorted(best.placed.items()))


def _allocation(cluster: Cluster, pair: Pair, parts: Sequence[int]) -> Allocation:
    total = sum(parts)
    # Of one way that is the route nothing need be said.
    is_told = len(parts) > 1 or pair in cluster.ways.off_route
    return Allocation(
        source=cluster.hosts[pair[0]],
        target=cluster.hosts[pair[1]],
        bytes_per_second=float(KBIT_BYTES * total),
        shares=tuple(part / total for part in parts) if is_told else (),
    )


def _divide(
    empty: Division, wanted: Mapping[Pair, int], together: Sequence[Pair]
) -> Iterator[Division]:
    """Divisions, by how many ways pairs of collectives take and by who chooses first."""
    if not wanted:
        return
    rest = {pair: amount for pair, amount in wanted.items() if pair not in set(together)}
    most = min((len(empty.ways[pair]) for pair in together), default=1)
    for count in range(1, most + 1):
        start = empty.copied(fixed=frozenset(together))
        if not _put_together(start, together, wanted, count, is_last=count == most):
            continue
        is_whole = False
        for order, is_tight in _orders(empty, rest):
            tried = start.copied(fixed=start.fixed)
            _put_apart(tried, order, rest, is_tight)
            is_whole |= tried.lost == 0
            yield tried
            if tried.lost == 0 and tried.num_parts() == start.num_parts() + len(rest):
                break  # fewer there cannot be
        if is_whole:
            return


def _put_known(
    empty: Division, wanted: Mapping[Pair, int], known: Mapping[Pair, Sequence[float]]
) -> Division:
    """As is known to be possible, and what rounding leaves wherever there is room."""
    division = empty.copied(fixed=frozenset())
    left = dict(wanted)
    for pair in wanted:
        for way, rate in enumerate(known.get(pair, ())):
            amount = min(int(rate / KBIT_BYTES), left[pair], division.room(pair, way))
            division.put(pair, way, amount)
            left[pair] -= amount
    for pair, amount in left.items():
        division.pour(pair, amount, _spare(wanted[pair]))
    return division


def _put_together(
    division: Division, pairs: Sequence[Pair], wanted: Mapping[Pair, int], count: int, *,
    is_last: bool,
) -> bool:  # fmt: skip
    """Pairs of collectives over the first ways, alike; False: these do not have room.

    The parts are as the narrowest link of each way, of all these pairs.
    """
    widths = [
        min((division.left[link] for pair in pairs for link in division.ways[pair][way]), default=1)
        for way in range(count)
    ]
    for pair in pairs:
        for way, width in enumerate(widths):
            amount, room = wanted[pair] * width // max(sum(widths), 1), division.room(pair, way)
            if amount > room and not is_last:
                return False
            division.put(pair, way, min(amount, room))
            division.lost += max(0, amount - room)
    return True


def _orders(empty: Division, wanted: Mapping[Pair, int]) -> Iterator[tuple[list[Pair], bool]]:
    """Who chooses first, and whether it takes the tightest way that it fits on or the first."""
    by_rate = sorted(wanted, key=lambda pair: (-wanted[pair], pair))
    yield by_rate, False
    if len(wanted) > _MANY_PAIRS:
        return
    yield by_rate, True
    loads = dict.fromkeys(empty.left, 0)
    for pair, amount in wanted.items():
        for link in {link for way in empty.ways[pair] for link in way}:
            loads[link] += amount
    fullest = {
        pair: max(
            loads[link] / max(empty.left[link], 1) for way in empty.ways[pair] for link in way
        )
        for pair in wanted
    }
    by_load = sorted(wanted, key=lambda pair: (-fullest[pair], -wanted[pair], pair))
    yield by_load, False
    yield by_load, True
    for first in range(min(len(by_rate), _MAX_FIRST)):
        yield [by_rate[first], *by_rate[:first], *by_rate[first + 1 :]], True


def _put_apart(
    division: Division, order: Sequence[Pair], wanted: Mapping[Pair, int], is_tight: bool
) -> None:
    """Each pair on one way while there is one with room, the others over several afterwards.

    What is more than any way can carry is divided at its turn.
    """
    late: list[Pair] = []
    for pair in order:
        amount, ways = wanted[pair], range(len(division.ways[pair]))
        least = amount - _spare(amount)
        fitting = [way for way in ways if division.room(pair, way) >= least]
        if fitting:
            way = min(fitting, key=lambda way: (division.room(pair, way), way))
            way = way if is_tight else fitting[0]
            division.put(pair, way, min(amount, division.room(pair, way)))
        elif all(division.width(pair, way) < amount for way in ways):
            division.pour(pair, amount, _spare(amount))
        else:
            late.append(pair)
    for pair in late:
        division.pour(pair, wanted[pair], _spare(wanted[pair]))
    division.merge()


def _spare(amount: int) -> int:
    """What a pair does without to stand on a way less; not the only kbit/s that it has."""
    return min(max(1, amount // SPARE), amount - 1)
