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
        parts = self._planner.parts(draft.frame, draft.stages)
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

    def settle(self, most: int) -> tuple[list[tuple[Verdict, HybridDraft]], str]:
        """The best of so many families that fit, simulated op by op and ranked by that; and if
        there is none, why.

        Where all of them together have too many ops, the rest keeps the order that it had. What
        cannot be lowered op by op, or then does not fit, makes room for the next.
        """
        found: list[tuple[Verdict, HybridDraft]] = []
        families: set[tuple[object, ...]] = set()
        reason, num_ops = "", 0
        for verdict, draft in self.ranked():
            if len(found) == most or not verdict.fits:
                break
            if draft.family in families:
                continue
            plan = self.scene.plan(draft)
            has_choice = any(part.context > 1 for part in plan.parts)
            num_ops += count_instances(plan) * (len(self.keys) if has_choice else 1)
            if found and num_ops > MAX_OP_INSTANCES:
                found.append((verdict, draft))
                families.add(draft.family)
                continue
            settled = settle_draft(self.scene, draft, self.keys)
            if not isinstance(settled, str) and settled[0].fits:
                found.append(settled)
                families.add(draft.family)
            elif not reason:
                reason = settled if isinstance(settled, str) else settled[0].binding
        if num_ops <= MAX_OP_INSTANCES:
            found.sort(key=lambda each: each[0].rank)
        return found, reason

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
    settled, reason = trials.settle(1 + runner_ups)
    if not settled:
        attempt.refuse(reason)
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
