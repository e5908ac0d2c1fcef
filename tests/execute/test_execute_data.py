"""Ranks that load their own rows train as one process that loads all of them."""

from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_models import BATCH, captured, make_workload, train_eagerly  # noqa: E402
from small_plans import UNEQUAL, data_plan, num_ranks, pipeline_plan, random_placement  # noqa: E402
from small_trainer import LEARNING_RATE, make_trainer  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812
from torch.utils.data import Dataset  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.feed import match_inputs  # noqa: E402
from meshwright.execute.loader import Loader, endless  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

STEPS = 6
SAMPLES = 3 * BATCH + 3
"""So that batches reach over the end of an epoch."""


class Pairs(Dataset[Any]):
    """Inputs and targets of the small perceptron; it counts what is read."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        self.inputs = torch.randn(SAMPLES, 8, generator=draw)
        self.targets = torch.rand(SAMPLES, 4, generator=draw)
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        self.read.append(index)
        return self.inputs[index], self.targets[index]


def make_loader(rows: Any) -> Loader:
    return Loader(Pairs(), BATCH, rows, shuffles=True, seed=1)


def train_on_rows(rank: int, graph: Graph, plan: Plan) -> tuple[list[float], int, list[int]]:
    """Losses, how many rows the rank has of a batch, and the samples that it read."""
    trainer = make_trainer(rank, make_workload("perceptron"), graph, plan)
    loader = make_loader(trainer.rows)
    for args, kwargs in islice(endless(loader), STEPS):
        trainer.step(args, kwargs)
        loader.take()
    losses = trainer.gather_losses()
    trainer.close()
    return losses, len(trainer.rows), loader.dataset.read


def train_on_all() -> list[float]:
    model = make_workload("perceptron").model
    update = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses = []
    for args, _ in islice(endless(make_loader(range(BATCH))), STEPS):
        update.zero_grad()
        loss = model(*args)
        loss.backward()
        update.step()
        losses.append(float(loss.detach()))
    return losses


KINDS = {
    "data": lambda graph: data_plan(graph, RANKS),
    "unequal": lambda graph: data_plan(graph, RANKS, UNEQUAL),
    "1f1b": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.ONE_F_ONE_B, 4),
    "pipeline x data": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.GPIPE, 2),
    "placement": lambda graph: random_placement(graph, RANKS, 2),
}


@pytest.mark.parametrize("kind", few(KINDS, "unequal", "pipeline x data"))
def test_ranks_train_on_their_own_rows(ranks: Ranks, kind: str) -> None:
    graph = captured("perceptron")
    plan = KINDS[kind](graph)
    answers = ranks.train(num_ranks(plan), train_on_rows, graph, plan)
    expected = train_on_all()
    for losses, rows, read in answers:
        assert losses == pytest.approx(expected, rel=1e-5)
        assert len(read) == (STEPS * rows if rows else 1)  # which shows what a batch looks like
    if kind == "unequal":
        assert [rows for _, rows, _ in answers] == [BATCH // 2, BATCH // 4, BATCH // 8, BATCH // 8]


def load_alone(rank: int) -> int:
    """How many batches the first rank loads while others do nothing."""
    if rank:
        return 0
    loader = Loader(Pairs(), BATCH, range(BATCH), shuffles=True, is_alone=True)
    return len(list(islice(endless(loader), STEPS)))


def test_one_rank_loads_whole_batches_by_itself(ranks: Ranks) -> None:
    assert ranks.call(2, load_alone) == [STEPS, 0]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((torch.zeros(16, 8),), {}, "must have 2 tensors, as planned, got 1"),
        (
            (torch.zeros(16, 9), torch.zeros(16, 4)),
            {},
            r"input 0 must be float32 of shape \[8\] a sample, as planned, got .* shape \[9\]",
        ),
        (
            (torch.zeros(16, 8), torch.zeros(16, 4, dtype=torch.int64)),
            {},
            "input 1 must be float32 of shape .* got int64",
        ),
        (
            (torch.zeros(16, 8),),
            {"y": torch.zeros(16, 4)},
            "must have the named inputs none, as planned, got y",
        ),
    ],
)
def test_a_batch_unlike_the_planned_one_is_refused(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        match_inputs(make_workload("perceptron"), args, kwargs)


def test_named_inputs_come_in_any_order() -> None:
    x, y = torch.zeros(3, 8), torch.ones(3, 4)
    workload = Workload(name="w", model=nn.Identity(), kwargs={"x": x, "y": y})
    found = match_inputs(workload, (), {"y": y, "x": x})
    assert [each.shape[1] for each in found] == [8, 4]


class Tagged(nn.Module):
    """A loss over labels, of which some may be ignored."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)

    def forward(self, ids: Any, labels: Any) -> Any:
        after = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(self.head(self.words(ids)).flatten(0, 1), after.flatten())


def make_tagged(*ignored: tuple[int, int]) -> Workload:
    torch.manual_seed(2)
    ids = torch.randint(0, 10, (4, 6))
    labels = ids.clone()
    for sample, token in ignored:
        labels[sample, token] = -100
    return Workload(name="tagged", model=Tagged(), args=(ids, labels))


def step_on_rows(rank: int, workload: Workload, graph: Graph, plan: Plan) -> list[float]:
    trainer = make_trainer(rank, workload, graph, plan)
    trainer.step([each[list(trainer.rows)] for each in workload.args])
    losses = trainer.gather_losses()
    trainer.close()
    return losses


def test_labels_are_counted_across_ranks(ranks: Ranks) -> None:
    graph = capture_workload(make_tagged(), "momentum")
    plan = data_plan(graph, 2)
    even = make_tagged((0, 3), (2, 1))
    expected = float(even.model(*even.args).detach())
    answers = ranks.train(2, step_on_rows, even, graph, plan)
    assert answers == [[pytest.approx(expected)]] * 2
    with pytest.raises(InputError, match="as many that count a sample, at step 1 they do not"):
        ranks.train(2, step_on_rows, make_tagged((0, 3)), graph, plan)


def refuse_rows(rank: int, graph: Graph, plan: Plan) -> None:
    workload = make_workload("perceptron")
    trainer = make_trainer(rank, workload, graph, plan)
    trainer.step([each[:3] for each in workload.args])


def test_a_batch_of_another_size_is_refused(ranks: Ranks) -> None:
    graph = captured("perceptron")
    line = f"must be {BATCH} samples, as planned, or the {BATCH // 2} that this rank reads, got 3"
    with pytest.raises(InputError, match=line):
        ranks.train(2, refuse_rows, graph, data_plan(graph, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_a_gpu_s_host_goes_on_while_a_batch_is_on_its_way() -> None:
    """And the batch that it was given may be filled with the next one at once."""
    workload, graph = make_workload("perceptron"), captured("perceptron")
    trainer = make_trainer(0, workload, graph, data_plan(graph, 1), device="cuda")
    batch = [each.clone() for each in workload.args]
    for _ in range(3):
        trainer.step(batch)
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # a second
    done.record()
    trainer.step(batch)
    assert not done.query()
    for each in batch:
        each.zero_()
    expected, _ = train_eagerly("perceptron", 4)
    assert trainer.gather_losses() == pytest.approx(expected, rel=1e-4)
