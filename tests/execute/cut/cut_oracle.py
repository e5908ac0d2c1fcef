"""Runs one op on whole tensors, and on the shards of all members of a team in one process."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from meshwright.execute.cut.call import AllReduce, Call, Narrowed, Operand
from meshwright.execute.cut.cut import WHOLE, AnyCut, joined, local_shape, pieces
from meshwright.execute.cut.table import cut_call


class ThreadTeam:
    """All-reduces between threads that each run one member."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.made: list[AllReduce] = []
        self._barrier = threading.Barrier(width, timeout=60)
        self._given: list[Tensor] = [torch.empty(0)] * width
        self._member = threading.local()

    def run(self, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        def one(member: int) -> Any:
            self._member.number = member
            try:
                return functions[member]()
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.width) as pool:
            return list(pool.map(one, range(self.width)))

    def all_reduce_sum(self, tensor: Tensor) -> Tensor:
        return self._reduce("sum", tensor, lambda given: given.sum(0))

    def all_reduce_max(self, tensor: Tensor) -> Tensor:
        return self._reduce("max", tensor, lambda given: given.amax(0))

    def _reduce(self, operation: Any, tensor: Tensor, add: Callable[[Tensor], Tensor]) -> Tensor:
        member = self._member.number
        self._given[member] = tensor
        self._barrier.wait()
        result = add(torch.stack(self._given))
        if member == 0:
            self.made.append(AllReduce(operation, tuple(tensor.shape), tensor.dtype))
        self._barrier.wait()
        return result


def run_members(calls: Sequence[Call], locals_of: Callable[[Operand, int], Any]) -> list[Any]:
    """What every member's call returns; `locals_of`: what a member has of an operand."""
    width = len(calls)
    team = ThreadTeam(width)

    def runner(member: int) -> Callable[[], Any]:
        call = calls[member]

        def local(leaf: Any) -> Any:
            if isinstance(leaf, Narrowed):
                return pieces(locals_of(leaf.operand, member), leaf.cut, width, member)
            return locals_of(leaf, member) if isinstance(leaf, Operand) else leaf

        args, kwargs = pytree.tree_map(local, (call.args, dict(call.kwargs)))
        first = (team,) if call.reduces else ()
        return lambda: call.target(*first, *args, **kwargs)

    runners = [runner(member) for member in range(width)]
    if not calls[0].reduces:
        return [run() for run in runners]
    results = team.run(runners)
    assert tuple(team.made) == calls[0].reduces
    return results


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
