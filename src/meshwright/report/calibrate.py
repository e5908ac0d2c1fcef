"""Writes measured costs back: into a profile and a cluster that the next plan uses.

Decides what a measured step says about the costs of other steps; what it does not say stays as it
was. Instructions that took no time at all were not measured.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np

from meshwright.array import Bools, Records
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.kind import KINDS, Protocol
from meshwright.cost.collective import Algorithm, CollectiveCost, collective_cost
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph, Split
from meshwright.profile.profile import Profile, Table
from meshwright.program.program import Kind, Program
from meshwright.report.fit import (
    MIN_BYTES,
    MeasuredTraffic,
    PairLine,
    fit_pairs,
    fit_shared,
    read_traffic,
)
from meshwright.report.measured_ops import find_medians, find_samples, is_whole
from meshwright.simulate.measured import Run
from meshwright.simulate.tasks import COLLECTIVES
from meshwright.simulate.timeline import Timeline

_EQUAL = 1e-3
"""Links of a route whose rates differ by less than this share are equally narrow."""


def measured_profile(cluster: Cluster, run: Run, measured: Timeline, date: datetime) -> Profile:
    """The median seconds of the kernel calls of a run, a table a type of device.

    Ops whose replicas had different numbers of rows are left out: the run has one call for each.
    The tables name the numbers of samples that the others ran on, so that a step with others finds
    them.
    """
    calls = _call_of_ops(measured.program.graph, run.calls)
    rows, seconds = measured.program.instructions, measured.finish - measured.start
    computes = rows["kind"] == Kind.COMPUTE
    known = np.array([bool(call) for call in calls], dtype=np.bool_)
    known &= ~_has_several_sizes(measured)
    picked = np.flatnonzero(computes & (seconds > 0))
    picked = picked[known[rows["op"][picked]]]
    texts = {text: number for number, text in enumerate(dict.fromkeys(calls))}
    code = np.array([texts[calls[op]] for op in rows["op"][picked].tolist()], dtype=np.int64)
    kind = cluster.type_of[rows["device"][picked]]
    keys, middle = find_medians(kind * np.int64(len(texts)) + code, seconds[picked])
    names = tuple(texts)
    found: dict[str, dict[str, float]] = {}
    for each, value in zip(keys.tolist(), middle.tolist(), strict=True):
        number, text = divmod(each, len(texts))
        found.setdefault(cluster.type_names[number], {})[names[text]] = value
    samples = _whole_samples(measured.program, rows[picked])
    return Profile(
        tables=tuple(
            Table(
                device_type=name,
                device=name,
                software=run.software,
                date=date,
                calls=table,
                batches=samples,
            )
            for name, table in found.items()
        )
    )


def _whole_samples(program: Program, rows: Records) -> tuple[int, ...]:
    """The whole numbers of samples that instructions which divide the batch ran on."""
    divides = ~is_whole(program.graph)[rows["op"]]
    samples = np.unique(find_samples(program, rows[divides])).tolist()
    return tuple(int(each) for each in samples if each >= 1 and each == int(each))


def _call_of_ops(graph: Graph, calls: Mapping[str, str]) -> list[str]:
    found = [""] * graph.num_ops
    for name, call in calls.items():
        if name not in graph.index:
            raise InputError(f"run: calls must be of the graph's ops, got {quoted(name)}")
        found[graph.index[name]] = call
    return found


def _has_several_sizes(measured: Timeline) -> Bools:
    """For each op whether its instances ran on different numbers of rows."""
    graph, rows = measured.program.graph, measured.program.instructions
    rows = rows[rows["kind"] == Kind.COMPUTE]
    share = rows["rows_to"] - rows["rows_from"]
    low, high = np.full(graph.num_ops, np.inf), np.full(graph.num_ops, -np.inf)
    np.minimum.at(low, rows["op"], share)
    np.maximum.at(high, rows["op"], share)
    differs: Bools = (high - low > 1e-9) & (graph.split != Split.NONE)
    return differs


def calibrated_cluster(cluster: Cluster, measured: Timeline) -> Cluster:
    """The cluster with the bandwidths and latencies that measured transfers had.

    What transfers had that were alone on their route is attributed to its narrowest links: each
    gets the highest rate of the pairs that cross it, the lowest that none of them contradicts.
    Where transfers were never alone, what they had together counts, if they shared one link and
    nothing else. A pair's latency beyond what was thought goes to the narrowest links, too, over
    all pairs with the least change. Links that only collectives use get what makes these take as
    long as measured.
    """
    traffic = read_traffic(measured, cluster)
    lines = fit_pairs(traffic, cluster)
    rates = {pair: line.bytes_per_second for pair, line in lines.items() if line.bytes_per_second}
    if cluster.hop_bytes_per_second:
        return _with_hop_rates(cluster, rates)
    narrow = {pair: _narrowest(cluster, pair) for pair in traffic.pairs}
    rate_of = _link_rates(cluster, rates, narrow)
    bounds = {link for each in narrow.values() for link in each}
    shared = fit_shared(traffic, cluster)
    rate_of = {link: rate for link, rate in shared.items() if link in bounds} | rate_of
    links = [
        replace(
            link,
            bytes_per_second=rate_of[number] / KINDS[link.kind].share
            if number in rate_of
            else link.bytes_per_second,
            latency_seconds=latency,
        )
        for number, (link, latency) in enumerate(
            zip(cluster.links, _link_latencies(cluster, lines, narrow), strict=True)
        )
    ]
    fitted = replace(cluster, links=tuple(links))
    return _with_collectives(fitted, measured.program, traffic, frozenset(rate_of))


def with_launch_shares(cluster: Cluster, shares: Mapping[str, float]) -> Cluster:
    """The cluster with what hosts take for launches, by type of device, where it was measured."""
    types = {
        name: replace(kind, launch_share=shares[name])
        if name in shares and kind.is_asynchronous
        else kind
        for name, kind in cluster.types.items()
    }
    return replace(cluster, types=types)


def _narrowest(cluster: Cluster, pair: tuple[int, int]) -> list[int]:
    route = cluster.routing.links(*pair)
    rates = cluster.link_bytes_per_second[route]
    found: list[int] = route[rates <= rates.min() * (1 + _EQUAL)].tolist()
    return found


def _link_rates(
    cluster: Cluster,
    rates: Mapping[tuple[int, int], float],
    narrow: Mapping[tuple[int, int], list[int]],
) -> dict[int, float]:
    """The new rates of links that bound a measured pair, or were believed too narrow for one."""
    best: dict[int, float] = {}
    for pair, rate in rates.items():
        for link in cluster.routing.links(*pair).tolist():
            best[link] = max(best.get(link, 0.0), rate)
    bounds = {link for pair in rates for link in narrow[pair]}
    old = cluster.link_bytes_per_second
    return {link: rate for link, rate in best.items() if link in bounds or rate > old[link]}


def _link_latencies(
    cluster: Cluster,
    lines: Mapping[tuple[int, int], PairLine],
    narrow: Mapping[tuple[int, int], list[int]],
) -> list[float]:
    """Every link's latency: the least change, in squares, that gives pairs what was measured."""
    old = np.array([link.latency_seconds for link in cluster.links])
    wanted = {
        pair: line.latency_seconds - float(cluster.latency[pair])
        for pair, line in lines.items()
        if line.latency_seconds is not None
    }
    columns = sorted({link for pair in wanted for link in narrow[pair]})
    if not columns:
        return list(map(float, old))
    place = {link: column for column, link in enumerate(columns)}
    crosses = np.zeros((len(wanted), len(columns)))
    for number, pair in enumerate(wanted):
        crosses[number, [place[link] for link in narrow[pair]]] = 1.0
    change = np.linalg.lstsq(crosses, np.array(list(wanted.values())), rcond=None)[0]
    # What a transfer takes of a link of a kind is its latency several times.
    delays = np.array([KINDS[link.kind].uses[Protocol.PAIR].delay for link in cluster.links])
    old[columns] = np.maximum(old[columns] + change / delays[columns], 0.0)
    return list(map(float, old))


