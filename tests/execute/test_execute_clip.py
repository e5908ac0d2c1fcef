"""Gradients are clipped by the norm of all of them, wherever they are."""

from collections.abc import Callable

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import RANKS, Ranks  # noqa: E402
from small_models import captured  # noqa: E402
from small_plans import (  # noqa: E402
    UNEQUAL,
    data_plan,
    factor_plan,
    hybrid,
    num_ranks,
    pipeline_plan,
    random_placement,
)
from small_trainer import LEARNING_RATE, OPTIMIZER  # noqa: E402
from team_models import make  # noqa: E402
from team_plans import Case, Stage, make_plan  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.trace import find_loss  # noqa: E402
from meshwright.execute.clip import Clip  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.settings import Settings  # noqa: E402
from meshwright.execute.trainer import Trainer  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind, Sync  # noqa: E402
from meshwright.program.program import Kind  # noqa: E402
from quick import few  # noqa: E402
from rank_seat import take_seat  # noqa: E402
from small import connected  # noqa: E402

STEPS = 4
LIMIT = 0.3
"""Below the norms of the first steps of these models."""


def train_clipped(rank: int, name: str, graph: Graph, plan: Plan, limit: float) -> list[float]:
    workload = make(name)
    lowered = lower_frozen(graph, connected(RANKS), plan, clips=True)
    settings = Settings(optimizer=OPTIMIZER, learning_rate=LEARNING_RATE, clip_norm=limit)
    trainer = Trainer(take_seat(lowered, rank), workload, settings)
    for _ in range(STEPS):
        trainer.step(workload.args, workload.kwargs)
    losses = trainer.gather_losses()
    trainer.close()
    return losses


def train_plainly(name: str, limit: float) -> tuple[list[float], list[float]]:
    """Losses, and norms before they are clipped."""
    workload = make(name)
    model = workload.model
    update = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    losses, norms = [], []
    for _ in range(STEPS):
        update.zero_grad()
        loss = find_loss(model(*workload.args, **workload.kwargs), workload.loss)
        torch.autograd.backward(loss)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), limit)))
        update.step()
        losses.append(float(loss.detach()))
    return losses, norms


PLANS: dict[str, Callable[[Graph], Plan]] = {
    "alone": lambda graph: data_plan(graph, 1),
    "data": lambda graph: data_plan(graph, RANKS),
    "unequal": lambda graph: data_plan(graph, RANKS, UNEQUAL),
    "server": lambda graph: data_plan(graph, RANKS, sync=Sync.PARAMETER_SERVER),
    "factors": lambda graph: factor_plan(graph, RANKS),
    "placement": lambda graph: random_placement(graph, RANKS, 2),
    "1f1b": lambda graph: pipeline_plan(graph, RANKS, 4, ScheduleKind.ONE_F_ONE_B, 4),
    "pipeline x data": lambda graph: pipeline_plan(graph, RANKS, 2, ScheduleKind.GPIPE, 4),
    "zero 1": lambda graph: hybrid(data_plan(graph, RANKS), 1, Recompute.NONE),
    "zero 2": lambda graph: hybrid(data_plan(graph, RANKS), 2, Recompute.NONE),
    "zero 3": lambda graph: hybrid(data_plan(graph, RANKS), 3, Recompute.FULL),
    "zero 3 in a pipeline": lambda graph: hybrid(
        pipeline_plan(graph, RANKS, 2, ScheduleKind.ONE_F_ONE_B, 2), 3, Recompute.NONE
    ),
}


@pytest.mark.parametrize("kind", few(PLANS, "placement", "pipeline x data", "zero 2"))
def test_gradients_are_clipped_as_in_one_process(ranks: Ranks, kind: str) -> None:
    graph = captured("language")
    plan = PLANS[kind](graph)
    expected, norms = train_plainly("language", LIMIT)
    assert max(norms) > LIMIT
    for losses in ranks.train(num_ranks(plan), train_clipped, "language", graph, plan, LIMIT):
        assert losses == pytest.approx(expected, rel=1e-5)


TEAMS = {
    str(case): case
    for case in (
        Case(model="llama", stages=(Stage(tensor=2, sequence=True, replicas=2),)),
        Case(model="gpt2", stages=(Stage(tensor=2, replicas=2, zero=3),)),
        Case(model="gpt2", stages=(Stage(tensor=2, replicas=2, zero=1),)),
        Case(model="llama", stages=(Stage(context=2, replicas=2, zero=2),)),
        Case(model="sorted-mixtral", stages=(Stage(expert=2, replicas=4),)),
        Case(
            model="llama",
            stages=(Stage(tensor=2), Stage(replicas=2)),
            kind=ScheduleKind.ONE_F_ONE_B,
            microbatches=2,
        ),
    )
}


@pytest.mark.parametrize("case", few(TEAMS, next(iter(TEAMS))))
def test_members_of_teams_count_what_they_share_once(ranks: Ranks, case: str) -> None:
    found = TEAMS[case]
    plan = make_plan(found)
    expected, norms = train_plainly(found.model, LIMIT)
    assert max(norms) > LIMIT
    args = found.model, found.graph, plan, LIMIT
    for losses in ranks.train(num_ranks(plan), train_clipped, *args):
        assert losses == pytest.approx(expected, rel=1e-5)


def test_tied_weights_count_once(ranks: Ranks) -> None:
    graph = captured("tied")
    plan = pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 4)
    expected, norms = train_plainly("tied", LIMIT)
    assert max(norms) > LIMIT
    for losses in ranks.train(2, train_clipped, "tied", graph, plan, LIMIT):
        assert losses == pytest.approx(expected, rel=1e-5)


def test_gradients_below_the_limit_stay(ranks: Ranks) -> None:
    graph = captured("perceptron")
    expected, norms = train_plainly("perceptron", 1e9)
    assert max(norms) < 1e9
    for losses in ranks.train(2, train_clipped, "perceptron", graph, data_plan(graph, 2), 1e9):
        assert losses == pytest.approx(expected, rel=1e-6)


def test_no_update_starts_before_the_norm_is_there() -> None:
    graph = captured("language")
    lowered = lower_frozen(graph, connected(RANKS), PLANS["pipeline x data"](graph), clips=True)
    rows, timeline = lowered.program.instructions, lowered.timeline
    norms = np.arange(lowered.num_planned, len(rows))
    assert set(rows["kind"][norms].tolist()) == {Kind.ALL_REDUCE}
    assert rows["device"][norms].tolist() == list(range(RANKS))
    kinds = np.array(lowered.program.graph.kind)
    is_update = (rows["op"] >= 0) & np.char.startswith(kinds[rows["op"]], "_fused_")
    assert is_update.any()
    assert timeline.start[is_update].min() >= timeline.finish[norms].max()
    plain = lower_frozen(graph, connected(RANKS), PLANS["pipeline x data"](graph))
    assert timeline.step_seconds >= plain.timeline.step_seconds


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float32", "float64"])
def test_the_norm_of_large_gradients_is_found_in_any_precision(name: str) -> None:
    """In fp16 those of 60,000 have one that it cannot hold."""
    dtype = getattr(torch, name)
    values = [torch.full((16,), 6e4, dtype=dtype), torch.full((4,), 3.0, dtype=dtype)]
    clip = Clip(1.0, (), torch.ones(2, dtype=torch.float64), None)
    expected = sum(float(each.double().square().sum()) for each in values)
    assert float(clip.squares(values)) == pytest.approx(expected, rel=1e-6)
