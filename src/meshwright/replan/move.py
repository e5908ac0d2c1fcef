"""Which bytes of parameters and optimiser state move when one plan follows another, from where to
where, and how long that takes on the network.

A device needs what it is to hold and does not hold already. It gets that from a device that held it
and is still there: from its own host if there is one, else from the one that has sent the least so
far. What nobody has any more comes from the storage of the last checkpoint. Runs nothing.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from meshwright.change.tier import find_tiers
from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import ANY_TYPE, Graph
from meshwright.plan.plan import Plan, place_ops
from meshwright.program.piece import Box, find_overlaps
from meshwright.program.state import HeldState, StateShape, common_shape, find_state, held_boxes
from meshwright.simulate.simulate import simulate

STORAGE = ""
"""In the place of a host or device: the storage of checkpoints."""

_Held = dict[str, tuple[Box, ...]]
"""By device: what it holds of a piece."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """What has to move before a plan can go on from another's state."""

    needed_bytes: Mapping[str, float]
    """By device of the new plan: what it needs and does not hold; those that need nothing are left
    out."""
    state_bytes: float
    """What all devices of the new plan hold together."""
    flows: Mapping[tuple[str, str], float]
    """By source and target device: the bytes; the source may be `STORAGE`."""
    between_hosts: Mapping[tuple[str, str], float]
    """The same by host."""
    network_seconds: float
    """All transfers between devices at once, sharing links max-min fairly."""
    storage_seconds: float
    """Reading the rest, as fast as the storage gives it, or hosts' links if that is not known."""

    @property
    def total_bytes(self) -> float:
        """All bytes that devices need and do not hold."""
        return sum(self.needed_bytes.values())

    @property
    def stored_bytes(self) -> float:
        """What of it comes from the storage."""
        return sum(size for (source, _), size in self.flows.items() if source == STORAGE)

    @property
    def seconds(self) -> float:
        """How long moving takes: the storage and the network one after the other, since both may
        use the same links."""
        return self.network_seconds + self.storage_seconds


def find_moves(
    graph: Graph,
    before: tuple[Cluster, Plan],
    after: tuple[Cluster, Plan],
    *,
    sharing: str = "fair",
    storage_bytes_per_second: float | None = None,
) -> Moves:
    """What moves from one plan's devices to another's, of plans in ops of the same graph.

    `storage_bytes_per_second`: what the storage gives to all hosts together; None: not known.
    """
    cluster = after[0]
    finder = _MoveFinder(before, after)
    for old, new, times in _classes(find_state(graph, *before), find_state(graph, *after)):
        finder.add(old, new, times)
    host_of = {device.name: device.host for device in cluster.devices}
    between: dict[tuple[str, str], float] = defaultdict(float)
    for (source, target), size in finder.flows.items():
        between[host_of.get(source, STORAGE), host_of[target]] += size
    stored = {target: size for (source, target), size in between.items() if source == STORAGE}
    moved = {pair: size for pair, size in finder.flows.items() if pair[0] != STORAGE}
    return Moves(
        needed_bytes=dict(finder.needed),
        state_bytes=finder.held_bytes,
        flows=dict(finder.flows),
        between_hosts=dict(between),
        network_seconds=transfer_seconds(cluster, moved, sharing),
        storage_seconds=_storage_seconds((cluster, before[0]), stored, storage_bytes_per_second),
    )


def _classes(
    before: Sequence[HeldState], after: Sequence[HeldState]
) -> Iterator[tuple[HeldState | None, HeldState, int]]:
    """Pieces that devices hold alike: one of them before and after, and how many they are."""
    old = {piece.key: piece for piece in before}
    found: dict[object, tuple[HeldState | None, HeldState, int]] = {}
    for piece in after:
        known = old.get(piece.key)
        kind = (_kind(piece), None if known is None else _kind(known))
        first = found.get(kind)
        found[kind] = (known, piece, 1) if first is None else (*first[:2], first[2] + 1)
    yield from found.values()


def _kind(piece: HeldState) -> object:
    return (
        piece.numbers, piece.number_bytes, piece.parts, piece.is_cut, piece.of_experts,
        piece.is_sharded,
    )  # fmt: skip


