"""Whether links and devices are still what a plan thought, by several runs of it.

One run tells noise from change no better than a coin: a change is what all runs say, by more than
they differ among themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Bools, Floats
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.program.program import Kind
from meshwright.report.calibrate import calibrated_cluster
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_count

LEAST_RUNS = 2
LEAST_CHANGE = 0.1
"""Less than this part is what steps differ by from day to day."""

Runs = Sequence[tuple[Timeline, Timeline]]
"""The predicted and the measured step of each run, of one plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A device, or links, that all runs found slower or faster than thought."""

    devices: tuple[str, ...] = ()
    """The names of the devices whose ops it is about."""
    links: tuple[int, ...] = ()
    """The numbers of the links that it is about."""
    what: str
    """It, for people."""
    factor: float
    """How many times as long it takes as thought, the median of the runs."""
    low: float
    """The least of the runs."""
    high: float
    """The most of the runs."""
    num_runs: int

    def __str__(self) -> str:
        side = "slower" if self.factor > 1 else "faster"
        times = max(self.factor, 1 / self.factor)
        low, high = sorted(max(each, 1 / each) for each in (self.low, self.high))
        runs = format_count(self.num_runs, "run")
        found = f"{low:.2f} to {high:.2f} in {runs}"
        return f"{self.what}: {times:.2f} times {side} than thought ({found})"


def find_drifts(cluster: Cluster, runs: Runs) -> tuple[Drift, ...]:
    """What all runs found changed, the furthest first; nothing of fewer than two runs."""
    if len(runs) < LEAST_RUNS:
        return ()
    found = [*_device_drifts(cluster, runs), *_link_drifts(cluster, runs)]
    return tuple(sorted(found, key=lambda each: -abs(np.log(each.factor))))


def _device_drifts(cluster: Cluster, runs: Runs) -> list[Drift]:
    factors = np.stack([_compute_factors(cluster, *run) for run in runs])
    found = []
    for device in np.flatnonzero(_has_changed(factors)).tolist():
        name = cluster.devices[device].name
        found.append(_drift(factors[:, device], f"device {name}", devices=(name,)))
    return found


def _compute_factors(cluster: Cluster, predicted: Timeline, measured: Timeline) -> Floats:
    """By device, what its ops took over what they were predicted to take; NaN: it had none."""
    rows = predicted.program.instructions
    computes = rows["kind"] == Kind.COMPUTE
    taken, thought = (
        np.bincount(
            rows["device"][computes],
            weights=(each.finish - each.start)[computes],
            minlength=cluster.num_devices,
        )
        for each in (measured, predicted)
    )
    has_both = (taken > 0) & (thought > 0)
    return np.where(has_both, taken / np.where(has_both, thought, 1.0), np.nan)


def _link_drifts(cluster: Cluster, runs: Runs) -> list[Drift]:
    old = cluster.link_bytes_per_second
    factors = np.stack(
        [old / calibrated_cluster(cluster, run[1]).link_bytes_per_second for run in runs]
    )
    changed = np.flatnonzero(_has_changed(factors))
    groups: dict[tuple[float, ...], list[int]] = {}
    for link in changed.tolist():  # those of one route were measured together
        groups.setdefault(tuple(factors[:, link].tolist()), []).append(link)
    found = []
    for each, links in groups.items():
        first = cluster.links[links[0]]
        more = f" and {len(links) - 1:,} more of its way" if len(links) > 1 else ""
        what = f"link {first.source} -> {first.target}{more}"
        found.append(_drift(np.array(each), what, links=tuple(links)))
    return found


def _has_changed(factors: Floats) -> Bools:
    """By column of runs: whether all are on one side, further from 1 than from each other."""
    logs = np.log(factors)
    low, high = logs.min(axis=0), logs.max(axis=0)
    nearest = np.where(low > 0, low, np.where(high < 0, -high, 0.0))
    spread = high - low
    changed: Bools = (nearest > np.log1p(LEAST_CHANGE)) & (nearest > spread)
    changed &= np.isfinite(logs).all(axis=0)
    return changed


def _drift(
    factors: Floats, what: str, *, devices: tuple[str, ...] = (), links: tuple[int, ...] = ()
) -> Drift:
    return Drift(
        devices=devices,
        links=links,
        what=what,
        factor=float(np.median(factors)),
        low=float(factors.min()),
        high=float(factors.max()),
        num_runs=len(factors),
    )


def with_drift(graph: Graph, cluster: Cluster, drift: Drift) -> tuple[Graph, Cluster]:
    """The graph and the cluster as the runs found one thing; a device becomes a type of its own."""
    if drift.links:
        links = list(cluster.links)
        for link in drift.links:
            rate = links[link].bytes_per_second / drift.factor
            links[link] = replace(links[link], bytes_per_second=rate)
        return graph, replace(cluster, links=tuple(links))
    types, devices = dict(cluster.types), list(cluster.devices)
    seconds, ladders = dict(graph.seconds), dict(graph.ladders)
    for number, device in enumerate(devices):
        if device.name not in drift.devices:
            continue
        kind, name = cluster.types[device.type], f"{device.type} of {device.name}"
        types[name] = replace(
            kind,
            name=name,
            flops_per_second={
                key: rate / drift.factor for key, rate in kind.flops_per_second.items()
            },
            memory_bytes_per_second=kind.memory_bytes_per_second / drift.factor,
            call_seconds=kind.call_seconds * drift.factor,
        )
        devices[number] = replace(device, type=name)
        if device.type in seconds:
            seconds[name] = seconds[device.type] * drift.factor
            rungs = graph.ladders.get(device.type, {})
            ladders[name] = {at: each * drift.factor for at, each in rungs.items()}
    return (
        replace(graph, seconds=seconds, ladders=ladders),
        replace(cluster, types=types, devices=tuple(devices)),
    )
