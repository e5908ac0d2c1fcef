"""Plans train 16-bit weights with copies in fp32 as one process does that steps on such copies."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")
pytest.importorskip("transformers", reason="the model is of transformers")

from ranks import Ranks  # noqa: E402
from small_plans import (  # noqa: E402
    Held,
    data_plan,
    device_names,
    held_by,
    hybrid,
    join_held,
    num_ranks,
    pipeline_plan,
)
from small_trainer import make_trainer  # noqa: E402
from small_transformers import make_workload as make_wide  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.execute.resume import look_for_checkpoint, resume, save_state  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Part, Plan, Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

STEPS, RATE = 4, 1e-4
"""Most weights move by less in all steps than 16 bits resolve."""
PLANS: dict[str, Callable[[Graph], Plan]] = {
    "alone": lambda graph: data_plan(graph, 1),
    "data": lambda graph: data_plan(graph, 2),
    "zero 1": lambda graph: hybrid(data_plan(graph, 2), 1, Recompute.NONE),
    "zero 2": lambda graph: hybrid(data_plan(graph, 2), 2, Recompute.NONE),
    "zero 3": lambda graph: hybrid(data_plan(graph, 2), 3, Recompute.FULL),
    "team": lambda graph: Plan(
        parts=(Part(ops=graph.op_names, devices=device_names(2), tensor=2),)
    ),
    "pipeline": lambda graph: pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 2),
}


def make_workload() -> Workload:
    """A tiny GPT in bf16."""
    made = make_wide("gpt2")
    made.model.bfloat16()
    return made


@cache
def captured() -> Graph:
    return capture_workload(make_workload(), "mixed-adamw")


@cache
def train_plainly() -> tuple[list[float], dict[str, Any], dict[str, Any]]:
    """Losses, the copies at the end and what they started from, by a loop as one would write it."""
    workload = make_workload()
    model = workload.model
    copies = {name: each.detach().float() for name, each in model.named_parameters()}
    start = {name: each.clone() for name, each in copies.items()}
    update = torch.optim.AdamW(copies.values(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        loss = model(**workload.kwargs).loss
        loss.backward()
        for name, each in model.named_parameters():
            assert each.grad is not None
            copies[name].grad = each.grad.float()
        update.step()
        with torch.no_grad():
            for name, each in model.named_parameters():
                each.copy_(copies[name])
        losses.append(float(loss.detach()))
    return losses, copies, start


def train(rank: int, graph: Graph, plan: Plan, folder: str = "") -> tuple[list[float], Held]:
    """Losses and what a rank holds; with a folder it goes on halfway from a checkpoint there."""
    for turn in range(2 if folder else 1):
        workload = make_workload()
        trainer = make_trainer(
            rank, workload, graph, plan, optimizer="mixed-adamw", learning_rate=RATE
        )
        if turn:
            resume(trainer, look_for_checkpoint(Path(folder), None, pytest.fail))
        while trainer.num_steps < (STEPS // 2 if folder and not turn else STEPS):
            trainer.step(workload.args, workload.kwargs)
        if folder and not turn:
            save_state(Path(folder), trainer)
            trainer.close()
    losses, held = trainer.gather_losses(), held_by(trainer)
    trainer.close()
    return losses, held


def distance(found: dict[str, list[Any]]) -> float:
    """How far from plain training the copies have moved otherwise, as a part of all movement."""
    _, copies, start = train_plainly()
    apart = moved = 0.0
    for name, each in copies.items():
        for own in found[f"{name}.master"]:
            assert own.dtype is torch.float32
            apart += float((own - each).square().sum())
            moved += float((each - start[name]).square().sum())
    return float((apart / moved) ** 0.5)


@pytest.mark.parametrize("name", few(PLANS, "zero 1", "zero 3", "team"))
def test_a_plan_trains_as_a_loop_with_copies_in_fp32(ranks: Ranks, name: str) -> None:
    plan = PLANS[name](captured())
    answers = ranks.train(num_ranks(plan), train, captured(), plan)
    found = join_held([held for _, held in answers])
    for losses, _ in answers:
        assert losses == pytest.approx(train_plainly()[0], rel=2e-3)
    # Adam moves weights by signs of small gradients, which parts of the batch round otherwise.
    assert distance(found) < (1e-6 if name == "alone" else 0.15)
    for parameter in train_plainly()[1]:
        rounded = found[f"{parameter}.master"][0].bfloat16()
        assert all(torch.equal(each, rounded) for each in found[parameter])


def test_copies_go_on_from_a_checkpoint(ranks: Ranks, tmp_path: Path) -> None:
    plan = PLANS["zero 1"](captured())
    straight = join_held([held for _, held in ranks.train(2, train, captured(), plan)])
    answers = ranks.train(2, train, captured(), plan, str(tmp_path / "kept"))
    again = join_held([held for _, held in answers])
    assert again.keys() == straight.keys()
    for name, several in straight.items():
        assert all(map(torch.equal, several, again[name])), name
