"""The zoo's language models: classes of `transformers`, with every number of their configs here.

Nothing is downloaded. Samples have no padding, so no attention mask is given: causal models mask
inside the attention kernel, the others look at every token. Dropout is on as published; on a CPU
trace, dropout on attention weights (BERT, GPT) keeps torch from its fused attention kernel.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from meshwright.capture.zoo.workload import Inputs, Recipe
from meshwright.errors import InputError

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A class of transformers that is a model with its loss, and how it is fed."""

    model: str
    config: str
    inputs: Callable[[int, int, int], Inputs]
    """(batch, sequence, vocabulary) to the model's inputs."""
    experts: str | None = None
    """Which implementation of experts; None: the model has none."""
    loss: str | None = None
    """Which of transformers' losses, where it warns that it cannot tell by the class's name."""


def build_transformer(family: Family, config: Config) -> Any:
    """A model of transformers from a written-out config, with random weights."""
    try:
        package = importlib.import_module("transformers")
    except ImportError:
        raise InputError(
            "zoo: this model needs the package transformers; install meshwright[zoo]"
        ) from None
    settings = getattr(package, family.config)(**config)
    if family.experts is not None:
        settings._experts_implementation = family.experts
    model = getattr(package, family.model)(settings)
    if family.loss is not None:
        model.loss_type = family.loss
    return model


def language_recipes() -> list[Recipe]:
    """Encoders, decoders and the mixture of experts."""
    return [*_bert_recipes(), *_gpt_recipes(), *_llama_recipes()]


def _pretraining(batch: int, sequence: int, vocabulary: int) -> Inputs:
    """Masked tokens and whether the second sentence follows (Devlin et al. 2019, section 3.1)."""
    tokens = torch.randint(vocabulary, (batch, sequence))
    labels = torch.randint(vocabulary, (batch, sequence))
    follows = torch.randint(2, (batch,))
    return (), {"input_ids": tokens, "labels": labels, "next_sentence_label": follows}


def _continuation(batch: int, sequence: int, vocabulary: int) -> Inputs:
    """Every token is to be guessed from those before it; the model shifts the labels itself."""
    tokens = torch.randint(vocabulary, (batch, sequence))
    labels = torch.randint(vocabulary, (batch, sequence))
    return (), {"input_ids": tokens, "labels": labels}


BERT = Family(model="BertForPreTraining", config="BertConfig", inputs=_pretraining)
FNET = Family(model="FNetForPreTraining", config="FNetConfig", inputs=_pretraining)
GPT = Family(model="GPT2LMHeadModel", config="GPT2Config", inputs=_continuation, loss="ForCausalLM")
LLAMA = Family(model="LlamaForCausalLM", config="LlamaConfig", inputs=_continuation)
# transformers' first choice, a loop over the experts that got tokens, depends on values and cannot
# be traced; one grouped product does the same work.
MIXTRAL = Family(
    model="MixtralForCausalLM",
    config="MixtralConfig",
    inputs=_continuation,
    experts="grouped_mm",
)


def bert_config(layers: int, width: int, heads: int) -> dict[str, Any]:
    """Devlin et al. (2019), section 3: perceptrons of 4 x width; A.2: dropout 0.1."""
    return {
        "vocab_size": 30_522,  # the released English vocabulary, uncased
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * width,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }


def fnet_config() -> dict[str, Any]:
    """Lee-Thorp et al. (2022), section 4.1: BERT-Base's shape, SentencePiece of 32,000."""
    return {
        "vocab_size": 32_000,
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "intermediate_size": 3072,
        "max_position_embeddings": 512,
        "type_vocab_size": 4,  # the released checkpoint's
        "hidden_dropout_prob": 0.1,
        "use_tpu_fourier_optimizations": False,
    }


def gpt_config(layers: int, width: int, heads: int, positions: int) -> dict[str, Any]:
    """Radford et al. (2019), table 2, with the heads of the released checkpoints."""
    return {
        "vocab_size": 50_257,
        "n_positions": positions,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "use_cache": False,
    }


def llama_config(
    layers: int, width: int, heads: int, groups: int, inner: int, vocabulary: int, positions: int
) -> dict[str, Any]:
    """`groups`: heads of keys and values (Ainslie et al. 2023)."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": groups,
        "intermediate_size": inner,
        "max_position_embeddings": positions,
        "tie_word_embeddings": False,
        "use_cache": False,
    }


def mixtral_config() -> dict[str, Any]:
    """Jiang et al. (2024), table 1: eight experts, two a token."""
    config = llama_config(32, 4096, 32, 8, 14_336, 32_000, 32_768)
    return {
        **config,
        "head_dim": 128,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    }


def _bert_recipes() -> list[Recipe]:
    # Layers, width, heads. Small: Turc et al. (2019); base and large: Devlin et al. (2019), section
    # 3; 36 and 48 layers of BERT-Large's width: the pipeline papers (DAPPLE, Fan et al. 2021;
    # Chimera, Li and Hoefler 2021).
    shapes = {
        "bert-small": (4, 512, 8),
        "bert-base": (12, 768, 12),
        "bert-large": (24, 1024, 16),
        "bert-36": (36, 1024, 16),
        "bert-48": (48, 1024, 16),
    }
    recipes = [_recipe(name, BERT, bert_config(*shape)) for name, shape in shapes.items()]
    return [*recipes, _recipe("fnet-base", FNET, fnet_config())]


def _gpt_recipes() -> list[Recipe]:
    # Radford et al. (2019), table 2; Brown et al. (2020), table 2.1.
    shapes = {
        "gpt2": (12, 768, 12, 1024),
        "gpt2-medium": (24, 1024, 16, 1024),
        "gpt2-large": (36, 1280, 20, 1024),
        "gpt2-xl": (48, 1600, 25, 1024),
        "gpt3-175b": (96, 12_288, 96, 2048),
    }
    return [_recipe(name, GPT, gpt_config(*shape)) for name, shape in shapes.items()]


def _llama_recipes() -> list[Recipe]:
    # Layers, width, heads, key-value heads, inner width, vocabulary, positions, base of the rotary
    # positions: Touvron et al. (2023, "LLaMA"), table 2, and Grattafiori et al. (2024), table 3.
    shapes = {
        "llama-2-7b": ((32, 4096, 32, 32, 11_008, 32_000, 4096), 10_000.0),
        "llama-3-8b": ((32, 4096, 32, 8, 14_336, 128_256, 8192), 500_000.0),
        "llama-3-70b": ((80, 8192, 64, 8, 28_672, 128_256, 8192), 500_000.0),
        "llama-3-405b": ((126, 16_384, 128, 8, 53_248, 128_256, 8192), 500_000.0),
    }
    recipes = [
        _recipe(name, LLAMA, {**llama_config(*shape), **_rotary(theta)})
        for name, (shape, theta) in shapes.items()
    ]
    return [*recipes, _recipe("mixtral-8x7b", MIXTRAL, {**mixtral_config(), **_rotary(1e6)})]


def _rotary(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _recipe(name: str, family: Family, config: Config) -> Recipe:
    return Recipe(
        name=name,
        make=partial(build_transformer, family, config),
        inputs=partial(_feed, family, int(config["vocab_size"])),
    )


def _feed(family: Family, vocabulary: int, batch: int, sequence: int) -> Inputs:
    return family.inputs(batch, sequence, vocabulary)
