"""Turns a timeline into the nodes of every rank's trace.

An instruction is a node, a step of a ring two: one that sends and one that receives. What a node
waits for is on its own rank; a transfer's two ends meet by their tag, a collective's by its group.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from meshwright.array import Ints
from meshwright.export.chakra.node import CommType, Node, NodeType
from meshwright.program.program import Kind, Program
from meshwright.simulate.timeline import Timeline

_COLLECTIVES = {
    Kind.ALL_REDUCE: CommType.ALL_REDUCE,
    Kind.ALL_GATHER: CommType.ALL_GATHER,
    Kind.BROADCAST: CommType.BROADCAST,
    Kind.REDUCE_SCATTER: CommType.REDUCE_SCATTER,
    Kind.ALL_TO_ALL: CommType.ALL_TO_ALL,
}
_MICRO = 1e6

Attributes = dict[str, int | float | bool | str]


def used_devices(program: Program) -> Ints:
    """The devices that do something, which are the ranks: those of instructions, and of teams."""
    used = set(program.instructions["device"].tolist())
    members = {device for team in program.teams if team[0] in used for device in team}
    return np.array(sorted(used | members), dtype=np.int32)


def group_names(program: Program) -> dict[int, str]:
    """The name of each group that a collective has. ASTRA-sim takes "0" for all ranks."""
    is_collective = np.isin(program.instructions["kind"], [int(each) for each in _COLLECTIVES])
    used = np.unique(program.instructions["group"][is_collective])
    return {int(group): str(place) for place, group in enumerate(used, start=1)}


def trace_groups(program: Program) -> dict[str, list[int]]:
    """The ranks of each group by its name."""
    rank = {device: rank for rank, device in enumerate(used_devices(program).tolist())}
    return {
        name: [rank[device] for device in program.groups[group]]
        for group, name in group_names(program).items()
    }


def trace_nodes(timeline: Timeline) -> Iterator[list[Node]]:
    """The nodes of each rank, in the order in which they start."""
    program = timeline.program
    devices = used_devices(program).tolist()
    leaders = program.leader
    rank = {device: number for number, device in enumerate(devices)}
    names, waits = group_names(program), _Waits(timeline)
    place = {device: seat for team in program.teams for seat, device in enumerate(team)}
    teams = {team[0]: team for team in program.teams}
    for device in devices:

        def rank_of(peer: int, device: int = device) -> int:
            """The rank that a member speaks to, of those who run as one the one in its seat."""
            team = teams.get(int(leaders[peer]), (peer,))
            return rank[team[place.get(device, 0) % len(team)]]

        yield _device_nodes(timeline, int(leaders[device]), rank[device], waits, names, rank_of)


class _Waits:
    """What every instruction waits for on its own device."""

    def __init__(self, timeline: Timeline) -> None:
        program = timeline.program
        rows = program.instructions
        device = rows["device"]
        self.order = np.lexsort((np.arange(len(rows)), timeline.finish, timeline.start))
        self.reads: dict[int, list[int]] = {}
        self.after: dict[int, list[int]] = {}
        writer = program.buffers["writer"][program.reads["second"]]
        for reader, made in zip(program.reads["first"].tolist(), writer.tolist(), strict=True):
            if device[reader] == device[made] and reader != made:
                self.reads.setdefault(reader, []).append(made)
        for first, second in program.orders.tolist():
            if device[first] == device[second]:
                self.after.setdefault(second, []).append(first)
        latest: dict[int, int] = {}
        for number in self.order.tolist():
            stream = int(rows["stream"][number])
            if stream >= 0:
                if stream in latest:
                    self.after.setdefault(number, []).append(latest[stream])
                latest[stream] = number


def _device_nodes(
    timeline: Timeline,
    device: int,
    own: int,
    waits: _Waits,
    names: Mapping[int, str],
    rank_of: Callable[[int], int],
) -> list[Node]:
    """The nodes of one rank, which does what a device does."""
    program = timeline.program
    rows = program.instructions
    order = [number for number in waits.order.tolist() if rows["device"][number] == device]
    last: dict[int, list[int]] = {}  # by instruction, its nodes
    nodes: list[Node] = []
    spent, written = 0.0, 0
    for number in order:
        row, kind = rows[number], Kind(int(rows["kind"][number]))
        seconds = float(timeline.finish[number] - timeline.start[number])
        if kind in (Kind.COMPUTE, Kind.CONCATENATE, Kind.SUM):
            # Times are whole microseconds: what one op is rounded by, the next one makes good.
            spent += _MICRO * seconds
            duration = max(0, round(spent) - written)
            written += duration
        else:
            duration = round(_MICRO * seconds)
        after = sorted({node for each in waits.after.get(number, ()) for node in last[each]})
        reads = sorted({node for each in waits.reads.get(number, ()) for node in last[each]})
        last[number] = []
        for type_, attributes in _parts(program, row, kind, own, names, rank_of):
            last[number].append(len(nodes))
            nodes.append(
                Node(
                    number=len(nodes),
                    name=program.describe(number),
                    type=type_,
                    after=after,
                    reads=reads,
                    start_micros=round(_MICRO * float(timeline.start[number])),
                    duration_micros=duration,
                    attributes={"is_cpu_op": False, "seconds": seconds, **attributes},
                )
            )
    return nodes


def _parts(
    program: Program,
    row: np.void,
    kind: Kind,
    own: int,
    names: Mapping[int, str],
    rank_of: Callable[[int], int],
) -> Iterator[tuple[NodeType, Attributes]]:
    """The node, or the two of a step of a ring, that an instruction is."""
    size = {"comm_size": round(float(row["bytes"]))}
    if kind in _COLLECTIVES:
        name = names[int(row["group"])]
        yield NodeType.COLLECTIVE, {"comm_type": int(_COLLECTIVES[kind]), **size, "pg_name": name}
    elif kind is Kind.SEND:
        yield NodeType.SEND, _transfer(own, rank_of(int(row["peer"])), int(row["task"]), size)
    elif kind is Kind.RECEIVE:
        yield NodeType.RECEIVE, _transfer(rank_of(int(row["peer"])), own, int(row["task"]), size)
    elif kind is Kind.SHIFT:
        ring: Sequence[int] = program.groups[int(row["group"])]
        seat = ring.index(int(row["device"]))
        after, before = ring[(seat + 1) % len(ring)], ring[seat - 1]
        yield NodeType.SEND, _transfer(own, rank_of(after), int(row["task"]), size)
        yield NodeType.RECEIVE, _transfer(rank_of(before), own, int(row["task"]), size)
    else:
        graph, op = program.graph, int(row["op"])
        flops = float(graph.flops[op]) if op >= 0 else 0.0
        share = float(row["rows_to"] - row["rows_from"]) / program.microbatches
        yield NodeType.COMPUTE, {"num_ops": round(flops * share)}


def _transfer(source: int, target: int, task: int, size: Mapping[str, int]) -> Attributes:
    return {"comm_src": source, "comm_dst": target, "comm_tag": task, **size}
