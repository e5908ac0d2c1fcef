"""UPerNet (Xiao et al. 2018): a feature pyramid with pooling pyramid, on a Swin backbone."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from meshwright.capture.zoo.loss import segmentation_loss
from meshwright.capture.zoo.swin import SwinBackbone

HEAD_CHANNELS = 512
"""Xiao et al. (2018): every level of the pyramid has 512 channels."""
AUXILIARY_CHANNELS = 256
AUXILIARY_WEIGHT = 0.4
"""Zhao et al. (2017), section 5.2: a second head, on the third map, with 0.4 of its loss."""
POOLED_SIDES = (1, 2, 3, 6)
"""Zhao et al. (2017), section 3.2."""
ADE20K_CLASSES = 150


def _conv(inputs: int, outputs: int, kernel: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


def _resize(image: torch.Tensor, size: torch.Size) -> torch.Tensor:
    return functional.interpolate(image, size=size, mode="bilinear")


class PoolingPyramid(nn.Module):
    """The coarsest map beside its averages over 1, 2 x 2, 3 x 3 and 6 x 6 fields."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.fields = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(side), _conv(inputs, outputs, 1))
            for side in POOLED_SIDES
        )
        self.merge = _conv(inputs + len(POOLED_SIDES) * outputs, outputs, 3)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """A map of the same side."""
        fields = [_resize(field(image), image.shape[-2:]) for field in self.fields]
        result: torch.Tensor = self.merge(torch.cat([image, *fields], 1))
        return result


class UPerHead(nn.Module):
    """Coarse maps flow down, and all levels are fused at the finest's size."""

    def __init__(self, inputs: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.pool = PoolingPyramid(inputs[-1], width)
        self.lateral = nn.ModuleList(_conv(each, width, 1) for each in inputs[:-1])
        self.smooth = nn.ModuleList(_conv(width, width, 3) for _ in inputs[:-1])
        self.fuse = _conv(len(inputs) * width, width, 3)
        self.dropout = nn.Dropout2d(0.1)
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[torch.Tensor]) -> torch.Tensor:
        """Scores at the finest map's size."""
        levels = [lateral(each) for lateral, each in zip(self.lateral, maps[:-1], strict=True)]
        levels.append(self.pool(maps[-1]))
        for fine in range(len(levels) - 2, -1, -1):
            levels[fine] = levels[fine] + _resize(levels[fine + 1], levels[fine].shape[-2:])
        smooth = [smooth(each) for smooth, each in zip(self.smooth, levels[:-1], strict=True)]
        smooth.append(levels[-1])
        size = smooth[0].shape[-2:]
        fused = self.fuse(torch.cat([_resize(each, size) for each in smooth], 1))
        scores: torch.Tensor = self.classifier(self.dropout(fused))
        return scores


class SwinUPerNet(nn.Module):
    """Segments ADE20K as in Liu et al. (2021), section 4.3, auxiliary head included.

    This is what the zoo calls swin-u: "Swin-U" has no definition that we know of, and Swin with
    UPerNet is the published network that the name fits best.
    """

    def __init__(
        self,
        backbone: SwinBackbone,
        *,
        width: int = HEAD_CHANNELS,
        auxiliary: int = AUXILIARY_CHANNELS,
        classes: int = ADE20K_CLASSES,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.norms = nn.ModuleList(nn.LayerNorm(each) for each in backbone.channels)
        self.head = UPerHead(backbone.channels, width, classes)
        self.auxiliary = nn.Sequential(
            _conv(backbone.channels[-2], auxiliary, 3),
            nn.Dropout2d(0.1),
            nn.Conv2d(auxiliary, classes, 1),
        )

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of every pixel, or the weighted sum of both heads' losses with labels."""
        maps = [
            norm(each).permute(0, 3, 1, 2)
            for norm, each in zip(self.norms, self.backbone(pictures), strict=True)
        ]
        size = pictures.shape[-2:]
        loss = segmentation_loss(_resize(self.head(maps), size), labels)
        if labels is not None:
            second = _resize(self.auxiliary(maps[-2]), size)
            loss = loss + AUXILIARY_WEIGHT * segmentation_loss(second, labels)
        return loss
