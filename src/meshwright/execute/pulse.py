"""What ranks tell each other of every step while the next one runs: their parts of its loss, if one
of them was asked to stop, and how many labels count in the parts of its batch.

All of it is one small sum. Nobody waits for it before somebody asks, and whoever asks needs no
other rank to ask as well.
"""

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.execute.finite import HostCopy, check_losses
from meshwright.execute.group import waiting
from meshwright.execute.message import message_device
from meshwright.execute.progress import Progress

_SAME = 1e-12
"""Means of labels are equal whose variance is below this share of their square."""


@dataclass(slots=True)
class LabelCount:
    """How many labels count a sample, in the parts of a batch that were seen."""

    parts: float = 0.0
    means: float = 0.0
    """The sum of what is known of each part."""
    squares: float = 0.0

    def add(self, mean: float) -> None:
        """Take in a part by the labels that count a sample of it."""
        self.parts += 1.0
        self.means += mean
        self.squares += mean * mean

    @property
    def is_even(self) -> bool:
        """Whether all parts have as many."""
        return self.parts * self.squares - self.means**2 <= _SAME * self.means**2


class Pulse:
    """One step's, on its way to all ranks or there."""

    def __init__(
        self,
        step: int,
        loss: torch.Tensor,
        *,
        stops: bool = False,
        labels: LabelCount | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`loss` is this rank's part of it, `own`, and may still be computed."""
        self.step, self.own, self._progress = step, loss, progress
        self._work: dist.Work | None = None
        self._copy: HostCopy | None = None
        self._sums: list[float] = []
        count = labels or LabelCount()
        self._told = [float(stops), count.parts, count.means, count.squares]
        self._values = loss.reshape(1)
        if dist.is_initialized() and dist.get_world_size() > 1:
            told = torch.tensor(self._told, dtype=torch.float64, device=message_device())
            self._values = torch.cat([self._values.to(told.device), told])
            self._work = dist.all_reduce(self._values, async_op=True)
        if self._values.device.type == "cuda":
            # Now: whoever asks later would wait for the steps that the GPU has been given by then.
            self._copy = HostCopy.of(self._values, self._work)

    def settle(self) -> None:
        """Let go of what is on the device, once the sums are in the host's memory."""
        others = self._work is not None
        with waiting(self._progress, f"the loss of step {self.step}") if others else nullcontext():
            if self._copy is not None:
                self.own = self._values = self._copy.wait()
            elif self._work is not None:
                self._work.wait()
        self._work = None

    def wait(self) -> list[float]:
        """The sums of all ranks, once all of them have come so far."""
        if not self._sums:
            self.settle()
            values = self._values.tolist()
            self._sums = values if len(values) > 1 else [*values, *self._told]
        return self._sums

    @property
    def loss(self) -> float:
        """The loss of the step; one that is not finite is refused."""
        found = self.wait()
        check_losses(self.step, found[:1])
        if not LabelCount(*found[2:]).is_even:
            raise InputError(
                f"labels: the parts of a batch must have as many that count a sample, at step "
                f"{self.step} they do not; leave the batch whole (no microbatches, no replicas), "
                f"or ignore as many in each"
            )
        return found[0]

    @property
    def stops(self) -> bool:
        """Whether any rank was asked to stop before the step ended."""
        return self.wait()[1] > 0.0


class Loss:
    """The loss of a step as a number, which is waited for when it is used."""

    def __init__(self, pulse: Pulse) -> None:
        self._pulse = pulse

    def __float__(self) -> float:
        return self._pulse.loss

    def item(self) -> float:
        """The loss, as of a tensor."""
        return self._pulse.loss

    def __format__(self, text: str) -> str:
        return format(self._pulse.loss, text)

    def __repr__(self) -> str:
        return f"Loss({self._pulse.loss!r})"
