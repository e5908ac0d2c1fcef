"""Simulates every draft of a small space that could be better than the best so far.

A draft is left out only where a bound on its simulated step, made of the very costs that the
simulator uses, is not below the best; so when this ends, the best is the best of the scope.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from meshwright.cost.group_price import group_prices
from meshwright.cost.stage import Stage, StageCost, replica_costs
from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import DraftStage, Frame, Option, can_interleave
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.draft import HybridDraft
from meshwright.search.method.hybrid.scope import list_frames, list_sizes
from meshwright.search.method.hybrid.space import HybridSpace
from meshwright.search.method.hybrid.table import option_fits, samples_of
from meshwright.search.method.hybrid.trial import HybridTrials

_WAVE = 16
"""Drafts that are simulated before bounds are held against the best again; the same for every
number of workers."""


def exhaust(space: HybridSpace, trials: HybridTrials, most_drafts: int, clock: Clock) -> bool:
    """Whether everything was looked at before the time, or so many simulations, were over."""
    walk = _PlanWalk(space, trials, clock)
    wave: list[HybridDraft] = []
    num_simulated = 0
    for draft in filter(space.allows, walk.drafts()):
        wave.append(draft)
        if len(wave) == _WAVE:
            num_simulated += len(wave)
            trials.run(wave)
            wave = []
            if num_simulated > most_drafts:
                return False
    trials.run(wave)
    return not walk.is_late


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stage and its cost."""

    stage: DraftStage
    costs: tuple[StageCost, ...]
    """On each sort of its replicas."""

    @property
    def layers(self) -> range:
        return range(self.stage.first, self.stage.after)

    @property
    def seconds(self) -> float:
        return max(sum(cost.busy_seconds) for cost in self.costs)


