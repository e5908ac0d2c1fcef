"""Small models whose training steps are exported; a script imports them by name."""

from typing import Any

import torch
from torch import nn

VOCABULARY, TOKENS = 64, 16


def tokens(batch: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (batch, TOKENS))


def with_labels(model: Any, batch: int) -> Any:
    return model, (), {"input_ids": tokens(batch), "labels": tokens(batch)}


def llama(batch: int = 8) -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, intermediate_size=64,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32, use_cache=False,
    )  # fmt: skip
    return with_labels(transformers.LlamaForCausalLM(config), batch)


def bert(batch: int = 8) -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=4, intermediate_size=64,
        num_attention_heads=4, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, tie_word_embeddings=False,
    )  # fmt: skip
    return with_labels(transformers.BertForMaskedLM(config), batch)


def gpt2(batch: int = 8) -> Any:
    """Its products are of a class of transformers' own, and its embedding is its head."""
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=4, n_head=4, use_cache=False,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return with_labels(model, batch)


class Block(nn.Module):
    """A layer with a product each for queries, keys and values, as PyTorch can divide them."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.size = hidden // heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = (
            made(y).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for made in (self.q, self.k, self.v)
        )
        z = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(z.transpose(1, 2).flatten(2))
        made: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return made


class GPT(nn.Module):
    """A GPT that returns its loss."""

    def __init__(self, layers: int = 4, hidden: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCABULARY, hidden), nn.Embedding(TOKENS, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden), nn.Linear(hidden, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x)).flatten(0, 1)
        return nn.functional.cross_entropy(scores, labels.flatten())


def gpt(batch: int = 8) -> Any:
    return GPT(), (tokens(batch), tokens(batch))