class _MoveFinder:
    """Adds up what moves, class of pieces after class."""

    def __init__(self, before: tuple[Cluster, Plan], after: tuple[Cluster, Plan]) -> None:
        (old, self.old_plan), (new, self.new_plan) = before, after
        self.host_of = {device.name: device.host for device in new.devices}
        there = {(device.name, device.host) for device in old.devices}
        self.present = {name for name, host in self.host_of.items() if (name, host) in there}
        self.flows: dict[tuple[str, str], float] = defaultdict(float)
        self.needed: dict[str, float] = defaultdict(float)
        self.sent: dict[str, float] = defaultdict(float)
        """By device and by host what it has to send so far."""
        self.held_bytes = 0.0

    def add(self, old: HeldState | None, new: HeldState, times: int) -> None:
        """Add what moves of `times` pieces like this one."""
        held = [(new, self.new_plan), *(() if old is None else ((old, self.old_plan),))]
        shape = common_shape(new.numbers, held)
        size = times * new.num_bytes / max(shape.numbers, 1)
        had = {} if old is None else _holders(old, self.old_plan, shape)
        had = {device: boxes for device, boxes in had.items() if device in self.present}
        sources: dict[tuple[Box, ...], list[str]] = {}
        for device, boxes in had.items():
            sources.setdefault(boxes, []).append(device)
        for device, wanted in _holders(new, self.new_plan, shape).items():
            self.held_bytes += size * sum(box.size for box in wanted)
            _, missing = find_overlaps(wanted, had.get(device, ()))
            if missing:
                self._fetch(device, missing, sources, size)

    def _fetch(
        self,
        device: str,
        missing: Sequence[Box],
        sources: Mapping[tuple[Box, ...], Sequence[str]],
        size: float,
    ) -> None:
        """Add where what a device lacks comes from; `size`: the bytes of a number."""
        self.needed[device] += size * sum(box.size for box in missing)
        host = self.host_of[device]
        choices = sorted(
            ((self._choose(host, devices), boxes) for boxes, devices in sources.items()),
            key=lambda each: (self.host_of[each[0]] != host, self._load(each[0])),
        )
        flat = [(source, box) for source, boxes in choices for box in boxes]
        overlaps, left = find_overlaps(missing, [box for _, box in flat])
        for overlap in overlaps:
            self._send(flat[overlap.source][0], device, size * overlap.box.size)
        if left:
            self._send(STORAGE, device, size * sum(box.size for box in left))

    def _choose(self, host: str, devices: Sequence[str]) -> str:
        """Of devices that hold the same the one that sends to a host: from the host itself if it
        is there, else the one that has the least to send."""
        return min(devices, key=lambda each: (self.host_of[each] != host, self._load(each)))

    def _load(self, device: str) -> tuple[float, float]:
        return self.sent[f"host {self.host_of[device]}"], self.sent[device]

    def _send(self, source: str, target: str, size: float) -> None:
        self.flows[source, target] += size
        if source == STORAGE:
            return
        self.sent[source] += size
        if self.host_of[source] != self.host_of[target]:
            self.sent[f"host {self.host_of[source]}"] += size


def _holders(piece: HeldState, plan: Plan, shape: StateShape) -> _Held:
    """What every device holds of a piece, by name; the first of its parts counts."""
    found: _Held = {}
    for number in piece.parts:
        part = plan.parts[number]
        for place, device in enumerate(part.devices):
            if device not in found:
                found[device] = held_boxes(piece, part, place, shape)
    return {device: boxes for device, boxes in found.items() if boxes}


def transfer_seconds(
    cluster: Cluster, flows: Mapping[tuple[str, str], float], sharing: str = "fair"
) -> float:
    """How long transfers between pairs of devices take that begin at once, by the simulator: a step
    whose ops take no time and whose tensors are what is sent."""
    if not flows:
        return 0.0
    builder = GraphBuilder("moves", batch=1.0)
    devices: list[int] = []
    for number, ((source, target), size) in enumerate(sorted(flows.items())):
        ends = []
        for name, device in ((f"send{number}", source), (f"receive{number}", target)):
            ends.append(builder.add_op(name, seconds={ANY_TYPE: 0.0}))
            devices.append(cluster.index[device])
        builder.add_tensor(ends[0], size, [ends[1]])
    graph = builder.finish()
    plan = place_ops(graph.op_names, devices, [device.name for device in cluster.devices])
    return simulate(graph, cluster, plan, sharing=sharing).step_seconds


def _storage_seconds(
    clusters: Sequence[Cluster], stored: Mapping[str, float], bytes_per_second: float | None
) -> float:
    """How long hosts take to read what comes from the storage, over the links that bring data into
    them in the first of these clusters that has any: of the last host that is left, in the old."""
    if bytes_per_second is not None:
        return sum(stored.values()) / bytes_per_second
    longest = 0.0
    for host, size in stored.items():
        rates = (_entry_rate(cluster, host) for cluster in clusters if host in cluster.hosts)
        rate = next((rate for rate in rates if rate > 0), math.inf)
        longest = max(longest, size / rate)
    return longest


def _entry_rate(cluster: Cluster, host: str) -> float:
    """Bytes a second that all links into a host from outside bring together; zero: it has none."""
    owner = find_tiers(cluster).host_of
    rates = [
        link.bytes_per_second
        for link in cluster.links
        if owner.get(link.target) == host and owner.get(link.source) != host
    ]
    return sum(rates)
