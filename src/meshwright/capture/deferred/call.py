"""One recorded call of an ATen op: what it reads, makes and writes, in numbered storages.

Knows nothing about how calls are recorded or in which order they are repeated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meshwright.capture.ledger import written_arguments
from meshwright.capture.torch_private import OpOverload, negated_view, pytree
from meshwright.errors import InputError

Memory = dict[int, torch.UntypedStorage]
"""Real storages by number."""

_OVERWRITES = {
    *("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_"),
    *("normal_", "random_", "uniform_", "zero_"),
}
"""Ops that set their first argument without a look at it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A tensor: where it lies in which storage."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    is_conjugate: bool
    is_negative: bool

    def num_bytes(self) -> int:
        """Of the elements that the window shows."""
        return torch.Size(self.size).numel() * self.dtype.itemsize

    def view(self, memory: Memory) -> torch.Tensor:
        """The window on a real storage."""
        found = torch.empty(0, dtype=self.dtype, device="cpu")
        found.set_(memory[self.storage], self.offset, self.size, self.stride)
        if self.is_conjugate:
            found = found.conj()
        return negated_view(found) if self.is_negative else found

    def fit(self, tensor: torch.Tensor) -> torch.UntypedStorage:
        """The storage of a tensor just made, copied where its layout is not the recorded one."""
        assert tensor.dtype == self.dtype, f"{tensor.dtype} is not {self.dtype}"
        if tuple(tensor.shape) != self.size:
            raise InputError(
                f"factory: makes a tensor whose shape depends on random values, {self.size} at "
                f"first and {tuple(tensor.shape)} for another seed"
            )
        layout = (tensor.stride(), tensor.storage_offset(), tensor.is_conj(), tensor.is_neg())
        if layout == (self.stride, self.offset, self.is_conjugate, self.is_negative):
            return tensor.untyped_storage()
        extent = sum((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        last = self.offset + extent if tensor.numel() else -1
        storage = blank(last + 1, self.dtype)
        self.view({self.storage: storage}).copy_(tensor)
        return storage


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomStream:
    """A stream of random values."""

    generator_seed: int | None
    """Of a generator that the program made itself; None: torch's own."""
    number: int
    """Which draw from that source it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """A call that sets storages, ready to be repeated on the CPU."""

    op: OpOverload
    leaves: tuple[Any, ...]
    """Arguments, flat; tensors are windows, generators are draws."""
    structure: pytree.TreeSpec
    default_dtype: torch.dtype
    draw: RandomStream | None
    reads: frozenset[int]
    """Storages among the arguments, without those that are overwritten unseen."""
    writes: frozenset[int]
    overwrites: frozenset[int] = frozenset()
    """Those of `writes` that are set as a whole, whatever was in them."""
    outputs: tuple[Window | None, ...] = ()
    """What it returns, flat; None where that is no tensor."""
    creates: frozenset[int] = frozenset()
    """Storages that the outputs bring."""

    def storages(self) -> frozenset[int]:
        """All that it touches."""
        return self.reads | self.writes | self.creates


def blank(count: int, dtype: torch.dtype = torch.uint8) -> torch.UntypedStorage:
    """A real storage, not set, for so many elements."""
    return torch.empty(count, dtype=dtype, device="cpu").untyped_storage()


def copied(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Another real storage of the same contents."""
    made: torch.UntypedStorage = storage.clone()  # type: ignore[no-untyped-call]
    return made


def window(tensor: torch.Tensor, storage: int) -> Window:
    """Where a tensor lies in its storage of that number."""
    return Window(
        storage=storage,
        dtype=tensor.dtype,
        size=tuple(tensor.shape),
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
        is_conjugate=tensor.is_conj(),
        is_negative=tensor.is_neg(),
    )


def describe(
    op: OpOverload,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    number: Callable[[torch.Tensor], int],
    storages: Sequence[torch.UntypedStorage],
) -> RecordedCall:
    """A call before it is made; `number` knows the storages of its arguments.

    Before, because ops that change a tensor's shape in place change the argument's window.
    """

    def put(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return window(leaf, number(leaf))
        return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

    named = {**kwargs, "pin_memory": False} if "pin_memory" in kwargs else dict(kwargs)
    placed_args, placed_kwargs = pytree.tree_map(put, (args, named))
    leaves, structure = pytree.tree_flatten((placed_args, placed_kwargs))
    changed = written_arguments(op, placed_args, placed_kwargs)
    written = [each for each in pytree.tree_leaves(changed) if isinstance(each, Window)]
    windows = [leaf for leaf in leaves if isinstance(leaf, Window)]
    overwrites = {
        leaf.storage
        for leaf in written
        if op.overloadpacket.__name__ in _OVERWRITES
        and leaf.num_bytes() == storages[leaf.storage].nbytes()
        and sum(other.storage == leaf.storage for other in windows) == 1
    }
    return RecordedCall(
        op=op,
        leaves=tuple(leaves),
        structure=structure,
        default_dtype=torch.get_default_dtype(),
        draw=None,
        reads=frozenset(leaf.storage for leaf in windows) - overwrites,
        writes=frozenset(leaf.storage for leaf in written),
        overwrites=frozenset(overwrites),
    )
