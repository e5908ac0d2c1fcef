"""Records what building a model calls, on tensors that have shapes but no memory.

What is noted is which storages each call reads, makes and writes; views need no note, because a
tensor is a window on a storage. Where the program has to see a value, what it follows from is
computed. Knows nothing about models. Private parts of torch are used here as in `trace`; the
version is pinned in constraints.txt.
"""

import contextlib
import copy
import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from meshwright.capture.deferred.call import (
    Memory,
    RandomStream,
    RecordedCall,
    copied,
    describe,
    window,
)
from meshwright.capture.deferred.tape import CallTape, real_tensors, repeat
from meshwright.capture.eager import replaced
from meshwright.capture.torch_private import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    pytree,
    swap_tensor_impl,
)
from meshwright.errors import InputError

_META = torch.device("meta")
_LIFTS = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_EMPTY = (
    *("empty", "empty_like", "empty_permuted", "empty_strided"),
    *("new_empty", "new_empty_strided"),
)


class UnrecordableError(Exception):
    """The program does what cannot be repeated later."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """What a program called while this ran: it is handed every call of an ATen op."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seed = seed
        self._mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._tape = CallTape()
        self._numbers: dict[int, int] = {}
        self._outside: set[int] = set()
        self._num_draws = 0
        self._generators: dict[tuple[torch.Generator, int], int] = {}
        self._seen: tuple[Any, Memory] = (None, {})

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While this holds, tensors that are made are fake and calls are noted."""
        log = logging.getLogger("torch._subclasses.fake_tensor")  # it prints tracebacks
        was_disabled, log.disabled = log.disabled, True
        try:
            with self._mode, self, _Functions(), _conversions():
                yield
        finally:
            self._seen = (None, {})
            log.disabled = was_disabled

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor was made while this ran."""
        return isinstance(tensor, FakeTensor) and tensor.fake_mode is self._mode

    def is_set(self, tensor: torch.Tensor) -> bool:
        """Whether anything ever set some of the tensor's storage."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            return False
        return number in self._tape.constants or self._tape.last_writer(number) is not None

    def real(self, tensor: torch.Tensor, seed: int) -> torch.Tensor:
        """The tensor with its values, on the CPU; what nothing ever set is zero."""
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            raise InputError(f"tensor of shape {tuple(tensor.shape)}: its values were not recorded")
        memory = self._tape.replay([number], seed)
        with real_tensors():
            shown = window(tensor, number)
            found = shown.view(memory)
            if shown.num_bytes() >= memory[number].nbytes():
                return found
            smaller = torch.empty_strided(shown.size, shown.stride, dtype=shown.dtype)
            return smaller.copy_(found)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # asks a tensor for its device
            return func(*args, **(kwargs or {}))
        return self._call(func, args, kwargs or {})

    def _call(self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make one call on fake tensors, and note it if it sets a storage."""
        if op in _LIFTS and not isinstance(args[0], FakeTensor):
            return self._lift(op, args[0])
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._faked, (args, kwargs))
        call = self._describe(op, args, kwargs)
        first_new = len(self._tape.storages)
        try:
            made = op(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            made = self._compute(call)
        outputs = tuple(
            window(leaf, self._number(leaf)) if isinstance(leaf, torch.Tensor) else None
            for leaf in pytree.tree_leaves(made)
        )
        creates = frozenset(each.storage for each in outputs if each and each.storage >= first_new)
        # Ops that only change a tensor's shape are marked as writing, too.
        is_view = torch.Tag.inplace_view in op.tags
        if (creates or call.writes) and not is_view and not _is_empty(op):
            self._tape.add_call(replace(call, outputs=outputs, creates=creates))
        return made

    def _describe(
        self, op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> RecordedCall:
        call = describe(op, args, kwargs, self._find, self._tape.storages)
        for leaf in call.leaves:
            if isinstance(leaf, torch.UntypedStorage) and leaf._cdata not in self._numbers:
                raise UnrecordableError("it loads tensors from a file")
        if call.writes & self._outside:
            raise UnrecordableError(f"{op} changes a tensor that was made elsewhere")
        leaves = tuple(
            self._own_draw(leaf) if isinstance(leaf, torch.Generator) else leaf
            for leaf in call.leaves
        )
        if torch.Tag.nondeterministic_seeded not in op.tags:
            return replace(call, leaves=leaves)
        self._num_draws += 1
        draw = RandomStream(generator_seed=None, number=self._num_draws)
        return replace(call, leaves=leaves, draw=draw)

    def _own_draw(self, generator: torch.Generator) -> RandomStream:
        """Equal for two generators of equal seed that were used equally often."""
        key = (generator, generator.initial_seed())
        self._generators[key] = self._generators.get(key, 0) + 1
        return RandomStream(generator_seed=generator.initial_seed(), number=self._generators[key])

    def _compute(self, call: RecordedCall) -> Any:
        """What the program has to see: a tensor's values, or a shape that depends on them."""
        if call.writes:
            raise UnrecordableError(f"what {call.op} changes depends on values")
        wanted = sorted(call.reads)
        key = [(each, self._tape.last_writer(each)) for each in wanted]
        if self._seen[0] != key:  # tolist() asks for one element after the other
            self._seen = (key, self._tape.replay(wanted, self._seed))
        with real_tensors():
            made = repeat(call, dict(self._seen[1]), self._seed)

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

        with self._mode:
            return pytree.tree_map_only(torch.Tensor, fake, made)

    def _find(self, tensor: torch.Tensor) -> int:
        number = self._numbers.get(tensor.untyped_storage()._cdata)
        if number is None:
            raise UnrecordableError(f"a tensor of shape {tuple(tensor.shape)} is of unknown origin")
        return number

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage, new where it was not seen before."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._numbers:
            self._numbers[storage._cdata] = self._tape.add_storage(storage)
        return self._numbers[storage._cdata]

    def _lift(self, op: OpOverload, constant: torch.Tensor) -> Any:
        """What torch.tensor([...]) and torch.from_numpy(...) give."""
        made = op(constant)
        with real_tensors():  # a copy, for the program may write something else into its array
            self._tape.constants[self._number(made)] = copied(constant.untyped_storage())
        return made

    def _faked(self, tensor: torch.Tensor) -> torch.Tensor:
        """A fake tensor for a real one from elsewhere, whose values are kept."""
        if isinstance(tensor, FakeTensor):
            return tensor
        made = self._mode.from_tensor(tensor)
        if tensor.device.type != "cpu" or made.storage_offset() != tensor.storage_offset():
            raise UnrecordableError(f"it uses a tensor on {tensor.device} that was made elsewhere")
        number = self._number(made)
        self._outside.add(number)
        self._tape.constants[number] = tensor.untyped_storage()
        return made


class _Zeros(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sets what torch.empty leaves unset."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if _is_empty(func) else made


def is_real(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory."""
    return not isinstance(tensor, FakeTensor) and tensor.device.type != "meta"


def no_remains() -> contextlib.AbstractContextManager[Any]:
    """While this holds, two processes find the same in memory that they do not set: zeros."""
    return _Zeros()  # type: ignore[no-untyped-call]


class _Functions(TorchFunctionMode):
    """What torch does to fake tensors apart from calls of ATen ops."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__deepcopy__ and isinstance(args[0], FakeTensor):
            return _copy(*args)
        device = kwargs.get("device")
        if func in (torch.tensor, torch.as_tensor) and device and torch.device(device) == _META:
            # Made there, its values would be lost.
            return func(*args, **{**kwargs, "device": "cpu"}).to(_META)
        return func(*args, **kwargs)


def _copy(tensor: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """What copy.deepcopy makes of a fake tensor; torch's own way looks at its address."""
    if id(tensor) not in memo:
        made = tensor.detach().clone()
        if isinstance(tensor, nn.Parameter):
            made = nn.Parameter(made, requires_grad=tensor.requires_grad)
        else:
            made.requires_grad_(tensor.requires_grad)
        added = {key: each for key, each in vars(tensor).items() if key not in vars(made)}
        vars(made).update(copy.deepcopy(added, memo))
        memo[id(tensor)] = made
    found: torch.Tensor = memo[id(tensor)]
    return found


def _is_empty(op: Any) -> bool:
    """Whether the op makes a storage and sets nothing in it."""
    return op.overloadpacket.__name__ in _EMPTY


def _conversions() -> contextlib.AbstractContextManager[None]:
    """While this holds, `module.to(...)` works on fake parameters, and tied ones stay tied.

    Where torch sets `data` of a real parameter, it swaps a fake one with the converted one, but
    refuses because of weak references that fake tensors always have; these do no harm.
    """
    found = torch.utils.swap_tensors

    def take(tensor: torch.Tensor, other: torch.Tensor) -> None:
        if not isinstance(tensor, FakeTensor) or not isinstance(other, FakeTensor):
            found(tensor, other)  # type: ignore[no-untyped-call]
            return
        vars(tensor).update(vars(other))  # what the program added stays
        swap_tensor_impl(tensor, other)

    return replaced(torch.utils, "swap_tensors", take)
