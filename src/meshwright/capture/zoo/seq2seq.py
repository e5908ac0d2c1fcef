"""The encoder-decoder Transformer of Vaswani et al. (2017)."""

import math

import torch
from torch import nn
from torch.nn import functional

from meshwright.capture.zoo.attention import Attention, perceptron
from meshwright.capture.zoo.loss import classification_loss

VOCABULARY = 37_000
"""Section 5.1: byte pairs shared by English and German."""
LABEL_SMOOTHING = 0.1
"""The share of a label that the other words get: Vaswani et al. (2017), section 5.4."""
LONGEST_WAVE = 10_000
"""The longest wave of the positions is 2 pi times this many tokens (section 3.5)."""


class EncoderLayer(nn.Module):
    """Self-attention, then a perceptron; the sum with the input is normalised (section 3.1)."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.perceptron = perceptron(width, inner, nn.ReLU())
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Tokens of the same shape."""
        tokens = self.norm1(tokens + self.dropout(self.attention(tokens, tokens)))
        result: torch.Tensor = self.norm2(tokens + self.dropout(self.perceptron(tokens)))
        return result


class DecoderLayer(nn.Module):
    """Like the encoder's, with attention to the encoder's output in between."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.norm1 = nn.LayerNorm(width)
        self.lookup = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = perceptron(width, inner, nn.ReLU())
        self.norm3 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Tokens of the same shape; `memory` is what the encoder made."""
        mixed = self.attention(tokens, tokens, is_causal=True)
        tokens = self.norm1(tokens + self.dropout(mixed))
        tokens = self.norm2(tokens + self.dropout(self.lookup(tokens, memory)))
        result: torch.Tensor = self.norm3(tokens + self.dropout(self.perceptron(tokens)))
        return result


class Seq2SeqTransformer(nn.Module):
    """The defaults are the base model (table 3); one matrix embeds both sides and scores."""

    def __init__(
        self,
        *,
        layers: int = 6,
        width: int = 512,
        heads: int = 8,
        inner: int = 2048,
        vocabulary: int = VOCABULARY,
        positions: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=width**-0.5)  # it also scores
        self.waves = nn.Buffer(_waves(positions, width), persistent=False)
        self.dropout = nn.Dropout(dropout)
        sizes = (width, heads, inner, dropout)
        self.encoder = nn.Sequential(*(EncoderLayer(*sizes) for _ in range(layers)))
        self.decoder = nn.ModuleList(DecoderLayer(*sizes) for _ in range(layers))

    def forward(
        self, source: torch.Tensor, target: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Scores of the tokens that follow each of `target`, or the loss where labels are given."""
        memory = self.encoder(self._embed(source))
        tokens = self._embed(target)
        for layer in self.decoder:
            tokens = layer(tokens, memory)
        scores = functional.linear(tokens, self.embedding.weight)
        return classification_loss(scores, labels, smoothing=LABEL_SMOOTHING)

    def _embed(self, numbers: torch.Tensor) -> torch.Tensor:
        width = self.embedding.embedding_dim
        tokens = self.embedding(numbers) * math.sqrt(width) + self.waves[: numbers.shape[1]]
        result: torch.Tensor = self.dropout(tokens)
        return result


def _waves(positions: int, width: int) -> torch.Tensor:
    """Sines in even columns, cosines in odd ones, wavelengths rising to 10000 x 2 pi."""
    place = torch.arange(positions, dtype=torch.float32)[:, None]
    column = torch.arange(0, width, 2, dtype=torch.float32)[None]
    angle = place * torch.exp(column * (-math.log(LONGEST_WAVE) / width))
    waves = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
    return waves.to(torch.get_default_dtype())
