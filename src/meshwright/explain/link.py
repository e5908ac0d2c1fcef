"""Which link a transfer or a collective is as slow as.

A transfer that took as long as it takes alone is as slow as the slowest link of its route. One that
took longer has shared links: then it is the link of its route that the whole step's traffic keeps
busy for longest. Knows nothing of why something is sent.
"""

from functools import cached_property

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.simulate.tasks import EngineInput, prepare_engine
from meshwright.simulate.timeline import Timeline

_ALONE = 1.001
"""Relative. What takes no longer than this times what it takes alone has shared no link."""


class Bottlenecks:
    """The link that each task of a timeline waits for, found when it is asked for."""

    def __init__(self, timeline: Timeline, cluster: Cluster) -> None:
        self._timeline, self._cluster = timeline, cluster
        self._alone: dict[int, str] = {}
        self._shared: dict[int, str] = {}

    def name(self, task: int, seconds: float) -> str:
        """The link of a task that took so long, as "source -> target"; empty: it needs none."""
        engine = self._engine
        number = int(engine.tasks["flow_class"][task])
        if number < 0:
            return ""
        flows = engine.network.classes[number]
        if not len(flows.links):
            return ""
        alone = float(engine.tasks["seconds"][task]) + float(engine.flow_bytes[task]) / flows.cap
        is_alone = seconds <= alone * _ALONE
        known = self._alone if is_alone else self._shared
        if number not in known:
            rate = engine.network.link_bytes_per_second[flows.links]
            busy = flows.weights / rate if is_alone else self.busy_seconds[flows.links]
            known[number] = self._name_link(int(flows.links[np.argmax(busy)]))
        return known[number]

    def _name_link(self, link: int) -> str:
        program, links = self._timeline.program, self._cluster.links
        if link < len(links):
            return f"{links[link].source} -> {links[link].target}"
        limit = program.allocations[link - len(links)]
        return f"allocation {limit.source} -> {limit.target}"

    @cached_property
    def _engine(self) -> EngineInput:
        """The program's flows, also of a timeline whose transfers share nothing."""
        return prepare_engine(self._timeline.program, self._cluster, "fair")

    @cached_property
    def busy_seconds(self) -> Floats:
        """By link: how long all of the step's traffic keeps it busy at its full rate."""
        engine = self._engine
        classes, rates = engine.network.classes, engine.network.link_bytes_per_second
        of_task = engine.tasks["flow_class"][:-1]
        has = of_task >= 0
        amount = np.bincount(of_task[has], weights=engine.flow_bytes[has], minlength=len(classes))
        busy = np.zeros(len(rates))
        for each, size in zip(classes, amount.tolist(), strict=True):
            busy[each.links] += size * each.weights
        return busy / rates
