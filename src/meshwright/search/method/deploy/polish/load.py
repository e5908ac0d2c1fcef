"""What strategies cost by sums alone: seconds of compute by group and device, and of gradients.

Quick enough to divide batches by and to turn down moves before they are simulated. Knows nothing of
transfers between groups, of waiting and of memory over time.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from meshwright.cost.collective import Collective, collective_model
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Floats, Ints, Phase, Split
from meshwright.kernel.row import group_values, sum_values
from meshwright.search.method.deploy.analysis import Analysis
from meshwright.search.method.deploy.menu import share_out
from meshwright.search.method.deploy.option import GroupAction, GroupOption, Strategy

_FREE_SAMPLES = 120
"""Into so many pieces a batch is divided that does not count samples, or too many."""
_MOST_SAMPLES = 2048
_TABLE_BYTES = 64 << 20
"""Tables of actions that are remembered."""
_MOST_PRICED = 128
"""Devices: a collective of more takes tens of milliseconds to price, and counts for nothing."""

Devices = npt.NDArray[np.intp]


class Loads:
    """Tables of one analysis."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        batch = float(analysis.graph.batch)
        counts_samples = 1 < batch <= _MOST_SAMPLES and batch.is_integer()
        self.num_samples = int(batch) if counts_samples else _FREE_SAMPLES
        self.type_of = np.asarray(analysis.cluster.type_of)
        self.seconds = _sample_table(analysis, self.num_samples)
        """Group x device type x samples, from none to all of them."""
        can_run = np.isfinite(self.seconds[:, :, -1])
        self.can_run = None if can_run.all() else can_run[:, self.type_of]
        """Group x device; None: every device can run everything."""
        self.order = _order_groups(analysis)
        """The groups as the step runs through them."""
        self._last_gradient = _last_gradients(analysis)
        self._per_byte: dict[tuple[int, ...], float] = {}
        self._tables: dict[GroupAction, Floats] = {}

    def samples(self, action: GroupAction) -> Ints:
        """How many samples each device has of a group; zero: it has no part in it."""
        found = np.zeros(len(self.type_of), dtype=np.int32)
        devices = list(action.devices)
        if action.option is GroupOption.DUPLICATE or len(devices) == 1:
            found[devices] = self.num_samples
        else:
            shares = np.array(action.shares or [1.0 / len(devices)] * len(devices))
            found[devices] = np.maximum(np.rint(shares * self.num_samples), 1)
        return found

    def by_device(self, action: GroupAction) -> Floats:
        """Group x device: seconds with this action; what is dealt out counts as if replicated."""
        found = self._tables.get(action)
        if found is None:
            if len(self._tables) * len(self.type_of) * len(self.seconds) * 8 > _TABLE_BYTES:
                self._tables.clear()
            found = self._tables[action] = self.seconds[:, self.type_of, self.samples(action)]
        return found

    def table(self, strategy: Strategy) -> Floats:
        """By group (rows) and device: the seconds of a strategy."""
        groups = group_values((action, group) for group, action in enumerate(strategy))
        found = np.empty((len(strategy), len(self.type_of)))
        for action, members in groups.items():
            found[members] = self.by_device(action)[members]
        return found

    def floor_seconds(self, strategy: Strategy) -> float:
        """About what the step takes at least: the busiest device's compute, or the gradients of all
        parts that it is in, which go one after the other."""
        return max(self._sums(strategy))

    def estimate_seconds(self, strategy: Strategy) -> float:
        """What the step may take: gradients wait for forward, about a third of all compute."""
        compute, gradients = self._sums(strategy)
        return max(compute, compute / 3 + gradients)

    def _sums(self, strategy: Strategy) -> tuple[float, float]:
        compute = float(self.table(strategy).sum(axis=0).max())
        chosen = zip(strategy, self.analysis.gradient_bytes.tolist(), strict=True)
        parts = sum_values(
            (action.devices, size)
            for action, size in chosen
            if action.option is GroupOption.ALL_REDUCE and len(action.devices) > 1
        )
        gradients = np.zeros(len(self.type_of))
        for devices, size in parts.items():
            gradients[list(devices)] += size * self.gradient_seconds(devices)
        return compute, float(gradients.max())

    def bundle(self, count: int) -> tuple[int, ...]:
        """Groups in so many runs, each with about as many gradient bytes, by when the last of a
        group's gradients is made; of one all are, with as many as groups each is alone."""
        analysis = self.analysis
        if count <= 1 or not analysis.gradient_bytes.any():
            return ()
        if count >= analysis.num_groups:
            return tuple(range(analysis.num_groups))
        order = np.argsort(self._last_gradient, kind="stable")
        size = analysis.gradient_bytes[order]
        before = np.cumsum(size) - size
        found = np.empty(len(size), dtype=np.int64)
        found[order] = np.minimum(before / size.sum() * count, count - 1).astype(np.int64)
        return tuple(found.tolist())

    def gradient_seconds(self, devices: tuple[int, ...]) -> float:
        """Of each byte that these devices all-reduce, or less."""
        if len(devices) > _MOST_PRICED:
            return 0.0
        if devices not in self._per_byte:
            model = collective_model(self.analysis.cluster, Collective.ALL_REDUCE, devices)
            size = 1e9
            cost = model.cost(size)
            self._per_byte[devices] = (cost.seconds - cost.latency_seconds) / size
        return self._per_byte[devices]

    def divide(
        self, groups: Sequence[int], devices: Sequence[int], busy: Floats, option: GroupOption
    ) -> GroupAction | None:
        """Replicas of some groups on some devices, with shares such that the last device to finish,
        counting what each has to do besides, finishes earliest; None: a device cannot run them."""
        chosen = np.array(sorted(devices), dtype=np.intp)
        table = self.seconds[list(groups)].sum(axis=0)[self.type_of[chosen]]
        if not np.isfinite(table).all():
            return None
        if option in (GroupOption.DUPLICATE, GroupOption.MODEL):
            return self.act(chosen, np.ones(len(chosen)), option)
        samples = level_samples(table + busy[chosen, None], self.num_samples)
        return self.act(chosen, samples.astype(np.float64), option)

    def act(self, devices: Devices, weights: Floats, option: GroupOption) -> GroupAction:
        """The action of these shares in whole samples; devices that get none are left out."""
        if option in (GroupOption.DUPLICATE, GroupOption.MODEL):
            kept = option if len(devices) > 1 else GroupOption.ALL_REDUCE
            action = GroupAction(places=(), devices=tuple(devices.tolist()), option=kept)
        else:
            action = share_out(self.analysis.graph, (), devices, weights, option)
        places = np.unique(self.analysis.place_of[list(action.devices)])
        return replace(action, places=tuple(places.tolist()))


