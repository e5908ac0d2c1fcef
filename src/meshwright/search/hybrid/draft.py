"""A candidate in numbers, and the Plan that it stands for."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Keys, Part, Schedule, ScheduleKind
from meshwright.plan.plan import Plan
from meshwright.search.hybrid.scope import Frame, Option
from meshwright.search.hybrid.tier import Tiers


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStage:
    """Layers on a run of devices of every pod."""

    first: int
    """Layer."""
    after: int
    """The layer after its last."""
    offset: int
    """Where its devices begin in a pod."""
    size: int
    """Devices in a pod."""
    option: Option


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a plan of the hybrid search is made of."""

    frame: Frame
    kind: ScheduleKind
    stages: tuple[DraftStage, ...]
    estimate_seconds: float

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for drafts of the same plan."""
        return (self.frame, self.kind, self.stages)

    @property
    def family(self) -> tuple[object, ...]:
        """Equal for drafts that differ only in where devices are."""
        stages = tuple((stage.first, stage.after, stage.option) for stage in self.stages)
        return (self.frame.microbatches, self.kind, stages)

    def with_keys(self, keys: Keys) -> "Draft":
        """The draft in which all context teams get at keys in this way."""
        stages = tuple(
            replace(
                stage,
                option=replace(stage.option, team=replace(stage.option.team, keys=keys)),
            )
            if stage.option.team.context > 1
            else stage
            for stage in self.stages
        )
        return replace(self, stages=stages)

    @property
    def is_plain(self) -> bool:
        """Whether its plan has neither teams nor ZeRO nor recomputation."""
        return all(stage.option.is_plain for stage in self.stages)


class Planner:
    """Turns drafts of one stack on one cluster into plans."""

    def __init__(self, stack: Stack, cluster: Cluster, tiers: Tiers) -> None:
        self.stack = stack
        self.cluster = cluster
        self.tiers = tiers

    @cached_property
    def _ops_of_layer(self) -> list[tuple[str, ...]]:
        names = self.stack.graph.op_names
        order = np.argsort(self.stack.layer_of_op, kind="stable")
        bounds = np.searchsorted(
            self.stack.layer_of_op[order], np.arange(self.stack.num_layers + 1)
        )
        return [
            tuple(names[op] for op in order[bounds[layer] : bounds[layer + 1]].tolist())
            for layer in range(self.stack.num_layers)
        ]

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(self.cluster.devices[number].name for number in self.tiers.order)

    def plan(self, draft: Draft) -> Plan:
        """The plan with its devices by name."""
        schedule = Schedule(kind=draft.kind, microbatches=draft.frame.microbatches)
        parts = tuple(self._part(draft.frame, stage) for stage in draft.stages)
        return Plan(parts=parts, schedule=schedule)

    def _part(self, frame: Frame, stage: DraftStage) -> Part:
        pod = len(self._names) // frame.pods
        begins = [each * pod + stage.offset for each in range(frame.pods)]
        layers = self._ops_of_layer[stage.first : stage.after]
        team = stage.option.team
        return Part(
            ops=tuple(name for ops in layers for name in ops),
            devices=tuple(
                name for begin in begins for name in self._names[begin : begin + stage.size]
            ),
            zero=stage.option.zero,
            recompute=stage.option.recompute,
            tensor=team.tensor,
            context=team.context,
            keys=team.keys,
            expert=team.expert,
            sequence=team.sequence,
        )
