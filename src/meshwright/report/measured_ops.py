"""Writes what ops took in measured steps into the graph: times that the next prediction has.

Steps of several plans may tell of one graph, each on the numbers of samples that its microbatches
and replicas have. Instructions that took no time at all were not measured.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from meshwright.array import Bools, Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import measured_seconds
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.ladder import clean_times
from meshwright.plan.plan import Plan
from meshwright.program.lower import lower
from meshwright.program.program import Kind, Program
from meshwright.simulate.timeline import Timeline

Step = tuple[Plan, Timeline]
"""A plan, and a measured step of it."""


def measured_graph(graph: Graph, cluster: Cluster, plan: Plan, measured: Timeline) -> Graph:
    """The graph with the measured seconds of its ops in one step; see `graph_of_steps`."""
    return graph_of_steps(graph, cluster, [(plan, measured)])


def graph_of_steps(graph: Graph, cluster: Cluster, steps: Iterable[Step]) -> Graph:
    """The graph with the measured seconds of its ops, by type of device and number of samples.

    A graph's seconds are of its whole batch, an instruction's are of some rows of a microbatch.
    What is kept is the measured time over the factor by which lowering scales a measured time to
    those rows (`meshwright.cost.compute`), the median over microbatches and replicas. So the next
    prediction gives an op the time measured, exactly, wherever it runs on as many rows as here. Of
    an op that ran on several numbers of rows each but the batch has a rung of the graph's ladder,
    and what the batch takes, where it did not run on all of it, is on the line through the two
    largest. Rungs that were there stay, by the part of the batch's time that they had.
    """
    shape = _shape(graph, cluster)
    found: list[tuple[Longs, Floats, Floats]] = []
    for plan, measured in steps:
        scale = lower(shape, cluster, plan).instructions["seconds"]
        rows, seconds = measured.program.instructions, measured.finish - measured.start
        assert len(scale) == len(rows), "the measured step is of another plan"
        picked = np.flatnonzero((rows["kind"] == Kind.COMPUTE) & (seconds > 0))
        kind = cluster.type_of[rows["device"][picked]]
        key = kind * np.int64(graph.num_ops) + rows["op"][picked]
        samples = find_samples(measured.program, rows[picked])
        found.append((key, samples, seconds[picked] / scale[picked]))
    changed = graph
    for number, name in enumerate(cluster.type_names):
        changed = _with_type(changed, shape, cluster, name, _of_type(found, number, graph.num_ops))
    return changed


def _shape(graph: Graph, cluster: Cluster) -> Graph:
    """A graph whose ops take one second each on the batch, and on rungs as much of it as now."""
    ones, ladders = {}, {}
    for name in cluster.type_names:
        ones[name] = np.ones(graph.num_ops)
        whole = graph.seconds.get(name)
        if whole is not None:
            known = np.where(whole > 0, whole, np.nan)
            parts = {at: each / known for at, each in graph.ladders.get(name, {}).items()}
            ladders[name] = {at: np.where(np.isfinite(p), p, np.nan) for at, p in parts.items()}
    return replace(graph, seconds=ones, ladders=ladders)


def find_samples(program: Program, rows: np.ndarray) -> Floats:
    """How many samples each COMPUTE of a program was on; the batch for what does not divide it."""
    graph = program.graph
    share = (rows["rows_to"] - rows["rows_from"]) / program.microbatches
    samples: Floats = np.where(is_whole(graph)[rows["op"]], 1.0, share) * graph.batch
    return np.round(samples, 9)


def is_whole(graph: Graph) -> Bools:
    """By op: whether it runs on no samples, or on all of a step."""
    found: Bools = (graph.split == Split.NONE) | (graph.phase == Phase.UPDATE)
    return found


def _of_type(
    found: Sequence[tuple[Longs, Floats, Floats]], number: int, num_ops: int
) -> dict[float, tuple[Longs, Floats]]:
    """By samples the ops that ran on them on a type, and what the batch takes by the medians."""
    key, samples, seconds = (np.concatenate(each) for each in zip(*found, strict=True))
    chosen = key // num_ops == number
    times = {}
    for each in np.unique(samples[chosen]).tolist():
        own = chosen & (samples == each)
        keys, middle = find_medians(key[own], seconds[own])
        times[each] = keys % num_ops, middle
    return times


def _with_type(
    graph: Graph,
    shape: Graph,
    cluster: Cluster,
    name: str,
    times: dict[float, tuple[Longs, Floats]],
) -> Graph:
    """The graph with what was measured on one type of device."""
    if not times:
        return graph
    sizes = np.array(sorted(times))
    whole, table = np.full(graph.num_ops, np.nan), np.full((len(sizes), graph.num_ops), np.nan)
    for row, size in enumerate(sizes.tolist()):
        ops, wholes = times[size]
        part = measured_seconds(shape, cluster.types[name], size)
        assert part is not None
        table[row, ops] = wholes * part[ops]
        whole[ops] = wholes  # by the largest number of samples, which comes last
    known = ~np.isnan(table)
    for op in np.flatnonzero(known.sum(axis=0) > 1).tolist():
        whole[op] = _at_batch(sizes[known[:, op]], table[known[:, op], op], graph.batch)
    old = graph.seconds.get(name, np.full(graph.num_ops, np.nan))
    is_measured = ~np.isnan(whole)
    changes = np.where(is_measured & (old > 0), whole / np.where(old > 0, old, 1.0), 1.0)
    ladder = {at: each * changes for at, each in graph.ladders.get(name, {}).items()}
    several = known.sum(axis=0) > 1
    for row, size in enumerate(sizes.tolist()):
        new = several & known[row]
        if size != graph.batch and new.any():
            before = ladder.get(size, np.full(graph.num_ops, np.nan))
            ladder[size] = np.where(new, table[row], before)
    seconds = {**graph.seconds, name: np.where(is_measured, whole, old)}
    return replace(graph, seconds=seconds, ladders={**graph.ladders, name: ladder})


def _at_batch(sizes: Floats, times: Floats, batch: float) -> float:
    """What the batch takes by the two largest numbers of samples, rising, that an op ran on."""
    if sizes[-1] == batch:
        return float(times[-1])
    low, high = clean_times(sizes, times[:, None], len(sizes) - 1)[-2:, 0].tolist()
    slope = (high - low) / (sizes[-1] - sizes[-2])
    return float(high + slope * (batch - sizes[-1]))


def find_medians(key: Longs, value: Floats) -> tuple[Longs, Floats]:
    """The distinct keys, and the median of the values of each."""
    order = np.lexsort((value, key))
    value = value[order]
    keys, first, count = np.unique(key[order], return_index=True, return_counts=True)
    if not len(keys):
        return keys, np.zeros(0)
    low, high = first + (count - 1) // 2, first + count // 2
    return keys, value[low] / 2 + value[high] / 2
