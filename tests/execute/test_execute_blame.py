"""Which op is named when a step's numbers are not finite: tiny models, trained in this process."""

import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

import small_trainer  # noqa: E402
from small_plans import data_plan  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import NonFiniteError  # noqa: E402
from meshwright.execute.blame import Blame, Finding, Inspector, find_blame  # noqa: E402
from meshwright.execute.trainer import Trainer  # noqa: E402
from small import connected  # noqa: E402

INFINITY = float("inf")


def make_trainer(model: nn.Module, *args: Any, rate: float = 1e-2) -> Trainer:
    workload = Workload(name="tiny", model=model, args=args)
    graph = capture_workload(workload, "sgd")
    plan, cluster = data_plan(graph, 1), connected(1)
    settings = {"optimizer": "sgd", "learning_rate": rate, "checks_ops": True}
    return small_trainer.make_trainer(0, workload, graph, plan, cluster, **settings)


def fail(trainer: Trainer, *batches: Any) -> NonFiniteError:
    """The error of the last of some batches; those before it must train."""
    for batch in batches[:-1]:
        trainer.step(batch)
    with pytest.raises(NonFiniteError) as caught:
        trainer.step(batches[-1])
    trainer.close()
    assert caught.value.step == len(batches)
    return caught.value


class Attention(nn.Module):
    """Scores are masked by infinities, in each of the ways that models do it."""

    def __init__(self, mask: str) -> None:
        super().__init__()
        self.mask = mask
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("triangle", torch.full((3, 3), -INFINITY).triu(1))

    def scores(self, x: Any) -> Any:
        scores = self.query(x) @ self.key(x).transpose(1, 2)
        is_later = torch.ones(3, 3, dtype=torch.bool, device=x.device).triu(1)
        if self.mask == "masked_fill":
            return scores.masked_fill(is_later, -INFINITY)
        if self.mask == "where":
            return torch.where(is_later, -INFINITY, scores)
        if self.mask == "full":
            return scores + torch.full((3, 3), -INFINITY, device=x.device).triu(1)
        if self.mask == "log":
            return scores + (~is_later).float().log()
        if self.mask == "minimum":  # of which two make an infinity
            least = is_later * torch.finfo(torch.float32).min
            return scores + (least + least)
        return scores + self.triangle

    def forward(self, x: Any) -> Any:
        return (self.scores(x).softmax(-1) @ x).square().mean()


@pytest.mark.parametrize("mask", ["masked_fill", "where", "full", "log", "minimum", "buffer"])
def test_a_mask_is_not_blamed_for_an_overflow_elsewhere(mask: str) -> None:
    torch.manual_seed(0)
    trainer = make_trainer(Attention(mask), torch.randn(2, 3, 4))
    good, large = torch.randn(2, 3, 4), torch.randn(2, 3, 4) * 1e30
    found = str(fail(trainer, [good], [good], [large]))
    # Products of 1e30 are too large for float32: query and key are not, their product is.
    assert found.startswith("rank 0 (d0): step 3: op '")
    assert "bmm" in found.split(" makes ")[0]


def test_a_row_that_is_masked_altogether_blames_softmax() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any, is_masked: Any) -> Any:
            return self.layer(x).masked_fill(is_masked, -INFINITY).softmax(-1)[:, 0].mean()

    x, mask = torch.randn(2, 4), torch.zeros(2, 4, dtype=torch.bool)
    trainer = make_trainer(Masked(), x, mask)
    one, all_of_it = mask.clone(), mask.clone()
    one[:, 1], all_of_it[0] = True, True
    error = fail(trainer, [x, one], [x, all_of_it])
    assert "softmax" in str(error).split(" makes nan")[0]
    assert "masked_fill" not in str(error)


