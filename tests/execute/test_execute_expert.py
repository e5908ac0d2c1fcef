"""Replicas that hold different experts, and tensor teams of experts, train as one process does."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from expert_models import captured, make_workload, train_eagerly  # noqa: E402
from ranks import RANKS, Ranks  # noqa: E402
from small_plans import device_names, num_ranks  # noqa: E402
from small_trainer import train_shares  # noqa: E402

from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.graph.stack.find import find_layers  # noqa: E402
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

STEPS, TOLERANCE = 5, 1e-5


def plan_of(graph: Graph, count: int, microbatches: int = 0, **how: Any) -> Plan:
    part = Part(ops=graph.op_names, devices=device_names(count), **how)
    kind = ScheduleKind.ONE_F_ONE_B
    schedule = Schedule(kind=kind, microbatches=microbatches) if microbatches else None
    return Plan(parts=(part,), schedule=schedule)


def check(ranks: Ranks, name: str, plan: Plan, optimizer: str = "momentum") -> None:
    """Train by the plan and compare all losses and everything that any rank holds."""
    losses, tensors = train_eagerly(name, STEPS, optimizer)
    graph = captured(name, optimizer)
    answers = ranks.train(
        num_ranks(plan), train_shares, make_workload, name, graph, plan, STEPS, optimizer,
        timeout=200,
    )  # fmt: skip
    seen = set()
    for own_losses, held in answers:
        assert own_losses == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        for key, (value, share) in held.items():
            if key in tensors:
                seen.add(key)
                wanted = tensors[key] if share is None else share.of(tensors[key].contiguous())
                torch.testing.assert_close(
                    value.reshape(wanted.shape), wanted, rtol=TOLERANCE, atol=TOLERANCE
                )
    assert seen == set(tensors)


WAYS: dict[str, dict[str, Any]] = {
    "2 experts": {"count": 2, "expert": 2},
    "4 experts": {"count": 4, "expert": 4},
    "2 experts twice": {"count": 4, "expert": 2},
    "microbatches": {"count": 4, "expert": 2, "microbatches": 2},
    "unequal": {"count": 4, "expert": 2, "shares": (0.5, 0.25, 0.125, 0.125)},
    "zero 1": {"count": 4, "expert": 2, "zero": 1},
    "zero 2": {"count": 4, "expert": 2, "zero": 2, "microbatches": 2},
    "zero 3": {"count": 4, "expert": 2, "zero": 3},
    "zero 3, one holder": {"count": 4, "expert": 4, "zero": 3},
    "recomputed": {"count": 4, "expert": 2, "recompute": Recompute.FULL},
    "selective": {"count": 2, "expert": 2, "recompute": Recompute.SELECTIVE},
    "tensor": {"count": 2, "tensor": 2},
    "tensor and experts": {"count": 4, "tensor": 2, "expert": 2},
    "sequence": {"count": 2, "tensor": 2, "sequence": True},
    "sequence and experts": {"count": 4, "tensor": 2, "sequence": True, "expert": 2},
    "tensor, zero 1, recomputed": {
        "count": 4, "tensor": 2, "expert": 2, "zero": 1, "recompute": Recompute.FULL,
        "microbatches": 2,
    },
    "data, recomputed": {"count": 4, "recompute": Recompute.FULL},
}  # fmt: skip


@pytest.mark.parametrize("way", few(WAYS, "tensor and experts"))
def test_experts_train_alike_however_they_are_divided(ranks: Ranks, way: str) -> None:
    check(ranks, "two of four", plan_of(captured("two of four", "momentum"), **WAYS[way]))


@pytest.mark.parametrize("way", few(WAYS, "2 experts"))
def test_replicas_without_tokens_wait_for_others(ranks: Ranks, way: str) -> None:
    check(ranks, "lopsided", plan_of(captured("lopsided", "momentum"), **WAYS[way]))


@pytest.mark.parametrize("way", few(WAYS, "recomputed"))
def test_tokens_of_one_expert_each_travel(ranks: Ranks, way: str) -> None:
    check(ranks, "one of eight", plan_of(captured("one of eight", "adamw"), **WAYS[way]), "adamw")


@pytest.mark.parametrize("way", few(WAYS, "2 experts"))
def test_mixtral_of_transformers_trains_alike(ranks: Ranks, way: str) -> None:
    pytest.importorskip("transformers", reason="needs the zoo extra")
    check(ranks, "mixtral", plan_of(captured("mixtral", "momentum"), **WAYS[way]))


STAGES: dict[str, tuple[ScheduleKind, list[dict[str, Any]]]] = {
    "gpipe": (ScheduleKind.GPIPE, [{"expert": 2}] * 2),
    "1f1b": (ScheduleKind.ONE_F_ONE_B, [{"expert": 2, "zero": 1}] * 2),
    "zero-bubble": (ScheduleKind.ZERO_BUBBLE, [{"expert": 2}] * 2),
    "recomputed": (
        ScheduleKind.ONE_F_ONE_B,
        [{"expert": 2, "recompute": Recompute.FULL}, {"expert": 2, "zero": 3}],
    ),
    "one stage": (ScheduleKind.ONE_F_ONE_B, [{"expert": 2}, {}]),
}


@pytest.mark.parametrize("name", few(STAGES, "1f1b"))
def test_stages_of_experts_train_alike(ranks: Ranks, name: str) -> None:
    kind, hows = STAGES[name]
    graph = captured("two of four", "momentum")
    check(ranks, "two of four", layer_stages(graph, kind, hows))


def layer_stages(graph: Graph, kind: ScheduleKind, hows: list[dict[str, Any]]) -> Plan:
    """Two stages of whole layers, on two devices each."""
    stack = find_layers(graph)
    is_late = stack.layer_of_op >= stack.num_layers // 2
    names = device_names(RANKS)
    parts = tuple(
        Part(
            ops=tuple(
                name for name, late in zip(graph.op_names, is_late, strict=True) if late == k
            ),
            devices=names[2 * k : 2 * k + 2],
            **how,
        )
        for k, how in enumerate(hows)
    )
    return Plan(parts=parts, schedule=Schedule(kind=kind, microbatches=2))
