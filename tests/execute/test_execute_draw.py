"""Random numbers are a sample's own, whoever draws them and with whom."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from ranks import Ranks  # noqa: E402
from small_models import DRAWING, make_workload  # noqa: E402
from small_plans import data_plan, pipeline_plan, random_placement  # noqa: E402
from small_trainer import (  # noqa: E402
    OPTIMIZER,
    make_trainer,
    take_steps,
    train_plainly,
)

from meshwright.capture.attention import (  # noqa: E402
    Kept,
    attend_dropping,
    attend_dropping_backward,
)
from meshwright.capture.attention_kernel import Attended  # noqa: E402
from meshwright.capture.call import describe_call, rebuild_call  # noqa: E402
from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.ledger import read_nodes  # noqa: E402
from meshwright.capture.optimiser import find_optimiser  # noqa: E402
from meshwright.capture.replay import replayed  # noqa: E402
from meshwright.capture.torch_private import pytree  # noqa: E402
from meshwright.capture.trace import trace_step  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.capture.zoo import language  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.draw import Draw, Drawing, SampleDim, drawn_alone, draws  # noqa: E402
from meshwright.execute.plain import RepeatedDraws  # noqa: E402
from meshwright.execute.random.bits import KERNELS  # noqa: E402
from meshwright.execute.random.keys import make_keys  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, ScheduleKind  # noqa: E402

BATCH, STEPS, TOLERANCE = 8, 3, 1e-5


def fill(samples: int, first: int, along: SampleDim, shape: tuple[int, ...]) -> Any:
    """Numbers of some samples; `shape` has one entry a sample in their dimension."""
    sizes = [size * samples if dim == along.dim else size for dim, size in enumerate(shape)]
    return draw(sizes, along, range(first, first + samples))


def draw(
    sizes: Sequence[int],
    along: SampleDim,
    samples: Sequence[int],
    seed: int = 3,
    step: int = 1,
    op: int = 4,
) -> Any:
    keys = torch.from_numpy(make_keys(seed, step, [op], samples)[0])
    return Drawing(along, (), lambda _: keys, KERNELS, None).fill(torch.zeros(sizes), "uniform_")


@given(
    first=st.integers(0, 5),
    samples=st.integers(1, 5),
    blocks=st.sampled_from([1, 2, 3]),
    dim=st.integers(0, 2),
)
def test_a_sample_has_the_same_numbers_alone_and_among_others(
    first: int, samples: int, blocks: int, dim: int
) -> None:
    shape = [2, 3, 4]
    shape[dim] = 2 * blocks
    along = SampleDim(dim, 2 * blocks, blocks)
    many = fill(samples, first, along, tuple(shape)).unflatten(dim, (blocks, samples, 2))
    assert many.unique().numel() == many.numel()
    for number in range(samples):
        alone = fill(1, first + number, along, tuple(shape)).unflatten(dim, (blocks, 1, 2))
        assert torch.equal(many.select(dim + 1, number), alone.select(dim + 1, 0))


@pytest.mark.parametrize("change", [{"seed": 4}, {"step": 2}, {"op": 5}, {"first": 1}])
def test_other_seeds_steps_ops_and_samples_have_other_numbers(change: dict[str, int]) -> None:
    def drawn(first: int = 0, **given: int) -> Any:
        return draw((1, 50), SampleDim(0, 1, 1), [first], **given)

    assert torch.equal(drawn(), drawn())
    assert not torch.equal(drawn(), drawn(**change))


def test_attention_with_dropout_is_differentiated_as_autograd_does() -> None:
    torch.manual_seed(0)
    sizes = ((2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 3))  # two heads of keys for four of queries
    q, k, v = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes)
    mask = torch.randn(5, 6, dtype=torch.float64)
    kept = Kept(torch.rand(2, 4, 5, 6) < 0.7, 1 / 0.7)
    made, log_sum = attend_dropping(Attended(q, k, v, mask), kept)
    gradient = torch.randn_like(made)
    expected = torch.autograd.grad(made, (q, k, v), gradient)
    given = Attended(q.detach(), k.detach(), v.detach(), mask)
    found = attend_dropping_backward(given, gradient, made.detach(), log_sum.detach(), kept)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)  # scores are of 32 bits


# Models as they are published, with dropout of a tenth everywhere.

FAMILIES: dict[str, tuple[language.Family, dict[str, Any]]] = {
    "bert": (language.BERT, language.bert_config(2, 16, 2)),
    "gpt2": (language.GPT, language.gpt_config(2, 16, 2, 8)),
}
TOKENS = 30


def stock(name: str) -> Workload:
    """Dropout is on, of attention's weights, too; the same in every process."""
    family, config = FAMILIES[name]
    tokens = {"vocab_size": TOKENS, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    torch.manual_seed(5)
    model = language.build_transformer(family, {**config, **tokens}).train()
    args, kwargs = family.inputs(BATCH, 6, TOKENS)
    return Workload(name=name, model=model, args=tuple(args), kwargs=kwargs)


def train_rank(rank: int, name: str, graph: Graph, plan: Plan) -> list[float]:
    trainer = make_trainer(rank, stock(name), graph, plan)
    losses = take_steps(trainer, STEPS)
    trainer.close()
    return losses


PLANS: dict[str, Callable[[Graph], Plan]] = {
    "data": lambda graph: data_plan(graph, 4, (0.5, 0.25, 0.125, 0.125)),
    "pipeline": lambda graph: pipeline_plan(graph, 4, 2, ScheduleKind.ONE_F_ONE_B, 2),
    "placement": lambda graph: random_placement(graph, 4, 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("name", FAMILIES)
def test_stock_transformers_with_dropout_train_as_one_process(
    ranks: Ranks, name: str, kind: str
) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")
    graph = capture_workload(stock(name), OPTIMIZER)
    workload = stock(name)
    repeated = RepeatedDraws(PlannedSteps(workload, graph, OPTIMIZER).draws(BATCH), seed=0)
    losses, _ = train_plainly(workload, STEPS, OPTIMIZER, repeated)
    # Embeddings, and in each layer attention and both outputs.
    assert len(repeated.found) >= 1 + 3 * 2
    for found in ranks.train(4, train_rank, name, graph, PLANS[kind](graph)):
        assert found == pytest.approx(losses, rel=TOLERANCE)


def test_a_draw_that_was_not_captured_is_named() -> None:
    with (
        pytest.raises(InputError, match=r"aten\.bernoulli_\.float draws random numbers in one"),
        RepeatedDraws({}, seed=0),
    ):
        torch.nn.functional.dropout(torch.ones(3))


def test_numbers_drawn_to_choose_a_branch_are_not_of_the_plan() -> None:
    """A rate of zero that a draw is compared with, as BART skips layers, is no draw of the step."""
    along = SampleDim(0, 1, 1)
    with RepeatedDraws({0: Draw(0, along)}, seed=0) as repeated:
        torch.rand([])
        assert repeated.place == 0
        torch.nn.functional.dropout(torch.ones(3, 4))
        torch.rand([])
        assert repeated.place == 1


@pytest.mark.parametrize("name", DRAWING)
def test_what_is_timed_of_an_op_that_draws_is_what_ranks_run(name: str) -> None:
    """By itself it gives what the op gives, in shape and type, with the numbers of keys."""
    workload = make_workload(name)
    trace = trace_step(
        workload.model, workload.args, {}, loss=workload.loss, optimizer=find_optimiser(OPTIMIZER)
    )
    device, seen = torch.device("cpu"), 0
    for node in (kernel.node for kernel in read_nodes(list(trace.graph.nodes)).kernels):
        target, args, kwargs = rebuild_call(describe_call(node), device)
        made_by = drawn_alone(target, args, kwargs)
        assert (made_by is not None) == draws(node), node
        if made_by is None:
            continue
        seen += 1
        wanted, made = node.meta["val"], made_by()
        wanted, made = (
            [each for each in pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]
            for value in (wanted, made)
        )
        assert [(each.shape, each.dtype) for each in made] == [
            (each.shape, each.dtype) for each in wanted
        ]
        with replayed(describe_call(node), device, drawn_alone) as replay:
            replay.run()
    assert seen
