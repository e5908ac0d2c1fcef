"""The models that `auto_runs.py` trains: small ones of transformers, and pictures with skips.

Ranks import this module to build them. Dropout is on where a model's configuration has it on.
"""

import itertools
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn import functional as F  # noqa: N812

BATCH, TOKENS, WORDS, WIDTH, LAYERS = 8, 16, 64, 32, 2

Made = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def _texts(words: int = WORDS, batch: int = BATCH, tokens: int = TOKENS) -> dict[str, Any]:
    """Words, and as many to be guessed."""
    shape = (batch, tokens)
    return {"input_ids": torch.randint(0, words, shape), "labels": torch.randint(0, words, shape)}


def load() -> None:
    """Import the models' classes, which transformers does when they are first asked for."""
    for make in (gpt2, llama, bert, vit, t5, mixtral, swin):
        with torch.device("meta"):
            make()


def gpt2() -> Made:
    """GPT-2 with its dropout, its head tied to its embeddings."""
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=TOKENS, n_embd=WIDTH, n_layer=LAYERS, n_head=4,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), (), _texts()


def odd_gpt2() -> Made:
    """GPT-2 of sizes that few widths divide: 3 heads, 97 words, 6 samples of 15 tokens."""
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=15, n_embd=36, n_layer=3, n_head=3, resid_pdrop=0.0,
        embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config), (), _texts(97, 6, 15)


def llama() -> Made:
    """Llama with two key and value heads for four queries."""
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=TOKENS,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config), (), _texts()


def bert() -> Made:
    """BERT with its dropout, pre-training with both heads."""
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4,
        intermediate_size=64, max_position_embeddings=TOKENS,
    )  # fmt: skip
    labels = torch.randint(0, 2, (BATCH,))
    return (
        transformers.BertForPreTraining(config),
        (),
        {**_texts(), "next_sentence_label": labels},
    )


def vit() -> Made:
    """ViT on nine patches and a token for the class."""
    config = transformers.ViTConfig(
        hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, intermediate_size=64,
        image_size=12, patch_size=4, num_labels=4,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    labels = torch.randint(0, 4, (BATCH,))
    return model, (), {"pixel_values": torch.randn(BATCH, 3, 12, 12), "labels": labels}


def t5() -> Made:
    """T5: an encoder whose result every layer of a decoder reads, with dropout."""
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=WIDTH, d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2,
        num_heads=4, decoder_start_token_id=0, pad_token_id=0, relative_attention_num_buckets=8,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), (), _texts()


def mixtral() -> Made:
    """Mixtral of four experts, two a token, in grouped products."""
    config = transformers.MixtralConfig(
        vocab_size=WORDS, hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=TOKENS,
        num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    config._experts_implementation = "grouped_mm"
    return transformers.MixtralForCausalLM(config), (), {**_texts(), "use_cache": False}


def swin() -> Made:
    """Swin: windows that shift, and fewer tokens from one stage to the next."""
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
        num_labels=4, drop_path_rate=0.0,
    )  # fmt: skip
    model = transformers.SwinForImageClassification(config)
    labels = torch.randint(0, 4, (BATCH,))
    return model, (), {"pixel_values": torch.randn(BATCH, 3, 16, 16), "labels": labels}


class Residual(nn.Module):
    """Convolutions with batch norm around residual connections."""

    def __init__(self, width: int = 16, layers: int = 4) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width))
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """The loss of classifying."""
        x = F.relu(self.enter(x))
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return F.cross_entropy(self.head(x.mean((2, 3))), label)


class UNet(nn.Module):
    """Three sizes of pictures, with skips from the way down to the way up."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        sizes = (width, 2 * width, 4 * width)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(sizes)
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in itertools.pairwise(sizes)
        )
        self.join = nn.ModuleList(nn.Conv2d(2 * a, a, 3, padding=1) for a in sizes[:-1])
        self.leave = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The loss of painting the picture again."""
        y = F.gelu(self.enter(x))
        skips = []
        for layer in self.down:
            skips.append(y)
            y = F.gelu(layer(y))
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            y = F.gelu(join(torch.cat((up(y), skips.pop()), 1)))
        return F.mse_loss(self.leave(y), x)


class Branches(nn.Module):
    """Branches side by side, as in Inception, without anything that mixes samples."""

    def __init__(self, width: int = 12, layers: int = 3) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(
            nn.ModuleList(
                nn.Conv2d(width, width // 3, size, padding=size // 2) for size in (1, 3, 5)
            )
            for _ in range(layers)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """The loss of classifying."""
        x = F.relu(self.enter(x))
        for layer in self.layers:
            x = F.relu(torch.cat([branch(x) for branch in layer.children()], 1))
        return F.cross_entropy(self.head(x.mean((2, 3))), label)


def _pictures() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(BATCH, 3, 8, 8), torch.randint(0, 10, (BATCH,))


def resnet() -> Made:
    """Four residual convolutions with batch norm."""
    return Residual(), _pictures(), {}


def unet() -> Made:
    """A U-Net of three sizes."""
    return UNet(), (torch.randn(BATCH, 3, 16, 16),), {}


def branches() -> Made:
    """Three layers of three convolutions side by side."""
    return Branches(), _pictures(), {}
