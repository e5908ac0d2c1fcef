"""Times a collective that several groups of devices run at the same moment.

The groups of one axis of a device mesh (every tensor team of a stage, every ring of replicas) do
the same thing at once and share links: eight rings that leave a host by one card have an eighth of
it each. Knows nothing of plans; one group alone costs what `meshwright.cost.collective` says.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cost.algorithm import Blocks
from meshwright.cost.collective import (
    Collective,
    CollectiveLine,
    CollectiveModel,
    Way,
    arrange,
    collective_model,
    collective_rounds,
    find_table,
    find_ways,
    open_lines,
    price_line,
)
from meshwright.cost.limit import Limits
from meshwright.cost.rounds import ExchangeRound, Round, pairs_of
from meshwright.errors import InputError

Groups = Sequence[Sequence[int]]


def axis_model(
    cluster: Cluster, collective: Collective, groups: Groups, limits: Limits | None = None
) -> CollectiveModel:
    """The cost of a collective of any size that all these groups (of one size) run at once.

    The message size is that of one group. All use the same algorithm, whichever is fastest for
    them together. A measured table, which is of one host's devices, counts as for one group. What
    `limits` between hosts divide over ways is divided alike for all groups.
    """
    sizes = {len(group) for group in groups}
    if len(sizes) != 1:
        raise InputError(f"axis: groups must be of one size, got {sorted(sizes)}")
    if len(groups) == 1 or sizes == {1}:
        return collective_model(cluster, collective, groups[0], limits=limits)
    alike = _group_alike(cluster, groups)
    blocks = [arrange(cluster, collective, tuple(each[0].tolist())) for each in alike]
    first, *others = [find_ways(cluster, collective, each) for each in blocks]
    lines = tuple(
        _line(cluster, collective, alike, blocks, way, limits)
        for way in first
        if all(way in each for each in others)
    )
    return CollectiveModel(
        lines=open_lines(lines, f"{collective} on {len(groups)} groups of devices"),
        table=find_table(cluster, collective, groups[0]),
        link_bytes_per_second=cluster.link_bytes_per_second if limits is None else limits.capacity,
    )


def _group_alike(cluster: Cluster, groups: Groups) -> list[Longs]:
    """The groups in rows, those together whose members stand alike on hosts.

    Thousands of teams, each on one host, differ in nothing else: one of them is ordered for all.
    """
    numbers = np.array(groups)
    host = cluster.host_of
    rank = np.empty_like(host)  # of each device on its host
    for own in cluster.devices_of_host:
        rank[list(own)] = np.arange(len(own))
    # Hosts by their first member in the group, and each member's place on its host.
    order = np.argsort(host[numbers], axis=1, kind="stable")
    behind = np.take_along_axis(host[numbers], order, axis=1)
    is_first = np.concatenate(
        (np.ones((len(numbers), 1), dtype=np.bool_), behind[:, 1:] != behind[:, :-1]), axis=1
    )
    label = np.empty_like(order)
    np.put_along_axis(label, order, np.cumsum(is_first, axis=1), axis=1)
    keys = np.concatenate((label, rank[numbers]), axis=1)
    _, kind = np.unique(keys, axis=0, return_inverse=True)
    kind = kind.ravel()
    return [numbers[kind == each] for each in range(int(kind.max()) + 1)]


def _line(
    cluster: Cluster,
    collective: Collective,
    alike: Sequence[Longs],
    blocks: Sequence[Blocks],
    way: Way,
    limits: Limits | None,
) -> CollectiveLine:
    of_groups = [
        [
            _repeat(each, groups)
            for each in collective_rounds(cluster, collective, own, int(groups[0, 0]), *way)
        ]
        for groups, own in zip(alike, blocks, strict=True)
    ]
    merged = [_merge(at_once) for at_once in zip(*of_groups, strict=True)]
    return price_line(cluster, collective, alike[0].shape[1], way, merged, limits)


def _repeat(each: Round | ExchangeRound, groups: Longs) -> Round:
    """A round of the first group, done by all groups."""
    rounds = each if isinstance(each, Round) else pairs_of(each)
    order = np.argsort(groups[0])
    source = order[np.searchsorted(groups[0], rounds.sources, sorter=order)]
    target = order[np.searchsorted(groups[0], rounds.targets, sorter=order)]
    return Round(
        sources=groups[:, source].ravel().astype(np.int32),
        targets=groups[:, target].ravel().astype(np.int32),
        fractions=np.tile(rounds.fractions, len(groups)),
        repeats=rounds.repeats,
        latency_seconds=rounds.latency_seconds,
    )


def _merge(rounds: Sequence[Round]) -> Round:
    """Rounds of several groups as one; an algorithm has as many of them for groups of one size."""
    stated = [each.latency_seconds for each in rounds if each.latency_seconds is not None]
    return Round(
        sources=np.concatenate([each.sources for each in rounds]),
        targets=np.concatenate([each.targets for each in rounds]),
        fractions=np.concatenate([each.fractions for each in rounds]),
        repeats=max(each.repeats for each in rounds),
        latency_seconds=max(stated) if stated else None,
    )
