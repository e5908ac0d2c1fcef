"""What ops give on fake tensors, remembered: layers repeat, and so do the shapes that they see.

Which tensors an op gives follows from the shapes, strides and types of those that it is given. To
find that out takes torch half a millisecond, also where its own cache knows it; to make the same
once more takes a tenth. Ops whose results are more than that are asked each time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.capture.fake import CPU, StepMode
from meshwright.capture.torch_private import (
    FakeTensor,
    OpOverload,
    snapshot_fake,
)

_NAMESPACES = ("aten", "prims", "meshwright")
"""Ops of a user's own may give anything."""
_VARIED = (
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
)
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
"""Their results have values."""


class _UnknownError(Exception):
    """A call that is not remembered."""


@dataclass(frozen=True, slots=True)
class _Result:
    """One tensor that an op gives."""

    source: int
    """Which of the tensors that it is given has the storage that this one is in; -1: none."""
    is_source: bool
    """Whether it is that tensor itself."""
    layout: tuple[Any, ...]
    """Shape, strides, offset and type."""


@dataclass(frozen=True, slots=True)
class _Given:
    """All that an op gives."""

    results: tuple[_Result | None, ...]
    are_several: bool
    """Whether it gives a sequence of them, however long."""


class Recall:
    """Runs ops on the fake tensors of a mode, each kind of call once."""

    def __init__(self, mode: StepMode) -> None:
        self._mode = mode
        self._known: dict[Any, _Given | None] = {}
        """What calls give, by how they look; None: they are asked each time."""

    def __call__(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        """What an op gives, and the same as it is now, whatever becomes of it."""
        given: list[FakeTensor] = []
        try:
            key = (func, torch.get_default_dtype(), _look(args, given), _look(kwargs, given))
            is_new = key not in self._known
        except (_UnknownError, TypeError):  # TypeError: what has no hash
            return _taken(func(*args, **kwargs))
        if is_new:
            made = func(*args, **kwargs)
            self._known[key] = _describe(
                func, made, given, key[2:] == (_look(args, []), _look(kwargs, []))
            )
            return _taken(made)
        known = self._known[key]
        if known is None:
            return _taken(func(*args, **kwargs))
        pairs = [self._make(each, given) for each in known.results]
        if not known.are_several:
            return pairs[0]
        return tuple(made for made, _ in pairs), tuple(value for _, value in pairs)

    def _make(self, result: _Result | None, given: Sequence[FakeTensor]) -> tuple[Any, Any]:
        """A result once more."""
        if result is None:
            return None, None
        if result.is_source:
            return _taken(given[result.source])
        shape, stride, offset, dtype = result.layout
        storage = given[result.source].untyped_storage() if result.source >= 0 else None
        made = self._mode.lay(shape, stride, dtype, storage, offset)
        return made, self._mode.lay(shape, stride, dtype, made.untyped_storage(), offset)


def _taken(made: Any) -> tuple[Any, Any]:
    if isinstance(made, torch.Tensor):
        return made, snapshot_fake(made)
    if isinstance(made, tuple | list):
        return made, tuple(_taken(each)[1] for each in made)
    return made, made


def _look(value: Any, given: list[FakeTensor]) -> Any:
    """What the results of an op depend on of an argument; `given` gets the tensors in it."""
    kind = type(value)
    if kind is FakeTensor:
        if value.constant is not None or value.layout is not torch.strided:
            raise _UnknownError
        given.append(value)
        flags = value.requires_grad, value.is_conj(), value.is_neg()
        return value.shape, value.stride(), value.storage_offset(), value.dtype, flags
    if isinstance(value, torch.Tensor):
        raise _UnknownError
    if isinstance(value, Mapping):
        return tuple((name, _look(each, given)) for name, each in value.items())
    if isinstance(value, tuple | list):
        return kind, *(_look(each, given) for each in value)
    return kind, value


def _describe(
    func: OpOverload, made: Any, given: Sequence[FakeTensor], leaves_inputs: bool
) -> _Given | None:
    """How to make the results of an op once more; None where that takes more than their layouts."""
    is_varied = any(tag in func.tags for tag in _VARIED) or func in _LIFTS
    if func.namespace not in _NAMESPACES or is_varied or not leaves_inputs:
        return None
    are_several = isinstance(made, tuple | list)
    every = tuple(made) if are_several else (made,)
    try:
        results = tuple(_describe_one(each, given) for each in every)
    except _UnknownError:
        return None
    fresh = [
        each.untyped_storage()._cdata
        for each, result in zip(every, results, strict=True)
        if result is not None and result.source < 0
    ]
    # Two that share a new storage would get one each.
    return _Given(results, are_several) if len({*fresh}) == len(fresh) else None


def _describe_one(made: Any, given: Sequence[FakeTensor]) -> _Result | None:
    if made is None:
        return None
    if type(made) is not FakeTensor or made.constant is not None or made.device != CPU:
        raise _UnknownError
    layout = tuple(made.shape), made.stride(), made.storage_offset(), made.dtype
    for place, each in enumerate(given):
        if each is made:
            return _Result(place, True, layout)
    storage = made.untyped_storage()
    owners = [k for k, each in enumerate(given) if each.untyped_storage()._cdata == storage._cdata]
    is_plain = not (made.requires_grad or made.is_conj() or made.is_neg())
    if len(owners) > 1 or not is_plain or made.layout is not torch.strided:
        raise _UnknownError
    if not owners and storage.nbytes() != _num_bytes(made):
        raise _UnknownError
    return _Result(owners[0] if owners else -1, False, layout)


def _num_bytes(made: torch.Tensor) -> int:
    """The size of the storage that a tensor of this layout gets for itself."""
    if made.storage_offset() or not made.numel():
        return int(made.storage_offset())
    steps = zip(made.shape, made.stride(), strict=True)
    return made.element_size() * (1 + sum((size - 1) * step for size, step in steps))
