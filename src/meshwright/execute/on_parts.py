"""A rank's place in a team, and ops that run on a member's parts of tensors that it has whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.execute.cut.around import Arguments, Around
from meshwright.execute.cut.cut import TERMS, AnyCut, Cut, local_shape, pieces
from meshwright.execute.tree import map_leaves


@dataclass(frozen=True)
class TeamPlace:
    """A rank's place in a team: the number of members, and its own number."""

    width: int = 1
    member: int = 0

    def part(self, value: Any, cut: Any) -> Any:
        """A tensor without numbers of the shape of a member's part; a list of them for several
        tensors."""
        if isinstance(value, tuple | list):
            cuts = cut if isinstance(cut, tuple) else (cut,) * len(value)
            return [self.part(each, own) for each, own in zip(value, cuts, strict=True)]
        if not isinstance(cut, Cut) or not isinstance(value, torch.Tensor):
            return value
        shape = local_shape(value.shape, cut, self.width, self.member)
        return torch.empty(shape, dtype=value.dtype, device="meta")


@dataclass(frozen=True)
class Taken:
    """How a member makes what an op needs of an argument: a part of the whole, or a term of a
    sum."""

    place: int
    """The place of the argument among the leaves of all arguments."""
    old: AnyCut
    """How the argument is cut."""
    new: AnyCut
    """How the op needs the argument to be cut."""
    team: TeamPlace

    def take(self, whole: Any) -> Any:
        """The member's part of the argument; of one that is to be a term, among zeros."""
        width, member = self.team.width, self.team.member
        if isinstance(self.old, Cut) and self.new is TERMS:
            return spread(whole, self.old, width, member)
        return pieces(whole, self.new, width, member)


@dataclass(frozen=True)
class OnParts(Around):
    """An op that is called on a member's parts of arguments of which the member has the whole."""

    places: tuple[Taken, ...]
    spreads: tuple[tuple[Cut, TeamPlace], ...] = ()
    """How the result is cut that is wanted as a term of a sum: the member's part, zeros
    elsewhere."""

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The arguments with the member's parts in place of whole tensors."""

        def part(place: int, leaf: Any) -> Any:
            for each in self.places:
                if each.place == place:
                    leaf = each.take(leaf)
            return leaf

        return map_leaves(part, (tuple(args), dict(kwargs)))  # type: ignore[no-any-return]

    def _kept(self, made: Any, _args: Sequence[Any]) -> Any:
        """The results, spread where terms are wanted."""
        for cut, team in self.spreads:
            made = spread(made, cut, team.width, team.member)
        return made


def spread(part: torch.Tensor, cut: Cut, width: int, member: int) -> torch.Tensor:
    """A tensor of the whole shape with a member's part and zeros elsewhere: its term of the sum."""
    whole = part.new_zeros((*part.shape[: cut.dim], cut.size, *part.shape[cut.dim + 1 :]))
    start, taken = 0, 0
    for count, size in cut.runs:
        own = size // width
        for _ in range(count):
            piece = part.narrow(cut.dim, taken, own)
            whole.narrow(cut.dim, start + member * own, own).copy_(piece)
            start, taken = start + size, taken + own
    return whole
