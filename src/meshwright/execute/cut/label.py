"""The one rule behind most rules: operands whose dimensions have labels, as in an einsum.

Dimensions with one label are cut together. Where one operand is cut along a label, the others take
their part of it, results that have the label are cut along it, and results that lack it are terms
of a sum, if adding up is what the op does along this label. Knows no op.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.execute.cut.call import MemberCall, Narrowed, Operand, Request, has_terms
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut
from meshwright.execute.tree import map_only

Labels = Sequence[Hashable]
"""A label for each dimension; None for one that cannot be cut, or that is broadcast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """The labels of one call."""

    inputs: Sequence[tuple[Operand, Labels]]
    """Operands that are not here stay as they are and must be whole."""
    outputs: Sequence[Labels]
    fixed: frozenset[Hashable] = frozenset()
    """Labels along which nothing can be cut."""
    summed: frozenset[Hashable] = frozenset()
    """Labels along which the op adds up."""
    needs: str = "operands that are whole or cut along the same dimension into the same segments"


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelSpread:
    """A pattern with the label along which it is cut."""

    label: Hashable
    cut: Cut
    """The cut of an operand's dimension with this label, of the largest one."""
    parts: dict[int, Operand | Narrowed] = field(default_factory=dict)
    """By the identity of an operand, what takes its place."""
    cuts: tuple[AnyCut, ...]
    """How each result is cut."""

    def apply(self, tree: Any) -> Any:
        """Arguments with the parts in place of the operands."""
        return map_only(Operand, lambda each: self.parts.get(id(each), each), tree)


def cut_along(request: Request, pattern: Pattern, **changes: Any) -> MemberCall:
    """The same op on the parts; `changes`: arguments that must change, too."""
    return cut_spread(request, spread_label(request, pattern), **changes)


def cut_spread(request: Request, spread: LabelSpread, **changes: Any) -> MemberCall:
    """As `cut_along`, where the label is known."""
    given = {name: request[name] for name in request.given}
    parts = spread.apply(given)
    request.check_written(parts)
    return request.answer(spread.cuts, **(parts | changes))


def spread_label(request: Request, pattern: Pattern) -> LabelSpread:
    """Find the label along which operands are cut, and cut everything along it."""
    known = {id(operand) for operand, _ in pattern.inputs}
    others = [each for each in request.operands if id(each) not in known]
    if has_terms(request.operands) or any(each.cut is not WHOLE for each in others):
        raise request.refuse(pattern.needs)
    found = _find_cuts(request, pattern)
    if len(found) != 1:
        raise request.refuse(pattern.needs)
    label, cut = found.pop()
    parts = {
        id(each): _part(request, pattern, each, own, label, cut) for each, own in pattern.inputs
    }
    cuts = [
        _result(request, pattern, value, labels, label, cut)
        for value, labels in zip(request.values, pattern.outputs, strict=True)
    ]
    return LabelSpread(label=label, cut=cut, parts=parts, cuts=tuple(cuts))


def _find_cuts(request: Request, pattern: Pattern) -> set[tuple[Hashable, Cut]]:
    """The labels that are cut, with the cuts of their largest dimensions."""
    sizes: dict[Hashable, int] = {}
    for operand, labels in pattern.inputs:
        for label, size in zip(labels, operand.value.shape, strict=True):
            sizes[label] = max(sizes.get(label, 0), size)
    found = set()
    for operand, labels in pattern.inputs:
        if isinstance(operand.cut, Cut):
            label = labels[operand.cut.dim]
            if label is None or label in pattern.fixed:
                raise request.refuse(pattern.needs)
            times = sizes[label] // operand.cut.size
            if times > 1 and not operand.cut.divides(request.width):
                raise request.refuse(pattern.needs)
            runs = tuple((count, size * times) for count, size in operand.cut.runs)
            found.add((label, Cut(0, runs)))
    return found


def _share(request: Request, pattern: Pattern, cut: Cut, dim: int, size: int) -> Cut:
    """The cut of a dimension with the same label, of which an entry is for several of `cut`'s."""
    times = cut.size // size
    if times > 1 and any(each % (times * request.width) for each in cut.sizes):
        raise request.refuse(pattern.needs)
    return Cut(dim, tuple((count, each // times) for count, each in cut.runs))


def _part(
    request: Request, pattern: Pattern, operand: Operand, labels: Labels, label: Hashable, cut: Cut
) -> Operand | Narrowed:
    if label not in labels or isinstance(operand.cut, Cut):
        return operand
    dim = list(labels).index(label)
    return Narrowed(operand, _share(request, pattern, cut, dim, operand.value.shape[dim]))


def _result(
    request: Request, pattern: Pattern, value: Any, labels: Labels, label: Hashable, cut: Cut
) -> AnyCut:
    if value is None:
        return WHOLE
    if label in labels:
        dim = list(labels).index(label)
        return _share(request, pattern, cut, dim, value.shape[dim])
    if label not in pattern.summed:
        raise request.refuse(pattern.needs)
    return TERMS
