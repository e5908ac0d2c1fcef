"""Vision Transformer (Dosovitskiy et al. 2021)."""

import torch
from torch import nn

from meshwright.capture.zoo.attention import Attention, perceptron
from meshwright.capture.zoo.loss import classification_loss

NORM_EPSILON = 1e-6
"""What the released network adds to variances."""


class VitLayer(nn.Module):
    """Normalise, mix, add; normalise, compute, add (equations 2 and 3)."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.attention = Attention(width, heads)
        self.dropout = nn.Dropout(dropout)
        self.norm2 = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.perceptron = perceptron(width, inner, nn.GELU(), dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of the same shape."""
        normed = self.norm1(tokens)
        tokens = tokens + self.dropout(self.attention(normed, normed))
        result: torch.Tensor = tokens + self.perceptron(self.norm2(tokens))
        return result


class VisionTransformer(nn.Module):
    """Patches of 16 on pictures of 224 pixels unless said, dropout 0.1 (table 3)."""

    def __init__(
        self,
        *,
        layers: int,
        width: int,
        heads: int,
        inner: int | None = None,
        patch: int = 16,
        side: int = 224,
        classes: int = 1000,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        tokens = (side // patch) ** 2 + 1
        inner = inner or 4 * width  # in every model of table 1
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, tokens, width))
        nn.init.normal_(self.positions, std=0.02)  # as the released code starts
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(
            *(VitLayer(width, heads, inner, dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width, eps=NORM_EPSILON)
        self.classifier = nn.Linear(width, classes)

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        """Scores of the classes, or the loss where labels are given."""
        patches = self.patches(pictures).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(pictures), -1, -1)
        tokens = self.dropout(torch.cat([first, patches], 1) + self.positions)
        tokens = self.norm(self.layers(tokens))
        return classification_loss(self.classifier(tokens[:, 0]), labels)
