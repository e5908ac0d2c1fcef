"""Whole training steps, forward, backward and update, on cut weights equal those of the model."""

import re
from itertools import product
from typing import Any

import pytest
import torch
from cut_lockstep import check_step
from torch import nn

from meshwright.execute.cut.cut import AnyCut, Cut, plain_cut
from quick import few

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()

VOCABULARY = 101
"""Odd, so that members have different numbers of rows."""


def tokens(samples: int = 3, length: int = 8) -> dict[str, torch.Tensor]:
    numbers = torch.randint(0, VOCABULARY, (samples, length), generator=torch.manual_seed(1))
    labels = numbers.clone()
    labels[0, :3] = -100
    return {"input_ids": numbers, "labels": labels}


def cuts_by_pattern(model: nn.Module, patterns: dict[str, int]) -> dict[str, AnyCut]:
    """Plain cuts of parameters whose names match, along the given dimensions."""
    return {
        name: plain_cut(dim, each.shape[dim])
        for name, each in model.named_parameters()
        for pattern, dim in patterns.items()
        if re.search(pattern, name)
    }


def gpt2(dropout: float = 0.0) -> tuple[nn.Module, dict[str, AnyCut]]:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=64, n_head=4, vocab_size=VOCABULARY, n_positions=32, bos_token_id=0,
        eos_token_id=0, attn_pdrop=0.0, embd_pdrop=dropout, resid_pdrop=dropout,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    cuts = cuts_by_pattern(
        model, {r"c_fc.weight": 1, r"c_fc.bias": 0, r"c_proj.weight": 0, r"wte": 0}
    )
    for name, each in model.named_parameters():
        if "c_attn" in name:
            cuts[name] = Cut.of(each.dim() - 1, (64, 64, 64))
    return model, cuts


def llama(key_heads: int = 4, **changes: Any) -> tuple[nn.Module, dict[str, AnyCut]]:
    config = transformers.LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=8, num_key_value_heads=key_heads,
        intermediate_size=96, vocab_size=VOCABULARY, max_position_embeddings=32, **changes,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return model, cuts_by_pattern(
        model,
        {r"[qkv]_proj": 0, r"(gate|up)_proj": 0, r"(o|down)_proj": 1, "embed": 0, "lm_head": 0},
    )


def bert() -> tuple[nn.Module, dict[str, AnyCut]]:
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128,
        vocab_size=VOCABULARY, max_position_embeddings=32, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = transformers.BertForMaskedLM(config)
    return model, cuts_by_pattern(
        model,
        {
            r"self\.(query|key|value)\.": 0,
            r"attention\.output\.dense\.weight": 1,
            r"intermediate\.dense\.": 0,
            r"\d\.output\.dense\.weight": 1,
            r"word_embeddings|predictions\.(decoder\.)?bias": 0,
        },
    )


def name_case(case: tuple[Any, int]) -> str:
    return f"{case[0].__name__}-{case[1]}"


MODELS = list(product([gpt2, llama, bert], [2, 4]))


@pytest.mark.parametrize("case", few(MODELS, (gpt2, 2), (llama, 4), (bert, 2)), ids=name_case)
def test_a_team_trains_as_the_whole_model_does(case: tuple[Any, int]) -> None:
    build, width = case
    model, cuts = build()
    lockstep = check_step(model, tokens(), cuts, width)
    assert len(lockstep.summed) > 4


def t5() -> tuple[nn.Module, dict[str, AnyCut]]:
    config = transformers.T5Config(
        num_layers=2, d_model=64, d_kv=16, d_ff=128, num_heads=4, vocab_size=VOCABULARY,
        dropout_rate=0.0, decoder_start_token_id=0,
    )  # fmt: skip
    model = transformers.T5ForConditionalGeneration(config)
    return model, cuts_by_pattern(
        model,
        {
            r"Attention\.[qkv]\.": 0,
            r"Attention\.o\.": 1,
            r"relative_attention_bias": 1,
            r"DenseReluDense\.wi\.": 0,
            r"DenseReluDense\.wo\.": 1,
            r"shared": 0,
        },
    )


def gpt2_eager() -> tuple[nn.Module, dict[str, AnyCut]]:
    model, cuts = gpt2()
    model.set_attn_implementation("eager")  # type: ignore[operator]
    return model, cuts


def llama_eager() -> tuple[nn.Module, dict[str, AnyCut]]:
    return llama(attn_implementation="eager")


def llama_with_one_key_head() -> tuple[nn.Module, dict[str, AnyCut]]:
    model, cuts = llama(key_heads=1)
    return model, {name: cut for name, cut in cuts.items() if not re.search("[kv]_proj", name)}


OTHERS = list(product([t5, gpt2_eager, llama_eager, llama_with_one_key_head], [2, 4]))


@pytest.mark.parametrize(
    "case", few(OTHERS, (t5, 2), (gpt2_eager, 4), (llama_with_one_key_head, 2)), ids=name_case
)
def test_other_attentions_need_no_other_rules(case: tuple[Any, int]) -> None:
    build, width = case
    model, cuts = build()
    check_step(model, tokens(), cuts, width)


IMAGE_CUTS = {
    r"attention\.(attention|self)\.(query|key|value)\.|\.[qkv]_proj\.": 0,
    r"attention\.output\.dense\.weight|\.o_proj\.weight": 1,
    r"intermediate\.dense\.|\.fc1\.": 0,
    r"\d\.output\.dense\.weight|\.fc2\.weight": 1,
    r"relative_position_bias_table": 1,
}


@pytest.mark.parametrize("kind", ["vit", "swin"])
def test_images_are_trained_on_by_teams(kind: str) -> None:
    if kind == "vit":
        model = transformers.ViTForImageClassification(
            transformers.ViTConfig(
                num_hidden_layers=2, hidden_size=64, num_attention_heads=4, intermediate_size=128,
                image_size=32, patch_size=8, num_labels=10,
            )
        )  # fmt: skip
    else:
        model = transformers.SwinForImageClassification(
            transformers.SwinConfig(
                image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4],
                window_size=4, num_labels=10, drop_path_rate=0.0,
            )
        )  # fmt: skip
    cuts = cuts_by_pattern(model, IMAGE_CUTS | {"classifier": 0})
    assert len(cuts) > 16
    inputs = {"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.tensor([1, 0, 9])}
    check_step(model, inputs, cuts, 2)


@pytest.mark.parametrize("build", few([gpt2, llama, bert, gpt2_eager], llama, gpt2_eager))
def test_samples_may_be_cut_instead_of_weights(build: Any) -> None:
    model, _ = build()
    lockstep = check_step(model, tokens(4), {}, 2, inputs=plain_cut(0, 4))
    made = [cut for node, cut in lockstep.cuts.items() if node.op == "call_function"]
    assert sum(isinstance(cut, Cut) for cut in made) > len(made) / 3


def test_what_is_dropped_is_dropped_for_the_team() -> None:
    model, cuts = gpt2(dropout=0.3)
    lockstep = check_step(model, tokens(), cuts, 2)
    assert lockstep.num_drawn == 5  # embeddings, and two a layer