def level_samples(finish: Floats, num_samples: int) -> Ints:
    """How many samples each device (a row) gets so that the latest finish is earliest; `finish` is
    by samples from none to all."""
    finish = np.maximum.accumulate(finish, axis=1)
    # Times rise along each row, so the level is that by which as many entries are done in all.
    level = np.partition(finish[:, 1:], num_samples - 1, axis=None)[num_samples - 1]
    samples: Ints = (finish[:, 1:] <= level).sum(axis=1).astype(np.int32)
    rows = np.arange(len(samples))
    for _ in range(int(samples.sum()) - num_samples):
        last = np.where(samples > 0, finish[rows, samples], -np.inf)
        samples[int(np.argmax(last))] -= 1
    return samples


def _sample_table(analysis: Analysis, num_samples: int) -> Floats:
    """Group x device type x samples; between those that are asked for the times are lines."""
    graph, cluster = analysis.graph, analysis.cluster
    is_whole = (graph.phase == Phase.UPDATE) | (graph.split == Split.NONE)
    points = sorted({min(1 << power, num_samples) for power in range(num_samples.bit_length() + 1)})
    grid = np.arange(num_samples + 1)
    table = np.zeros((analysis.num_groups, len(cluster.type_names), num_samples + 1))
    for kind, name in enumerate(cluster.type_names):
        device_type = cluster.types[name]
        whole = op_seconds(graph, device_type, graph.batch)
        columns = []
        for point in points:
            some = op_seconds(graph, device_type, graph.batch * point / num_samples)
            seconds = np.where(is_whole, whole, some)
            columns.append(
                np.bincount(analysis.group_of, weights=seconds, minlength=analysis.num_groups)
            )
        for group, row in enumerate(np.stack(columns, axis=1)):
            is_known = bool(np.isfinite(row).all())
            table[group, kind] = np.interp(grid, points, row) if is_known else np.inf
    table[:, :, 0] = 0.0
    return table


def _last_gradients(analysis: Analysis) -> Ints:
    """By group: the last backward op with a partial tensor, -1: none."""
    graph = analysis.graph
    source = graph.tensor_source[graph.tensor_partial]
    source = source[graph.phase[source] == Phase.BACKWARD]
    last = np.full(analysis.num_groups, -1, dtype=np.int32)
    np.maximum.at(last, analysis.group_of[source], source)
    return last


def _order_groups(analysis: Analysis) -> Ints:
    """By the mean place of their forward ops; what has none stands where backward would mirror."""
    graph = analysis.graph
    place = np.arange(graph.num_ops, dtype=np.float64)
    is_forward = graph.phase == Phase.FORWARD
    turn = float(is_forward.sum())
    weight = np.where(is_forward, 1.0, 1e-6)
    place = np.where(is_forward, place, np.maximum(2 * turn - place, 0.0))
    total = np.bincount(analysis.group_of, weights=weight, minlength=analysis.num_groups)
    mean = np.bincount(analysis.group_of, weights=weight * place, minlength=analysis.num_groups)
    return np.argsort(mean / total, kind="stable").astype(np.int32)
