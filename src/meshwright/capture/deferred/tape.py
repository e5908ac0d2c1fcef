"""Repeats those recorded calls that some storages' contents follow from, and no others.

Knows nothing about fake tensors, nor about how calls are recorded.
"""

import contextlib
import hashlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from meshwright.capture.deferred.call import (
    Memory,
    RandomStream,
    RecordedCall,
    Window,
    blank,
    copied,
)
from meshwright.capture.torch_private import pytree, without_modes, without_torch_function

_STREAM_STEP = 0x9E3779B1
"""Odd, so that all draws of one seed differ in the 32 bits of a seed that torch's generator for the
CPU looks at (2**32 divided by the golden ratio: neighbours lie far apart)."""


class CallTape:
    """Calls in their order, and the storages that they are about."""

    def __init__(self) -> None:
        self.calls: list[RecordedCall] = []
        self.storages: list[torch.UntypedStorage] = []
        """Only their sizes count; they are held, so that no address is used twice."""
        self.constants: Memory = {}
        """What storages hold before the first call; others hold nothing."""
        self._writers: list[list[int]] = []

    def add_storage(self, storage: torch.UntypedStorage) -> int:
        """The number of a new storage."""
        self.storages.append(storage)
        self._writers.append([])
        return len(self.storages) - 1

    def add_call(self, call: RecordedCall) -> None:
        """Put a call at the end."""
        for storage in call.writes | call.creates:
            self._writers[storage].append(len(self.calls))
        self.calls.append(call)

    def last_writer(self, storage: int, before: int | None = None) -> int | None:
        """The last call, of those before a number, that sets some of the storage."""
        writers = self._writers[storage]
        place = len(writers) if before is None else bisect_left(writers, before)
        return writers[place - 1] if place else None

    def replay(self, wanted: Sequence[int], seed: int) -> Memory:
        """The storages `wanted`, after all calls; other memory is freed on the way."""
        kept = self._needed(wanted)
        last_use = {each: number for number in kept for each in self.calls[number].storages()}
        last_use.update(dict.fromkeys(wanted, len(self.calls)))
        changed = {*wanted, *(each for number in kept for each in self.calls[number].writes)}
        memory: Memory = {}
        with real_tensors():
            for number in kept:
                call = self.calls[number]
                for each in (call.reads | call.writes) - memory.keys():
                    memory[each] = self._start(each, each in changed, each in call.overwrites)
                repeat(call, memory, seed)
                for each in call.storages():
                    if last_use[each] == number:
                        del memory[each]
            for each in set(wanted) - memory.keys():
                memory[each] = self._start(each, is_changed=True, is_overwritten=False)
        return memory

    def _needed(self, wanted: Sequence[int]) -> list[int]:
        """The calls that the storages' contents follow from, in order."""
        kept: set[int] = set()
        open_ends = [(storage, len(self.calls)) for storage in wanted]
        while open_ends:
            storage, end = open_ends.pop()
            number = self.last_writer(storage, end)
            if number is None or number in kept:
                continue
            kept.add(number)
            call = self.calls[number]
            open_ends += [(each, number) for each in call.reads | call.writes - call.overwrites]
        return sorted(kept)

    def _start(self, storage: int, is_changed: bool, is_overwritten: bool) -> torch.UntypedStorage:
        """A storage before the first call that is repeated on it."""
        if storage in self.constants:
            constant = self.constants[storage]
            return copied(constant) if is_changed else constant
        num_bytes = self.storages[storage].nbytes()
        if is_overwritten:
            return blank(num_bytes)
        # Zeros: two processes must not find different remains in what nothing ever set.
        return torch.zeros(num_bytes, dtype=torch.uint8, device="cpu").untyped_storage()


def repeat(call: RecordedCall, memory: Memory, seed: int) -> Any:
    """Make one call again; what it creates joins the memory."""

    def fill(leaf: Any) -> Any:
        if isinstance(leaf, Window):
            return leaf.view(memory)
        if isinstance(leaf, RandomStream):
            return torch.Generator().manual_seed(_stream(leaf, seed))
        return leaf

    if call.draw is not None:
        torch.default_generator.manual_seed(_stream(call.draw, seed))
    before = torch.get_default_dtype()
    torch.set_default_dtype(call.default_dtype)
    try:
        args, kwargs = pytree.tree_unflatten([fill(leaf) for leaf in call.leaves], call.structure)
        made = call.op(*args, **kwargs)
    finally:
        torch.set_default_dtype(before)
    if call.creates:
        for output, expected in zip(pytree.tree_leaves(made), call.outputs, strict=True):
            if expected and expected.storage in call.creates and expected.storage not in memory:
                memory[expected.storage] = expected.fit(output)
    return made


@contextlib.contextmanager
def real_tensors() -> Iterator[None]:
    """While this holds, torch computes, and leaves no trace in its random state."""
    state = torch.default_generator.get_state()
    try:
        with without_modes(), without_torch_function(), torch.no_grad():
            yield
    finally:
        torch.default_generator.set_state(state)


def _stream(draw: RandomStream, seed: int) -> int:
    """The seed of one draw: no two draws of one source share it."""
    source = f"{seed}" if draw.generator_seed is None else f"generator {draw.generator_seed}"
    start = int.from_bytes(hashlib.blake2b(source.encode(), digest_size=4).digest(), "little")
    return (start + draw.number * _STREAM_STEP) % 2**32
