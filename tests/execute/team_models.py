"""Models of transformers so small that they train in moments, and small ones of our own."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import transformers
from expert_models import make_workload as make_experts
from small_models import MODELS, NORMED
from small_models import make_workload as make_small
from small_trainer import OPTIMIZER, Tensors, train_plainly
from torch import nn

from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.execute.plain import RepeatedDraws
from meshwright.execute.steps import PlannedSteps
from meshwright.graph.graph import Graph

BATCH, TOKENS, WORDS = 8, 8, 32

Made = tuple[nn.Module, Mapping[str, Any]]


def _words(count: int = TOKENS) -> torch.Tensor:
    return torch.randint(0, WORDS, (BATCH, count))


def _texts(**others: Any) -> dict[str, Any]:
    return {"input_ids": _words(), "labels": _words(), **others}


def _gpt2(*, drop: float = 0.0, tied: bool = True, words: int = WORDS) -> Made:
    config = transformers.GPT2Config(
        vocab_size=words, n_positions=16, n_embd=16, n_layer=2, n_head=4, resid_pdrop=drop,
        embd_pdrop=drop, attn_pdrop=drop, bos_token_id=0, eos_token_id=0,
        tie_word_embeddings=tied,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model, _texts()


def _llama(*, dtype: torch.dtype = torch.float32) -> Made:
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).to(dtype), _texts()


def _neox() -> Made:
    """Its attention and perceptron are side by side, and rotary tables come before its layers."""
    config = transformers.GPTNeoXConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=16,
    )  # fmt: skip
    return transformers.GPTNeoXForCausalLM(config), _texts()


def _qwen3() -> Made:
    """Queries and keys have a norm a head."""
    config = transformers.Qwen3Config(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16, head_dim=4,
    )  # fmt: skip
    return transformers.Qwen3ForCausalLM(config), _texts()


def _bert(*, drop: float = 0.0, has_pooler: bool = True) -> Made:
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=32, max_position_embeddings=16, hidden_dropout_prob=drop,
        attention_probs_dropout_prob=drop,
    )  # fmt: skip
    if not has_pooler:
        return transformers.BertForMaskedLM(config), _texts()
    model = transformers.BertForPreTraining(config)
    return model, _texts(next_sentence_label=torch.randint(0, 2, (BATCH,)))


def _vit(*, drop: float = 0.0) -> Made:
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=4, num_attention_heads=4, intermediate_size=32,
        image_size=12, patch_size=4, num_channels=3, num_labels=4, hidden_dropout_prob=drop,
        attention_probs_dropout_prob=drop,
    )  # fmt: skip
    model = transformers.ViTForImageClassification(config)
    images = {"pixel_values": torch.randn(BATCH, 3, 12, 12)}
    return model, {**images, "labels": torch.randint(0, 4, (BATCH,))}


def _t5(*, drop: float = 0.0, tied: bool = True) -> Made:
    config = transformers.T5Config(
        vocab_size=WORDS, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_decoder_layers=2,
        num_heads=4, dropout_rate=drop, decoder_start_token_id=0, pad_token_id=0,
        relative_attention_num_buckets=8, tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config), _texts()


def _swin(*, drop: float = 0.0) -> Made:
    config = transformers.SwinConfig(
        image_size=16, patch_size=2, num_channels=3, embed_dim=8, depths=[2, 2], num_heads=[2, 4],
        window_size=4, num_labels=4, hidden_dropout_prob=drop, attention_probs_dropout_prob=drop,
        drop_path_rate=drop,
    )  # fmt: skip
    model = transformers.SwinForImageClassification(config)
    images = {"pixel_values": torch.randn(BATCH, 3, 16, 16)}
    return model, {**images, "labels": torch.randint(0, 4, (BATCH,))}


def _mixtral() -> Made:
    config = transformers.MixtralConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
        num_local_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    config._experts_implementation = "batched_mm"
    return transformers.MixtralForCausalLM(config), _texts()


HUB: dict[str, Callable[[], Made]] = {
    "gpt2": _gpt2,
    "gpt2-untied": lambda: _gpt2(tied=False),
    "gpt2-dropping": lambda: _gpt2(drop=0.2),
    "llama": _llama,
    "llama-bf16": lambda: _llama(dtype=torch.bfloat16),
    "neox": _neox,
    "qwen3": _qwen3,
    "bert": _bert,
    "bert-dropping": lambda: _bert(drop=0.2),
    "bert-masked": lambda: _bert(drop=0.2, has_pooler=False),
    "vit": _vit,
    "vit-dropping": lambda: _vit(drop=0.2),
    "t5": _t5,
    "t5-untied": lambda: _t5(tied=False),
    "t5-dropping": lambda: _t5(drop=0.2, tied=False),
    "swin": _swin,
    "swin-dropping": lambda: _swin(drop=0.2),
    "mixtral": _mixtral,
}


SORTED = {"sorted": "two of four", "sorted-mixtral": "mixtral"}
"""Models with experts that tokens are sorted by, as `expert_models` calls them."""
UNLAYERED = (
    "unet", "odd", "experts", "fourier", "recurrent", "perceptron", "dropping",
    "residual", "normed",
)  # fmt: skip
"""Models without layers that teams could divide; stages are blocks of their chain of ops."""


def make(name: str) -> Workload:
    """A model with its weights and a batch, the same in every process."""
    if name in MODELS or name in NORMED:
        return make_small(name)
    if name in SORTED:
        return replace(make_experts(SORTED[name]), name=name)
    torch.manual_seed(7)
    model, kwargs = HUB[name]()
    return Workload(name=name, model=model.train(), kwargs=kwargs)


@cache
def captured(name: str, untie: bool = False, optimizer: str = OPTIMIZER) -> Graph:
    """The graph of a model's step."""
    return capture_workload(make(name), optimizer, untie=untie)


@cache
def expected(name: str, steps: int, optimizer: str = OPTIMIZER) -> tuple[list[float], Tensors]:
    """Losses and tensors after plain training in one process."""
    graph = captured(name, False, optimizer)
    repeated = RepeatedDraws(PlannedSteps(make(name), graph, optimizer).draws(int(graph.batch)), 0)
    return train_plainly(make(name), steps, optimizer, repeated)
