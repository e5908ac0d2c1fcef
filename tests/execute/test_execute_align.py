"""Replicas of one sample run the graph's ops, although a step traced on one sample has others."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_models import BATCH, MIXING, MODELS, captured, make_workload, train_eagerly  # noqa: E402
from small_plans import (  # noqa: E402
    data_plan,
    num_ranks,
    pipeline_plan,
    train_rank,
)
from small_trainer import OPTIMIZER  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.capture import trace_workload  # noqa: E402
from meshwright.capture.convert import are_alike  # noqa: E402
from meshwright.capture.trace import Trace, find_loss  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.capture.zoo import language  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.align import align_trace  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Schedule, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

STEPS = 3
TOLERANCE = 1e-5
TOKENS = 32
BATCH_MODELS = [name for name in MODELS if name not in ("residual", *MIXING)]
"""Whose samples are computed apart from each other."""


def check(name: str, answers: list[tuple[list[float], dict[str, Any]]]) -> None:
    """Compare everything that any rank holds with plain training."""
    losses, tensors = train_eagerly(name, STEPS)
    seen = set()
    for found, state in answers:
        assert found == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        for key in state.keys() & tensors.keys():
            torch.testing.assert_close(state[key], tensors[key], rtol=TOLERANCE, atol=TOLERANCE)
            seen.add(key)
    assert seen == set(tensors)


def sample_by_sample(graph: Graph) -> Plan:
    """One device that runs every sample alone."""
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=BATCH)
    return replace(data_plan(graph, 1), schedule=schedule)


@pytest.mark.parametrize("name", few(BATCH_MODELS, "recurrent"))
def test_every_model_trains_alike_sample_by_sample(name: str) -> None:
    graph = captured(name)
    check(name, [train_rank(0, name, graph, sample_by_sample(graph), STEPS)])


@pytest.mark.slow
def test_copies_of_tied_weights_train_alike_sample_by_sample() -> None:
    graph = captured("tied", untie=True)
    check("tied", [train_rank(0, "tied", graph, sample_by_sample(graph), STEPS)])


KINDS: dict[str, Callable[[Graph], Plan]] = {
    "stages": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.ONE_F_ONE_B, BATCH),
    "stages x replicas": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.GPIPE, 8),
    "unequal replicas": lambda graph: data_plan(graph, RANKS, (13 / 16, 1 / 16, 1 / 16, 1 / 16)),
}


def check_ranks(ranks: Ranks, name: str, plan: Plan) -> None:
    check(
        name,
        ranks.train(num_ranks(plan), train_rank, name, captured(name), plan, STEPS, timeout=240),
    )


@pytest.mark.slow
def test_ranks_train_a_transformer_alike_on_one_sample_each(ranks: Ranks) -> None:
    check_ranks(ranks, "language", KINDS["stages x replicas"](captured("language")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCH_MODELS)
def test_ranks_train_every_model_alike_on_one_sample_each(
    ranks: Ranks, name: str, kind: str
) -> None:
    check_ranks(ranks, name, KINDS[kind](captured(name)))


@pytest.mark.slow
def test_a_device_that_sees_more_samples_may_feed_replicas_of_one(ranks: Ranks) -> None:
    graph = captured("language")
    plan = pipeline_plan(graph, 3, 3, ScheduleKind.GPIPE, 8)
    *others, last = plan.parts
    wider = replace(plan, parts=(*others, replace(last, devices=("d2", "d3"))))
    check_ranks(ranks, "language", wider)


def test_a_step_on_one_sample_is_made_from_others_only_where_its_ops_differ() -> None:
    alike = PlannedSteps(make_workload("perceptron"), captured("perceptron"), OPTIMIZER)
    assert alike[1].samples == 1
    assert list(alike) == [1]
    other = PlannedSteps(make_workload("recurrent"), captured("recurrent"), OPTIMIZER)
    # Traced on one sample, the first product takes its bias along.
    assert len(other[1].ledger.kernels) == captured("recurrent").num_ops
    assert set(other) == {1, 2}


def test_another_model_than_planned_is_refused_on_one_sample_too() -> None:
    steps = PlannedSteps(make_workload("unet"), captured("perceptron"), OPTIMIZER)
    with pytest.raises(InputError, match=r"has \d+ ops, but the model's step on 2 samples has"):
        steps[1]


FAMILIES: dict[str, tuple[language.Family, dict[str, Any]]] = {
    "bert": (language.BERT, language.bert_config(2, 16, 2)),
    "gpt2": (language.GPT, language.gpt_config(2, 16, 2, 8)),
    "llama": (language.LLAMA, language.llama_config(2, 16, 4, 2, 32, TOKENS, 8)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_aligned_steps_of_transformers_give_what_one_sample_gives(name: str) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")
    torch.manual_seed(0)
    family, config = FAMILIES[name]
    tokens = {"vocab_size": TOKENS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    model = language.build_transformer(family, {**config, **tokens})
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    args, kwargs = family.inputs(1, 6, TOKENS)
    check_aligned(Workload(name=name, model=model, args=tuple(args), kwargs=kwargs))


def traced(workload: Workload, samples: int) -> Trace:
    return trace_workload(workload.at_batch(samples), "sgd")


def check_aligned(workload: Workload) -> None:
    """The aligned step on one real sample: loss and gradients are autograd's."""
    trace = align_trace(traced(workload, 2), traced(workload, 3))
    assert are_alike(trace.ledger, traced(workload, 2).ledger)
    model = copy.deepcopy(workload.model)
    held = [*model.parameters(), *dict(model.named_buffers()).values()]
    inputs = [*workload.args, *workload.kwargs.values()]
    with torch.no_grad():
        loss, *gradients = trace.module(*(each.detach().clone() for each in held), *inputs)
    wanted: Any = find_loss(model(*workload.args, **workload.kwargs), None)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach())
    named = {key: each.grad for key, each in model.named_parameters() if each.grad is not None}
    assert set(trace.gradient_names) == set(named)
    for key, gradient in zip(trace.gradient_names, gradients, strict=True):
        torch.testing.assert_close(gradient, named[key])


