"""Simulates strategies, remembers what came out, and tells what a search may learn from it.

The features of a running step that TAG feeds back to its network (`Feedback`) are read off the
timeline: how long groups and devices wait, how full they are, how long links are idle.
"""

from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import freeze_arrays
from meshwright.graph.graph import Floats
from meshwright.program.program import Kind, Program
from meshwright.search.judge import MEMORY_TOLERANCE
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.compile import make_plan
from meshwright.search.method.deploy.option import Strategy
from meshwright.simulate.footprint import usable_in
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

_Key = tuple[Strategy, frozenset[int], tuple[int, ...]]
_REMEMBERED = 20_000
"""Strategies; some 2 kB each."""
OUT_OF_MEMORY = -1.0
"""The reward of a strategy that does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Feedback:
    """What a simulated step says besides its time; fractions of the step, or of the memory."""

    group_start: Floats
    """By group of ops: when its first op starts."""
    group_finish: Floats
    """By group of ops: when its last op finishes."""
    group_busy: Floats
    """For how long its ops run, on the mean of its devices."""
    place_idle: Floats
    """By device group: for how long its devices compute nothing."""
    place_peak: Floats
    """The part of its memory that the fullest of its devices holds; above one where it lacks."""
    link_idle: Floats
    """Device group x device group: for how long nothing is on its way from one to the other."""

    def __post_init__(self) -> None:
        freeze_arrays(self)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StrategyEvaluation:
    """What the simulator says of a strategy."""

    step_seconds: float
    missing_bytes: float
    feedback: Feedback

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return self.missing_bytes <= 0

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is better: what fits first, then what is faster."""
        return self.missing_bytes, self.step_seconds


class Evaluator:
    """Simulates strategies of one analysis; what was simulated once is remembered."""

    def __init__(self, analysis: Analysis, sharing: str = "fair") -> None:
        self.analysis, self.sharing = analysis, sharing
        self.num_evaluations = 0
        """How many strategies were simulated so far."""
        self._known: OrderedDict[_Key, StrategyEvaluation] = OrderedDict()
        self._ranks: OrderedDict[_Key, tuple[float, float]] = OrderedDict()
        first = analysis.allowed.argmax(axis=1).tolist()
        self.data_parallel: Strategy = tuple(analysis.actions[number] for number in first)
        """As far as it is allowed: elsewhere the first action that is."""
        self.reference_seconds = self.evaluate(self.data_parallel).step_seconds
        """Of data parallelism with all-reduce and equal shares, whether or not it fits."""

    def evaluate(
        self, strategy: Strategy, duplicated: Collection[int] = (), bundles: Sequence[int] = ()
    ) -> StrategyEvaluation:
        """Simulate a whole strategy."""
        key = strategy, frozenset(duplicated), tuple(bundles)
        found = self._known.get(key)
        if found is None:
            found = self._simulate(key)
            self._known[key] = found
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found

    def rank(
        self, strategy: Strategy, duplicated: Collection[int] = (), bundles: Sequence[int] = ()
    ) -> tuple[float, float]:
        """`Evaluation.rank` alone, for less: no feedback, and no memory over time where everything
        that is ever held fits at once."""
        key = strategy, frozenset(duplicated), tuple(bundles)
        if (known := self._known.get(key)) is not None:
            return known.rank
        found = self._ranks.get(key)
        if found is None:
            timeline = self.simulate(*key)
            missing = 0.0
            usable = self._usable(timeline.program)
            if (_most_bytes(timeline.program) > usable).any():
                missing = _missing(np.array(timeline.peak_bytes), usable)
            found = self._ranks[key] = missing, timeline.step_seconds
            if len(self._ranks) > _REMEMBERED:
                self._ranks.popitem(last=False)
        return found

    def simulate(
        self, strategy: Strategy, duplicated: Collection[int] = (), bundles: Sequence[int] = ()
    ) -> Timeline:
        """The whole timeline, which is not remembered."""
        self.num_evaluations += 1
        plan = make_plan(self.analysis, strategy, duplicated, bundles)
        return simulate(self.analysis.graph, self.analysis.cluster, plan, sharing=self.sharing)

    def reward(self, evaluation: StrategyEvaluation) -> float:
        """The speed-up over data parallelism, less one; of what does not fit minus one."""
        if not evaluation.fits:
            return OUT_OF_MEMORY
        if evaluation.step_seconds <= 0:
            return 0.0
        return self.reference_seconds / evaluation.step_seconds - 1.0

    def complete(self, prefix: Strategy) -> Strategy:
        """A whole strategy: groups that nothing is decided for take the action of the first, which
        computes the longest; where none is decided, data parallelism."""
        if not prefix:
            return self.data_parallel
        analysis, first = self.analysis, prefix[0]
        rest = tuple(
            first if analysis.can_run(group, first) else self.data_parallel[group]
            for group in range(len(prefix), analysis.num_groups)
        )
        return prefix + rest

    def _simulate(self, key: _Key) -> StrategyEvaluation:
        timeline = self.simulate(*key)
        peak, usable = np.array(timeline.peak_bytes), self._usable(timeline.program)
        return StrategyEvaluation(
            step_seconds=timeline.step_seconds,
            missing_bytes=_missing(peak, usable),
            feedback=_read_feedback(self.analysis, timeline, peak / np.maximum(usable, 1.0)),
        )

    def _usable(self, program: Program) -> Floats:
        return usable_in(self.analysis.graph, self.analysis.cluster, program)


