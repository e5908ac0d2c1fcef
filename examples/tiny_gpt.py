"""A small GPT on synthetic text: what `meshwright run` is given as `tiny_gpt:factory`.

The text is a fixed pseudo-random walk over an alphabet, so that there is something to learn.
"""

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 64, 32, 64, 4, 4
BATCH = 16


class Block(nn.Module):
    """Causal attention and a perceptron, each around a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From features to features."""
        batch, length, width = x.shape
        split = self.qkv(self.norm_attention(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        made: torch.Tensor = x + self.mlp(self.norm_mlp(x))
        return made


class TinyGPT(nn.Module):
    """Returns the mean cross-entropy of every next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """The loss on a batch of texts, one letter longer than what is read."""
        given, wanted = text[:, :-1], text[:, 1:]
        x = self.letters(given) + self.places(torch.arange(given.shape[1], device=given.device))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), wanted.flatten())


def synthetic_text(samples: int) -> torch.Tensor:
    """Walks over the alphabet: the next letter is one to three further on."""
    steps = torch.randint(1, 4, (samples, LENGTH + 1))
    return steps.cumsum(1) % VOCABULARY


def factory() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """The model and one batch."""
    return TinyGPT(), (synthetic_text(BATCH),)
