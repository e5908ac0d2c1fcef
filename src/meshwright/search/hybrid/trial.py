"""Simulates drafts, on whatever engine evaluates things."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.program.lower import choose_granularity
from meshwright.search.engine import Engine
from meshwright.search.hybrid.draft import Draft, Planner
from meshwright.search.hybrid.tier import Tiers
from meshwright.search.judge import Verdict, try_plan


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """What workers need to know to simulate drafts."""

    graph: Graph
    cluster: Cluster
    tiers: Tiers
    sharing: str

    @cached_property
    def planner(self) -> Planner:
        """Made where it is used: a worker finds the layers itself."""
        return Planner(self.stack, self.cluster, self.tiers)

    @cached_property
    def stack(self) -> Stack:
        """The graph's layers."""
        return find_layers(self.graph)

    def __reduce__(self) -> tuple[Any, ...]:
        return _scene, (self.graph, self.cluster, self.tiers, self.sharing)


def _scene(graph: Graph, cluster: Cluster, tiers: Tiers, sharing: str) -> Scene:
    return Scene(graph=graph, cluster=cluster, tiers=tiers, sharing=sharing)


def try_draft(scene: Scene, draft: Draft) -> Verdict:
    """What the simulator says of a draft."""
    plan = scene.planner.plan(draft)
    return try_plan(scene.graph, scene.cluster, plan, scene.sharing, choose_granularity(plan))


@dataclass
class Trials:
    """The verdicts so far; every draft is simulated once."""

    scene: Scene
    engine: Engine
    verdicts: dict[tuple[object, ...], Verdict] = field(default_factory=dict)
    drafts: dict[tuple[object, ...], Draft] = field(default_factory=dict)

    def run(self, drafts: Sequence[Draft]) -> None:
        """Simulate those that are new."""
        new = {draft.key: draft for draft in drafts if draft.key not in self.verdicts}
        found = self.engine.run(try_draft, self.scene, list(new.values()))
        self.drafts.update(new)
        self.verdicts.update(zip(new, found, strict=True))

    def ranked(self) -> list[tuple[Verdict, Draft]]:
        """From the best on; of equals the one that was tried first."""
        keys = sorted(self.verdicts, key=lambda key: self.verdicts[key].rank)
        return [(self.verdicts[key], self.drafts[key]) for key in keys]

    @property
    def num_fitting(self) -> int:
        """How many fit."""
        return sum(each.fits for each in self.verdicts.values())

    @property
    def best_seconds(self) -> float:
        """Of what fits; infinite: nothing does so far."""
        fitting = [each.step_seconds for each in self.verdicts.values() if each.fits]
        return min(fitting, default=float("inf"))
