"""Context teams on real processes train as one process does: each member has its tokens."""

from itertools import product
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")
pytest.importorskip("transformers")

from ranks import Ranks  # noqa: E402
from small_models import Language  # noqa: E402
from small_plans import num_ranks  # noqa: E402
from small_trainer import train_shares  # noqa: E402
from small_transformers import captured, hear_rank, make_workload, train_eagerly  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.cost.layer.call import loss_bytes  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.graph.stack.find import find_layers  # noqa: E402
from meshwright.plan.plan import Keys, Part, Plan, Recompute, Schedule, ScheduleKind  # noqa: E402
from quick import few, pairwise  # noqa: E402
from small import connected  # noqa: E402

STEPS, TOLERANCE = 5, 1e-5
MODELS = (
    "gpt2", "gpt2, tied", "gpt2, dropping", "llama", "llama, scaled", "bert", "bert, dropping",
)  # fmt: skip
TEAMS: dict[str, dict[str, Any]] = {
    "two": {"context": 2},
    "four": {"context": 4},
    "two replicas": {"context": 2, "replicas": 2},
    "unequal": {"context": 2, "replicas": 2, "shares": (0.75, 0.25)},
    "tensor": {"context": 2, "tensor": 2},
    "sequence": {"context": 2, "tensor": 2, "sequence": True},
    "ring": {"context": 2, "keys": Keys.RING},
    "ring of four": {"context": 4, "keys": Keys.RING},
    "ring replicas": {"context": 2, "keys": Keys.RING, "replicas": 2},
    "ring unequal": {"context": 2, "keys": Keys.RING, "replicas": 2, "shares": (0.75, 0.25)},
    "ring sequence": {"context": 2, "keys": Keys.RING, "tensor": 2, "sequence": True},
}
CASES = [
    f"{team}, zero {zero}, {again}" for team, zero, again in product(TEAMS, range(4), Recompute)
]
PAIRS = [
    f"{team}, zero {zero}, {again}" for team, zero, again in pairwise(TEAMS, range(4), Recompute)
]
"""Cases of a second model, and of microbatches."""
QUICK, QUICK_PARTED = "ring sequence, zero 3, full", "two replicas, zero 3, full"


def make_part(graph: Graph, ops: Any, first: int = 0, **more: Any) -> Part:
    count = more.get("context", 1) * more.get("tensor", 1) * more.pop("replicas", 1)
    devices = tuple(f"d{number}" for number in range(first, first + count))
    return Part(ops=tuple(np.array(graph.op_names)[ops].tolist()), devices=devices, **more)


def plan_of(case: str, graph: Graph, microbatches: int = 1) -> Plan:
    team, zero, again = case.split(", ")
    every = np.arange(graph.num_ops)
    more: dict[str, Any] = {"zero": int(zero.removeprefix("zero ")), "recompute": Recompute(again)}
    part = make_part(graph, every, **TEAMS[team], **more)
    if microbatches == 1:
        return Plan(parts=(part,))
    schedule = Schedule(kind=ScheduleKind.GPIPE, microbatches=microbatches)
    return Plan(parts=(part,), schedule=schedule)


def check(ranks: Ranks, name: str, plan: Plan) -> None:
    """Train by the plan and compare all losses and every number that any rank holds of a weight."""
    graph = captured(name)
    losses, weights = train_eagerly(name, STEPS)
    answers = ranks.train(
        num_ranks(plan), train_shares, make_workload, name, graph, plan, STEPS, timeout=300
    )
    found = set()
    for own_losses, held in answers:
        assert own_losses == pytest.approx(losses, rel=TOLERANCE, abs=TOLERANCE)
        for key, (value, share) in held.items():
            if key in weights:
                found.add(weights[key].data_ptr())
                wanted = weights[key] if share is None else share.of(weights[key].contiguous())
                torch.testing.assert_close(
                    value.reshape(-1), wanted.reshape(-1), rtol=TOLERANCE, atol=TOLERANCE
                )
    assert found == {each.data_ptr() for each in weights.values()}


@pytest.mark.parametrize("name", few(MODELS, "bert, dropping"))
def test_every_model_trains_alike_with_its_tokens_divided(ranks: Ranks, name: str) -> None:
    check(ranks, name, plan_of("two, zero 0, none", captured(name)))


