"""What the zoo's own transformers share: attention and the two-layer perceptron."""

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Multi-head attention (Vaswani et al. 2017, section 3.2) with biases, by the fused kernel."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.output = nn.Linear(width, width)

    def forward(
        self, target: torch.Tensor, source: torch.Tensor, *, is_causal: bool = False
    ) -> torch.Tensor:
        """Every token of `target` looks at `source`, both of shape (batch, tokens, width)."""
        query = self._split_heads(self.query(target))
        key, value = self._split_heads(self.key(source)), self._split_heads(self.value(source))
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return result

    def _split_heads(self, tokens: torch.Tensor) -> torch.Tensor:
        batch, length, width = tokens.shape
        return tokens.view(batch, length, self.heads, width // self.heads).transpose(1, 2)


def perceptron(width: int, inner: int, activation: nn.Module, dropout: float = 0.0) -> nn.Module:
    """Two linear layers with an activation between them."""
    return nn.Sequential(
        nn.Linear(width, inner),
        activation,
        nn.Dropout(dropout),
        nn.Linear(inner, width),
        nn.Dropout(dropout),
    )
