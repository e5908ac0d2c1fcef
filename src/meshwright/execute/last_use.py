"""When what a segment holds is read for the last time."""

from collections.abc import Hashable, Set

from meshwright.execute.item import Segment
from meshwright.execute.steps import TracedSteps


def made_name(number: int, version: int) -> Hashable:
    """The name of what a line makes."""
    return "made", number, version


def find_last_uses(
    segment: Segment, steps: TracedSteps, unread: Set[tuple[int, Hashable]] = frozenset()
) -> dict[int, list[Hashable]]:
    """By line: the names that no later line reads (outputs and state stay).

    `unread`: lines, and names of theirs that they compute again in place of reading them.
    """
    kept = {made_name(*each) for each in segment.outputs}
    last: dict[Hashable, int] = {}
    for number, line in enumerate(segment.lines):
        for version in steps[line.samples].ledger.kernels[line.op].made:
            last[made_name(number, version)] = number
        for _, name in line.reads:
            if (number, name) not in unread:
                last[name] = number
    for number, line in enumerate(segment.lines):  # what a line writes in place lives on
        ledger, names = steps[line.samples].ledger, dict(line.reads)
        for version in ledger.kernels[line.op].made:
            old = ledger.versions[version].replaces
            if old in names:
                for name in (names[old], made_name(number, version)):
                    last[name] = max(last.get(name, number), number)
    found: dict[int, list[Hashable]] = {}
    for name, number in last.items():
        is_state = isinstance(name, tuple) and name[0] == "state"
        if name not in kept and not is_state:
            found.setdefault(number, []).append(name)
    return found
