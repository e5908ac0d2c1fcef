"""Batch norm over replicas trains as one process does: losses, weights and running statistics."""

from collections.abc import Callable
from itertools import product

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_models import NORMED, captured, make_workload, train_eagerly  # noqa: E402
from small_plans import (  # noqa: E402
    UNEQUAL,
    check_trained,
    data_plan,
    hybrid,
    num_ranks,
    pipeline_plan,
    train_pieces,
)
from small_trainer import LEARNING_RATE  # noqa: E402

from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.apart import check_apart  # noqa: E402
from meshwright.execute.batch_norm import batch_norm, batch_norm_backward  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind  # noqa: E402
from meshwright.program.expand.synchronise import with_batch_statistics  # noqa: E402
from meshwright.program.program import Kind  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402

STEPS, TOLERANCE = 5, 1e-5


def divided(zero: int, again: Recompute) -> Callable[[Graph], Plan]:
    return lambda graph: hybrid(data_plan(graph, RANKS, UNEQUAL if zero % 2 else ()), zero, again)


PLANS: dict[str, Callable[[Graph], Plan]] = {
    "two": lambda graph: data_plan(graph, 2),
    "three": lambda graph: data_plan(graph, 3, (0.5, 0.25, 0.25)),
    "data": lambda graph: data_plan(graph, RANKS),
    "unequal": lambda graph: data_plan(graph, RANKS, UNEQUAL),
    **{
        f"zero {zero}, {again}": divided(zero, again)
        for zero, again in product((0, 1, 2, 3), Recompute)
        if zero or again is not Recompute.NONE
    },
}


def with_statistics(graph: Graph, plan: Plan) -> Plan:
    made = with_batch_statistics(graph, plan)
    assert made.batch_statistics
    return made


@pytest.mark.parametrize("kind", few(PLANS, "unequal", "zero 3, full"))
@pytest.mark.parametrize("name", few(NORMED, "normed"))
def test_statistics_are_those_of_the_whole_batch(ranks: Ranks, name: str, kind: str) -> None:
    graph = captured(name)
    plan = with_statistics(graph, PLANS[kind](graph))
    answers = ranks.train(num_ranks(plan), train_pieces, name, graph, plan, STEPS)
    check_trained(answers, train_eagerly(name, STEPS), TOLERANCE, TOLERANCE)


def test_words_are_two_numbers_a_channel_and_a_count() -> None:
    graph = captured("residual")  # one batch norm of 8 channels
    plan = with_statistics(graph, data_plan(graph, RANKS))
    program = lower_frozen(graph, connected(4), plan).program
    rows = program.instructions
    words = rows[(rows["kind"] == Kind.ALL_REDUCE) & (rows["op"] >= 0)]
    assert len(words) == 2 * RANKS  # forward and backward
    assert set(words["bytes"].tolist()) == {8.0 * (2 * 8 + 1)}
    plain = lower_frozen(graph, connected(4), data_plan(graph, RANKS)).program
    assert len(rows) == len(plain.instructions) + 2 * RANKS


def test_plans_that_leave_the_batch_whole_need_no_words() -> None:
    graph = captured("residual")
    assert not with_batch_statistics(graph, data_plan(graph, 1)).batch_statistics
    language = captured("language")
    assert not with_batch_statistics(language, data_plan(language, 4)).batch_statistics


def test_microbatches_of_batch_norm_are_refused_unless_allowed() -> None:
    graph = captured("residual")
    steps = PlannedSteps(make_workload("residual"), graph, "momentum")
    assert steps[16]
    with pytest.raises(InputError, match="normalises over the batch"):
        check_apart(graph, steps)
    check_apart(graph, steps, takes_batch=True)


def microbatched(name: str, count: int) -> list[float]:
    """Losses of one process that sees one microbatch after the other."""
    workload = make_workload(name)
    model = workload.model
    update = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        update.zero_grad()
        total = 0.0
        for parts in zip(*(each.chunk(count) for each in workload.args), strict=True):
            loss = model(*parts) / count
            loss.backward()
            total += float(loss.detach())
        update.step()
        losses.append(total)
    return losses


@pytest.mark.parametrize("kind", few(["gpipe", "1f1b"], "gpipe"))
@pytest.mark.parametrize("name", few(NORMED, "normed unet"))
def test_in_pipelines_statistics_are_those_of_a_microbatch(
    ranks: Ranks, name: str, kind: str
) -> None:
    graph = captured(name)
    plan = pipeline_plan(graph, RANKS, 2, ScheduleKind(kind), 2)
    plan = with_statistics(graph, plan)
    answers = ranks.train(RANKS, train_pieces, name, graph, plan, STEPS)
    for own, _ in answers:
        assert own == pytest.approx(microbatched(name, 2), rel=TOLERANCE, abs=TOLERANCE)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(6, 3, 4, 5), (6, 3), (2, 3, 4, 2, 3)])
def test_ops_are_those_of_torch_where_one_replica_has_all(
    shape: tuple[int, ...], affine: bool
) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * 2 + 30).requires_grad_()
    weight, bias = (torch.randn(3, requires_grad=True) if affine else None for _ in range(2))
    running, moved = (torch.zeros(3), torch.ones(3)), (torch.zeros(3), torch.ones(3))
    y = torch.nn.functional.batch_norm(x, *running, weight, bias, True, 0.1, 1e-5)
    dims = [dim for dim in range(x.dim()) if dim != 1]
    with torch.no_grad():
        data = x.double()
        count = torch.full((1,), x.numel() / 3, dtype=torch.float64)
        word = torch.cat([count, data.sum(dims), data.square().sum(dims)])
        made, mean, inverse = batch_norm(x, word, weight, bias, *moved, 0.1, 1e-5)
        torch.testing.assert_close(made, y, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(moved, running)
    given = torch.randn(shape)
    wanted = torch.autograd.grad(y, [x, *([weight, bias] if affine else [])], given)
    centred = data - mean.double().view(-1, *(1,) * (x.dim() - 2))
    sums = torch.cat([count, given.double().sum(dims), (given.double() * centred).sum(dims)])
    mask = [True, affine, affine]
    found = batch_norm_backward(given, x.detach(), weight, mean, inverse, sums, 1, mask)
    assert [each is not None for each in found] == mask
    for one, other in zip(found, wanted, strict=False):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
