"""Candidates of the hybrid search, in numbers, and those that are kept for the simulator."""

import heapq
from dataclasses import dataclass, field, replace

from meshwright.plan.part import Keys, Schedule, ScheduleKind
from meshwright.plan.stage import DraftStage, Frame

_KEPT = 64
"""The best by estimate."""
_ALIKE = 2
"""Drafts that differ in their pods only."""


@dataclass(frozen=True, kw_only=True)
class HybridDraft:
    """What a plan of the hybrid search is made of."""

    frame: Frame
    kind: ScheduleKind
    stages: tuple[DraftStage, ...]
    estimate_seconds: float
    samples: tuple[tuple[int, ...], ...] = ()
    """By stage the samples of a microbatch that each replica gets; none: all get as many."""

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for drafts of the same plan."""
        return (self.frame, self.kind, self.stages, self.samples)

    @property
    def family(self) -> tuple[object, ...]:
        """Equal for drafts that differ only in where devices are."""
        stages = tuple((stage.first, stage.after, stage.option) for stage in self.stages)
        return (self.frame.microbatches, self.kind, stages, self.samples)

    @property
    def num_passes(self) -> int:
        """How often a team passes a microbatch, which is what simulating it by layer takes."""
        teams = sum(stage.size // stage.option.team.num_devices for stage in self.stages)
        return self.frame.microbatches * self.frame.pods * teams

    def with_keys(self, keys: Keys) -> "HybridDraft":
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
    def schedule(self) -> Schedule:
        """How its stages take their microbatches."""
        return Schedule(kind=self.kind, microbatches=self.frame.microbatches)

    @property
    def is_plain(self) -> bool:
        """Whether its plan has neither teams nor ZeRO nor recomputation."""
        return all(stage.option.is_plain for stage in self.stages)


@dataclass
class Pool:
    """The best drafts so far, of plans that differ in more than their pods two at the most."""

    refuses_plain: bool = False
    """Whether the first and the last layer share weights: a plan of several stages without teams,
    ZeRO or recomputation would have to have both on the same devices."""
    most: int = _KEPT
    """How many are kept."""
    kept: list[tuple[float, int, HybridDraft]] = field(default_factory=list)
    seen: set[tuple[object, ...]] = field(default_factory=set)
    alike: dict[tuple[object, ...], list[float]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """What a draft must beat to be kept."""
        return -self.kept[0][0] if len(self.kept) == self.most else float("inf")

    def offer(self, draft: HybridDraft) -> None:
        """Keep it if it is good and new."""
        seconds = draft.estimate_seconds
        if seconds >= self.limit or draft.key in self.seen:
            return
        if self.refuses_plain and draft.is_plain and len(draft.stages) > 1:
            return
        self.seen.add(draft.key)
        others = self.alike.setdefault(draft.family, [])
        if sum(other <= seconds for other in others) >= _ALIKE:
            return
        others.append(seconds)
        heapq.heappush(self.kept, (-seconds, -len(self.seen), draft))
        if len(self.kept) > self.most:
            heapq.heappop(self.kept)

    def drafts(self) -> list[HybridDraft]:
        """The drafts that are kept, the best first."""
        return [draft for *_, draft in sorted(self.kept, key=lambda each: (-each[0], -each[1]))]
