"""Plans whose stages are teams, written briefly; and training by one, held against one process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from small_trainer import OPTIMIZER, make_trainer
from team_models import UNLAYERED, captured, expected, make

from meshwright.execute.exchange import RankExchange
from meshwright.execute.trained import canonical_names
from meshwright.execute.trainer import Trainer
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind
from meshwright.program.expand.synchronise import with_batch_statistics
from meshwright.program.program import Kind
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain
from small import connected

RANKS, STEPS = 8, 5


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Layers on a few teams."""

    tensor: int = 1
    sequence: bool = False
    context: int = 1
    expert: int = 1
    replicas: int = 1
    shares: tuple[float, ...] = ()
    zero: int = 0
    again: Recompute = Recompute.NONE
    home: int = -1
    """The first device; -1: after those of the stage before."""

    @property
    def num_devices(self) -> int:
        return self.tensor * self.context * self.replicas


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and how it is trained."""

    model: str
    stages: tuple[Stage, ...] = (Stage(),)
    kind: ScheduleKind | None = None
    microbatches: int = 1
    optimizer: str = OPTIMIZER
    untie: bool = False
    bounds: tuple[int, ...] = field(default=())
    """The first layer of each stage but the first; empty: about as many layers each."""

    @property
    def graph(self) -> Graph:
        return captured(self.model, self.untie, self.optimizer)

    def __str__(self) -> str:
        stages = " | ".join(_show(each) for each in self.stages)
        kind = f", {self.kind} {self.microbatches}" if self.kind else ""
        more = (
            f"{', untie' if self.untie else ''}{'' if self.optimizer == OPTIMIZER else ', adamw'}"
        )
        return f"{self.model}: {stages}{kind}{more}"


def _show(stage: Stage) -> str:
    words = [f"t{stage.tensor}{'s' if stage.sequence else ''}"]
    words += [f"c{stage.context}"] if stage.context > 1 else []
    words += [f"e{stage.expert}"] if stage.expert > 1 else []
    words += [f"x{stage.replicas}"] if stage.replicas > 1 else []
    words += ["shares " + "/".join(f"{each:g}" for each in stage.shares)] if stage.shares else []
    words += [f"z{stage.zero}"] if stage.zero else []
    words += [stage.again.value] if stage.again is not Recompute.NONE else []
    return " ".join(words)


def make_plan(case: Case) -> Plan:
    """The plan of a case."""
    graph = case.graph
    parts, first = [], 0
    names = np.array(graph.op_names)
    for stage, ops in zip(case.stages, _divide_ops(graph, case), strict=True):
        first = stage.home if stage.home >= 0 else first
        parts.append(
            Part(
                ops=tuple(names[ops].tolist()),
                devices=tuple(f"d{first + k}" for k in range(stage.num_devices)),
                tensor=stage.tensor,
                sequence=stage.sequence,
                context=stage.context,
                expert=stage.expert,
                shares=stage.shares,
                zero=stage.zero,
                recompute=stage.again,
            )
        )
        first += stage.num_devices
    schedule = Schedule(kind=case.kind, microbatches=case.microbatches) if case.kind else None
    return with_batch_statistics(graph, Plan(parts=tuple(parts), schedule=schedule))


def _divide_ops(graph: Graph, case: Case) -> Sequence[Any]:
    if len(case.stages) == 1:
        return [np.ones(graph.num_ops, dtype=np.bool_)]
    layer = _blocks(graph) if case.model in UNLAYERED else find_layers(graph).layer_of_op
    count, stages = int(layer.max()) + 1, len(case.stages)
    inner = case.bounds or [round(count * k / stages) for k in range(1, stages)]
    bounds = [0, *inner, count]
    return [(layer >= low) & (layer < high) for low, high in pairwise(bounds)]


def _blocks(graph: Graph) -> Any:
    """By op: its block of the chain that a model without layers is."""
    blocks = make_chain(make_instance(graph, connected(1)), [0]).block_of_op
    assert blocks.min() >= 0, "no end is wrapped around a model without tied weights"
    return blocks


class Call(NamedTuple):
    """A collective; of rows that travel to experts no bytes are noted."""

    kind: str
    ranks: tuple[int, ...]
    bytes: float


@contextmanager
def listening(exchange: RankExchange, said: list[Call]) -> Iterator[None]:
    """Note all collectives that this process starts."""
    moved: dict[str, Callable[..., Any]] = {
        "all_reduce": lambda flat, *_: [flat],
        "broadcast": lambda flat, *_: [flat],
        "all_gather": lambda flats, *_: flats,
        "reduce_scatter": lambda _, rows, *__: [rows],
        "all_to_all": lambda *_: [],  # how many rows travel is known at run time only
        "shift": lambda _, own, *__: [own],
    }

    def noting(kind: str) -> Any:
        start = getattr(RankExchange, kind)

        def begin(self: RankExchange, *args: Any, **kwargs: Any) -> Any:
            tensors = moved[kind](*args)
            size = sum(each.numel() * each.element_size() for each in tensors)
            group = kwargs.get("group", args[1 if kind in ("all_reduce", "broadcast") else 2])
            said.append(Call(kind, tuple(sorted(self.members[group])), float(size)))
            return start(self, *args, **kwargs)

        return begin

    with ExitStack() as stack:
        for kind in moved:
            stack.enter_context(patch.object(type(exchange), kind, noting(kind)))
        yield


def planned_calls(trainer: Trainer) -> list[Call]:
    """The collectives of a rank's program."""
    program = trainer.lowered.program
    rows = program.instructions
    mine = rows[(rows["device"] == trainer.part.device) & (rows["group"] >= 0)]
    return [
        Call(
            Kind(int(row["kind"])).name.lower(),
            tuple(sorted(trainer.rank_of[device] for device in program.groups[row["group"]])),
            0.0 if row["kind"] == Kind.ALL_TO_ALL else float(row["bytes"]),
        )
        for row in mine
    ]