class Formula(nn.Module):
    """A function of one product."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x * self.weight)


@pytest.mark.parametrize(
    ("function", "good", "bad", "words"),
    [
        (lambda y: y.exp().mean(), 1.0, 1000.0, ["'exp", "makes inf"]),
        (lambda y: y.log().mean(), 1.0, 0.0, ["'log", "makes -inf"]),
        (lambda y: (y / y).mean(), 1.0, 0.0, ["'div", "makes nan"]),
        # Softmax by hand: infinity over infinity is made of an overflow.
        (
            lambda y: (y.exp() / y.exp().sum())[0, 0],
            1.0,
            1000.0,
            ["'exp", "makes inf, and op 'div", "makes nan of it"],
        ),
        # Entropy: zero times the logarithm of zero.
        (lambda y: (y * y.log()).mean(), 1.0, 0.0, ["'log", "makes -inf, and op 'mul"]),
        # Only backward is not finite: the slope of a square root at zero.
        (lambda y: y.sqrt().mean(), 1.0, 0.0, ["div", "makes inf"]),
        # A branch that is not taken makes NaN in forward, which is nobody's fault, and in backward,
        # where it spoils the gradient.
        (lambda y: torch.where(y > 0, y.log(), 0.0).mean(), 1.0, 0.0, ["div", "makes nan"]),
    ],
)
def test_the_op_that_makes_the_first_of_them_is_named(
    function: Any, good: float, bad: float, words: list[str]
) -> None:
    def batch(value: float) -> list[Any]:
        return [torch.full((2, 3), value)]

    trainer = make_trainer(Formula(function), *batch(good), rate=1e-9)
    found = str(fail(trainer, batch(good), batch(bad)))
    for word in words:
        assert word in found
        found = found[found.index(word) :]


def test_a_branch_that_is_not_taken_is_not_blamed() -> None:
    # The logarithm of a negative number is NaN, backward divides zero by it: that is zero.
    formula = Formula(lambda y: torch.where(y > 0, y.log(), 0.0).mean())
    trainer = make_trainer(formula, torch.ones(2, 3))
    trainer.step([torch.full((2, 3), -1.0)])
    assert trainer.gather_losses() == [0.0]
    trainer.close()


def test_a_batch_that_is_not_finite_is_named() -> None:
    trainer = make_trainer(Formula(lambda y: y.mean()), torch.ones(2, 3))
    found = fail(trainer, [torch.ones(2, 3)], [torch.full((2, 3), float("nan"))])
    assert str(found) == "rank 0 (d0): step 2: input 0 holds nan at its start"


def test_an_update_that_overflows_is_named() -> None:
    # The gradient is 1e37 / 6 times 2; times the learning rate that is too large for float32.
    trainer = make_trainer(Formula(lambda y: y.mean()), torch.ones(2, 3), rate=1e37)
    found = fail(trainer, [torch.full((2, 3), 1e37)])
    assert re.search(r"step 1: op '\S*sgd\S*' makes -inf$", str(found))


def test_a_sum_over_microbatches_is_named_where_it_overflows() -> None:
    trainer = make_trainer(Formula(lambda y: y.mean()), torch.ones(2, 3))
    trainer.close()
    step, names = trainer.steps.any(), trainer.lowered.program.graph.op_names
    (update,) = (each for each in step.ledger.kernels if "sgd" in each.node.name)
    gradient = max(update.reads.values())  # made after the weight
    (weight,) = update.made
    infinite = Finding(version=gradient, flaw="inf", microbatch=0, is_sum=True)
    spoilt = Finding(version=weight, flaw="-inf", microbatch=0)
    maker = names[step.ledger.versions[gradient].source]
    blame = find_blame(step, names, [[], [infinite, spoilt]], ())
    assert blame == Blame(what=f"the sum of gradients of op '{maker}' makes inf", rank=1)
    single = Finding(version=gradient, flaw="inf", microbatch=3)
    blame = find_blame(step, names, [[single], [infinite, spoilt]], ())
    assert blame == Blame(what=f"op '{maker}' makes inf in microbatch 3", rank=0)
    assert find_blame(step, names, [[single], [infinite]], ()) is None  # the end is not spoilt
    assert find_blame(step, names, [[], [infinite, spoilt]], ["weight"]) is None


def test_an_inspector_keeps_the_first_of_each_kind() -> None:
    inspector = Inspector()
    inspector.look(4, torch.tensor([1.0]), 0)
    assert inspector.take() == []
    inspector.look(4, torch.tensor([INFINITY]), 1)
    inspector.look(4, torch.tensor([float("nan")]), 2)  # a NaN counts more
    inspector.look(4, torch.tensor([float("nan")]), 3)
    inspector.look(4, torch.tensor([-INFINITY]), 0, is_sum=True)
    assert [(each.flaw, each.microbatch) for each in inspector.take()] == [("nan", 2), ("-inf", 0)]
    assert inspector.take() == []
