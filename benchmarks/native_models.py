"""The models of `native.py`, built with the same values each time."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from language_model import Language
from meshwright import source
from meshwright.capture.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The size of a language model and its batch."""

    width: int
    layers: int
    samples: int
    tokens: int
    words: int = 50304
    heads: int = 16
    groups: int = 16
    """Heads of keys and values."""
    inner: int = 0
    """Width inside perceptrons."""
    dropout: float = 0.0


PLAIN = {
    "small": Text(width=128, layers=2, samples=4, tokens=64, words=512),
    "gpt-124m": Text(width=768, layers=12, samples=8, tokens=1024),
    "gpt-355m": Text(width=1024, layers=24, samples=4, tokens=1024),
    "gpt-1b": Text(width=2048, layers=20, samples=4, tokens=2048),
    "gpt-1.5b": Text(width=1600, layers=48, samples=4, tokens=1024),
}
"""Models of `language_model.py`."""
LLAMA_WORDS = 128_256
_GPT2 = Text(width=768, layers=12, heads=12, samples=8, tokens=1024, words=50257)
_BERT = Text(width=1024, layers=24, heads=16, inner=4096, samples=16, tokens=512, words=30522)
_TINY = Text(width=128, layers=2, heads=4, groups=2, inner=256, samples=2, tokens=64, words=512)
_LLAMA = Text(
    width=2048, layers=16, heads=32, groups=8, inner=8192, samples=2, tokens=2048,
    words=LLAMA_WORDS,
)  # fmt: skip
_MIXTRAL = Text(
    width=1024, layers=8, heads=16, groups=4, inner=3584, samples=4, tokens=1024, words=32000
)
HUB: dict[str, tuple[str, Text]] = {
    "llama-tiny": ("llama", _TINY),
    "gpt2": ("gpt2", _GPT2),
    "gpt2-dropout": ("gpt2", replace(_GPT2, dropout=0.1)),
    "llama-1b": ("llama", _LLAMA),
    "llama-3b": ("llama", replace(_LLAMA, width=3072, layers=28, heads=24, samples=1)),
    "bert-large": ("bert", _BERT),
    "bert-large-dropout": ("bert", replace(_BERT, dropout=0.1)),
    "mixtral": ("mixtral", _MIXTRAL),
}
"""Models of transformers, by their kind; the Llamas are those of release 3.2."""
ZOO = {"resnet50": 64, "inception-v3": 32, "swin-l": 32, "vit-l": 32, "transformer": 128}
"""Models of the zoo that need no other package, and their batches."""

NAMES = (*PLAIN, *HUB, *ZOO)
WEIGHTS = {"fp32": torch.float32, "bf16": torch.bfloat16, "mixed": torch.float32}
"""The type of weights by precision; in `mixed`, autocast computes in bfloat16."""


def make_workload(name: str, precision: str, device: str = "cpu") -> Workload:
    """A model and a batch on a device, where large models are made sooner."""
    torch.manual_seed(0)
    with torch.device(device):
        return _make_workload(name, precision)


def _make_workload(name: str, precision: str) -> Workload:
    if name in ZOO:
        short = "bf16" if precision == "bf16" else "fp32"
        return source.make_workload(name, ZOO[name], precision=short)()
    if name in HUB:
        kind, size = HUB[name]
        ids = torch.randint(0, size.words, (size.samples, size.tokens))
        model = _KINDS[kind](size).to(WEIGHTS[precision]).train()
        return Workload(name=name, model=model, kwargs={"input_ids": ids, "labels": ids})
    size = PLAIN[name]
    model = Language(width=size.width, layers=size.layers, words=size.words)
    ids = torch.randint(0, size.words, (size.samples, size.tokens))
    return Workload(name=name, model=model.to(WEIGHTS[precision]), args=(ids,))


def _gpt2(size: Text) -> Any:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=size.words, n_positions=size.tokens, n_embd=size.width, n_layer=size.layers,
        n_head=size.heads, resid_pdrop=size.dropout, embd_pdrop=size.dropout,
        attn_pdrop=size.dropout, use_cache=False,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def _bert(size: Text) -> Any:
    import transformers

    config = transformers.BertConfig(
        vocab_size=size.words, hidden_size=size.width, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=size.inner,
        hidden_dropout_prob=size.dropout, attention_probs_dropout_prob=size.dropout,
    )  # fmt: skip
    return transformers.BertForMaskedLM(config)


def _llama(size: Text) -> Any:
    import transformers

    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**_decoder(size)))


def _mixtral(size: Text) -> Any:
    import transformers

    config = transformers.MixtralConfig(**_decoder(size), num_local_experts=8)
    return transformers.MixtralForCausalLM(config)


def _decoder(size: Text) -> dict[str, Any]:
    return {
        "vocab_size": size.words,
        "hidden_size": size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.groups,
        "intermediate_size": size.inner,
        "max_position_embeddings": size.tokens,
        "use_cache": False,
    }


_KINDS: dict[str, Callable[[Text], Any]] = {
    "gpt2": _gpt2,
    "bert": _bert,
    "llama": _llama,
    "mixtral": _mixtral,
}
