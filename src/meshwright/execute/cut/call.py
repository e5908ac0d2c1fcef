"""The data of rules: a call that is to be cut, and the call that a member makes instead.

A `Request` is a call on whole tensors whose arguments are known by their names in the op's schema.
A rule answers it with a `MemberCall`, or refuses it with `Uncut`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from meshwright.capture.ledger import named_arguments, written_arguments
from meshwright.errors import InputError
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, local_shape
from meshwright.execute.tree import find_only, map_only


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """A tensor among the arguments of a call, or the list of tensors that a call made."""

    value: Any
    """The whole tensor, or one without numbers that has its shape and type."""
    cut: Any
    """How it is cut (`AnyCut`); of a list of tensors, a tuple of that many."""
    source: Any = None
    """The caller's own name for it, which the rules pass on."""


@dataclass(frozen=True, slots=True, eq=False)
class Narrowed:
    """An argument of which a member takes a part of the whole that it has, by `pieces`."""

    operand: Operand
    cut: AnyCut


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemberCall:
    """What one member of a team calls."""

    target: Callable[..., Any]
    """An op, or a function of ours."""
    args: tuple[Any, ...]
    """Tensors are `Operand`, where the member takes what it has, or `Narrowed`."""
    kwargs: Mapping[str, Any]
    cuts: Any
    """How the result is cut; a tuple of as many cuts where it is a list of tensors."""
    draws: bool = False
    """Whether it draws random numbers. Those of the whole result count: a member uses its part."""


class Uncut(InputError):  # noqa: N818 - says what the call is, as InputError says of whom
    """No rule cuts this op with operands that are cut as these are."""

    def __init__(self, target: Any, cuts: Sequence[Any], needs: str) -> None:
        shown = ", ".join(map(repr, cuts))
        super().__init__(f"{target}: its operands are cut as ({shown}), but it needs {needs}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A call on whole tensors, and the member of a team for whom it is cut."""

    target: Any
    arguments: dict[str, Any]
    """All arguments by their names in the schema, defaults included."""
    given: frozenset[str]
    """The arguments that are no defaults."""
    value: Any
    """The whole result, of which shapes and types count."""
    width: int
    member: int
    wanted: AnyCut | None = None
    """How the caller would like the result to be cut, where a rule has a choice."""

    @property
    def name(self) -> str:
        """The op without its overload, and without the mark of one that works in place."""
        name: str = self.target._schema.name.partition("::")[2]
        return name[:-1] if name.endswith("_") else name

    @property
    def is_in_place(self) -> bool:
        """Whether the op writes into what it is given."""
        return bool(self.target._schema.is_mutable)

    @property
    def operands(self) -> list[Operand]:
        """The tensors among the arguments."""
        return operands_in(self.arguments)

    @property
    def values(self) -> list[Any]:
        """The results of the call on whole tensors, as a list."""
        return list(self.value) if isinstance(self.value, tuple | list) else [self.value]

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def local(self, shape: Sequence[int], cut: AnyCut) -> list[int]:
        """The member's part of a shape."""
        return list(local_shape(shape, cut, self.width, self.member))

    def refuse(self, needs: str) -> Uncut:
        """The error that says what the op needs."""
        return Uncut(self.target, [each.cut for each in self.operands], needs)

    def answer(
        self, cuts: Sequence[AnyCut], target: Any = None, /, args: Any = None, **changes: Any
    ) -> MemberCall:
        """The call with other arguments, given by name, or of another function on `args`."""
        made = tuple(cuts) if isinstance(self.value, tuple | list) else cuts[0]
        draws = torch.Tag.nondeterministic_seeded in self.target.tags
        if target is not None:
            return MemberCall(target=target, args=tuple(args), kwargs={}, cuts=made, draws=draws)
        arguments, given = self.arguments | changes, self.given | changes.keys()
        args, kwargs, pending = [], {}, []
        for each in self.target._schema.arguments:
            if each.kwarg_only:
                if each.name in given:
                    kwargs[each.name] = arguments[each.name]
                continue
            pending.append(arguments[each.name])
            if each.name in given:
                args, pending = args + pending, []
        return MemberCall(
            target=self.target, args=tuple(args), kwargs=kwargs, cuts=made, draws=draws
        )

    def same(self, cut: AnyCut = WHOLE) -> MemberCall:
        """The very same call, whose results are all cut alike."""
        return self.answer([cut] * len(self.values))

    def check_written(self, arguments: Mapping[str, Any]) -> None:
        """Refuse to write a part of a tensor that is whole."""
        for name, each in written_arguments(self.target, (), arguments).items():
            if find_only(Narrowed, each):
                raise self.refuse(f"{name}, which it writes, to be cut as the others are")


def bind_arguments(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """All arguments of a call by name, each operand in them an object of its own; and the names of
    those that are given."""
    args, named = map_only(Operand, replace, (tuple(args), dict(kwargs)))
    given = named_arguments(target, args, named)
    defaults = {
        each.name: each.default_value if each.has_default_value() else None
        for each in target._schema.arguments
    }
    return defaults | given, frozenset(given)


def operands_in(tree: Any) -> list[Operand]:
    """The operands among nested arguments, in their order."""
    return find_only(Operand, tree)


def are_all(operands: Sequence[Operand], cut: AnyCut) -> bool:
    """Whether all operands are cut this way."""
    return all(each.cut == cut for each in operands)


def has_terms(operands: Sequence[Operand]) -> bool:
    """Whether one of the operands is a sum that is not yet added up."""
    return any(each.cut is TERMS for each in operands)
