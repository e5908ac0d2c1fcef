"""Simulates drafts on whatever engine evaluates things: by layer, and the best of them op by op,
which are what is offered."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.answer import RunnerUp
from meshwright.plan.part import Keys
from meshwright.plan.plan import Plan
from meshwright.plan.stage import Planner
from meshwright.program.lower import MAX_OP_INSTANCES, choose_granularity, count_instances
from meshwright.search.incumbent import Attempt
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.tier import Tiers
from meshwright.search.pool.engine import Engine

RUNNER_UPS = 5


@dataclass(frozen=True, eq=False)
class TrialScene:
    """What workers need to know to simulate drafts."""

    graph: Graph
    cluster: Cluster
    tiers: Tiers
    sharing: str
    runtime: str = MESHWRIGHT.name

    @cached_property
    def _planner(self) -> Planner:
        """Made where it is used: a worker finds the layers itself."""
        return Planner(find_layers(self.graph), self.cluster, self.tiers.order)

    def plan(self, draft: HybridDraft) -> Plan:
        """The plan that a draft stands for."""
        parts = self._planner.parts(draft.frame, draft.stages, draft.samples)
        return Plan(parts=parts, schedule=draft.schedule, runtime=self.runtime)

    def __reduce__(self) -> tuple[Any, ...]:
        return TrialScene, (self.graph, self.cluster, self.tiers, self.sharing, self.runtime)


def try_draft(scene: TrialScene, draft: HybridDraft) -> Verdict:
    """What the simulator says of a draft, by layer where its plan has teams and the like."""
    plan = scene.plan(draft)
    granularity = choose_granularity(plan) if plan.is_plain else "layer"
    return try_plan(scene.graph, scene.cluster, plan, scene.sharing, granularity)


def settle_draft(
    scene: TrialScene, draft: HybridDraft, keys: Sequence[Keys]
) -> tuple[Verdict, HybridDraft] | str:
    """What the simulator says of a draft op by op; else why its plan cannot be lowered so.

    Where its context teams may get at keys in several ways, it is the best of these.
    """
    found: list[tuple[Verdict, HybridDraft]] = []
    reasons: list[str] = []
    for each in dict.fromkeys((draft, *(draft.with_keys(way) for way in keys))):
        plan = scene.plan(each)
        granularity = choose_granularity(plan)
        try:
            verdict = try_plan(scene.graph, scene.cluster, plan, scene.sharing, granularity)
        except InputError as error:
            reasons.append(str(error))
        else:
            found.append((verdict, each))
    return min(found, key=lambda each: each[0].rank) if found else reasons[0]


@dataclass
class HybridTrials:
    """The verdicts so far; every draft is simulated once."""

    scene: TrialScene
    engine: Engine
    keys: tuple[Keys, ...] = (Keys.GATHERED,)
    """How context teams of settled drafts may get at keys."""
    verdicts: dict[tuple[object, ...], Verdict] = field(default_factory=dict)
    drafts: dict[tuple[object, ...], HybridDraft] = field(default_factory=dict)
    settled: list[tuple[Verdict, HybridDraft]] = field(default_factory=list)
    """What fits op by op, in the order in which it was looked at."""
    tried: list[HybridDraft] = field(default_factory=list)
    """The draft by layer that each of these comes from."""
    settled_families: set[tuple[object, ...]] = field(default_factory=set)
    num_ops: int = 0
    """Instances of ops that were simulated for these."""
    reason: str = ""
    """Why the first of those that do not fit op by op, or cannot be lowered so, does not."""

    def run(self, drafts: Sequence[HybridDraft]) -> None:
        """Simulate those that are new."""
        new = {draft.key: draft for draft in drafts if draft.key not in self.verdicts}
        found = self.engine.run(try_draft, self.scene, list(new.values()))
        self.drafts.update(new)
        self.verdicts.update(zip(new, found, strict=True))

    def ranked(self) -> list[tuple[Verdict, HybridDraft]]:
        """From the best on; of equals the one that was tried first."""
        keys = sorted(self.verdicts, key=lambda key: self.verdicts[key].rank)
        return [(self.verdicts[key], self.drafts[key]) for key in keys]

    def settle(self, draft: HybridDraft) -> None:
        """Simulate a draft op by op; one that cannot be lowered so, or then does not fit, is left
        out."""
        self.settled_families.add(draft.family)
        plan = self.scene.plan(draft)
        has_choice = any(part.context > 1 for part in plan.parts) and len(self.keys) > 1
        self.num_ops += count_instances(plan) * (len(self.keys) if has_choice else 1)
        verdict = self.verdicts[draft.key]
        if self.settled and self.num_ops > MAX_OP_INSTANCES:
            self.settled.append((verdict, draft))  # too many to look at: as by layer
            self.tried.append(draft)
            return
        settled: tuple[Verdict, HybridDraft] | str = verdict, draft
        if has_choice or plan.is_plain or choose_granularity(plan) == "op":
            settled = settle_draft(self.scene, draft, self.keys)
        if not isinstance(settled, str) and settled[0].fits:
            self.settled.append(settled)
            self.tried.append(draft)
        elif not self.reason:
            self.reason = settled if isinstance(settled, str) else settled[0].binding

    def settle_best(self, most: int) -> None:
        """Settle the best by layer until so many families fit."""
        while len(self.settled) < most and (draft := self.next_unsettled) is not None:
            self.settle(draft)

    @property
    def next_unsettled(self) -> HybridDraft | None:
        """The best draft by layer that fits and whose family is not settled, if there is one."""
        for verdict, draft in self.ranked():
            if not verdict.fits:
                break
            if draft.family not in self.settled_families:
                return draft
        return None

    @property
    def is_settled_by_op(self) -> bool:
        """Whether no settled draft had too many ops to be looked at."""
        return self.num_ops <= MAX_OP_INSTANCES

    def ranked_settled(self) -> list[tuple[Verdict, HybridDraft]]:
        """What fits op by op, from the best on. Where all together had too many ops, in the order
        of the steps by layer."""
        if not self.is_settled_by_op:
            return list(self.settled)
        return sorted(self.settled, key=lambda each: each[0].rank)

    @property
    def num_fitting(self) -> int:
        """How many of the drafts that were tried fit."""
        return sum(each.fits for each in self.verdicts.values())

    @property
    def best_seconds(self) -> float:
        """The shortest step of what fits; infinite while nothing does."""
        fitting = [each.step_seconds for each in self.verdicts.values() if each.fits]
        return min(fitting, default=float("inf"))


def offer_trials(attempt: Attempt, trials: HybridTrials, runner_ups: int = RUNNER_UPS) -> None:
    """Offer the best plan, with the next best beside it; verdicts are of steps op by op."""
    settled = trials.ranked_settled()[: 1 + runner_ups]
    if not settled:
        attempt.refuse(trials.reason)
        return
    verdict, draft = settled[0]
    attempt.statistics |= {
        "simulated": float(len(trials.verdicts)),
        "estimate_seconds": draft.estimate_seconds,
        "layer_seconds": trials.best_seconds,
    }
    attempt.offer(trials.scene.plan(draft), verdict)
    plans = [(verdict, trials.scene.plan(each)) for verdict, each in settled[1:]]
    attempt.runner_ups = tuple(
        RunnerUp(plan=plan, step_seconds=verdict.step_seconds, description=plan.description)
        for verdict, plan in plans
    )
