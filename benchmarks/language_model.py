"""A small causal transformer whose loss is its result, for benchmarks that really compute."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

HEAD_SIZE = 64


class Block(nn.Module):
    """Attention with one product for queries, keys and values, and a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer."""
        batch, length, width = x.shape
        split = self.qkv(self.first(x)).view(batch, length, 3, width // HEAD_SIZE, HEAD_SIZE)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        z: torch.Tensor = x + self.down(F.gelu(self.up(self.second(x))))
        return z


class Language(nn.Module):
    """Embedded words, blocks one after the other and a head of its own."""

    def __init__(
        self,
        *,
        width: int,
        layers: int,
        words: int,
        make_block: Callable[[int], nn.Module] = Block,
        predicts_next: bool = True,
    ) -> None:
        """`predicts_next`: the loss is that of each next word; else of each word itself."""
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(make_block(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)
        self.predicts_next = predicts_next

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        x = self.head(x)
        if self.predicts_next:
            x, ids = x[:, :-1], ids[:, 1:]
        return F.cross_entropy(x.flatten(0, 1), ids.flatten())
