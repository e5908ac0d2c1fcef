"""What limits the step: every moment of it with exactly one cause, and the sums.

Without a pipeline a moment counts as what is under way on the critical path then. In a pipeline
many paths tie, and which of the stages the path happens to follow says little: there a moment
counts as what the busiest device does, and where it has nothing to do, as what it waits for, link
by link; work of other stages that it waits for is the pipeline's bubble.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Longs
from meshwright.cluster.cluster import Cluster
from meshwright.explain.cause import COMPUTE, Cause, find_causes, first_rows
from meshwright.explain.link import Bottlenecks
from meshwright.explain.unit import UnitShares, unit_shares
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.program import JOINS, Kind
from meshwright.simulate.timeline import Timeline
from meshwright.simulate.wait import Waits

_WITHIN = (Cause.TENSOR, Cause.CONTEXT, Cause.EXPERT, Cause.SCATTERS)
"""Collectives within a stage's forward and backward."""
_TIE = 1e-9
"""Relative. Devices whose busy times differ by less are equally busy: sums round differently."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What of a step is spent on one thing in one place."""

    cause: Cause
    where: str
    """A device, or a link as "source -> target"; empty: it has no place."""
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Seconds that add up to the step."""

    shares: tuple[Share, ...]
    """The largest first."""
    step_seconds: float
    anchor: str
    """The device whose step was divided; empty: the critical path was."""

    def by_cause(self) -> dict[Cause, float]:
        """Seconds of each cause, in all places together."""
        found: dict[Cause, float] = {}
        for each in self.shares:
            found[each.cause] = found.get(each.cause, 0.0) + each.seconds
        return found


def find_shares(graph: Graph, cluster: Cluster, plan: Plan, timeline: Timeline) -> Shares:
    """What each moment of a simulated step of a plan was spent on."""
    return sum_spans(StepSpans(graph, cluster, plan, timeline), plan)


def sum_spans(spans: "StepSpans", plan: Plan) -> Shares:
    """The same of a step whose spans are known."""
    timeline, cluster = spans.timeline, spans.cluster
    totals: dict[tuple[Cause, str], float] = {}
    anchor = busiest_device(timeline) if is_pipeline(plan) else -1
    found = spans.of_device(anchor) if anchor >= 0 else spans.of_path()
    for cause, where, seconds in found:
        totals[cause, where] = totals.get((cause, where), 0.0) + seconds
    rest = timeline.step_seconds - timeline.device_seconds
    if rest > 0:
        slowest = int(np.argmax(timeline.program.host_seconds))
        totals[Cause.LAUNCH, cluster.devices[slowest].host] = rest
    shares = [
        Share(cause=cause, where=where, seconds=seconds)
        for (cause, where), seconds in totals.items()
    ]
    return Shares(
        shares=tuple(sorted(shares, key=lambda each: -each.seconds)),
        step_seconds=timeline.step_seconds,
        anchor=cluster.devices[anchor].name if anchor >= 0 else "",
    )


def is_pipeline(plan: Plan) -> bool:
    """Whether stages on different devices take turns."""
    return plan.schedule is not None and len({part.devices for part in plan.parts}) > 1


def busiest_device(timeline: Timeline) -> int:
    """The device that computes for longest, its team's collectives counted; the first of equals."""
    busy = timeline.busy_seconds
    number = int(np.flatnonzero(busy >= busy.max() * (1 - _TIE))[0])
    return int(timeline.program.leader[number])


