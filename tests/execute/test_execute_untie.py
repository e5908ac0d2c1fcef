"""Tied weights as copies on several ranks: the first stage embeds, the last has the head."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

import small_models  # noqa: E402
from ranks import RANKS, Ranks  # noqa: E402
from small_models import make_workload, train_eagerly  # noqa: E402
from small_plans import data_plan, random_placement  # noqa: E402
from small_trainer import OPTIMIZER, make_trainer, take_steps  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.checkpoint import (  # noqa: E402
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.execute.trainer import Trainer  # noqa: E402
from meshwright.graph.graph import Graph, Phase  # noqa: E402
from meshwright.plan.plan import Part, Plan, ScheduleKind  # noqa: E402
from meshwright.program.untie import untie  # noqa: E402
from meshwright.search.instance import make_instance  # noqa: E402
from meshwright.search.method.pipeline.chain import make_chain, stages_plan  # noqa: E402
from meshwright.search.method.pipeline.consecutive import equal_stages  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402

STEPS, TOLERANCE = 5, 1e-5
COPIES = ("words.weight", "head.weight")


def captured(*, untie: bool = True) -> Graph:
    return small_models.captured("tied", untie=untie)


def pipeline(homes: list[list[int]], microbatches: int) -> Plan:
    """One stage a home, which is one or more devices."""
    graph, cluster = captured(), connected(RANKS)
    chain = make_chain(make_instance(graph, cluster), [0])
    assert not chain.is_wrapped
    ends = equal_stages(np.ones(chain.num_blocks), len(homes))
    plan = stages_plan(
        graph, cluster, chain, ends, [np.array(each) for each in homes], microbatches
    )
    assert plan.schedule is not None
    assert plan.schedule.kind is ScheduleKind.ONE_F_ONE_B
    return plan


def held_by(trainer: Trainer) -> dict[str, Any]:
    """What a rank holds by the copies' own names."""
    return dict(zip(trainer.part.state, trainer.held.state, strict=True))


def train_rank(rank: int, graph: Graph, plan: Plan) -> tuple[list[float], Any, Any]:
    """Losses, what the rank holds, and what it would save."""
    trainer = make_trainer(rank, make_workload("tied"), graph, plan)
    losses = take_steps(trainer, STEPS)
    held, saved = ({key: each.clone() for key, each in made.items()}
                   for made in (held_by(trainer), trainer.state))  # fmt: skip
    trainer.close()
    return losses, held, saved


PLANS = {
    "2 stages x 2 replicas": lambda: pipeline([[0, 1], [2, 3]], 4),
    "3 stages": lambda: pipeline([[0, 1], [2], [3]], 4),
    "4 stages": lambda: pipeline([[0], [1], [2], [3]], 8),
    "placement": lambda: random_placement(captured(), RANKS, 2),
    "data": lambda: data_plan(captured(), RANKS),
}


@cache
def trained(ranks: Ranks, kind: str) -> list[Any]:
    return ranks.train(RANKS, train_rank, captured(), PLANS[kind]())


@pytest.mark.parametrize("kind", few(PLANS, "2 stages x 2 replicas"))
def test_copies_on_several_ranks_train_as_one_process(ranks: Ranks, kind: str) -> None:
    losses, tensors = train_eagerly("tied", STEPS)
    seen: set[str] = set()
    copies: dict[str, Any] = {}
    for own_losses, held, saved in trained(ranks, kind):
        assert own_losses == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        assert "head.weight" not in saved
        for key, value in saved.items():
            if key in tensors:
                torch.testing.assert_close(value, tensors[key], rtol=TOLERANCE, atol=TOLERANCE)
                seen.add(key)
        copies |= {key: value for key, value in held.items() if key in COPIES}
    assert seen == set(tensors)
    assert torch.equal(*(copies[name] for name in COPIES))


