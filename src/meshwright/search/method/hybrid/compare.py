"""Simulates drafts in the order of their estimates, until none that is left may be better.

By layer first, and the best of these op by op, which decides. Estimates and steps by layer are off
by what transfers and collectives do to each other. So a draft is left out only where its estimate,
times the least that any draft has taken as a part of its own, is above the best step.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import inf

from meshwright.plan.degrees import stage_degrees
from meshwright.plan.part import ScheduleKind
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.space import HybridSpace
from meshwright.search.method.hybrid.trial import HybridTrials, TrialScene
from meshwright.search.pool.engine import open_engine

_WAVE = 4
"""Drafts that are simulated at once, whatever the number of workers, so that the answer does not
depend on it."""
_MARGIN, _FEW_MARGIN = 1.03, 1.15
"""How far above the best step an estimate may be on even networks, of many and of few devices:
there estimates are off by 0.2% in the mean, and by more where all takes a moment."""
_UNEVEN_MARGIN, _FEW_UNEVEN_MARGIN = 1.25, 1.4
"""The same on uneven networks, where estimates are off by up to a quarter."""
_FEW_DEVICES = 64
"""On no more devices a simulation takes a hundredth of a second."""
_ROOM = 0.99
"""The least part that was seen is taken to be so much less."""
_PASS_SECONDS = 5e-5
"""What a pass of a microbatch takes to simulate by layer, until the first has been."""
_OWN_PASSES = 500.0
"""What a simulation takes besides, in passes."""
_SLOW_SECONDS = 0.25
"""A simulation that takes longer is worth other processes."""


@dataclass
class Comparison:
    """The drafts that were simulated, and what follows for the others."""

    space: HybridSpace
    trials: HybridTrials
    clock: Clock
    enough_seconds: float = 0.0
    """A plan that takes no longer, op by op, needs no better one."""
    known_seconds: Callable[[], float] = lambda: inf
    """What the fastest plan takes that other methods know of."""
    stack: ExitStack | None = None
    """Where other processes are entered if simulations take long; None: the engine is given."""
    parts: dict[ScheduleKind, list[float]] = field(default_factory=dict)
    """By schedule the steps of drafts by layer as parts of their estimates."""
    spent_seconds: float = 0.0
    """What all simulations by layer took ..."""
    spent_passes: float = 0.0
    """... and how many passes of a microbatch that were, with those that stand for the rest."""
    settling_seconds: float = 0.0
    """The time of the slowest draft op by op."""

    def limit(self, kind: ScheduleKind) -> float:
        """No draft of a schedule with a higher estimate may be better than the best."""
        part = _ROOM * min(self.parts.get(kind, []), default=1.0)
        return self.layer_limit / min(part, 1 / self._margin)

    @property
    def _margin(self) -> float:
        is_even, is_small = self.space.prices.tiers.is_even, self.is_small
        if is_even:
            return _FEW_MARGIN if is_small else _MARGIN
        return _FEW_UNEVEN_MARGIN if is_small else _UNEVEN_MARGIN

    @property
    def is_small(self) -> bool:
        """Whether a simulation takes no time."""
        return self.space.cluster.num_devices <= _FEW_DEVICES

    @property
    def layer_limit(self) -> float:
        """No draft that takes longer by layer may be better than the best."""
        settled, known = self.trials.settled, self.known_seconds()
        if not settled:
            best = self.trials.best_seconds
            # What others know of is op by op; and to have some plan comes first.
            return best if best == inf else min(best, self._margin * known)
        steps = [self.trials.verdicts[draft.key].step_seconds for draft in self.trials.tried]
        part = min(each.step_seconds / step for (each, _), step in zip(settled, steps, strict=True))
        best = min(known, *(verdict.step_seconds for verdict, _ in settled))
        return best / (_ROOM * part) if self.trials.is_settled_by_op else best

    @property
    def has_enough(self) -> bool:
        """Whether nothing better is asked for than what was found."""
        if self.trials.best_seconds > self.enough_seconds:
            return False
        self.settle(1)
        return any(
            verdict.fits and verdict.step_seconds <= self.enough_seconds
            for verdict, _ in self.trials.settled
        )

    def run(self, drafts: Sequence[HybridDraft], most: int) -> None:
        """Simulate in order by layer, until so many fit, while there is time."""
        new = [draft for draft in drafts if draft.key not in self.trials.verdicts]
        start, enough = 0, self.trials.num_fitting + most
        while start < len(new) and self.trials.num_fitting < enough:
            # The first alone: it says how long one takes, and what the others have to beat.
            size = _WAVE if self.trials.verdicts else 1
            wave = [
                draft
                for draft in new[start : start + size]
                if draft.estimate_seconds <= self.limit(draft.kind)
            ]
            start += size
            if wave:
                self._run_wave(wave)
            if wave and (self.clock.is_over or self.has_enough):
                return

    def run_first(self, drafts: Sequence[HybridDraft]) -> None:
        """Simulate the first that is new by layer, if it may be better than all so far."""
        for draft in drafts:
            if draft.estimate_seconds >= self.trials.best_seconds:
                return
            if draft.key not in self.trials.verdicts:
                self._run_wave([draft])
                return

    def _run_wave(self, wave: Sequence[HybridDraft]) -> None:
        """Simulate by layer those that there is time for."""
        chosen = self._affordable(wave)
        if not (chosen or self.trials.num_fitting):
            chosen = [min(wave, key=lambda draft: draft.num_passes)]  # to have something
        before = self.clock.elapsed
        self.trials.run(chosen)
        if chosen:
            spent = self.clock.elapsed - before
            self.spent_seconds += spent
            self.spent_passes += sum(map(_passes, chosen))
            is_slow = spent / len(chosen) > _SLOW_SECONDS
            if self.stack is not None and is_slow and self.trials.engine.workers == 1:
                self.trials.engine = self.stack.enter_context(open_engine("local"))
        for draft in chosen:
            verdict = self.trials.verdicts[draft.key]
            if verdict.fits:
                part = verdict.step_seconds / draft.estimate_seconds
                self.parts.setdefault(draft.kind, []).append(part)

    def _affordable(self, wave: Sequence[HybridDraft]) -> list[HybridDraft]:
        """Those that there is time for: with thousands of microbatches in many stages a simulation
        takes a hundred times as long as with few."""
        left, chosen = self.clock.left * self.trials.engine.workers, []
        rate = self.spent_seconds / self.spent_passes if self.spent_passes else _PASS_SECONDS
        for draft in wave:
            seconds = rate * _passes(draft)
            if 0 < left >= seconds:
                left -= seconds
                chosen.append(draft)
        if len(chosen) < len(wave):
            self.clock.cut()
        return chosen

    def run_like_best(self, drafts: Sequence[HybridDraft]) -> None:
        """Simulate what differs from the best in where devices are, and the best as people would
        cut its layers: a draft's stages are only as even as its estimate needs them, those of
        people more so."""
        if not self.trials.verdicts:
            return
        best = self.trials.ranked()[0][1]
        family = [draft for draft in drafts if draft.family == best.family][:_WAVE]
        for wave in (_described(self.space, self.trials.scene, best), family):
            self.trials.run(self._affordable(wave))

    def settle(self, fewest: int) -> None:
        """Simulate op by op from the best step by layer on: so many families, and all that may
        be better, while there is time; one at least."""
        while (draft := self.trials.next_unsettled) is not None:
            step = self.trials.verdicts[draft.key].step_seconds
            if len(self.trials.settled) >= fewest and step > self.layer_limit:
                return
            if self.trials.settled and self.clock.left < self.settling_seconds:
                self.clock.cut()
                return
            before = self.clock.elapsed
            self.trials.settle(draft)
            self.settling_seconds = max(self.settling_seconds, self.clock.elapsed - before)


def _passes(draft: HybridDraft) -> float:
    return _OWN_PASSES + draft.num_passes


def one_of_each(drafts: Sequence[HybridDraft]) -> list[HybridDraft]:
    """The first of every family."""
    return list({draft.family: draft for draft in reversed(drafts)}.values())[::-1]


def _described(space: HybridSpace, scene: TrialScene, draft: HybridDraft) -> list[HybridDraft]:
    """The draft that people mean by the degrees of this one; none where its stages are unlike."""
    degrees = scene.plan(draft).degrees(scene.graph, scene.cluster)
    if degrees is None or (space.scope.pods and 1 not in space.scope.pods):
        return []
    usual = replace(degrees, layers=(), pods=1)
    frame, stages = stage_degrees(space.stack, space.cluster, usual)
    return [replace(draft, frame=frame, stages=stages)]
