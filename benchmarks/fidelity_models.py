"""The models that `fidelity.py` trains besides those of the zoo: classes of transformers at sizes
of common checkpoints, with fewer layers where these repeat.

Nothing is downloaded, and no sample is padded. What a config does not say is as transformers has
it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from meshwright.capture.workload import Workload

SIDE = 224
"""Pixels of a picture's side."""
CLASSES = 1000
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def tokens(batch: int, sequence: int, dtype: torch.dtype) -> Inputs:  # noqa: ARG001
    """Tokens to be guessed; encoder-decoders shift their labels themselves."""
    ids, labels = (torch.zeros(batch, sequence, dtype=torch.int64) for _ in range(2))
    return (), {"input_ids": ids, "labels": labels}


def pictures(batch: int, _: int, dtype: torch.dtype) -> Inputs:
    """Pictures and their classes."""
    labels = torch.zeros(batch, dtype=torch.int64)
    return (), {"pixel_values": torch.empty(batch, 3, SIDE, SIDE, dtype=dtype), "labels": labels}


def features(width: int) -> Callable[[int, int, torch.dtype], Inputs]:
    """Hidden states of a width."""
    return lambda batch, sequence, dtype: ((torch.empty(batch, sequence, width, dtype=dtype),), {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """A model of transformers."""

    family: str
    """What its classes' names start with."""
    head: str
    """What the model class's name ends with."""
    config: Mapping[str, Any]
    inputs: Callable[[int, int, torch.dtype], Inputs]

    def make(self) -> nn.Module:
        """The model, by torch's default type and device."""
        import transformers

        config = getattr(transformers, f"{self.family}Config")(**self.config)
        if "num_local_experts" in self.config or "num_experts" in self.config:
            config._experts_implementation = "grouped_mm"
        model: nn.Module = getattr(transformers, f"{self.family}{self.head}")(config)
        return model


class Norms(nn.Module):
    """Layer normalisation and dropout of wide hidden states, as around a layer's products."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """A scalar, so that it can be differentiated."""
        for norm in self.norms:
            values = values + self.dropout(norm(values))
        return values.mean()


def decoder(
    family: str, width: int, layers: int, heads: int, groups: int, inner: int, **more: Any
) -> Hub:
    """A causal language model; `groups`: heads of keys and values."""
    config = {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "max_position_embeddings": 4096,
        "vocab_size": 32000,
        "use_cache": False,
        **more,
    }
    return Hub(family=family, head="ForCausalLM", config=config, inputs=tokens)


def picture_model(family: str, **config: Any) -> Hub:
    """A classifier of pictures."""
    return Hub(
        family=family, head="ForImageClassification", config={**config, "num_labels": CLASSES},
        inputs=pictures,
    )  # fmt: skip


def translator(family: str, **config: Any) -> Hub:
    """An encoder-decoder."""
    config = {"use_cache": False, "decoder_start_token_id": 0, **config}
    return Hub(family=family, head="ForConditionalGeneration", config=config, inputs=tokens)


BASIC = {"layer_type": "basic", "hidden_sizes": [64, 128, 256, 512]}
FITTED: dict[str, Hub] = {
    "llama-1b": decoder("Llama", 2048, 8, 32, 8, 8192),
    "mixtral-s": decoder("Mixtral", 1024, 6, 16, 4, 3584, num_local_experts=8, head_dim=64),
    "t5-base": translator(
        "T5", d_model=768, d_kv=64, d_ff=3072, num_layers=6, num_heads=12, vocab_size=32128
    ),
    "resnet18": picture_model("ResNet", **BASIC, depths=[2, 2, 2, 2]),
    "mobilenet-v2": picture_model("MobileNetV2"),
    "convnext-t": picture_model("ConvNext"),
    "swin-t": picture_model("Swin"),
    "vit-b": picture_model("ViT"),
}
"""What constants are fitted to."""
HELD_OUT: dict[str, Hub] = {
    "qwen-0.5b": decoder("Qwen2", 896, 8, 14, 2, 4864, vocab_size=50000),
    "llama-3b": decoder("Llama", 3072, 4, 24, 8, 8192, vocab_size=64000),
    "mistral-s": decoder("Mistral", 1536, 6, 12, 4, 5120, sliding_window=None),
    "mixtral-m": decoder("Mixtral", 1536, 3, 12, 4, 2560, num_local_experts=8, head_dim=128),
    "neox-410m": Hub(
        family="GPTNeoX", head="ForCausalLM", inputs=tokens,
        config={
            "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
            "intermediate_size": 4096, "vocab_size": 50304, "use_cache": False,
        },
    ),
    "roberta-base": Hub(
        family="Roberta", head="ForMaskedLM", inputs=tokens,
        config={"vocab_size": 50265, "max_position_embeddings": 514},
    ),
    "t5-large": translator("T5", d_model=1024, d_kv=64, d_ff=4096, num_layers=4, num_heads=16,
        vocab_size=32128, attn_implementation="eager"),
    "bart-base": translator("Bart", d_model=768, encoder_layers=6, decoder_layers=6,
        encoder_attention_heads=12, decoder_attention_heads=12, encoder_ffn_dim=3072,
        decoder_ffn_dim=3072),
    "resnet34": picture_model("ResNet", **BASIC, depths=[3, 4, 6, 3]),
    "mobilenet-v1": picture_model("MobileNetV1"),
    "convnext-s": picture_model(
        "ConvNext", depths=[3, 3, 12, 3], hidden_sizes=[128, 256, 512, 1024]
    ),
    "swin-s": picture_model("Swin", depths=[2, 2, 10, 2], embed_dim=128, num_heads=[4, 8, 16, 32]),
    "deit-s": picture_model("DeiT", hidden_size=384, num_attention_heads=6, intermediate_size=1536),
}  # fmt: skip
"""What predictions are held against after the last fit."""


def gpt(width: int, layers: int, vocabulary: int = 50368) -> Hub:
    """Decoders as MosaicML's and Megatron-LM's: heads of 128, no dropout, one op an activation."""
    return Hub(
        family="GPT2", head="LMHeadModel", inputs=tokens,
        config={
            "n_embd": width, "n_head": width // 128, "n_layer": layers, "n_positions": 4096,
            "vocab_size": vocabulary, "activation_function": "gelu", "use_cache": False,
            "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
        },
    )  # fmt: skip


LARGE: dict[str, Hub] = {
    "gpt-2048": gpt(2048, 8), "gpt-2304": gpt(2304, 8, 131072), "gpt-4096": gpt(4096, 4),
    "gpt-5120": gpt(5120, 3), "gpt-7168": gpt(7168, 2), "gpt-8192": gpt(8192, 2),
    "llama-4096": decoder("Llama", 4096, 4, 32, 8, 14336, vocab_size=128256),
    "llama-8192": decoder("Llama", 8192, 1, 64, 8, 28672, vocab_size=32000),
}  # fmt: skip
"""A few layers of models that are trained for weeks, whose products a card's power limit slows."""
MODELS = {**FITTED, **HELD_OUT, **LARGE}
NORMS = "norms-"
"""A row `norms-6144` is `Norms` of that width."""


def build_model(name: str, batch: int, sequence: int, dtype: torch.dtype, device: str) -> Workload:
    """A model of this module, and a batch of samples whose values are not set."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            if name.startswith(NORMS):
                width = int(name.removeprefix(NORMS))
                model: nn.Module = Norms(width)
                args, kwargs = features(width)(batch, sequence, dtype)
            else:
                model = MODELS[name].make()
                args, kwargs = MODELS[name].inputs(batch, sequence, dtype)
    finally:
        torch.set_default_dtype(before)
    return Workload(name=name, model=model, args=args, kwargs=kwargs, loss=None, batch=batch)