def _with_hop_rates(cluster: Cluster, rates: Mapping[tuple[int, int], float]) -> Cluster:
    """Where routes are as wide as their number of links says: the median by number of links."""
    table = list(cluster.hop_bytes_per_second)
    found: dict[int, list[float]] = {}
    for pair, rate in rates.items():
        hops = min(int(cluster.routing.hops[pair]), len(table))
        found.setdefault(hops, []).append(rate)
    for hops, each in found.items():
        table[hops - 1] = float(np.median(each))
    return replace(cluster, hop_bytes_per_second=tuple(table))


def _with_collectives(
    cluster: Cluster, program: Program, traffic: MeasuredTraffic, known: frozenset[int]
) -> Cluster:
    """The cluster with rates of the links that bound measured collectives, but for those known."""
    found: dict[int, list[float]] = {}
    for busiest, factor in _collective_factors(cluster, program, traffic):
        for link in set(busiest) - known:
            found.setdefault(link, []).append(cluster.links[link].bytes_per_second * factor)
    if not found:
        return cluster
    links = list(cluster.links)
    for link, rates in found.items():
        links[link] = replace(links[link], bytes_per_second=float(np.median(rates)))
    return replace(cluster, links=tuple(links))


def _collective_factors(
    cluster: Cluster, program: Program, traffic: MeasuredTraffic
) -> list[tuple[list[int], float]]:
    """Of each large collective that ran alone and under no allocation: the links that bound it, and
    by what their rates would have to be multiplied for it to take as long as measured."""
    limited = {(each.source, each.target) for each in program.allocations}
    rows = program.instructions[program.instructions["group"] >= 0]
    rows = rows[rows["bytes"] >= MIN_BYTES]
    rows = rows[np.unique(rows["task"], return_index=True)[1]]
    alone = traffic.alone
    costs: dict[tuple[int, int, float], CollectiveCost] = {}
    factors = []
    for row in rows:
        task = int(row["task"])
        hosts = {cluster.devices[each].host for each in program.groups[int(row["group"])]}
        if task not in alone or any(hosts.issuperset(pair) for pair in limited):
            continue
        key = int(row["kind"]), int(row["group"]), float(row["bytes"])
        if key not in costs:
            costs[key] = _collective_cost(cluster, program, *key)
        cost = costs[key]
        moving = float(traffic.finish[task] - traffic.start[task]) - cost.latency_seconds
        if cost.algorithm is Algorithm.TABLE or moving <= 0 or not len(cost.links):
            continue
        load = cost.link_share / cluster.link_bytes_per_second[cost.links]
        busiest = cost.links[load >= load.max() * (1 - _EQUAL)]
        factors.append((busiest.tolist(), (cost.seconds - cost.latency_seconds) / moving))
    return factors


def _collective_cost(
    cluster: Cluster, program: Program, kind: int, group: int, size: float
) -> CollectiveCost:
    """As the simulator has it."""
    name = program.group_algorithm[group] if kind == Kind.ALL_REDUCE else ""
    algorithm = Algorithm(name) if name else None
    return collective_cost(cluster, COLLECTIVES[Kind(kind)], program.groups[group], size, algorithm)
