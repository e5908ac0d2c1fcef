"""The factor that losses are multiplied with before backward, so that small gradients are not zero
in fp16; gradients are divided by it again before updates.

Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2. As torch.amp.GradScaler
does, it grows while gradients are finite; a step whose gradients are not updates nothing and makes
it smaller. All ranks have the same: whether gradients are finite they find out together, with
their norm (`meshwright.execute.clip`). All of it is on the device, where recorded steps read it.
"""

import torch

FIRST = 2.0**16
_GROWTH, _BACKOFF, _INTERVAL = 2.0, 0.5, 2000
"""As GradScaler has them: it doubles after so many finite steps in a row, and is halved."""


class LossScale:
    """The factor, and whether the step at hand updates anything."""

    def __init__(self, device: torch.device, first: float = FIRST) -> None:
        self.state = torch.tensor([first, 0.0, 0.0], device=device)
        """The factor, how many steps in a row were finite since it changed, and whether any was."""
        self.value = self.state[0]
        self.skips = torch.zeros((), device=device)
        """One in a step whose gradients are not finite, as fused updates are told it."""
        self.counts = torch.ones((), device=device)
        """What the optimiser's counters of steps advance by."""
        self._has_updated = False

    def judge(self, norm: torch.Tensor) -> None:
        """See whether the gradients are finite by their norm, and set the factor of the next
        step."""
        is_finite = norm.isfinite().reshape(())
        self.counts.copy_(is_finite)
        self.skips.copy_(1 - self.counts)
        value, steps, was_any = self.state
        steps = (steps + 1) * is_finite
        grows = steps == _INTERVAL
        larger = value * _GROWTH
        kept = torch.where(grows & larger.isfinite(), larger, value)
        following = torch.where(is_finite, kept, value * _BACKOFF)
        self.state.copy_(torch.stack((following, steps * ~grows, was_any.maximum(self.counts))))

    def has_updated(self) -> bool:
        """Whether a step has updated anything; until one has, this waits for the device."""
        self._has_updated = self._has_updated or bool(self.state[2])
        return self._has_updated
