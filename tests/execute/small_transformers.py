"""Tiny models of transformers, with and without dropout."""

from functools import cache
from typing import Any

import torch
from small_trainer import OPTIMIZER, Tensors, make_trainer, train_plainly

from meshwright.capture.capture import capture_workload
from meshwright.capture.workload import Workload
from meshwright.execute.plain import RepeatedDraws
from meshwright.execute.steps import PlannedSteps
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan

BATCH, TOKENS, WORDS = 4, 8, 96
SHAPE = {"vocab_size": WORDS, "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 32}


class Scaled(torch.nn.Module):
    """A model with half its loss: an op that reads no tokens comes last."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: Any) -> Any:
        made = self.model(**inputs)
        made.loss = made.loss * 0.5
        return made


def make_model(name: str) -> Any:
    """By a name as "gpt2", "bert, dropping" or "llama, scaled"."""
    import transformers

    transformers.logging.set_verbosity_error()
    kind, _, more = name.partition(", ")
    dropout = 0.1 if more == "dropping" else 0.0
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_positions=TOKENS, n_embd=32, n_layer=2, n_head=4,
            resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
            tie_word_embeddings=more == "tied", bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config)
    if kind == "llama":
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **SHAPE, intermediate_size=64, num_key_value_heads=2, use_cache=False,
                max_position_embeddings=TOKENS,
            )
        )  # fmt: skip
        return Scaled(model) if more == "scaled" else model
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            **SHAPE, intermediate_size=64, max_position_embeddings=TOKENS,
            hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout,
            tie_word_embeddings=False,
        )
    )  # fmt: skip


def make_workload(name: str) -> Workload:
    """A model with its weights and a batch, the same in every process; of each sample some
    labels are ignored, which are the first members'."""
    torch.manual_seed(7)
    model = make_model(name).train()
    words = torch.randint(0, WORDS, (BATCH, TOKENS))
    labels = words.clone()
    labels[:, :3] = -100
    return Workload(name=name, model=model, kwargs={"input_ids": words, "labels": labels})


@cache
def captured(name: str) -> Graph:
    return capture_workload(make_workload(name), OPTIMIZER)


@cache
def train_eagerly(name: str, steps: int) -> tuple[list[float], Tensors]:
    """Losses and parameters, by all their names, after plain training in one process; random
    numbers are those of a plan with seed 0."""
    workload = make_workload(name)
    is_random = name.endswith("dropping")
    drawn = (
        PlannedSteps(make_workload(name), captured(name), OPTIMIZER).draws(BATCH)
        if is_random
        else {}
    )
    losses, _ = train_plainly(workload, steps, OPTIMIZER, RepeatedDraws(drawn, 0))
    named = workload.model.named_parameters(remove_duplicate=False)
    return losses, {key: each.detach() for key, each in named if each.grad is not None}


def hear_rank(rank: int, name: str, graph: Graph, plan: Plan) -> tuple[list[Any], list[Any]]:
    """Train a step on one rank: the collectives that it starts, and those of its program."""
    from team_plans import Call, listening, planned_calls

    workload, said = make_workload(name), list[Call]()
    trainer = make_trainer(rank, workload, graph, plan)
    with listening(trainer.exchange, said):
        trainer.step(workload.args, workload.kwargs)
    trainer.close()
    return said, planned_calls(trainer)
