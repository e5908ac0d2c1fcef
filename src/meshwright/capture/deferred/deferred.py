"""A workload built without memory, whose tensors each rank makes real for itself, from a seed.

Building is recorded on fake tensors (see `recording`). A tensor made real has the same
values on every rank, whatever else that rank makes real and in whatever order: each random call has
a stream of its own, chosen by the seed and the call's number. Values are always computed on the
CPU, because devices draw different random numbers; CPUs of different vector instructions differ in
the last bits. Values are distributed as those of a model built directly, but are not the same ones:
`torch.manual_seed` in a factory has no effect on them.
"""

import contextlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from meshwright.capture.deferred.model import (
    initialise_model,
    set_inputs,
    settle_plain_tensors,
)
from meshwright.capture.deferred.recording import (
    Recording,
    UnrecordableError,
    is_real,
    no_remains,
)
from meshwright.capture.workload import Workload
from meshwright.errors import some


@dataclass(frozen=True, slots=True, kw_only=True)
class DeferredWorkload:
    """A workload whose parameters, buffers and inputs are fake until asked for."""

    workload: Workload
    seed: int
    recording: Recording
    remark: str = ""
    """What the user should know, in one line; empty: nothing."""

    def real(self, tensor: torch.Tensor, seed: int | None = None) -> torch.Tensor:
        """One of the workload's tensors with its values, on the CPU; a real one as it is.

        `seed`: another one than the workload's, as for other inputs. What the factory itself looked
        at while it built (`item()`) stays as the workload's seed gave it.
        """
        if is_real(tensor):
            return tensor
        return self.recording.real(tensor, self.seed if seed is None else seed)


def record(build: Callable[[], Workload], seed: int = 0) -> DeferredWorkload:
    """Build a workload without memory; a factory that cannot be recorded runs for real.

    It runs with all generators set to the seed, and leaves them as they were.
    """
    recording = Recording(seed)
    remarks = []
    try:
        with _seeded(seed), recording.running():
            workload = build()
    except Exception as error:
        remarks.append(f"built for real on every rank, because {_reason(error)}")
    if remarks:
        recording = Recording(seed)
        with _seeded(seed), no_remains():
            workload = build()
    with _seeded(seed):
        initialise_model(workload.model, recording)
        workload, unset = set_inputs(workload, recording)
        settle_plain_tensors(workload, recording, seed)
    if unset:
        remarks.append(f"inputs that nothing sets are random or zero: {some(unset)}")
    return DeferredWorkload(
        workload=workload, seed=seed, recording=recording, remark="; ".join(remarks)
    )


def _reason(error: BaseException) -> str:
    """The first line of what went wrong at first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    if isinstance(error, UnrecordableError):
        return lines[0]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """While this holds, all generators of random numbers start from the seed."""
    state, array_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)
            yield
    finally:
        random.setstate(state)
        np.random.set_state(array_state)