@dataclass
class Trained:
    """What a rank has after training."""

    losses: list[float]
    state: dict[str, tuple[Any, Any, str]]
    """By name: the tensor, the `Share` that it is (None: it is whole), and its name without copies.
    """
    said: list[Call]
    """The collectives of the last step."""
    planned: list[Call]
    """Those that its program has for this rank."""


def check_calls(trained: Trained, *, num_holders: int) -> None:
    """All collectives are those of the program, kind by kind, group by group and byte by byte; of
    what ZeRO divides more travels where shards are filled up to one length."""
    said, planned = sorted(trained.said), sorted(trained.planned)
    assert [each[:2] for each in said] == [each[:2] for each in planned]
    filling = 4.0 * (num_holders - 1) * len(trained.state)
    for one, other in zip(said, planned, strict=True):
        assert other.bytes <= one.bytes <= other.bytes + filling, (one, other)


def train(rank: int, case: Case, graph: Graph, plan: Plan, steps: int) -> Trained:
    """Train on one rank, by the case's plan."""
    workload = make(case.model)
    trainer = make_trainer(rank, workload, graph, plan, connected(RANKS), optimizer=case.optimizer)
    said: list[Call] = []
    for step in range(steps):
        with listening(trainer.exchange, said) if step == steps - 1 else nullcontext():
            trainer.step(workload.args, workload.kwargs)
    losses, shares = trainer.gather_losses(), trainer.steps.shares()
    names = canonical_names(trainer.steps.any().trace)
    state = {
        name: (tensor.clone(), shares.get(name), names.get(name, name))
        for name, tensor in zip(trainer.part.state, trainer.held.state, strict=True)
    }
    trainer.close()
    return Trained(losses, state, said, planned_calls(trainer))


def worst_differences(
    case: Case, answers: Sequence[Trained], steps: int
) -> tuple[float, float, str]:
    """The greatest difference of a loss, that of a number of a tensor, and that tensor's name."""
    losses, tensors = expected(case.model, steps, case.optimizer)
    loss = max(
        abs(one - other) / max(1.0, abs(other))
        for each in answers
        for one, other in zip(each.losses, losses, strict=True)
    )
    worst, where = 0.0, ""
    seen: dict[str, int] = {}
    for each in answers:
        for name, (value, share, known) in each.state.items():
            if known not in tensors:
                assert name.startswith("constant "), name
                continue
            wanted = tensors[known] if share is None else share.of(tensors[known])
            seen[known] = seen.get(known, 0) + value.numel()
            scale = 1 + wanted.double().abs()
            apart = ((value.double() - wanted.double()).abs() / scale).max() if value.numel() else 0
            if not float(apart) <= worst:
                worst, where = float(apart), name
    held = make(case.model).model.state_dict()  # without what nobody reads
    missing = [
        name for name in held if name in tensors and seen.get(name, 0) < tensors[name].numel()
    ]
    assert not missing, f"nobody holds {missing}"
    return loss, worst, where
