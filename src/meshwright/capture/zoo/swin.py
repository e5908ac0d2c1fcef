"""Swin Transformer (Liu et al. 2021): attention inside windows that shift every second block.

Written for pictures of one known side: the masks of shifted windows are buffers made at the start.
"""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from meshwright.capture.zoo.attention import perceptron
from meshwright.capture.zoo.loss import classification_loss

PATCH = 4
"""Section 3.1: pictures are cut into patches of 4 x 4 pixels."""
HIDDEN_MASK = -100.0
"""Added where two tokens must not see each other; enough to vanish in a softmax, as released."""


class WindowAttention(nn.Module):
    """Attention among the tokens of a window, with a learned bias for each offset (equation 4)."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        nn.init.trunc_normal_(self.bias, std=0.02)  # as released
        self.offsets = nn.Buffer(_offsets(window), persistent=False)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, windows: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """`windows`: (pictures x windows, tokens, width); `mask`: (windows, tokens, tokens)."""
        count, tokens, width = windows.shape
        split = self.query_key_value(windows)
        split = split.view(count, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind()
        scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-2, -1)
        bias = self.bias[self.offsets.flatten()].view(tokens, tokens, self.heads)
        scores = scores + bias.permute(2, 0, 1)
        if mask is not None:
            by_picture = scores.view(-1, len(mask), self.heads, tokens, tokens) + mask[:, None]
            scores = by_picture.flatten(0, 1)
        mixed = scores.softmax(-1) @ value
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result


class SwinBlock(nn.Module):
    """One block on maps of (batch, side, side, width) (equation 3)."""

    def __init__(
        self, width: int, heads: int, window: int, *, side: int, is_shifted: bool, drop: float
    ) -> None:
        super().__init__()
        self.window, self.drop = window, drop
        self.shift = window // 2 if is_shifted and side > window else 0
        self.pad = -side % window
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = perceptron(width, 4 * width, nn.GELU())
        mask = _shift_mask(side + self.pad, window, self.shift) if self.shift else None
        self.mask = nn.Buffer(mask, persistent=False) if mask is not None else None

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """A map of the same shape."""
        image = image + self._skip_some(self._mix(self.norm1(image)))
        return image + self._skip_some(self.perceptron(self.norm2(image)))

    def _mix(self, image: torch.Tensor) -> torch.Tensor:
        """Pad, shift, cut into windows, attend, and all of it back."""
        (side, _, width), window = image.shape[1:], self.window
        padded = functional.pad(image, (0, 0, 0, self.pad, 0, self.pad)) if self.pad else image
        if self.shift:
            padded = padded.roll((-self.shift, -self.shift), (1, 2))
        across = padded.shape[1] // window
        cut = padded.reshape(-1, across, window, across, window, width).transpose(2, 3)
        windows: torch.Tensor = self.attention(cut.reshape(-1, window * window, width), self.mask)
        cut = windows.view(-1, across, across, window, window, width).transpose(2, 3)
        padded = cut.reshape(-1, across * window, across * window, width)
        if self.shift:
            padded = padded.roll((self.shift, self.shift), (1, 2))
        return padded[:, :side, :side]

    def _skip_some(self, branch: torch.Tensor) -> torch.Tensor:
        """Stochastic depth (Huang et al. 2016): drop the branch for some of the pictures."""
        if not self.training or self.drop == 0.0:
            return branch
        kept = branch.new_empty((len(branch), 1, 1, 1)).bernoulli_(1 - self.drop)
        return branch * kept / (1 - self.drop)


class PatchMerging(nn.Module):
    """2 x 2 neighbours become one token of twice the width (section 3.1)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """A map of half the side."""
        corners = [image[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        result: torch.Tensor = self.reduce(self.norm(torch.cat(corners, -1)))
        return result


class SwinBackbone(nn.Module):
    """The four stages; defaults are Swin-L with windows of 7 (section 3.3, Table 7)."""

    def __init__(
        self,
        *,
        width: int = 192,
        depths: Sequence[int] = (2, 2, 18, 2),
        heads: Sequence[int] = (6, 12, 24, 48),
        window: int = 7,
        side: int = 224,
        drop: float = 0.2,
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, stride=PATCH)
        self.norm = nn.LayerNorm(width)
        self.stages, self.merges = nn.ModuleList(), nn.ModuleList()
        rates = torch.linspace(0, drop, sum(depths), device="cpu").tolist()  # rises with depth
        for stage, depth in enumerate(depths):
            blocks = [
                SwinBlock(
                    width << stage,
                    heads[stage],
                    window,
                    side=side // PATCH >> stage,
                    is_shifted=number % 2 == 1,
                    drop=rates.pop(0),
                )
                for number in range(depth)
            ]
            self.stages.append(nn.Sequential(*blocks))
            if stage < len(depths) - 1:
                self.merges.append(PatchMerging(width << stage))
        self.channels = tuple(width << stage for stage in range(len(depths)))

    def forward(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        """Maps of (batch, side, side, width), from the finest (1/4 of the side) to 1/32."""
        image = self.norm(self.patches(pictures).permute(0, 2, 3, 1))
        maps = [self.stages[0](image)]
        for merge, stage in zip(self.merges, list(self.stages)[1:], strict=True):
            maps.append(stage(merge(maps[-1])))
        return maps


class Swin(nn.Module):
    """Swin with a classifier on the mean of the last map."""

    def __init__(self, backbone: SwinBackbone, *, classes: int = 1000) -> None:
        super().__init__()
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.classifier = nn.Linear(backbone.channels[-1], classes)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the classes, or the loss where labels are given."""
        features = self.norm(self.backbone(pictures)[-1]).mean((1, 2))
        return classification_loss(self.classifier(features), labels)


def _offsets(window: int) -> torch.Tensor:
    """For each pair of tokens of a window, the number of their offset."""
    steps = torch.arange(window)
    rows = steps.repeat_interleave(window, output_size=window * window)
    columns = steps.repeat(window)
    down = rows[:, None] - rows[None] + window - 1
    right = columns[:, None] - columns[None] + window - 1
    return down * (2 * window - 1) + right


def _shift_mask(side: int, window: int, shift: int) -> torch.Tensor:
    """Which tokens of each shifted window lay far apart before the shift (figure 4)."""
    place = torch.arange(side)
    band = (place >= side - window).int() + (place >= side - shift).int()
    region = 3 * band[:, None] + band[None]
    across = side // window
    windows = region.view(across, window, across, window).transpose(1, 2)
    windows = windows.reshape(across * across, window * window)
    is_apart = windows[:, :, None] != windows[:, None]
    return is_apart.to(torch.get_default_dtype()) * HIDDEN_MASK
