"""The zoo's language models: classes of `transformers`, with every number of their configs.

Sizes are those of `meshwright.zoo.shape`; here is what they do not say, and the whole of FNet.
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

from meshwright.capture.zoo.workload import Inputs, ZooRecipe
from meshwright.errors import InputError
from meshwright.zoo.shape import (
    BERT_POSITIONS,
    BERT_VOCABULARY,
    GPT2_VOCABULARY,
    find_sizes,
    shape_names,
)
from meshwright.zoo.table import find_model

Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A class of transformers that is a model with its loss, and how it is fed."""

    model: str
    config: str
    inputs: Callable[..., Inputs]
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


def language_recipes() -> list[ZooRecipe]:
    """Encoders, decoders and the mixture of experts."""
    names = [name for name in shape_names("gpt") if find_model(name).source != "graph"]
    return [
        *(_recipe(name, BERT, bert_config(**find_sizes(name))) for name in shape_names("bert")),
        _recipe("fnet-base", FNET, fnet_config()),
        *(_recipe(name, GPT, gpt_config(**find_sizes(name))) for name in names),
        *_llama_recipes(),
    ]


def _pretraining(batch: int, sequence: int, vocabulary: int) -> Inputs:
    """Masked tokens and whether the second sentence follows (Devlin et al. 2019, section 3.1)."""
    _, named = _continuation(batch, sequence, vocabulary)
    return (), {**named, "next_sentence_label": torch.randint(2, (batch,))}


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


def _sizes(
    vocabulary: int, hidden: int, layers: int, intermediate: int, positions: int
) -> dict[str, Any]:
    """The sizes that most configurations of transformers name alike."""
    return {
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": intermediate,
        "max_position_embeddings": positions,
    }


def bert_config(
    layers: int,
    hidden: int,
    heads: int,
    positions: int = BERT_POSITIONS,
    vocabulary: int = BERT_VOCABULARY,
) -> dict[str, Any]:
    """Devlin et al. (2019), section 3: perceptrons of 4 x hidden; A.2: dropout 0.1."""
    return {
        **_sizes(vocabulary, hidden, layers, 4 * hidden, positions),
        "num_attention_heads": heads,
        "type_vocab_size": 2,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
    }


def fnet_config() -> dict[str, Any]:
    """Lee-Thorp et al. (2022), section 4.1: BERT-Base's shape, SentencePiece of 32,000."""
    return {
        **_sizes(32_000, 768, 12, 3072, 512),
        "type_vocab_size": 4,  # the released checkpoint's
        "hidden_dropout_prob": 0.1,
        "use_tpu_fourier_optimizations": False,
    }


def gpt_config(
    layers: int, hidden: int, heads: int, positions: int, vocabulary: int = GPT2_VOCABULARY
) -> dict[str, Any]:
    """Perceptrons of 4 x hidden and dropout 0.1 are what transformers gives unasked."""
    return {
        "vocab_size": vocabulary,
        "n_positions": positions,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "use_cache": False,
    }


def llama_config(
    layers: int,
    hidden: int,
    heads: int,
    key_heads: int,
    intermediate: int,
    vocabulary: int,
    positions: int,
) -> dict[str, Any]:
    """`key_heads`: of keys and of values (Ainslie et al. 2023)."""
    return {
        **_sizes(vocabulary, hidden, layers, intermediate, positions),
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "tie_word_embeddings": False,
        "use_cache": False,
    }


def mixtral_config(
    *, hidden: int, heads: int, experts: int, experts_per_token: int, **sizes: int
) -> dict[str, Any]:
    """Llama's layers (`sizes`: its others) with experts, each a perceptron."""
    return {
        **llama_config(hidden=hidden, heads=heads, **sizes),
        "head_dim": hidden // heads,
        "num_local_experts": experts,
        "num_experts_per_tok": experts_per_token,
        "sliding_window": None,
    }


def _llama_recipes() -> list[ZooRecipe]:
    # Positions and the base of their rotation: Touvron et al. (2023, "Llama 2"), table 1;
    # Grattafiori et al. (2024), section 3.2, before the context was lengthened.
    rotary = {
        "llama-2-7b": (4096, 10_000.0),
        "llama-3-8b": (8192, 500_000.0),
        "llama-3-70b": (8192, 500_000.0),
        "llama-3-405b": (8192, 500_000.0),
    }
    recipes = []
    for name in shape_names("llama"):
        positions, theta = rotary[name]
        config = llama_config(**find_sizes(name), positions=positions)
        recipes.append(_recipe(name, LLAMA, {**config, **_rotary(theta)}))
    # Jiang et al. (2024), table 1, and the released config's base.
    mixtral = mixtral_config(**find_sizes("mixtral-8x7b"), positions=32_768)
    return [*recipes, _recipe("mixtral-8x7b", MIXTRAL, {**mixtral, **_rotary(1e6)})]


def _rotary(theta: float) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": theta}}


def _recipe(name: str, family: Family, config: Config) -> ZooRecipe:
    return ZooRecipe(
        name=name,
        make=partial(build_transformer, family, config),
        inputs=partial(family.inputs, vocabulary=int(config["vocab_size"])),
    )
