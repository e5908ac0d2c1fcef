"""The best chain of stages under a limit of seconds: the dynamic programme and its plan.

The published one keeps dp[downset][devices][sum of replicas], seconds. With a limit the least sum
of replicas by upset and devices is enough, most stages are too slow to be looked at, and few upsets
can take few enough devices that the rest can be done. Stages are found from the last one on, since
what is in flight in a stage depends on the later ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.search.method.pipeline.stage.downset import downset_weights
from meshwright.search.method.pipeline.stage.lattice import Lattice, find_lattice
from meshwright.search.method.pipeline.stage.problem import make_problem
from solver.piper.choose import choose_ways
from solver.piper.grow import DONE, FULL, UNKNOWN, advance
from solver.piper.price import NUM_SUMS, flight_grid, price_upsets
from solver.piper.problem import Problem, Stage, Way

_WORK = 300_000
"""Stages that the kernel looks at before it returns to have the clock looked at: about a second."""
_FIRST_LIST = 1024
_ROUNDING = 1e-9


class OutOfTimeError(Exception):
    """The time was up before the chain was found."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Weights:
    """What upsets take at least, by whatever plan."""

    device_seconds: Floats
    device_bytes: Floats


def find_upsets(
    problem: Problem, max_upsets: int, extra: Sequence[tuple[int, int]] = ()
) -> Lattice | None:
    """All sets closed under successors; none where there are more than `max_upsets`. `extra`: pairs
    of nodes of which the first must be before the other too. Node v is `num_nodes` - 1 - v there.
    """
    last = len(problem.nodes) - 1
    edges = [(last - edge.target, last - edge.source) for edge in problem.edges]
    edges += [(last - second, last - first) for first, second in extra]
    reverse = make_problem(kinds=[], num_bytes=[0.0] * (last + 1), edges=edges, wires=[])
    return find_lattice(reverse, max_upsets)


def bytes_an_upset(problem: Problem) -> int:
    """Of memory that the search takes for each."""
    prices = len(flight_grid(1 + _most_replicas(problem))) * NUM_SUMS
    widths = max(1, len(problem.widths))
    lattice = 8 * len(problem.nodes) + 100
    return 16 * (problem.resources.num_devices + 1) + 8 * widths * (prices + 6) + lattice