def _missing(peak: Floats, usable: Floats) -> float:
    return float(np.maximum(peak - usable * (1 + MEMORY_TOLERANCE), 0.0).sum())


def _most_bytes(program: Program) -> Floats:
    """By device: state, all buffers at once and the largest workspace, which no moment exceeds."""
    rows, buffers = program.instructions, program.buffers
    most = program.state_bytes + np.bincount(
        buffers["device"], weights=buffers["bytes"], minlength=program.num_devices
    )
    workspace = np.zeros(program.num_devices)
    np.maximum.at(workspace, rows["device"], rows["workspace_bytes"])
    return most + workspace


def _read_feedback(analysis: Analysis, timeline: Timeline, fill: Floats) -> Feedback:
    rows = timeline.program.instructions
    step = timeline.step_seconds or 1.0
    num_groups, num_places = analysis.num_groups, len(analysis.device_groups)
    computes = np.flatnonzero(rows["op"] >= 0)
    group = analysis.group_of[rows["op"][computes]]
    start, finish = timeline.start[computes], timeline.finish[computes]
    first, last = np.full(num_groups, np.inf), np.zeros(num_groups)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, finish)
    busy = np.bincount(group, weights=finish - start, minlength=num_groups)
    pairs = np.unique(
        group.astype(np.int64) * analysis.cluster.num_devices + rows["device"][computes]
    )
    devices = np.bincount(pairs // analysis.cluster.num_devices, minlength=num_groups)
    sizes = np.array([len(place.devices) for place in analysis.device_groups])
    used = np.bincount(analysis.place_of, weights=timeline.busy_seconds, minlength=num_places)
    peak = np.zeros(num_places)
    np.maximum.at(peak, analysis.place_of, fill)
    return Feedback(
        group_start=np.minimum(first / step, 1.0),
        group_finish=last / step,
        group_busy=busy / np.maximum(devices, 1) / step,
        place_idle=np.clip(1.0 - used / sizes / step, 0.0, 1.0),
        place_peak=peak,
        link_idle=1.0 - np.minimum(_link_busy(analysis, timeline) / step, 1.0),
    )


def _link_busy(analysis: Analysis, timeline: Timeline) -> Floats:
    """Seconds of transfers and collectives from device group to device group; those that run at
    once add up."""
    rows, program = timeline.program.instructions, timeline.program
    taken = timeline.finish - timeline.start
    num_places = len(analysis.device_groups)
    busy = np.zeros((num_places, num_places))
    sends = np.flatnonzero(rows["kind"] == Kind.SEND)
    place_of = analysis.place_of
    np.add.at(busy, (place_of[rows["device"][sends]], place_of[rows["peer"][sends]]), taken[sends])
    calls = np.flatnonzero((rows["group"] >= 0) & (rows["replica"] == 0))
    by_group = np.bincount(
        rows["group"][calls], weights=taken[calls], minlength=len(program.groups)
    )
    for number in np.flatnonzero(by_group).tolist():
        members = np.unique(place_of[list(program.groups[number])])
        busy[np.ix_(members, members)] += by_group[number]
    return busy
