"""Plans of every kind for small captured graphs, and a rank's share in training by one."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from small_models import make_workload
from small_trainer import OPTIMIZER, Tensors, make_trainer, take_steps

from meshwright.execute.trainer import Trainer
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind, Sync, place_ops
from meshwright.program.piece import whole_box
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages
from small import connected

UNEQUAL = (0.5, 0.25, 0.125, 0.125)


def device_names(count: int) -> tuple[str, ...]:
    return tuple(f"d{number}" for number in range(count))


def random_placement(graph: Graph, count: int, seed: int) -> Plan:
    """Every op anywhere, but those that share state together; the order is random, too."""
    draw = random.Random(seed)
    of_group: dict[int, int] = {}
    devices = []
    for group in graph.group.tolist():
        device = draw.randrange(count)
        devices.append(of_group.setdefault(group, device) if group >= 0 else device)
    priorities = [draw.random() for _ in devices] if seed % 2 else []
    return place_ops(graph.op_names, devices, device_names(count), priorities)


def data_plan(
    graph: Graph, count: int, shares: Sequence[float] = (), sync: Sync = Sync.ALL_REDUCE
) -> Plan:
    part = Part(ops=graph.op_names, devices=device_names(count), shares=tuple(shares), sync=sync)
    return Plan(parts=(part,))


def factor_plan(graph: Graph, count: int) -> Plan:
    """Data parallelism in which every replica computes whole weight gradients, not the rest."""
    is_sum = (graph.split == Split.SUM) & (graph.phase == Phase.BACKWARD)
    plans = (
        tuple(name for name, each in zip(graph.op_names, is_sum, strict=True) if each == wanted)
        for wanted in (False, True)
    )
    syncs = (Sync.ALL_REDUCE, Sync.DUPLICATE)
    return Plan(
        parts=tuple(
            Part(ops=ops, devices=device_names(count), sync=sync)
            for ops, sync in zip(plans, syncs, strict=True)
        )
    )


def pipeline_plan(
    graph: Graph,
    count: int,
    stages: int,
    kind: ScheduleKind,
    microbatches: int,
    *,
    shares: Sequence[float] = (),
) -> Plan:
    """Stages of about as many blocks, each on count / stages devices (fewer devices: in turn)."""
    cluster = connected(count)
    chain = make_chain(make_instance(graph, cluster), [0])
    ends = equal_stages(np.ones(chain.num_blocks), stages)
    homes = (
        np.split(np.arange(count), stages)
        if stages <= count
        else [np.array([number % count]) for number in range(stages)]
    )
    plan = stages_plan(graph, cluster, chain, ends, homes, microbatches)
    if shares:
        plan = replace(
            plan, parts=tuple(replace(part, shares=tuple(shares)) for part in plan.parts)
        )
    if len(plan.parts) > stages:  # tied weights: the end is a stage on the first one's devices
        return plan
    return replace(plan, schedule=Schedule(kind=kind, microbatches=microbatches))


def hybrid(plan: Plan, zero: int, again: Recompute) -> Plan:
    """The plan with ZeRO and recomputation in all its parts."""
    parts = (replace(part, zero=zero, recompute=again) for part in plan.parts)
    return replace(plan, parts=tuple(parts))


def num_ranks(plan: Plan) -> int:
    """How many devices a plan uses."""
    return len({device for part in plan.parts for device in part.devices})


def train_rank(
    rank: int, name: str, graph: Graph, plan: Plan, steps: int
) -> tuple[list[float], Tensors]:
    """Train a few steps on one rank: all losses, and what the rank holds."""
    trainer = make_trainer(rank, make_workload(name), graph, plan)
    losses = take_steps(trainer, steps)
    state = {key: each.clone() for key, each in trainer.state.items()}
    trainer.close()
    return losses, state


Held = dict[str, tuple[Any, Any]]
"""By name: numbers, and the `Holding` that says which; None: all of them."""


def train_pieces(
    rank: int, name: str, graph: Graph, plan: Plan, steps: int, optimizer: str = OPTIMIZER
) -> tuple[list[float], Held]:
    """As `train_rank`, where a rank may hold shards."""
    trainer = make_trainer(rank, make_workload(name), graph, plan, optimizer=optimizer)
    losses, held = take_steps(trainer, steps), held_by(trainer)
    trainer.close()
    return losses, held


def held_by(trainer: Trainer) -> Held:
    """What a rank holds, copied."""
    holdings = trainer.trained.holdings
    return {key: (each.clone(), holdings.get(key)) for key, each in trainer.state.items()}


def join_held(answers: Sequence[Held]) -> dict[str, list[Any]]:
    """Every whole tensor that ranks hold, and those that their pieces make up together."""
    found: dict[str, list[Any]] = {}
    made: dict[str, tuple[Any, Any]] = {}
    for held in answers:
        for key, (value, holding) in held.items():
            if holding is None:
                found.setdefault(key, []).append(value)
                continue
            if key not in made:
                whole = torch.zeros(holding.shape, dtype=value.dtype)
                made[key] = whole, torch.zeros(holding.shape, dtype=torch.int64)
            for tile in holding.tiles:
                where = tile.box.within(whole_box(holding.shape))
                made[key][0][where] = tile.view(value)
                made[key][1][where] += 1
    for key, (whole, count) in made.items():
        assert (count > 0).all(), f"{key}: each number has a holder"
        assert (count == count.min()).all(), f"{key}: each number has as many holders"
        found.setdefault(key, []).append(whole)
    return found


def check_trained(
    answers: Sequence[tuple[list[float], Held]],
    expected: tuple[list[float], Tensors],
    losses_within: float,
    tensors_within: float,
) -> None:
    """Compare what `train_pieces` returns on all ranks with plain training: the losses, everything
    that any rank holds, and all of each tensor."""
    losses, tensors = expected
    for own, _ in answers:
        assert own == pytest.approx(losses, rel=losses_within, abs=losses_within)
    found = join_held([held for _, held in answers])
    assert set(found) >= set(tensors)
    for key, wanted in tensors.items():
        for each in found[key]:
            torch.testing.assert_close(
                each,
                wanted,
                rtol=tensors_within,
                atol=tensors_within,
                msg=lambda text, key=key: key + text,
            )
