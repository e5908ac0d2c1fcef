"""Residual networks of bottlenecks, whole and as a backbone."""

from collections.abc import Sequence

import torch
from torch import nn

from meshwright.capture.zoo.loss import classification_loss

# He et al. (2016), table 1: bottlenecks in each of the four stages.
RESNET50_BLOCKS = (3, 4, 6, 3)
RESNET101_BLOCKS = (3, 4, 23, 3)
RESNET152_BLOCKS = (3, 8, 36, 3)
EXPANSION = 4
"""A bottleneck gives four times the channels it computes with."""


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1 around a skip; the stride is in the 3 x 3 ("v1.5", as is usual)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The block's feature map."""
        inner = self.relu(self.norm1(self.conv1(image)))
        inner = self.relu(self.norm2(self.conv2(inner)))
        inner = self.norm3(self.conv3(inner))
        inner += self.shortcut(image)
        result: torch.Tensor = self.relu(inner)
        return result


class ResNetBackbone(nn.Module):
    """A ResNet without its classifier: the feature maps of the four stages."""

    def __init__(self, blocks: Sequence[int] = RESNET50_BLOCKS, width: int = 64) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.ModuleList()
        inputs = width
        for number, count in enumerate(blocks):
            stage = nn.Sequential()
            for block in range(count):
                stride = 2 if block == 0 and number > 0 else 1
                stage.append(Bottleneck(inputs, width << number, stride))
                inputs = EXPANSION * width << number
            self.stages.append(stage)
        self.channels = tuple(EXPANSION * width << number for number in range(len(blocks)))

    def forward(self, pictures: torch.Tensor) -> list[torch.Tensor]:
        """Feature maps from the finest (1/4 of the picture's side) to the coarsest (1/32)."""
        maps = [self.stem(pictures)]
        for stage in self.stages:
            maps.append(stage(maps[-1]))
        return maps[1:]


class ResNet(nn.Module):
    """ResNet-50, -101 or -152 by `blocks` (He et al. 2016)."""

    def __init__(
        self, blocks: Sequence[int] = RESNET50_BLOCKS, *, classes: int = 1000, width: int = 64
    ) -> None:
        super().__init__()
        self.backbone = ResNetBackbone(blocks, width)
        self.classifier = nn.Linear(self.backbone.channels[-1], classes)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the classes, or the loss where labels are given."""
        features = self.backbone(pictures)[-1].mean((2, 3))
        return classification_loss(self.classifier(features), labels)