class Chains:
    """The dynamic programme over the upsets of a lattice."""

    def __init__(self, problem: Problem, lattice: Lattice, until: float) -> None:
        self._problem, self._lattice, self._until = problem, lattice, until
        self._widths, self._counts = problem.widths, problem.replica_counts
        ways = [
            [_reversed_node(problem, node).ways.get(width, ()) for width in self._widths]
            for node in range(len(problem.nodes))
        ]
        self._given = (
            (lattice.bits, lattice.step_start, lattice.step_node, lattice.step_to),
            *_way_arrays(problem, ways),
            _least_sums(problem, lattice, ways),
            price_upsets(lattice, ways, 1 + _most_replicas(problem)),
            _choice_arrays(problem),
        )
        self._weights = _find_weights(problem, lattice)
        self._table = _make_table(lattice.num_downsets, problem.resources.num_devices)
        self._scratch = _make_scratch(problem, lattice, len(self._widths) * len(self._counts))
        self._lists = np.empty((6, _FIRST_LIST))
        self._state = np.zeros(4, dtype=np.int64)
        """The next upset, stages looked at, upsets and stages marked."""

    @property
    def stages_seen(self) -> int:
        """Stages that were looked at, in all runs."""
        return int(self._state[1])

    @property
    def first_bound(self) -> float:
        """What no plan can be below, known before any search; infinity where none fits."""
        resources = self._problem.resources
        weights = self._weights
        total_bytes = resources.num_devices * resources.memory_bytes * (1 + _ROUNDING)
        if weights.device_bytes[-1] > total_bytes:
            return math.inf
        balanced = float(weights.device_seconds[-1]) / resources.num_devices
        return max(balanced, _slowest_node_seconds(self._problem))

    def find(self, limit: float) -> list[Stage] | None:
        """Stages of at most `limit` seconds each, those of a plan; none where there is none."""
        resources = self._problem.resources
        best, _, _, _ = self._table
        best.fill(UNKNOWN)
        best[0, 0] = 0
        self._state[0] = 0
        most = self._most_devices(limit)
        front, walk, stage, rests = self._scratch
        status = FULL
        while status != DONE:
            if perf_counter() > self._until:
                raise OutOfTimeError
            status = advance(
                *self._given, most, (limit, float(resources.memory_bytes)),
                resources.num_microbatches, int(self._state[1]) + _WORK, self._table, self._state,
                front, walk, stage, (rests, self._lists),
            )  # fmt: skip
            if status == FULL:
                self._lists = np.empty((6, 2 * self._lists.shape[1]))
        return self._trace(limit) if best[-1].min() < UNKNOWN else None

    def _most_devices(self, limit: float) -> npt.NDArray[np.int64]:
        """By upset: how many devices it may take for the others to do the rest."""
        weights, resources = self._weights, self._problem.resources
        rest_bytes = weights.device_bytes[-1] - weights.device_bytes
        need = rest_bytes / resources.memory_bytes
        if limit > 0:
            rest_seconds = weights.device_seconds[-1] - weights.device_seconds
            need = np.maximum(need, rest_seconds / limit)
        need = np.minimum(need * (1 - _ROUNDING) - _ROUNDING, resources.num_devices + 1.0)
        most: npt.NDArray[np.int64] = resources.num_devices - np.ceil(need).astype(np.int64)
        return np.minimum(most, resources.num_devices)

    def _trace(self, limit: float) -> list[Stage]:
        """The stages of the table, first stage first, in their fastest ways that fit."""
        best, value, came, chose = self._table
        upset = self._lattice.num_downsets - 1
        is_known = (best[upset] < UNKNOWN) & (came[upset] >= 0)
        devices = int(np.argmin(np.where(is_known, value[upset], np.inf)))
        stages = []
        while upset != 0:
            before = int(came[upset, devices])
            width, number = divmod(int(chose[upset, devices]), len(self._counts))
            replicas = self._counts[number]
            flights = -(-int(best[upset, devices]) // replicas)
            nodes = self._nodes_between(before, upset)
            stages.append(
                choose_ways(self._problem, nodes, replicas, self._widths[width], flights, limit)
            )
            devices -= replicas * self._widths[width]
            upset = before
        return stages

    def _nodes_between(self, before: int, upset: int) -> list[int]:
        bits = self._lattice.bits
        octets = (bits[upset] & ~bits[before]).astype("<u8").view(np.uint8)
        inside = np.flatnonzero(np.unpackbits(octets, bitorder="little"))
        count = len(self._problem.nodes)
        return sorted(count - 1 - node for node in inside.tolist())


def _choice_arrays(problem: Problem) -> tuple[Any, ...]:
    counts = np.array(problem.replica_counts, dtype=np.int64)
    within = np.searchsorted(counts, np.arange(_most_replicas(problem) + 1), side="right")
    return np.array(problem.widths, dtype=np.int64), counts, within.astype(np.int64)


def _most_replicas(problem: Problem) -> int:
    """Of all stages together."""
    return min(problem.resources.num_microbatches, problem.resources.num_devices)


def _reversed_node(problem: Problem, node: int) -> Any:
    return problem.nodes[len(problem.nodes) - 1 - node]


def _way_arrays(
    problem: Problem, ways: list[list[tuple[Way, ...]]]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The neighbours of nodes, and all their ways, as the kernel wants them."""
    count = len(problem.nodes)
    edges_of: _EdgesOf = [[] for _ in range(count)]
    for number, edge in enumerate(problem.edges):
        source, target = count - 1 - edge.source, count - 1 - edge.target
        edges_of[source].append((number, target))
        edges_of[target].append((number, source))
    flat = [(way, node) for node, by_width in enumerate(ways) for each in by_width for way in each]
    cuts = [
        problem.edges[number].num_bytes + way.sync_bytes[number]
        for way, node in flat
        for number, _ in edges_of[node]
    ]
    return _graph_arrays(edges_of, ways, problem), (
        _starts([len(each) for by_width in ways for each in by_width]),
        np.array([way.seconds for way, _ in flat], dtype=np.float64),
        np.array([_agreeing_seconds(problem, way) for way, _ in flat], dtype=np.float64),
        np.array([way.flight_bytes for way, _ in flat], dtype=np.float64),
        np.array([way.fixed_bytes for way, _ in flat], dtype=np.float64),
        _starts([len(edges_of[node]) for _, node in flat]),
        np.array(cuts, dtype=np.float64) * _byte_seconds(problem),
    )


_EdgesOf = list[list[tuple[int, int]]]
"""By node: its edges, each with the node at its other end."""


def _byte_seconds(problem: Problem) -> float:
    """What a byte over a cut edge costs on one replica: it is moved forward, its gradient back."""
    return 2 / problem.resources.bytes_per_second


def _graph_arrays(
    edges_of: _EdgesOf, ways: list[list[tuple[Way, ...]]], problem: Problem
) -> tuple[Any, ...]:
    edges = problem.edges
    flat = [(node, number) for node, each in enumerate(edges_of) for number, _ in each]
    place = {pair: at for at, pair in enumerate(flat)}
    others = [other for each in edges_of for _, other in each]
    least = [
        [
            min((way.sync_bytes[number] for way in each), default=0.0) + edges[number].num_bytes
            for each in ways[node]
        ]
        for node, number in flat
    ]
    twins = [place[other, number] for (_, number), other in zip(flat, others, strict=True)]
    return (
        _starts([len(each) for each in edges_of]),
        np.array(others, dtype=np.int64),
        np.array(twins, dtype=np.int64),
        np.array(least, dtype=np.float64).reshape(len(flat), len(ways[0])) * _byte_seconds(problem),
    )


def _starts(lengths: list[int]) -> npt.NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))


def _agreeing_seconds(problem: Problem, way: Way) -> float:
    """With d replicas a microbatch takes (d - 1) / d of this for the parameters."""
    resources = problem.resources
    return 4 * way.parameter_bytes / resources.num_microbatches / resources.bytes_per_second


def _least_sums(
    problem: Problem, lattice: Lattice, ways: list[list[tuple[Way, ...]]]
) -> tuple[Any, ...]:
    """Of upsets by width: the sums over nodes of what their ways take at least."""

    def sum_up(values: list[list[float]]) -> Floats:
        found = np.empty((lattice.num_downsets, len(ways[0])))
        for width, column in enumerate(zip(*values, strict=True)):
            found[:, width] = downset_weights(lattice, np.array(column, dtype=np.float64))
        return found

    def least(quantity: Any) -> Floats:
        return sum_up(
            [[min(map(quantity, each), default=0.0) for each in by_width] for by_width in ways]
        )

    return (
        least(lambda way: way.seconds),
        least(lambda way: _agreeing_seconds(problem, way)),
        least(lambda way: way.flight_bytes),
        least(lambda way: way.fixed_bytes),
        sum_up([[0.0 if each else 1.0 for each in by_width] for by_width in ways]),
    )


def _find_weights(problem: Problem, lattice: Lattice) -> _Weights:
    """A stage of t d devices is busy for t times what its nodes take on one replica, at least; it
    holds t times their bytes with one microbatch in flight."""
    count = len(problem.nodes)
    seconds, held = np.zeros(count), np.zeros(count)
    for node in range(count):
        ways = [
            (width, way)
            for width, each in _reversed_node(problem, node).ways.items()
            for way in each
            if width <= problem.resources.num_devices
        ]
        seconds[node] = min((t * way.seconds for t, way in ways), default=np.inf)
        held[node] = min((t * (way.flight_bytes + way.fixed_bytes) for t, way in ways), default=0.0)
    return _Weights(
        device_seconds=downset_weights(lattice, seconds),
        device_bytes=downset_weights(lattice, held),
    )


def _slowest_node_seconds(problem: Problem) -> float:
    """No stage is faster than a node of it on any devices."""
    slowest = 0.0
    most = problem.resources.num_devices
    for node in problem.nodes:
        fastest = math.inf
        for width, ways in node.ways.items():
            counts = [count for count in problem.replica_counts if count * width <= most]
            for way in ways if counts else ():
                agreed = _agreeing_seconds(problem, way)
                least = agreed + (way.seconds - agreed) / counts[-1]
                fastest = min(fastest, way.seconds, least)
        slowest = max(slowest, fastest)
    return slowest


def _make_table(upsets: int, num_devices: int) -> tuple[Any, ...]:
    shape = (upsets, num_devices + 1)
    return (
        np.empty(shape, dtype=np.int32),
        np.zeros(shape, dtype=np.float32),
        np.empty(shape, dtype=np.int32),
        np.empty(shape, dtype=np.int32),
    )


def _make_scratch(problem: Problem, lattice: Lattice, options: int) -> tuple[Any, ...]:
    """The front, the walk, the stage and the knapsack's rests of the kernel."""
    nodes, upsets = len(problem.nodes), lattice.num_downsets
    points = problem.resources.num_devices + 1
    items = sum(
        max((len(each) for each in node.ways.values()), default=0) for node in problem.nodes
    )
    front = (np.empty(points, dtype=np.int64), np.empty(points, dtype=np.int64))
    walk = (
        np.zeros(upsets, dtype=np.int32),
        np.empty(upsets, dtype=np.int32),
        np.empty(upsets, dtype=np.int32),
        np.empty(upsets, dtype=np.int32),
        np.empty((upsets, len(problem.widths))),
    )
    stage = (
        np.empty(nodes, dtype=np.int64),
        np.zeros(nodes, dtype=np.int64),
        np.empty(nodes + 1, dtype=np.int64),
        *(np.empty(items) for _ in range(6)),
        *(np.empty(options, dtype=np.int64) for _ in range(3)),
    )
    return front, walk, stage, np.empty((4, nodes + 1))
