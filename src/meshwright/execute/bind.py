"""Turns one device's share of a Program into what its rank does, in order.

The program must be frozen: every stream in a fixed order. The main thread runs segments of ops,
joins, and starts sends and collectives where the last thing they need is done; each receive knows
the item before which it is posted. Knows nothing of processes and of how anything is sent.
"""

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from meshwright.execute.item import Item, Piece, RankPart, RunSegment, StartItem
from meshwright.execute.lookup import Lookup, held_name
from meshwright.execute.post import Posts
from meshwright.execute.room import MemoryRoom
from meshwright.execute.segment import Here, bind_segment
from meshwright.graph.graph import Phase
from meshwright.program.program import JOINS, Kind

_AT_ONCE = (Kind.SEND, *JOINS)
"""What nobody on the device that runs it waits for."""


def bind_part(lookup: Lookup, device: int) -> RankPart:
    """What the rank of a device does."""
    return _PartBinder(lookup, device).part()


class _PartBinder:
    """One device of a program."""

    def __init__(self, lookup: Lookup, device: int) -> None:
        self.lookup, self.device = lookup, device
        self.program, self.rows = lookup.program, lookup.program.instructions
        self.mine = np.flatnonzero(self.rows["device"] == device).tolist()
        self.kind = self.rows["kind"].tolist()
        self.order = self._main_order()
        self.place = {instruction: k for k, instruction in enumerate(self.order)}
        self.starts, self.when = self._place_starts()
        self.last_user = self._find_last_users()
        self.here = Here(place=self.place, last_user=self.last_user)
        self.done: set[int] = set()
        self.room = MemoryRoom(lookup.lowered.timeline, device)
        self.posts = Posts(lookup, self.mine, self.order)

    def part(self) -> RankPart:
        items = self._items()
        return RankPart(
            device=self.device,
            items=tuple(items),
            receives=self.posts.receives(items),
            state=tuple(self.here.state),
            num_sums=len(self.here.sums),
            inputs=tuple((key, *each) for key, each in self.here.inputs.items()),
        )

    def _main_order(self) -> list[int]:
        """What the main thread runs, by priority; what writes state goes after all its readers."""
        here = [i for i in self.mine if self.rows["stream"][i] == self.device]
        here.sort(key=lambda i: -self.rows["priority"][i])
        return here if self.lookup.steps is None else self._delay_writers(here)

    def _delay_writers(self, order: list[int]) -> list[int]:
        """A parameter must not change while an op of the step still has to read it."""
        if self.program.microbatches > 1:
            return order  # a schedule's updates come last anyway
        last_reader: dict[int, int] = {}
        writers: dict[int, list[int]] = {}
        for k, instruction in enumerate(order):
            if self.kind[instruction] != Kind.COMPUTE:
                continue
            step, op = self.lookup.step_of(instruction), int(self.rows["op"][instruction])
            kernel = step.ledger.kernels[op]
            for version in kernel.reads.values():
                if held_name(step, version) is not None:
                    last_reader[version] = k
            replaced = [step.ledger.versions[version].replaces for version in kernel.made]
            writers[instruction] = [each for each in replaced if each in last_reader]
        # Just after the last reader; what else runs keeps its place.
        keys = {}
        for k, instruction in enumerate(order):
            last = max([k, *(last_reader[each] for each in writers.get(instruction, ()))])
            keys[instruction] = last, last > k, k
        return sorted(order, key=keys.__getitem__)

    def _place_starts(self) -> tuple[dict[int, list[int]], dict[int, int]]:
        """After which place of the main order each send and collective starts."""
        place = dict.fromkeys(self.mine, -1)
        place |= self.place
        others = [i for i in self.mine if i not in self.place and self.kind[i] != Kind.RECEIVE]
        found: dict[int, list[int]] = defaultdict(list)
        queued = [i for i in others if self.rows["stream"][i] >= 0]
        for stream in np.unique(self.rows["stream"][queued]).tolist():
            here = [i for i in queued if self.rows["stream"][i] == stream]
            here.sort(key=lambda i: -self.rows["priority"][i])
            self._place_queued(here, place, found)
        rank = self._place_sends([i for i in others if self.rows["stream"][i] < 0], place, found)
        for each in found.values():
            # As the simulation has it, because a server's sum waits.
            each.sort(key=lambda i: (self._begin(i), rank.get(i, 1)))
        return found, place

    def _place_queued(
        self, queued: Sequence[int], place: dict[int, int], found: dict[int, list[int]]
    ) -> None:
        """Collectives keep the order of their stream; one that reads what another lane brings
        comes after it."""
        # The simulation may have a short one start at the very moment of what needs it.
        needed = [self._needed_at.get(each, len(self.order)) for each in queued]
        latest = [*accumulate(reversed(needed), min)][::-1]
        last = -1
        for instruction, limit in zip(queued, latest, strict=True):
            needs = self._needs(instruction)
            last = max([last, *(place[each] for each in needs)])
            running = self._running_at(self._begin(instruction))
            if any(each not in self.place for each in needs):
                # The main thread waits for what others bring, as it does for a server's sum. Were
                # it to wait before its time, others might wait for what comes after it.
                last = max(last, min(running, limit - 1))
            place[instruction] = last = max(last, self._last_break(min(running, limit)))
            found[last].append(instruction)

    def _last_break(self, until: int) -> int:
        """The place before the last at which the main thread waits for something anyway; -1: none.

        A collective that starts there finds what comes before it in its lane done, and its buffers
        are not made too early.
        """
        number = bisect.bisect_right(self._breaks, until) - 1
        return self._breaks[number] - 1 if number >= 0 else -1

    @cached_property
    def _needed_at(self) -> dict[int, int]:
        """By receive and collective: the place of the first instruction that needs it."""
        found: dict[int, int] = {}
        for place, instruction in enumerate(self.order):
            for each in self._needs(instruction):
                if each not in self.place and self.kind[each] != Kind.SEND:
                    found.setdefault(each, place)
        return found

    @cached_property
    def _breaks(self) -> list[int]:
        """The places of those instructions, in order."""
        return sorted(set(self._needed_at.values()))

    def _place_sends(
        self, sends: list[int], place: dict[int, int], found: dict[int, list[int]]
    ) -> dict[int, int]:
        """Sends come in the order of their start; the rank of each among what starts with it: they
        are before collectives, but for those of what a collective brings."""
        sent: dict[int, int] = {}
        rank: dict[int, int] = {}
        last_rank: dict[tuple[int, float], int] = defaultdict(int)
        for instruction in sorted(sends, key=self.lookup.transfer_order):
            # To one device in one order, on which both ends agree.
            peer = int(self.rows["peer"][instruction])
            needs = self._needs(instruction)
            where = max([-1, sent.get(peer, -1), *(place[each] for each in needs)])
            is_late = any(each not in self.place for each in needs)
            if is_late:
                where = max(where, self._running_at(self._begin(instruction)))
            place[instruction] = sent[peer] = where
            key = peer, self._begin(instruction)
            rank[instruction] = last_rank[key] = max(last_rank[key], 2 * is_late)
            found[where].append(instruction)
        return rank

    def _begin(self, instruction: int) -> float:
        """When the simulation has it start."""
        return float(self.lookup.lowered.timeline.start[instruction])

    @cached_property
    def _starts(self) -> npt.NDArray[np.float64]:
        return np.maximum.accumulate([self._begin(i) for i in self.order])

    def _running_at(self, seconds: float) -> int:
        """The place of the last instruction that the simulation has started by then."""
        return int(np.searchsorted(self._starts, seconds, side="right")) - 1

    def _needs(self, instruction: int) -> list[int]:
        """The instructions of this device that must be done before it."""
        buffers = self.lookup.program.buffers
        needs = [int(buffers["writer"][b]) for b in self.lookup.read_by.get(instruction, ())]
        needs += self.lookup.before.get(instruction, ())
        needs += self._adders(instruction)
        return [i for i in dict.fromkeys(needs) if self.rows["device"][i] == self.device]

    def _adders(self, instruction: int) -> list[int]:
        """Those that add to what it reads: the last of them may be done before the others."""
        lookup = self.lookup
        return [
            each
            for buffer in lookup.read_by.get(instruction, ())
            if lookup.is_gathered[buffer] and not lookup.adds_to(instruction, buffer)
            for each in lookup.readers[buffer]
            if each not in self.place and lookup.adds_to(each, buffer)
        ]

    def _find_last_users(self) -> dict[int, int]:
        """For each buffer here the last instruction that reads it, by place."""
        where = {**self.when, **self.place}
        found: dict[int, int] = {}
        for instruction in sorted(
            (i for i in self.mine if i in where),
            key=lambda i: (where[i], i not in self.place, self._turn(i)),
        ):
            for buffer in self.lookup.read_by.get(instruction, ()):
                found[buffer] = instruction
        return found

    def _turn(self, instruction: int) -> int:
        """Its turn among what starts at one place."""
        siblings = self.starts.get(self.when.get(instruction, -2), ())
        return siblings.index(instruction) if instruction in siblings else -1

    def _items(self) -> list[Item]:
        items: list[Item] = [self._start(each) for each in self.starts.get(-1, ())]
        run: list[int] = []
        waits: tuple[int, ...] = ()
        for k, instruction in enumerate(self.order):
            awaited = self._awaited(instruction)
            awaited += self._overdue(instruction)
            is_compute = self.kind[instruction] == Kind.COMPUTE
            is_break = bool(awaited) or not is_compute or (bool(run) and self._must_cut(run[0], k))
            if run and (is_break or not self._continues(run[-1], instruction)):
                items.append(self._segment(run, waits))
                run, waits = [], ()
            if is_compute:
                run.append(instruction)
                waits += awaited
            else:
                items.append(self._start(instruction, awaited))
            if run and (k in self.starts or k == len(self.order) - 1):
                items.append(self._segment(run, waits))
                run, waits = [], ()
            items += [self._start(each) for each in self.starts.get(k, ())]
        return items

    def _must_cut(self, first: int, place: int) -> bool:
        """Whether the segment from `first` on must end before a place, because a receive that is
        posted there would hold more than the simulation has at once, were it posted before all."""
        receives = self.posts.at.get(place, [])
        if not receives:
            return False
        begin, end = self._begin(first), max(self._begin(each) for each in receives)
        size = float(self.rows["bytes"][receives].sum())
        must = not self.room.has(begin, end, size)
        if not must:
            self.room.take(begin, end, size)
        return must

    def _continues(self, before: int, after: int) -> bool:
        """Whether two ops are of one microbatch and see the same rows of it, so that their code can
        serve other microbatches, too."""
        one, other = self.rows[before], self.rows[after]
        phase = self.program.graph.phase
        is_same = all(one[name] == other[name] for name in ("microbatch", "rows_from", "rows_to"))
        return is_same and bool(
            (phase[one["op"]] == Phase.UPDATE) == (phase[other["op"]] == Phase.UPDATE)
        )

    def _awaited(self, instruction: int) -> tuple[int, ...]:
        """What it needs of receives and collectives that nobody has waited for yet."""
        awaited = [
            each
            for each in self._needs(instruction)
            if each not in self.place and each not in self.done and self.kind[each] not in _AT_ONCE
        ]
        self.done.update(awaited)
        return tuple(awaited)

    def _overdue(self, instruction: int) -> tuple[int, ...]:
        """What must have ended for an instruction not to hold more than the simulation has.

        Never what the simulation has later: others may wait for what comes after.
        """
        room, made = self.room, 0.0
        begin, end = (
            self._begin(instruction),
            float(self.lookup.lowered.timeline.finish[instruction]),
        )
        if instruction not in self.place:  # its buffers are made where it stands in the main order
            after = self.when[instruction] + 1
            end = begin
            if after < len(self.order):
                begin = min(begin, float(self._starts[after]))
            made = float(room.made_bytes[instruction]) if begin < end else 0.0
        ended = room.ended(begin, self.done)
        if not ended and not made:
            return ()
        late = float(room.freed_bytes[ended].sum())
        if not room.has(begin, end, late + made):
            self.done.update(ended)
        elif instruction in self.place:
            room.take(begin, end, late)
        room.take(begin, end, made)
        return tuple(each for each in ended if each in self.done)

    def _segment(self, run: Sequence[int], waits: tuple[int, ...]) -> RunSegment:
        if self.lookup.steps is None:
            return RunSegment(
                segment=None,
                instructions=tuple(run),
                microbatch=int(self.rows["microbatch"][run[0]]),
                waits=waits,
            )
        return bind_segment(self.lookup, self.here, run, waits)

    def _start(self, instruction: int, awaited: tuple[int, ...] | None = None) -> StartItem:
        row = self.rows[instruction]
        kind = Kind(int(row["kind"]))
        lookup = self.lookup
        awaited = self._awaited(instruction) if awaited is None else awaited
        if instruction not in self.place:
            awaited += self._overdue(instruction)
            if kind not in JOINS:
                self.room.start(instruction)
        if row["op"] >= 0:
            return self._start_op(instruction, kind, awaited)
        buffers = sorted(
            lookup.read_by.get(instruction, ()),
            key=lambda b: (int(self.program.buffers["tensor"][b]), b),
        )
        pieces = [lookup.piece_of(buffer) for buffer in buffers]
        written = lookup.written_by.get(instruction, [])
        output = lookup.piece_of(written[0]) if written else None
        if kind in (Kind.SEND, Kind.CONCATENATE) and row["tensor"] >= 0:
            pieces = [self._cut(piece, row) for piece in pieces]
        return StartItem(
            instruction=instruction,
            kind=kind,
            pieces=tuple(pieces),
            peer=int(row["peer"]),
            group=int(row["group"]),
            task=int(row["task"]),
            output=output,
            offset=lookup.rows.bound(row["rows_from"]) if kind == Kind.CONCATENATE else 0,
            waits=awaited,
            drops=tuple(b for b in buffers if self.last_user.get(b) == instruction),
        )

    def _start_op(self, instruction: int, kind: Kind, awaited: tuple[int, ...]) -> StartItem:
        """A collective that is an op of the graph: its call, and what is made of the results."""
        row = self.rows[instruction]
        run: RunSegment | None = None
        places: tuple[tuple[int, int], ...] = ()
        if self.lookup.steps is not None:
            run = bind_segment(self.lookup, self.here, [instruction], ())
            assert run.segment is not None
            sums = run.segment.sums
            buffer_of = {place: buffer for buffer, place in self.here.sums.items()}
            places = tuple((place, buffer_of[place]) for _, _, place, _ in sums)
            outputs = (*run.segment.outputs, *((line, version) for line, version, _, _ in sums))
            run = replace(run, segment=replace(run.segment, sums=(), outputs=outputs))
        return StartItem(
            instruction=instruction,
            kind=kind,
            pieces=(),
            group=int(row["group"]),
            task=int(row["task"]),
            waits=awaited,
            run=run,
            sums=places,
        )

    def _cut(self, piece: Piece, row: np.void) -> Piece:
        """The rows of a buffer that a send or a join means."""
        if not piece.samples:
            return piece
        rows = self.lookup.rows
        first = self.lookup.first_row(piece.buffer)
        low = max(first, rows.bound(row["rows_from"]))
        high = min(first + piece.samples, rows.bound(row["rows_to"]))
        return replace(piece, start=low - first, count=high - low)