@pytest.mark.slow
def test_the_first_and_the_last_stage_hold_one_copy_each(ranks: Ranks) -> None:
    answers = trained(ranks, "4 stages")
    held = [[name for name in COPIES if name in each] for _, each, _ in answers]
    assert held == [["words.weight"], [], [], ["head.weight"]]
    momentum = [saved.get("words.weight.momentum_buffer") for _, _, saved in answers]
    assert torch.equal(momentum[0], momentum[3])


@pytest.mark.parametrize("untie", few([False, True], True))
def test_a_step_is_traced_as_it_was_planned(untie: bool) -> None:
    steps = PlannedSteps(make_workload("tied"), captured(untie=untie), OPTIMIZER)
    for samples in (4, 2):
        assert steps[samples].trace.tied == ((COPIES,) if untie else ())


class Aliased(nn.Module):
    """A tied weight and a bias of two names, of which only the second is read, before others: the
    updates of both stand elsewhere among those of the names of copies."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.bias = nn.Parameter(torch.zeros(12))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 12)
        self.head.weight, self.head.bias = self.words.weight, self.bias
        self.scale = nn.Parameter(torch.ones(12))

    def forward(self, ids: Any) -> Any:
        made = self.head(self.norm(self.words(ids))) * self.scale
        return nn.functional.cross_entropy(made.flatten(0, 1), ids.flatten())


def test_copies_are_updated_where_untying_a_plan_has_them() -> None:
    workload = Workload(name="aliased", model=Aliased(), args=(torch.randint(0, 12, (4, 3)),))
    tied, wanted = (capture_workload(workload, OPTIMIZER, untie=each) for each in (False, True))
    is_late = np.array([module in ("head", "norm") for module in tied.module])
    users = is_late | (tied.phase != Phase.FORWARD)  # weights go where all ops are that read them
    apart = [group for group in set(tied.group.tolist()) if users[tied.group == group].all()]
    is_late = np.where(tied.group >= 0, np.isin(tied.group, apart) | is_late, is_late)
    is_late &= ~((tied.phase == Phase.UPDATE) & ~np.isin(tied.group, apart))
    parts = tuple(
        Part(
            ops=tuple(name for name, late in zip(tied.op_names, is_late, strict=True) if late == k),
            devices=(f"d{2 * k}", f"d{2 * k + 1}"),
            zero=1,
        )
        for k in range(2)
    )
    made, _, _ = untie(tied, connected(RANKS), Plan(parts=parts))
    assert made.kind == wanted.kind
    for op in range(made.num_ops):
        assert made.inputs[op].tolist() == wanted.inputs[op].tolist(), made.op_names[op]


def test_a_step_that_is_neither_capture_is_refused() -> None:
    steps = PlannedSteps(make_workload("tied"), small_models.captured("language"), OPTIMIZER)
    with pytest.raises(InputError, match=r"is _fused_sgd_, but .* it is add; plan again with"):
        steps[4]


@pytest.mark.parametrize("untie", few([False, True], True))
def test_a_checkpoint_with_copies_is_one_without(untie: bool, tmp_path: Path) -> None:
    """Three steps by one capture, the other two by the other."""
    first, second = (
        make_trainer(0, make_workload("tied"), graph, data_plan(graph, 1), connected(1))
        for graph in (captured(untie=untie), captured(untie=not untie))
    )
    for _ in range(3):
        first.step(first.workload.args)
    assert set(first.state) == set(second.state)
    save_checkpoint(tmp_path, 3, first.state)
    saved = find_checkpoint(tmp_path, pytest.fail)
    assert saved is not None
    load_checkpoint(saved, second.state)
    second.trained.spread_copies()
    for _ in range(2):
        second.step(second.workload.args)
    _, tensors = train_eagerly("tied", STEPS)
    held = held_by(second)
    for key, each in tensors.items():
        torch.testing.assert_close(held[key], each, rtol=TOLERANCE, atol=TOLERANCE)
    if not untie:
        assert torch.equal(*(held[name] for name in COPIES))
    first.close()
    second.close()
