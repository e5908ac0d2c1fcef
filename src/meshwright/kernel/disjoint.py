"""Joins disjoint sets of whole numbers; `meshwright.kernel.root` does so inside compiled kernels.

A forest with path halving (Tarjan and van Leeuwen, 1984). Numba, which takes long to import, is not
needed here.
"""

from collections.abc import Iterable, Sequence


class DisjointSets:
    """Sets that can be joined; each is known by one of its members, its root."""

    __slots__ = ("_parent",)

    def __init__(self, members: Iterable[int]) -> None:
        """At first every member is a set of its own."""
        self._parent = {member: member for member in members}

    def __contains__(self, member: int) -> bool:
        return member in self._parent

    def find(self, member: int) -> int:
        """The root of a member's set."""
        parent = self._parent
        while (above := parent[member]) != member:
            parent[member] = member = parent[above]
        return member

    def join(self, one: int, other: int) -> None:
        """Make the sets of two members one, with the lower of their two roots."""
        low, high = sorted((self.find(one), self.find(other)))
        self._parent[high] = low

    def lead(self, root: int, other: int) -> None:
        """Let a root be that of another root's set, too."""
        self._parent[other] = root

    def roots(self) -> list[int]:
        """The root of each member, in the order in which members were given."""
        return [self.find(member) for member in self._parent]

    def number_groups(self, groups: Iterable[Sequence[int]]) -> list[int]:
        """Join the members of each group and number the sets: each member's, or -1 in no group."""
        tied: set[int] = set()
        for group in groups:
            tied.update(group)
            for member in group[1:]:
                self.join(member, group[0])
        numbers: dict[int, int] = {}
        return [
            numbers.setdefault(self.find(member), len(numbers)) if member in tied else -1
            for member in self._parent
        ]
