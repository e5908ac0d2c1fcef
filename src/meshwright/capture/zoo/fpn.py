"""Semantic FPN: a ResNet, a feature pyramid and the segmentation branch of panoptic FPN."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from meshwright.capture.zoo.loss import segmentation_loss
from meshwright.capture.zoo.resnet import RESNET50_BLOCKS, ResNetBackbone

PYRAMID_CHANNELS = 256
"""Lin et al. (2017), section 3."""
HEAD_CHANNELS = 128
"""Kirillov et al. (2019), section 3."""
ADE20K_CLASSES = 150
GROUPS = 32
"""Wu and He (2018): 32 groups."""


class FeaturePyramid(nn.Module):
    """Coarse maps flow down to finer ones (Lin et al. 2017): as many maps, all of one width."""

    def __init__(self, inputs: Sequence[int], outputs: int = PYRAMID_CHANNELS) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(each, outputs, 1) for each in inputs)
        self.smooth = nn.ModuleList(nn.Conv2d(outputs, outputs, 3, padding=1) for _ in inputs)

    def forward(self, maps: list[torch.Tensor]) -> list[torch.Tensor]:
        """From the finest to the coarsest, as given."""
        levels = [lateral(each) for lateral, each in zip(self.lateral, maps, strict=True)]
        for fine in range(len(levels) - 2, -1, -1):
            size = levels[fine].shape[-2:]
            levels[fine] = levels[fine] + functional.interpolate(levels[fine + 1], size=size)
        return [smooth(level) for smooth, level in zip(self.smooth, levels, strict=True)]


class SegmentationBranch(nn.Module):
    """Kirillov et al. (2019), figure 3: all levels, brought to the finest's size, summed."""

    def __init__(
        self,
        levels: int,
        inputs: int,
        width: int = HEAD_CHANNELS,
        classes: int = ADE20K_CLASSES,
        groups: int = GROUPS,
    ) -> None:
        super().__init__()
        self.levels = nn.ModuleList()
        for level in range(levels):
            chain = nn.Sequential()
            for step in range(max(1, level)):  # as many doublings as the level is below the finest
                source = inputs if step == 0 else width
                chain.append(nn.Conv2d(source, width, 3, padding=1, bias=False))
                chain.append(nn.GroupNorm(groups, width))
                chain.append(nn.ReLU(inplace=True))
                if level:
                    chain.append(nn.Upsample(scale_factor=2, mode="bilinear"))
            self.levels.append(chain)
        self.classifier = nn.Conv2d(width, classes, 1)

    def forward(self, maps: list[torch.Tensor]) -> torch.Tensor:
        """Scores at the finest map's size."""
        summed = self.levels[0](maps[0])
        for level, each in zip(list(self.levels)[1:], maps[1:], strict=True):
            summed = summed + level(each)
        scores: torch.Tensor = self.classifier(summed)
        return scores


class SemanticFPN(nn.Module):
    """Kirillov et al. (2019) on ResNet-50, for ADE20K's 150 classes."""

    def __init__(
        self,
        blocks: Sequence[int] = RESNET50_BLOCKS,
        *,
        width: int = 64,
        pyramid: int = PYRAMID_CHANNELS,
        head: int = HEAD_CHANNELS,
        classes: int = ADE20K_CLASSES,
        groups: int = GROUPS,
    ) -> None:
        super().__init__()
        self.backbone = ResNetBackbone(blocks, width)
        self.pyramid = FeaturePyramid(self.backbone.channels, pyramid)
        self.head = SegmentationBranch(len(blocks), pyramid, head, classes, groups)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of every pixel (sides must be divisible by 32), or the loss with labels."""
        scores = self.head(self.pyramid(self.backbone(pictures)))
        scores = functional.interpolate(scores, scale_factor=4, mode="bilinear")
        return segmentation_loss(scores, labels)
