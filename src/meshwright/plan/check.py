"""Decides whether a Plan is legal for a Graph and a Cluster, and turns its names into numbers.

Knows nothing of time and memory: a legal plan may still be slow or not fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from heapq import nlargest
from itertools import chain, repeat
from operator import itemgetter
from os.path import commonprefix

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, freeze_arrays
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import ANY_TYPE, Graph, Phase
from meshwright.plan.plan import Allocation, Part, Plan, Recompute, Schedule

_MAX_GUESSED = 100_000
"""Names among which a near match is looked for; about 3 us each."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Placement:
    """A legal plan in numbers. Replicas stand part by part, in the order of the part's devices; of
    a team every member stands for itself, with the rows of its replica."""

    part_of_op: Ints
    """For each op the part (with a schedule: the stage) that holds it."""
    priority: Floats
    """For each op its priority, larger first."""
    replica_start: Ints
    """The replicas of part p are `replica_start[p]` up to, without, `replica_start[p + 1]`."""
    replica_device: Ints
    """For each replica the number of its device."""
    replica_from: Floats
    """Where each replica's rows of the batch begin, as a fraction of it ..."""
    replica_to: Floats
    """... and where they end."""
    part_width: Ints
    """For each part how many devices in a row are one replica's team."""

    def __post_init__(self) -> None:
        freeze_arrays(self)

    @property
    def num_parts(self) -> int:
        """How many parts the plan has."""
        return len(self.replica_start) - 1

    @property
    def num_replicas(self) -> Ints:
        """For each part how many times its ops are run, a team counting once."""
        counts: Ints = np.diff(self.replica_start) // self.part_width
        return counts

    def replicas(self, part: int) -> slice:
        """Where the replicas of a part stand, teams member by member."""
        return slice(int(self.replica_start[part]), int(self.replica_start[part + 1]))


