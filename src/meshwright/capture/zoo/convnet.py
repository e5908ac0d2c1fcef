"""Plain chains of convolutions: AlexNet and VGG."""

from collections.abc import Sequence

import torch
from torch import nn

from meshwright.capture.zoo.loss import classification_loss

VGG16_CHANNELS = ((64, 64), (128, 128), (256,) * 3, (512,) * 3, (512,) * 3)
"""Simonyan and Zisserman (2015), table 1, configuration D: 3 x 3 convolutions between poolings."""
VGG19_CHANNELS = ((64, 64), (128, 128), (256,) * 4, (512,) * 4, (512,) * 4)
"""The same, configuration E."""
ALEXNET_CHANNELS = (64, 192, 384, 256, 256)
"""Krizhevsky (2014), "One weird trick", the network of one tower."""
HIDDEN = 4096
"""Width of the two hidden layers of the classifier, in both papers."""


class AlexNet(nn.Module):
    """AlexNet with one tower and without response normalisation (Krizhevsky 2014).

    On pictures of 32 pixels an 11 x 11 kernel with stride 4 leaves nothing to pool, so `is_small`
    has a 3 x 3 kernel with stride 2 first and pools 2 x 2 instead of 3 x 3: the feature map is
    2 x 2 in place of 6 x 6, all channels stay.
    """

    def __init__(
        self,
        *,
        classes: int = 1000,
        is_small: bool = False,
        channels: Sequence[int] = ALEXNET_CHANNELS,
        hidden: int = HIDDEN,
    ) -> None:
        super().__init__()
        one, two, three, four, five = channels
        first = (
            nn.Conv2d(3, one, 3, stride=2, padding=1)
            if is_small
            else nn.Conv2d(3, one, 11, stride=4, padding=2)
        )
        window = 2 if is_small else 3
        self.features = nn.Sequential(
            first,
            nn.ReLU(inplace=True),
            nn.MaxPool2d(window, stride=2),
            nn.Conv2d(one, two, 5, padding=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(window, stride=2),
            nn.Conv2d(two, three, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(three, four, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(four, five, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(window, stride=2),
        )
        pixels = 2 * 2 if is_small else 6 * 6
        self.classifier = nn.Sequential(
            nn.Dropout(0.5),
            nn.Linear(five * pixels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the classes, or the loss where labels are given."""
        features = self.features(pictures).flatten(1)
        return classification_loss(self.classifier(features), labels)


class VGG(nn.Module):
    """VGG (Simonyan and Zisserman 2015) on pictures of `side` pixels, without batch norm."""

    def __init__(
        self,
        channels: Sequence[Sequence[int]] = VGG16_CHANNELS,
        *,
        side: int = 224,
        classes: int = 1000,
        hidden: int = HIDDEN,
    ) -> None:
        super().__init__()
        self.features = nn.Sequential(*_convolutions(channels))
        pixels = (side >> len(channels)) ** 2  # every block halves the side
        self.classifier = nn.Sequential(
            nn.Linear(channels[-1][-1] * pixels, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(0.5),
            nn.Linear(hidden, classes),
        )

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the classes, or the loss where labels are given."""
        features = self.features(pictures).flatten(1)
        return classification_loss(self.classifier(features), labels)


def _convolutions(channels: Sequence[Sequence[int]]) -> list[nn.Module]:
    layers: list[nn.Module] = []
    width = 3
    for block in channels:
        for outputs in block:
            layers += [nn.Conv2d(width, outputs, 3, padding=1), nn.ReLU(inplace=True)]
            width = outputs
        layers.append(nn.MaxPool2d(2))
    return layers
