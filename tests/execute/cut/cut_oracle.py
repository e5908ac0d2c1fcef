"""Runs one op on whole tensors, and on the shards of all members of a team in one process."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.execute.cut.call import MemberCall, Narrowed, Operand
from meshwright.execute.cut.cut import WHOLE, AnyCut, joined, local_shape, pieces
from meshwright.execute.cut.table import cut_call


def run_members(calls: Sequence[MemberCall], locals_of: Callable[[Operand, int], Any]) -> list[Any]:
    """What every member's call returns; `locals_of`: what a member has of an operand."""
    width = len(calls)

    def run(member: int) -> Any:
        call = calls[member]

        def local(leaf: Any) -> Any:
            if isinstance(leaf, Narrowed):
                return pieces(locals_of(leaf.operand, member), leaf.cut, width, member)
            return locals_of(leaf, member) if isinstance(leaf, Operand) else leaf

        args, kwargs = pytree.tree_map(local, (call.args, dict(call.kwargs)))
        return call.target(*args, **kwargs)

    return [run(member) for member in range(width)]


def as_terms(tensor: Tensor, width: int) -> list[Tensor]:
    """Tensors that are not alike and of which the sum is `tensor`."""
    terms = [torch.full_like(tensor, member + 0.5) for member in range(width - 1)]
    return [*terms, tensor - sum(terms)]


def shards(tensor: Tensor, cut: AnyCut, width: int) -> list[Tensor]:
    """What every member has of a tensor."""
    if cut not in (WHOLE,) and not hasattr(cut, "dim"):
        return as_terms(tensor, width)
    return [pieces(tensor, cut, width, member).clone() for member in range(width)]


def operand(tensor: Tensor, cut: AnyCut = WHOLE) -> Operand:
    return Operand(tensor, cut)


def check_op(
    target: Any,
    *args: Any,
    width: int = 2,
    expect: Any = None,
    wanted: AnyCut | None = None,
    **kwargs: Any,
) -> Any:
    """Assert that members together return what the op returns on whole tensors; returns the cuts.

    Operands hold whole tensors.
    """

    def copied() -> Any:
        return pytree.tree_map_only(Operand, lambda each: each.value.clone(), (args, kwargs))

    whole_args, whole_kwargs = copied()
    value = target(*whole_args, **whole_kwargs)
    calls = [
        cut_call(target, args, kwargs, value, width, member, wanted) for member in range(width)
    ]
    assert all(call.cuts == calls[0].cuts for call in calls)
    held = {}

    def locals_of(each: Operand, member: int) -> Any:
        key = id(each.value)
        if key not in held:
            held[key] = shards(each.value, each.cut, width)
        return held[key][member]

    results = run_members(calls, locals_of)
    cuts = calls[0].cuts
    assert_joined(value, results, cuts)
    if expect is not None:
        assert cuts == expect
    return cuts


def assert_joined(value: Any, results: Sequence[Any], cuts: Any) -> None:
    """Assert that the members' results have the shapes of their cuts and join to the whole."""
    if isinstance(value, tuple | list):
        for place, each in enumerate(value):
            assert_joined(each, [result[place] for result in results], cuts[place])
        return
    if value is None:
        return
    for member, result in enumerate(results):
        assert tuple(result.shape) == local_shape(value.shape, cuts, len(results), member)
        assert result.dtype == value.dtype
    torch.testing.assert_close(joined(results, cuts), value, rtol=1e-5, atol=1e-5, equal_nan=True)