class Tail(nn.Module):
    """A product and a loss that may look at the number of samples."""

    def __init__(self, tail: Callable[[Any, int], Any], width: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, width) / 8)
        self.tail = tail

    def forward(self, x: Any) -> Any:
        return self.tail(x @ self.weight, x.shape[0])


def tailed(tail: Callable[[Any, int], Any]) -> Workload:
    torch.manual_seed(0)
    return Workload(name="tail", model=Tail(tail), args=(torch.randn(1, 4),))


TAILS: dict[str, Callable[[Any, int], Any]] = {
    "mean": lambda x, _: x.square().mean(),
    "divided": lambda x, samples: x.square().sum() / samples,
    "one over": lambda x, samples: x.square().sum() * (1 / samples),
    "proportional": lambda x, samples: x.square().mean() * (0.5 * samples),
    "by columns": lambda x, samples: x.t().reshape(2, 2 * samples).tanh().sum(),
    "in place": lambda x, samples: x.t().contiguous().mul_(2).view(4, samples).exp_().sum(),
    "repeated": lambda x, samples: x.sum(0).expand(samples, 4).clone().tanh().mean(),
}


@pytest.mark.parametrize("name", TAILS)
def test_what_depends_on_the_samples_is_found_for_one(name: str) -> None:
    check_aligned(tailed(TAILS[name]))


REFUSED: dict[str, tuple[Callable[[Any, int], Any], str]] = {
    "an inverse square": (
        lambda x, samples: x.sum() * (1 / samples**2),
        r"op mul.*must be in proportion to the samples .*, got 0\.25 at 2 and 0\.111\d* at 3",
    ),
    "a square": (
        lambda x, samples: x.sum() / samples**2,
        "op div.*must be in proportion to the samples .*, got 4 at 2 and 9 at 3",
    ),
    "a constant": (
        lambda x, samples: (x * torch.tensor([1.0, 2.0, 3.0, samples])).sum(),
        "constant .*: must be the same at every number of samples",
    ),
    "a branch": (
        lambda x, samples: (x.sin() if samples == 2 else x.cos()).sum(),
        "op sin: must be the same call .*, got aten.sin.default at 2 and aten.cos.default at 3",
    ),
    "dimensions": (
        lambda x, samples: x.view(samples, *([4] if samples == 2 else [2, 2])).sum(),
        "op view: must have as many arguments .*, got 3 at 2 and 4 at 3",
    ),
    "one sample less": (
        lambda x, samples: x.view(samples - 1, -1).sum(),
        "op view: must run on one sample as it does on 2, got: ",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_dependence_on_the_samples_is_refused(name: str) -> None:
    tail, message = REFUSED[name]
    workload = tailed(tail)
    with pytest.raises(InputError, match=f"{message}.*; let every replica have two samples"):
        align_trace(traced(workload, 2), traced(workload, 3))


def test_gradients_that_depend_on_the_samples_are_refused() -> None:
    def wide(width: int) -> Trace:
        model = Tail(lambda x, _: x.sum(), width)
        return traced(Workload(name="tail", model=model, args=(torch.randn(1, 4),)), width)

    with pytest.raises(InputError, match=r"gradient .*: must lie in memory.*\(4, 1\).*\(4, 2\)"):
        align_trace(wide(2), wide(3))