class _PlanWalk:
    def __init__(self, space: HybridSpace, trials: HybridTrials, clock: Clock) -> None:
        self.space = space
        self.trials = trials
        self.clock = clock
        self.is_late = False
        self._network = group_prices(space.cluster)
        self._costs: dict[tuple[Frame, DraftStage], tuple[StageCost, ...]] = {}

    def drafts(self) -> Iterator[HybridDraft]:
        """Every draft whose bound is below the best when it is reached."""
        num_devices = self.space.cluster.num_devices
        for frame in list_frames(self.space.scope, self.space.batch, num_devices):
            pod = num_devices // frame.pods
            for used in range(1, pod + 1):
                for pieces in self._chains(frame, pod, 0, pod - used, ()):
                    yield from self._with_schedules(frame, pieces)
            if ScheduleKind.INTERLEAVED in self.space.scope.schedules:
                yield from self._interleaved(frame, pod)

    def _chains(
        self, frame: Frame, pod: int, layer: int, offset: int, before: tuple[_Piece, ...]
    ) -> Iterator[tuple[_Piece, ...]]:
        """All ways to go on from a layer and a place in the pod to the end of both."""
        num_layers = self.space.stack.num_layers
        # Where little fits, few drafts come of many chains.
        self.is_late = self.is_late or self.clock.is_over
        if self.is_late:
            return
        if layer == num_layers or offset == pod:
            is_again = frame.pods > 1 and len(before) == 1  # as in one pod
            is_meant = frame.pipeline in (0, len(before))
            if layer == num_layers and offset == pod and is_meant and not is_again:
                yield before
            return
        if frame.pipeline and len(before) == frame.pipeline:
            return
        for after in range(layer + 1, num_layers + 1):
            for size in self._sizes(pod, offset, before):
                for option in self.space.options:
                    if not option_fits(self.space.prices, frame, size, option):
                        continue
                    stage = DraftStage(
                        first=layer, after=after, offset=offset, size=size, option=option
                    )
                    chain = (*before, _Piece(stage, self._cost(frame, stage)))
                    if self._bound(frame, chain) < self.trials.best_seconds and self._may_fit(
                        chain[-1]
                    ):
                        yield from self._chains(frame, pod, after, offset + size, chain)

    def _sizes(self, pod: int, offset: int, before: Sequence[_Piece]) -> list[int]:
        is_even = before and not self.space.scope.mixed
        sizes = [before[0].stage.size] if is_even else list_sizes(pod)
        return [size for size in sizes if offset + size <= pod]

    def _cost(self, frame: Frame, stage: DraftStage) -> tuple[StageCost, ...]:
        """On each sort of its replicas."""
        key = (frame, stage)
        if key not in self._costs:
            order = self.space.prices.tiers.order
            pod = len(order) // frame.pods
            begins = [each * pod + stage.offset for each in range(frame.pods)]
            costs = replica_costs(
                self.space.stack,
                self._network,
                Stage(
                    layers=range(stage.first, stage.after),
                    devices=tuple(
                        device for begin in begins for device in order[begin : begin + stage.size]
                    ),
                    team=stage.option.team,
                    zero=stage.option.zero,
                    recompute=stage.option.recompute,
                    samples=samples_of(self.space.batch, frame, stage.size, stage.option.team),
                    runtime=self.space.prices.runtime,
                ),
            )
            self._costs[key] = tuple({id(cost): cost for cost in costs}.values())
        return self._costs[key]

    def _bound(
        self, frame: Frame, chain: Sequence[_Piece], kind: ScheduleKind | None = None
    ) -> float:
        """A stage starts when the first microbatch has come and ends before the last has gone back:
        what it is busy with, and what the stages before it that it depends on are with one
        microbatch.

        Where weight gradients are postponed, those of stages before and its own last ones may run
        at the same time. No kind: whichever there are.
        """
        kinds = self.space.scope.schedules if kind is None else (kind,)
        postpones = ScheduleKind.ZERO_BUBBLE in kinds
        come, back, bound = [0.0], [0.0], 0.0
        for number, piece in enumerate(chain):
            returns = []
            for cost in piece.costs:
                weight = cost.weight_seconds if postpones else 0.0
                busy = sum(cost.busy_seconds)
                passed = come[number] + back[number] + frame.microbatches * (busy - weight)
                bound = max(bound, passed, come[number] + frame.microbatches * busy)
                returns.append(max(0.0, cost.busy_seconds[1] - weight))
            # Replicas take other rows: those of a slow one may come from fast ones.
            come[number] += min(cost.busy_seconds[0] for cost in piece.costs)
            back[number] += min(returns)
            come.append(self._longest(chain, number + 1, come, 0))
            back.append(self._longest(chain, number + 1, back, 1))
        return bound * (1 - 1e-12)

    def _longest(
        self, chain: Sequence[_Piece], number: int, ends: Sequence[float], way: int
    ) -> float:
        """When the stages before that a stage reads, or that read its gradients, have all ended; in
        a chain the one before it."""
        crossings = self.space.stack.crossings
        if crossings is None or number == len(chain):
            return ends[number - 1]
        own = chain[number].layers
        pairs = [
            (end, (own, each.layers) if way else (each.layers, own))
            for each, end in zip(chain, ends, strict=False)
        ]
        return max((end for end, pair in pairs if crossings.reads_of(*pair)[way]), default=0.0)

    def _may_fit(self, piece: _Piece) -> bool:
        """Whether one microbatch at a time fits."""
        usable = float(self.space.layouts.usable_bytes.max())
        memory = [cost.memory for cost in piece.costs]
        held = max(each.fixed_bytes + each.saved_bytes for each in memory)
        return held <= usable * (1 + 1e-9)

    def _with_schedules(self, frame: Frame, pieces: Sequence[_Piece]) -> Iterator[HybridDraft]:
        stages = tuple(piece.stage for piece in pieces)
        kinds: Sequence[ScheduleKind] = self.space.scope.schedules
        if len(stages) == 1:
            kinds = [ScheduleKind.ONE_F_ONE_B] if self.space.scope.allows_one_chunk else []
        for kind in kinds:
            bound = self._bound(frame, pieces, kind)
            if kind is not ScheduleKind.INTERLEAVED and bound < self.trials.best_seconds:
                yield HybridDraft(frame=frame, kind=kind, stages=stages, estimate_seconds=bound)

    def _interleaved(self, frame: Frame, pod: int) -> Iterator[HybridDraft]:
        """Equal runs of devices with several chunks each, one option everywhere, layers cut in
        every way."""
        num_layers = self.space.stack.num_layers
        for size in list_sizes(pod):
            for num_runs in [frame.pipeline] if frame.pipeline else range(2, pod // size + 1):
                if num_runs < 2 or num_runs * size > pod:
                    continue
                if not can_interleave(frame.microbatches, num_runs):
                    continue
                for chunks in self.space.scope.interleaved_chunks(num_layers // num_runs):
                    count = chunks * num_runs
                    offsets = [pod - (num_runs - run) * size for run in range(num_runs)]
                    for option in self.space.options:
                        if option_fits(self.space.prices, frame, size, option):
                            for cut in combinations(range(1, num_layers), count - 1):
                                yield from self._chunks(frame, cut, offsets, size, option)

    def _chunks(
        self, frame: Frame, cut: Sequence[int], offsets: Sequence[int], size: int, option: Option
    ) -> Iterator[HybridDraft]:
        self.is_late = self.is_late or self.clock.is_over
        if self.is_late:
            return
        bounds = (0, *cut, self.space.stack.num_layers)
        stages = tuple(
            DraftStage(
                first=first, after=after, offset=offsets[number % len(offsets)], size=size,
                option=option,
            )
            for number, (first, after) in enumerate(pairwise(bounds))
        )  # fmt: skip
        pieces = [_Piece(stage, self._cost(frame, stage)) for stage in stages]
        busy = [
            sum(piece.seconds for piece in pieces[run :: len(offsets)])
            for run in range(len(offsets))
        ]
        bound = frame.microbatches * max(busy) * (1 - 1e-12)
        if bound < self.trials.best_seconds and all(map(self._may_fit, pieces)):
            kind = ScheduleKind.INTERLEAVED
            yield HybridDraft(frame=frame, kind=kind, stages=stages, estimate_seconds=bound)