@pytest.mark.parametrize("name", few(MODELS, "bert, dropping"))
def test_every_model_trains_alike_while_its_keys_travel(ranks: Ranks, name: str) -> None:
    """Causal or not, with few heads of keys, with masks and with dropout of scores."""
    check(ranks, name, plan_of("ring of four, zero 0, none", captured(name)))


@pytest.mark.parametrize("team", few(TEAMS, "ring"))
def test_members_say_what_was_lowered(ranks: Ranks, team: str) -> None:
    """Kind by kind, with the same members, byte by byte."""
    graph = captured("llama")
    plan = plan_of(f"{team}, zero 0, none", graph)
    for said, planned in ranks.train(len(plan.parts[0].devices), hear_rank, "llama", graph, plan):
        assert sorted(said) == sorted(planned)
        kinds = {each.kind for each in said}
        assert ("shift" in kinds) is (plan.parts[0].keys is Keys.RING)


@pytest.mark.parametrize("case", few(CASES, QUICK))
def test_a_model_trains_alike_under_every_hybrid(ranks: Ranks, case: str) -> None:
    check(ranks, "llama", plan_of(case, captured("llama")))


@pytest.mark.slow
@pytest.mark.parametrize("case", PAIRS)
def test_a_model_that_drops_scores_trains_alike(ranks: Ranks, case: str) -> None:
    check(ranks, "gpt2, dropping", plan_of(case, captured("gpt2, dropping")))


@pytest.mark.parametrize("case", few(dict.fromkeys([QUICK_PARTED, *PAIRS]), QUICK_PARTED))
def test_microbatches_train_alike(ranks: Ranks, case: str) -> None:
    if "unequal" in case:
        pytest.skip("a replica has less than one sample of a microbatch")
    check(ranks, "gpt2, dropping", plan_of(case, captured("gpt2, dropping"), 2))


STAGES: dict[str, list[dict[str, Any]]] = {
    "alike": [{"context": 2}, {"context": 2}],
    "ring to gathered": [{"context": 2, "keys": Keys.RING}, {"context": 2}],
    "to one": [{"context": 2}, {}],
    "from one": [{}, {"context": 2}],
    "to replicas": [{"context": 2}, {"replicas": 2}],
    "from replicas": [{"replicas": 2}, {"context": 2}],
    "to tensor": [{"context": 2}, {"tensor": 2}],
    "from tensor": [{"tensor": 2, "sequence": True}, {"context": 2}],
}


@pytest.mark.parametrize("kind", few(ScheduleKind, ScheduleKind.ONE_F_ONE_B))
@pytest.mark.parametrize("stages", few(STAGES, "to replicas"))
def test_stages_of_different_teams_train_alike(
    ranks: Ranks, stages: str, kind: ScheduleKind
) -> None:
    if kind is ScheduleKind.INTERLEAVED:
        pytest.skip("needs several stages a device")
    graph = captured("llama")
    layer = find_layers(graph).layer_of_op
    middle = int(layer.max() + 1) // 2
    parts, first = [], 0
    for ops, more in zip((layer < middle, layer >= middle), STAGES[stages], strict=True):
        part = make_part(graph, ops, first, **more)
        parts.append(part)
        first += len(part.devices)
    schedule = Schedule(kind=kind, microbatches=2)
    check(ranks, "llama", Plan(parts=tuple(parts), schedule=schedule))


def test_rows_that_are_left_out_of_a_loss_are_refused_before_ranks_start() -> None:
    """Of six tokens five are compared: no two members can have as many of them."""
    words = torch.randint(0, 40, (4, 6))
    workload = Workload(name="language", model=Language(is_tied=False), args=(words,))
    graph = capture_workload(workload, "momentum")
    plan = plan_of("two, zero 0, none", graph)
    with pytest.raises(InputError, match=r"part 0: context must be 1 where a loss leaves out tok"):
        lower_frozen(graph, connected(2), plan)
    assert loss_bytes(find_layers(graph).kinds[-1]) == 4 * 5 * 4  # samples, tokens, bytes