def resolve(graph: Graph, cluster: Cluster, plan: Plan) -> Placement:
    """The numbers of a plan that is legal for this graph and cluster; InputError if it is not.
    Its parts name ops: see `Plan.in_ops`."""
    assert not any(part.layers for part in plan.parts), "layers are named before a plan is used"
    part_of_op, priority = _number_ops(graph, plan.parts)
    replica_start, replica_device = _number_devices(cluster, plan.parts)
    if plan.is_plain:
        # Else parts hold whole layers, and weights that the first and the last layer share are
        # copies, whose gradients are added up before their updates.
        _check_groups(graph, plan.parts, part_of_op)
    _check_runnable(graph, cluster, part_of_op, replica_start, replica_device)
    _check_hosts(cluster, plan)
    if graph.mixes.any():
        _check_mixing(graph, plan)
    if graph.is_inference:
        _check_inference(graph, plan)
    if plan.schedule is not None:
        _check_microbatches(graph, plan.schedule)
        _check_stages(graph, plan.schedule, part_of_op)
    width = np.fromiter((part.width for part in plan.parts), np.int32, len(plan.parts))
    replica_from, replica_to = _divide_batch(plan.parts, np.diff(replica_start) // width)
    if (width > 1).any():
        times = np.repeat(width, np.diff(replica_start) // width)
        replica_from, replica_to = np.repeat(replica_from, times), np.repeat(replica_to, times)
    return Placement(
        part_of_op=part_of_op,
        priority=priority,
        replica_start=replica_start,
        replica_device=replica_device,
        replica_from=replica_from,
        replica_to=replica_to,
        part_width=width,
    )


def _check_inference(graph: Graph, plan: Plan) -> None:
    """A step without gradients has nothing to shard and nothing to recompute."""
    for number, part in enumerate(plan.parts):
        for name, usual in (("zero", 0), ("recompute", Recompute.NONE)):
            value = getattr(part, name)
            if value != usual:
                raise InputError(
                    f"part {number}: {name} must be {usual}, because graph {graph.name} has no "
                    f"gradients (inference), got {value}"
                )


_ANOTHER = "; a plan is for the graph that it was made for: plan again for this one"


def _number_ops(graph: Graph, parts: Sequence[Part]) -> tuple[Ints, Floats]:
    """The part and the priority of each op; each op must be in exactly one part."""
    lengths = np.fromiter((len(part.ops) for part in parts), np.int64, len(parts))
    total = int(lengths.sum())
    ops = _look_up(graph.index, chain.from_iterable(part.ops for part in parts), total)
    if ops is None:
        part, name = _first_missing(graph.index, (part.ops for part in parts))
        raise InputError(
            f"part {part}: op {quoted(name)} is not in graph {graph.name}"
            f"{_near(name, graph.op_names) or _ANOTHER}"
        )
    owner = np.repeat(np.arange(len(parts), dtype=np.int32), lengths)
    counts = np.bincount(ops, minlength=graph.num_ops)
    if total != graph.num_ops or counts.max(initial=1) > 1:
        _refuse_cover(graph, ops, owner, counts)
    part_of_op = np.empty(graph.num_ops, dtype=np.int32)
    part_of_op[ops] = owner

    priority = -np.arange(graph.num_ops, dtype=np.float64)
    if any(part.priorities for part in parts):
        # NaN, which no part may hold, marks the ops of parts that leave it to the graph's order.
        every = (part.priorities or repeat(np.nan, len(part.ops)) for part in parts)
        given = np.fromiter(chain.from_iterable(every), np.float64, total)
        is_given = ~np.isnan(given)
        priority[ops[is_given]] = given[is_given]
    return part_of_op, priority


def _refuse_cover(graph: Graph, ops: Ints, owner: Ints, counts: npt.NDArray[np.intp]) -> None:
    """Name an op that stands twice or, if there is none, one that is missing."""
    twice = np.flatnonzero(counts > 1)
    if len(twice):
        first, second = owner[ops == twice[0]][:2]
        where = f"twice in part {first}" if first == second else f"in part {first} and {second}"
        raise InputError(
            f"op {quoted(graph.op_names[twice[0]])}: must be in exactly one part, stands {where}"
        )
    missing = np.flatnonzero(counts == 0)
    more = f" (as are {len(missing):,} ops in all)" if len(missing) > 1 else ""
    raise InputError(
        f"op {quoted(graph.op_names[missing[0]])}: must be in exactly one part, is in none{more}"
    )


def _number_devices(cluster: Cluster, parts: Sequence[Part]) -> tuple[Ints, Ints]:
    """Where each part's devices start, and their numbers."""
    device_start = np.zeros(len(parts) + 1, dtype=np.int32)
    lengths = np.fromiter((len(part.devices) for part in parts), np.int32, len(parts))
    np.cumsum(lengths, out=device_start[1:])
    names = chain.from_iterable(part.devices for part in parts)
    numbers = _look_up(cluster.index, names, int(device_start[-1]))
    if numbers is None:
        part, name = _first_missing(cluster.index, (part.devices for part in parts))
        raise InputError(
            f"part {part}: device {quoted(name)} is not in cluster {cluster.name}"
            f"{_near(name, tuple(cluster.index))}"
        )
    return device_start, numbers


def _divide_batch(parts: Sequence[Part], count: Ints) -> tuple[Floats, Floats]:
    """From where to where in the batch each replica's rows are: `Part.rows`, all at once."""
    start = np.cumsum(count) - count
    position = np.arange(count.sum()) - np.repeat(start, count)
    width = np.repeat(count, count)
    replica_from, replica_to = position / width, (position + 1) / width
    for number, part in enumerate(parts):
        if part.shares:
            rows = np.array(part.rows())
            here = slice(start[number], start[number] + count[number])
            replica_from[here], replica_to[here] = rows[:, 0], rows[:, 1]
    return replica_from, replica_to


def _check_groups(graph: Graph, parts: Sequence[Part], part_of_op: Ints) -> None:
    """Ops of one co-location group run on the same devices in the same order."""
    members = np.flatnonzero(graph.group >= 0)
    if not len(members):
        return
    numbers: dict[tuple[str, ...], int] = {}
    devices_of_part = np.fromiter(
        (numbers.setdefault(part.devices, len(numbers)) for part in parts), np.int32, len(parts)
    )
    devices = devices_of_part[part_of_op[members]]
    group: npt.NDArray[np.integer] = graph.group[members]
    if group.max() >= 4 * graph.num_ops:  # sparse numbers; dense ones need no sorting
        group = np.unique(group, return_inverse=True)[1]
    leader = np.zeros(int(group.max()) + 1, dtype=np.int64)
    leader[group[::-1]] = np.arange(len(members))[::-1]  # the last one written is the first op
    bad = np.flatnonzero(devices != devices[leader[group]])
    if len(bad):
        first, second = members[leader[group[bad[0]]]], members[bad[0]]
        places = (quoted(", ".join(parts[part_of_op[op]].devices), 60) for op in (first, second))
        raise InputError(
            f"ops {quoted(graph.op_names[first])} and {quoted(graph.op_names[second])}: are both "
            f"of group {graph.group[first]} and must run on the same devices, "
            f"but run on {' and '.join(places)}"
        )


def _check_runnable(
    graph: Graph, cluster: Cluster, part_of_op: Ints, device_start: Ints, team_device: Ints
) -> None:
    """No op stands on a device of a type on which its measured time is infinite."""
    for number, type_name in enumerate(cluster.type_names):
        seconds = graph.seconds.get(type_name, graph.seconds.get(ANY_TYPE))
        if seconds is None or not len(cannot := np.flatnonzero(np.isinf(seconds))):
            continue
        has_type = cluster.type_of[team_device] == number
        part_has_type = np.add.reduceat(has_type.astype(np.int64), device_start[:-1]) > 0
        bad = cannot[part_has_type[part_of_op[cannot]]]
        if len(bad):
            part = part_of_op[bad[0]]
            here = slice(device_start[part], device_start[part + 1])
            device = cluster.devices[team_device[here][has_type[here]][0]].name
            raise InputError(
                f"op {quoted(graph.op_names[bad[0]])}: cannot run on device type "
                f"{quoted(type_name)} (its seconds there are infinite), but part {part} runs it "
                f"on {quoted(device)}"
            )


def _check_hosts(cluster: Cluster, plan: Plan) -> None:
    """Allocations are between hosts of the cluster."""
    hosts = set(cluster.hosts) if plan.allocations else set()
    for each in plan.allocations:
        for name in (each.source, each.target):
            if name not in hosts:
                raise InputError(
                    f"allocation {each.source} -> {each.target}: host {quoted(name)} is not in "
                    f"cluster {cluster.name}{_near(name, cluster.hosts)}"
                )
        if each.shares:
            _check_shares(cluster, each)


def _check_shares(cluster: Cluster, allocation: Allocation) -> None:
    """There is one a way."""
    what = f"allocation {allocation.source} -> {allocation.target}"
    if allocation.source == allocation.target:
        raise InputError(f"{what}: shares must be between two hosts, these are one")
    place = cluster.host_index
    ways = cluster.ways.links[place[allocation.source], place[allocation.target]]
    if len(ways) != len(allocation.shares):
        raise InputError(
            f"{what}: must have a share for each of the {len(ways)} ways that cluster "
            f"{cluster.name} has between these hosts, got {len(allocation.shares):,}"
        )


def _check_mixing(graph: Graph, plan: Plan) -> None:
    """Ops that mix samples see the whole batch: as one microbatch, and not by shards."""
    op = f"op {quoted(graph.mixing_op)} mixes the samples of a batch"
    for number, part in enumerate(plan.parts):
        if part.width > 1 or part.expert > 1 or part.zero:
            raise InputError(
                f"part {number}: must have no tensor, context or expert widths and no ZeRO, "
                f"because {op}"
            )
    if plan.schedule is not None and plan.schedule.microbatches > 1:
        raise InputError(
            f"schedule {plan.schedule.kind}: microbatches must be 1, because {op}, "
            f"got {plan.schedule.microbatches}"
        )


def _check_microbatches(graph: Graph, schedule: Schedule) -> None:
    """A microbatch has at least one sample; a batch of 1 may be a profile that counts none."""
    counts_samples = graph.batch > 1 and float(graph.batch).is_integer()
    if counts_samples and schedule.microbatches > graph.batch:
        raise InputError(
            f"schedule {schedule.kind}: microbatches must be at most {graph.batch:.0f}, the "
            f"samples in a batch of graph {graph.name}, got {schedule.microbatches}"
        )


def _check_stages(graph: Graph, schedule: Schedule, stage: Ints) -> None:
    """Forward runs through the stages from first to last, backward from last to first.

    A backward op may read a forward tensor of any stage: by the time its microbatch runs
    backward, all stages have run it forward. An update op may read anything.
    """
    source, target = graph.edges
    phase, next_phase = graph.phase[source], graph.phase[target]
    distance = stage[target] - stage[source]
    is_within = phase == next_phase
    rules = (
        (next_phase < phase, "an earlier phase of the step must not wait for a later one"),
        (
            is_within & (phase == Phase.FORWARD) & (distance < 0),
            "a forward tensor must go to the same stage or a later one",
        ),
        (
            is_within & (phase == Phase.BACKWARD) & (distance > 0),
            "a backward tensor must go to the same stage or an earlier one",
        ),
    )
    for is_bad, rule in rules:
        bad = np.flatnonzero(is_bad)
        if len(bad):
            writer, reader = (
                f"{Phase(graph.phase[op]).name.lower()} op {quoted(graph.op_names[op])} "
                f"of stage {stage[op]}"
                for op in (source[bad[0]], target[bad[0]])
            )
            raise InputError(f"schedule {schedule.kind}: {rule}, but {reader} reads {writer}")


def _look_up(index: Mapping[str, int], names: Iterable[str], count: int) -> Ints | None:
    """The numbers of many names; None when one is missing.

    An itemgetter looks all of them up in one call, twice as fast as a loop or `map`.
    """
    try:
        numbers = itemgetter(*names)(index)
    except KeyError:
        return None
    return np.fromiter(numbers if count > 1 else (numbers,), np.int32, count)


def _first_missing(
    index: Mapping[str, int], names_of_part: Iterable[Sequence[str]]
) -> tuple[int, str]:
    """The first name that is not in the index, and its part."""
    return next(
        (part, name)
        for part, names in enumerate(names_of_part)
        for name in names
        if name not in index
    )


def _near(name: str, known: Sequence[str]) -> str:
    """A name that the user may have meant, as the end of a message; empty when none is near.

    difflib takes 0.1 ms a name: it sees only those that share the most at either end.
    """
    if len(known) >= _MAX_GUESSED or len(name) > 1000:
        return ""

    backwards = name[::-1]

    def shared_ends(other: str) -> int:  # by characters, which is what the linter warns of
        start = commonprefix((name, other))  # noqa: RUF071
        end = commonprefix((backwards, other[::-1]))  # noqa: RUF071
        return len(start) + len(end)

    found = get_close_matches(name, nlargest(50, known, key=shared_ends), n=1)
    return f"; did you mean {quoted(found[0])}?" if found else ""
