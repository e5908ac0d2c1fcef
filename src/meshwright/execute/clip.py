"""Clips the norm of all gradients, as torch.nn.utils.clip_grad_norm_ does in one process, and takes
the loss scale out of them.

Each rank adds up the squares of the gradients that it updates with; what several ranks have is
counted by one. Where in a step that happens, `meshwright.program.clip` says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from meshwright.capture.torch_private import multiply_each, norm_each
from meshwright.execute.cut.cut import Cut
from meshwright.execute.item import Key, Piece, RankPart
from meshwright.execute.message import gather
from meshwright.execute.scale import LossScale
from meshwright.execute.shard import Share
from meshwright.execute.steps import TracedSteps
from meshwright.execute.traced import Layout
from meshwright.execute.trained import canonical_names
from meshwright.execute.update import gradients, held_name, is_update, updated_name

_SMALL = 1e-6
"""The number that torch adds to the norm before it divides by it."""
_SMALL_TYPES = {torch.float16, torch.bfloat16, torch.float32}
"""Their norms are found in 32 bits, since 16 may not hold them."""


@dataclass(frozen=True, slots=True)
class Clip:
    """What a rank needs to know to take part."""

    max_norm: float
    read: tuple[Key, ...]
    """The gradients that it updates with, as what is kept of a step."""
    shares: torch.Tensor
    """How much of each this rank counts."""
    loss_scale: LossScale | None
    """The factor by which losses, and so gradients, are larger; None: they are not scaled."""

    def squares(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """This rank's part of the square of the norm; `values` are those of what is read."""
        small = {each.dtype for each in values} <= _SMALL_TYPES
        found = norm_each(list(values), 2, dtype=torch.float32 if small else None)
        norms = torch.stack([each.double() for each in found])
        return (norms.square() * self.shares).sum().reshape(1)

    def scale(self, kept: Mapping[Key, torch.Tensor], squares: torch.Tensor) -> None:
        """Make the gradients smaller that are kept, once all ranks have added up `squares`."""
        norm = squares.sqrt().reshape(())
        divisor: torch.Tensor | float = 1.0
        if self.loss_scale is not None:
            divisor = self.loss_scale.value.double()
            self.loss_scale.judge(norm)
        factor = (self.max_norm / (norm / divisor + _SMALL)).clamp(max=1.0) / divisor
        held = {key.buffer if isinstance(key, Piece) else key for key in self.read}
        own = [kept[key] for key in held if key in kept]
        for dtype in {each.dtype for each in own}:
            alike = [each for each in own if each.dtype is dtype]
            multiply_each(alike, factor.to(dtype))


class _Gradient(NamedTuple):
    """A gradient that an update reads."""

    key: Key
    name: str
    """The name of the parameter."""
    updated: Layout
    """What of the parameter, as the rank holds it, is updated."""


def make_clip(
    max_norm: float,
    loss_scale: LossScale | None,
    part: RankPart,
    steps: TracedSteps,
    device: torch.device,
) -> Clip:
    """What this rank does; all ranks call it."""
    read = _find_gradients(part, steps)
    shares = steps.shares()
    own = {each.name: _piece(shares.get(each.name), each.updated) for each in read}
    held = gather(own, dict[str, str])
    first = canonical_names(steps.any().trace)
    copies: dict[str, list[str]] = {}
    for name in sorted({name for each in held for name in each}):
        copies.setdefault(first.get(name, name), []).append(name)
    counted = {names[0] for names in copies.values()}  # of copies of tied weights one
    # What several ranks have the same of, each of them counts in part.
    numbers = {name: sum(each.get(name) == own[name] for each in held) for name in own}
    counts = [1.0 / numbers[each.name] if each.name in counted else 0.0 for each in read]
    counted_shares = torch.tensor(counts, dtype=torch.float64, device=device)
    return Clip(max_norm, tuple(each.key for each in read), counted_shares, loss_scale)


def _piece(share: Share | None, updated: Layout) -> str:
    """The same on ranks that update the same of a parameter."""
    if share is not None and not isinstance(share.cut, Cut):  # all members of a team have all
        share = replace(share, width=1, member=0)
    return repr((share, updated))


def _find_gradients(part: RankPart, steps: TracedSteps) -> list[_Gradient]:
    """What updates read that is no state."""
    found: list[_Gradient] = []
    for item, segment in part.segments:
        keys = dict(zip(segment.inputs, item.inputs, strict=True))
        for line in segment.lines:
            step = steps[line.samples]
            kernel = step.ledger.kernels[line.op]
            if not is_update(kernel):
                continue
            versions = {kernel.reads[node.name] for node in gradients(step, line.op)}
            name = updated_name(step, kernel)
            updated = next(
                Layout.of(node.meta["val"])
                for node in kernel.node.all_input_nodes
                if held_name(step, kernel, node) == name
            )
            found += [
                _Gradient(keys[each], name, updated)
                for version, each in line.reads
                if version in versions
            ]
    return found
