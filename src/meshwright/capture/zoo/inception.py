"""Inception-v3 (Szegedy et al. 2016), as parallel branches whose channels are put side by side.

Channel counts are those of the authors' released network, which the paper's table 1 abridges.
"""

import torch
from torch import nn

from meshwright.capture.zoo.loss import classification_loss

NORM_EPSILON = 1e-3
"""What the released network adds to variances."""
AUXILIARY_WEIGHT = 0.3
"""Of the auxiliary loss: Szegedy et al. (2015), section 5."""

Kernel = int | tuple[int, int]


class Convolution(nn.Sequential):
    """Convolution, batch norm, relu."""

    def __init__(
        self, inputs: int, outputs: int, kernel: Kernel, *, stride: int, pad: bool
    ) -> None:
        rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
        padding = (rows // 2, columns // 2) if pad else (0, 0)
        super().__init__(
            nn.Conv2d(inputs, outputs, (rows, columns), stride, padding, bias=False),
            nn.BatchNorm2d(outputs, eps=NORM_EPSILON),
            nn.ReLU(inplace=True),
        )


class Mixed(nn.Module):
    """Branches over the same input, concatenated along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """The branches' feature maps side by side."""
        return torch.cat([branch(image) for branch in self.branches], 1)


class Auxiliary(nn.Module):
    """The second classifier, on the 17 x 17 maps (section 4)."""

    def __init__(self, inputs: int, classes: int, divide: int) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(5, stride=3)
        self.narrow = Convolution(inputs, 128 // divide, 1, stride=1, pad=False)
        self.wide = Convolution(128 // divide, 768 // divide, 5, stride=1, pad=False)
        self.classifier = nn.Linear(768 // divide, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        scores: torch.Tensor = self.classifier(
            self.wide(self.narrow(self.pool(image))).mean((2, 3))
        )
        return scores


class InceptionV3(nn.Module):
    """On 299 x 299 pictures; `divide` divides every number of channels, for small variants."""

    def __init__(
        self, *, classes: int = 1000, has_auxiliary: bool = False, divide: int = 1
    ) -> None:
        super().__init__()
        maker = _Maker(divide)
        self.stem = maker.stem()
        self.mixed35 = nn.Sequential(*(maker.mixed35(inputs) for inputs in (192, 256, 288)))
        self.reduce35 = maker.reduce35()
        self.mixed17 = nn.Sequential(*(maker.mixed17(inner) for inner in (128, 160, 160, 192)))
        self.auxiliary = Auxiliary(768 // divide, classes, divide) if has_auxiliary else None
        self.reduce17 = maker.reduce17()
        self.mixed8 = nn.Sequential(*(maker.mixed8(inputs) for inputs in (1280, 2048)))
        self.dropout = nn.Dropout(0.2)  # the released network keeps 0.8
        self.classifier = nn.Linear(2048 // divide, classes)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the classes, or the loss where labels are given."""
        middle = self.mixed17(self.reduce35(self.mixed35(self.stem(pictures))))
        features = self.mixed8(self.reduce17(middle)).mean((2, 3))
        loss = classification_loss(self.classifier(self.dropout(features)), labels)
        if self.auxiliary is not None and labels is not None:
            loss = loss + AUXILIARY_WEIGHT * classification_loss(self.auxiliary(middle), labels)
        return loss


class _Maker:
    """Makes the parts of one network; channels are given undivided."""

    def __init__(self, divide: int) -> None:
        self.divide = divide

    def conv(
        self, inputs: int, outputs: int, kernel: Kernel, stride: int = 1, pad: bool = True
    ) -> nn.Module:
        inputs = inputs if inputs == 3 else inputs // self.divide  # pictures have three channels
        return Convolution(inputs, outputs // self.divide, kernel, stride=stride, pad=pad)

    def chain(self, inputs: int, *layers: tuple[int, Kernel]) -> list[nn.Module]:
        """Convolutions of (channels, kernel) one after the other, all of stride 1."""
        made = []
        for outputs, kernel in layers:
            made.append(self.conv(inputs, outputs, kernel))
            inputs = outputs
        return made

    def stem(self) -> nn.Module:
        return nn.Sequential(
            self.conv(3, 32, 3, 2, False),
            self.conv(32, 32, 3, 1, False),
            self.conv(32, 64, 3),
            nn.MaxPool2d(3, stride=2),
            self.conv(64, 80, 1),
            self.conv(80, 192, 3, 1, False),
            nn.MaxPool2d(3, stride=2),
        )

    def pooled(self, inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), self.conv(inputs, outputs, 1))

    def mixed35(self, inputs: int) -> nn.Module:
        """Figure 5, but with a 5 x 5 branch, on 35 x 35 maps; the first pools to 32 channels."""
        return Mixed(
            self.conv(inputs, 64, 1),
            nn.Sequential(*self.chain(inputs, (48, 1), (64, 5))),
            nn.Sequential(*self.chain(inputs, (64, 1), (96, 3), (96, 3))),
            self.pooled(inputs, 32 if inputs == 192 else 64),
        )

    def reduce35(self) -> nn.Module:
        """From 288 channels of 35 x 35 to 768 of 17 x 17, as in figure 10."""
        double = self.chain(288, (64, 1), (96, 3))
        return Mixed(
            self.conv(288, 384, 3, 2, False),
            nn.Sequential(*double, self.conv(96, 96, 3, 2, False)),
            nn.MaxPool2d(3, stride=2),
        )

    def mixed17(self, inner: int) -> nn.Module:
        """Figure 6: 7 x 7 as 1 x 7 and 7 x 1, on 768 channels of 17 x 17."""
        flat, tall = (1, 7), (7, 1)
        once = self.chain(768, (inner, 1), (inner, flat), (192, tall))
        twice = self.chain(
            768, (inner, 1), (inner, tall), (inner, flat), (inner, tall), (192, flat)
        )
        return Mixed(
            self.conv(768, 192, 1),
            nn.Sequential(*once),
            nn.Sequential(*twice),
            self.pooled(768, 192),
        )

    def reduce17(self) -> nn.Module:
        """From 768 channels of 17 x 17 to 1280 of 8 x 8."""
        once = self.chain(768, (192, 1))
        twice = self.chain(768, (192, 1), (192, (1, 7)), (192, (7, 1)))
        return Mixed(
            nn.Sequential(*once, self.conv(192, 320, 3, 2, False)),
            nn.Sequential(*twice, self.conv(192, 192, 3, 2, False)),
            nn.MaxPool2d(3, stride=2),
        )

    def fork(self) -> nn.Module:
        return Mixed(self.conv(384, 384, (1, 3)), self.conv(384, 384, (3, 1)))

    def mixed8(self, inputs: int) -> nn.Module:
        """Figure 7: branches that fork, giving 2048 channels of 8 x 8."""
        return Mixed(
            self.conv(inputs, 320, 1),
            nn.Sequential(*self.chain(inputs, (384, 1)), self.fork()),
            nn.Sequential(*self.chain(inputs, (448, 1), (384, 3)), self.fork()),
            self.pooled(inputs, 192),
        )
