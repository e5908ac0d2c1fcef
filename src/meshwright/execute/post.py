"""Where in a rank's step its receives are posted: when the simulation has their transfers start."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from meshwright.execute.item import Item, Receive, RunSegment
from meshwright.execute.lookup import Lookup
from meshwright.program.program import Kind


class Posts:
    """The receives of one device."""

    def __init__(self, lookup: Lookup, mine: Sequence[int], order: Sequence[int]) -> None:
        """`mine`: the device's instructions; `order`: those of its main thread in their order."""
        self.lookup, self.order = lookup, order
        rows, timeline = lookup.program.instructions, lookup.lowered.timeline
        receives = [each for each in mine if rows["kind"][each] == Kind.RECEIVE]
        done = np.maximum.accumulate(timeline.finish[list(order)])
        places = np.searchsorted(done, timeline.start[receives], side="right").tolist()
        self.place = dict(zip(receives, places, strict=True))
        """By receive the first place in the order that is not done when its transfer starts."""
        self.at: dict[int, list[int]] = defaultdict(list)
        """The receives by that place."""
        for each, place in self.place.items():
            self.at[place].append(each)

    def receives(self, items: Sequence[Item]) -> tuple[Receive, ...]:
        """Each with the item before which it is posted, in the order in which they are sent."""
        awaited = {each: number for number, item in enumerate(items) for each in item.waits}
        item_of = self._items_by_place(items)
        found = []
        for instruction, place in self.place.items():
            row = self.lookup.program.instructions[instruction]
            after = item_of[place - 1] + 1 if place else 0
            if place < len(item_of):
                after = min(after, item_of[place])
            found.append(
                Receive(
                    instruction=instruction,
                    peer=int(row["peer"]),
                    task=int(row["task"]),
                    output=self.lookup.piece_of(self.lookup.written_by[instruction][0]),
                    bytes=float(row["bytes"]),
                    place=min(after, awaited.get(instruction, len(items))),
                )
            )
        found.sort(key=lambda each: self.lookup.transfer_order(each.instruction))
        return tuple(found)

    def _items_by_place(self, items: Sequence[Item]) -> list[int]:
        place = {instruction: k for k, instruction in enumerate(self.order)}
        found = [0] * len(self.order)
        for number, item in enumerate(items):
            run = item.instructions if isinstance(item, RunSegment) else (item.instruction,)
            for instruction in run:
                if instruction in place:
                    found[place[instruction]] = number
        return found