class StepSpans:
    """Spans of a step with their causes."""

    def __init__(self, graph: Graph, cluster: Cluster, plan: Plan, timeline: Timeline) -> None:
        program = timeline.program
        self.timeline, self.cluster = timeline, cluster
        self.waits = Waits.of(timeline)
        self.causes = find_causes(program, plan)
        self.first = first_rows(program)
        self.links = Bottlenecks(timeline, cluster)
        self._calls = program.call_seconds
        self._units: Sequence[UnitShares] = ()
        if program.call_seconds is not None:
            self._units = unit_shares(graph, cluster, plan)

    def of_path(self) -> Iterator[tuple[Cause, str, float]]:
        """Along the critical path."""
        waits = self.waits
        for task, begin, end in waits.back(waits.last, 0.0, self.timeline.device_seconds):
            if task < 0:
                yield Cause.IDLE, "", end - begin
            else:
                yield from self.split(self.first[task], end - begin)

    def of_device(self, device: int) -> Iterator[tuple[Cause, str, float]]:
        """What a device does, or waits for while it does nothing."""
        rows, timeline = self.timeline.program.instructions, self.timeline
        computes = np.isin(rows["kind"], (Kind.COMPUTE, *JOINS)) & (rows["device"] == device)
        own = np.flatnonzero(computes)
        own = own[np.lexsort((timeline.finish[own], timeline.start[own]))]
        starts, finishes = timeline.start[own].tolist(), timeline.finish[own].tolist()
        turns = self._turns(own)
        now = 0.0
        for number, start, finish in zip(own.tolist(), starts, finishes, strict=True):
            if start > now:
                cause = self.waits.cause[int(rows["task"][number])]
                yield from self._gap(device, cause, now, start, turns)
                now = start
            if finish > now:
                yield from self.split(number, finish - now)
                now = finish
        yield from self._gap(device, self.waits.last, now, timeline.device_seconds, turns)

    def _turns(self, own: Longs) -> tuple[float, float]:
        """Until when a device fills the pipeline (its first backward), and from when it drains
        (its last forward); of a step without backward, its first and last work."""
        found = [self.causes[number] is Cause.FORWARD for number in own.tolist()]
        is_forward = np.array(found, dtype=np.bool_)
        forward, others = own[is_forward], own[~is_forward]
        start, finish = self.timeline.start, self.timeline.finish
        if not len(forward) or not len(others):
            return float(start[own].min(initial=np.inf)), float(finish[own].max(initial=0.0))
        return float(start[others].min()), float(finish[forward].max())

    def _gap(
        self, device: int, task: int, low: float, high: float, turns: tuple[float, float]
    ) -> Iterator[tuple[Cause, str, float]]:
        """What a device waits for: communication, or a bubble while other stages work."""
        name = self.cluster.devices[device].name
        bubble = Cause.STALL if low < turns[1] else Cause.DRAIN
        bubble = Cause.FILL if low < turns[0] else bubble
        for each, begin, end in self.waits.back(task, low, high):
            if each < 0 or self._is_others_work(self.first[each], device):
                yield bubble, name, end - begin
            else:
                yield from self.split(self.first[each], end - begin)

    def _is_others_work(self, number: int, device: int) -> bool:
        """Whether an instruction is what other stages do by themselves: compute, and what their
        teams say to each other for it."""
        if self.causes[number] in COMPUTE:
            return True
        if self.causes[number] not in _WITHIN:
            return False
        program = self.timeline.program
        group = int(program.instructions["group"][number])
        beside = program.beside[group] if program.beside else ()
        return not any(device in each for each in (program.groups[group], *beside))

    def split(self, number: int, seconds: float) -> Iterator[tuple[Cause, str, float]]:
        """Seconds of an instruction by cause and place."""
        row, cause = self.timeline.program.instructions[number], self.causes[number]
        if cause not in COMPUTE:
            yield cause, self.link(number), seconds
            return
        where = self.cluster.devices[int(row["device"])].name
        took = float(self.timeline.finish[number] - self.timeline.start[number])
        if not self._units or row["op"] < 0 or took <= 0:
            yield cause, where, seconds
            return
        assert self._calls is not None
        within = seconds * min(1.0, float(self._calls[number]) / took)
        unit = self._units[int(self.timeline.program.part_of_op[int(row["op"])])]
        calls = unit.forward_calls if cause is Cause.FORWARD else unit.backward_calls
        called = 0.0
        for each, share in calls.items() if within > 0 else ():
            called += within * share
            yield each, where, within * share
        again = (seconds - called) * unit.again if self._has_again(number) else 0.0
        if again > 0:
            yield Cause.RECOMPUTATION, where, again
        yield cause, where, seconds - called - again

    def _has_again(self, number: int) -> bool:
        """Whether a unit computes layers again: a backward, but not one of weights alone."""
        if self.causes[number] is not Cause.BACKWARD:
            return False
        op = int(self.timeline.program.instructions["op"][number])
        return " weight" not in self.timeline.program.graph.op_names[op]

    def link(self, number: int) -> str:
        """The link that a transfer or a collective is as slow as, else the host it stays in."""
        row = self.timeline.program.instructions[number]
        task = int(row["task"])
        took = self.waits.finish[task] - self.waits.start[task]
        found = self.links.name(task, took)
        return found or f"within {self.cluster.devices[int(row['device'])].host}"


def sum_shares(shares: Sequence[Share]) -> float:
    """The seconds of all shares together."""
    return float(np.sum(np.array([each.seconds for each in shares]), dtype=np.float64))


def difference(one: Shares, other: Shares) -> dict[Cause, float]:
    """By cause, by how many seconds the other step spends more on it; no zeros."""
    before, after = one.by_cause(), other.by_cause()
    found = {cause: after.get(cause, 0.0) - before.get(cause, 0.0) for cause in {**before, **after}}
    return {cause: each for cause, each in found.items() if each}
