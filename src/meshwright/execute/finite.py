"""Whether numbers are finite: losses after every step, tensors before they are kept.

A loss is looked at when it is there anyway, so that training does not wait for it. Which op made a
number that is not finite is found by `meshwright.execute.blame`.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist

from meshwright.errors import NonFiniteError, quoted
from meshwright.execute.fault import name_rank
from meshwright.execute.message import gather


def find_flaw(tensor: torch.Tensor) -> str:
    """A number of a tensor that is not finite, as text: nan, inf or -inf; empty: it has none.

    Takes one pass: of the least and the greatest number both are NaN if any is.
    """
    if not (tensor.is_floating_point() or tensor.is_complex()) or not tensor.numel():
        return ""
    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.element_size() == 1:  # types of eight bits have no such kernel
        tensor = tensor.float()
    extremes = torch.stack(torch.aminmax(tensor)).tolist()
    return next((str(each) for each in reversed(extremes) if not math.isfinite(each)), "")


def find_flaws(
    state: Mapping[str, torch.Tensor],
    unchecked: Collection[str],
    tick: Callable[[], None] = lambda: None,
) -> dict[str, str]:
    """The tensors with numbers that are not finite, and such a number of each.

    `unchecked` names tensors that may have them; `tick` is called after each tensor.
    """
    found: dict[str, str] = {}
    for name, tensor in state.items():
        found |= {name: find_flaw(tensor)} if name not in unchecked else {}
        tick()
    return {name: flaw for name, flaw in found.items() if flaw}


def refuse_flaws(step: int, flaws: Mapping[str, str], so: str = "") -> None:
    """Refuse what `find_flaws` has found on any rank, on all ranks alike; `so` says what follows.

    All ranks call it.
    """
    for rank, found in enumerate(gather(dict(flaws), dict[str, str])):
        for name, flaw in found.items():
            raise NonFiniteError(step, f"tensor {quoted(name)} holds {flaw}{so}", name_rank(rank))


def check_losses(first_step: int, losses: list[float]) -> list[float]:
    """The losses of consecutive steps, if they are all finite."""
    for step, loss in enumerate(losses, start=first_step):
        if not math.isfinite(loss):
            raise NonFiniteError(step, f"the loss is {loss}")
    return losses


@dataclass(frozen=True, slots=True)
class HostCopy:
    """Numbers of a GPU on their way to the host's memory."""

    value: torch.Tensor
    is_there: torch.cuda.Event

    @staticmethod
    def of(tensor: torch.Tensor, work: dist.Work | None = None) -> "HostCopy":
        """Begin to copy a tensor, once what the GPU was given so far is done, and the work is."""
        value = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        side = _side_stream(tensor.device)
        side.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(side):
            if work is not None:
                work.wait()  # the stream does, not the host
            value.copy_(tensor, non_blocking=True)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record()
        tensor.record_stream(side)
        return HostCopy(value, event)

    def wait(self) -> torch.Tensor:
        """The numbers, when they are there; what the GPU was given to do later is not waited
        for."""
        self.is_there.synchronize()
        return self.value


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that losses are copied on, so that no step waits for them."""
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    return stream


class LossCheck:
    """Looks at a rank's part of every step's loss.

    On a GPU it looks at the loss of the step before the one that has just been queued: the device
    is done with that one, or nearly so, and always has work to go on with.
    """

    def __init__(self) -> None:
        self._copy: tuple[int, HostCopy] | None = None

    def add(self, step: int, loss: torch.Tensor) -> None:
        """Take in the loss of a step; refuse one that is not finite."""
        if loss.device.type != "cuda":
            check_losses(step, [float(loss)])
            return
        before, self._copy = self._copy, (step, HostCopy.of(loss))
        if before is not None:
            check_losses(before[0], [float(before[1].wait())])
