"""An Inception-style network: branches side by side, which an op-level plan may run in parallel."""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

CHANNELS, CLASSES, BATCH, SIZE = 16, 10, 8, 16


class Mixed(nn.Module):
    """Four branches over the same features, joined by channel."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(channels, width, 1)
        self.three = nn.Sequential(
            nn.Conv2d(channels, width, 1), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        self.five = nn.Sequential(
            nn.Conv2d(channels, width, 1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )
        self.pooled = nn.Conv2d(channels, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From features to four times `width` features."""
        pooled = self.pooled(F.avg_pool2d(x, 3, 1, 1))
        return F.relu(torch.cat((self.one(x), self.three(x), self.five(x), pooled), 1))


class TinyInception(nn.Module):
    """Classifies pictures; returns the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.first = Mixed(CHANNELS, 8)
        self.second = Mixed(32, 12)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy."""
        x = F.max_pool2d(F.relu(self.stem(pictures)), 2)
        x = self.second(self.first(x)).mean((2, 3))
        return F.cross_entropy(self.head(x), labels)


def factory() -> tuple[nn.Module, tuple[torch.Tensor, torch.Tensor]]:
    """The model and one batch."""
    pictures = torch.randn(BATCH, 3, SIZE, SIZE)
    return TinyInception(), (pictures, torch.randint(0, CLASSES, (BATCH,)))
