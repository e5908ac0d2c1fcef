"""What every possible stage costs under every option: the rows that the dynamic programme reads.

Stages of one shape (see `shape`) are one column. For a frame and a number of devices a stage, each
option gives a load (seconds a microbatch, with a share of what happens once a step) and the most
microbatches that fit in memory at once; of the options that fit, the least load counts.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Bools, Floats
from meshwright.cost.holder import LayerOrder, shown_seconds
from meshwright.cost.layer.mode import Keys
from meshwright.cost.layer.team import Team
from meshwright.cost.memory import (
    CONTEXT_BYTES,
    NETWORK_BYTES,
    PEER_BYTES,
    communicator_bytes,
    kept_bytes,
)
from meshwright.cost.passage import num_ways
from meshwright.cost.stage import BUCKET_BYTES, MAX_BUCKETS
from meshwright.plan.part import ScheduleKind
from meshwright.plan.stage import Frame, Option
from meshwright.search.method.hybrid.option_price import Column, LayerPrices, holder_axes
from meshwright.search.method.hybrid.passage import output_bytes, transfer_bytes
from meshwright.search.method.hybrid.shape import Shapes


@dataclass(frozen=True, kw_only=True, eq=False)
class OptionTable:
    """Options by shapes, for stages of `size` devices in each pod of a frame."""

    frame: Frame
    size: int
    options: tuple[Option, ...]
    load: Floats
    """Seconds a microbatch, transfers to the next stage not counted."""
    fill: Floats
    """Seconds that a microbatch takes to pass the stage."""
    front: Floats
    """Of `fill`, what forward takes."""
    host: Floats
    """What hosts take to launch it, beside that."""
    weight: Floats
    """Of `fill`, what only weight gradients take."""
    tail: Floats
    """Seconds once a step, after the last backward."""
    fixed_bytes: Floats
    """Bytes that are held for the whole step."""
    passing_bytes: Floats
    """Held while one action runs, or on its way from and to other stages, libraries', and what NCCL
    has beyond what is kept free."""
    saved_bytes: Floats
    """Bytes that are held from a microbatch's forward to its backward."""
    deferred_bytes: Floats
    """Bytes that are held from a microbatch's backward to its weight gradient where that is
    postponed."""
    output_bytes: Floats
    """Bytes that each device sends to the next stage for a microbatch, and gets back as gradients.
    """

    def only(self, options: Collection[Option]) -> "OptionTable":
        """The rows of some of the options."""
        rows = [row for row, option in enumerate(self.options) if option in options]
        kept = {name: getattr(self, name)[rows] for name in _FIELDS}
        return replace(self, options=tuple(self.options[row] for row in rows), **kept)

    def most_in_flight(self, usable_bytes: float, kind: ScheduleKind) -> Floats:
        """How many microbatches fit at once; below one: the stage does not fit at all.

        With zero-bubble all may wait for their weight gradient while one more has its backward.
        """
        room = usable_bytes - self.fixed_bytes - self.passing_bytes
        saved = np.maximum(self.saved_bytes, 1e-9)
        if kind is ScheduleKind.ZERO_BUBBLE:
            room = room - self.deferred_bytes
            saved = np.maximum(saved, self.deferred_bytes)
        most: Floats = np.floor(room / saved + 1e-9)
        return np.where(room < 0, 0.0, most)


def make_table(
    prices: LayerPrices,
    shapes: Shapes,
    frame: Frame,
    size: int,
    options: Sequence[Option],
    type_names: Sequence[str],
    parts: Sequence[float] = (),
) -> OptionTable:
    """The table of a number of devices a stage, with the options that divide them and the batch.

    On devices of several types the slowest counts; of those of which it is said which part of the
    devices they are, replicas take samples in proportion to their speed.
    """
    fitting = [each for each in options if option_fits(prices, frame, size, each)]
    if not fitting:
        none = np.zeros((0, len(shapes.counts)))
        return OptionTable(frame=frame, size=size, options=(), **dict.fromkeys(_FIELDS, none))
    found = [_Part(prices, shapes, frame, size, fitting, name) for name in type_names]
    if len(parts) > 1:
        _follow_speed(found, parts, frame, size, fitting, prices.stack.graph.batch)
    slowest = [np.max([getattr(part, name) for part in found], axis=0) for name in _FIELDS]
    return OptionTable(
        frame=frame,
        size=size,
        options=tuple(fitting),
        **dict(zip(_FIELDS, slowest, strict=True)),
    )


def _follow_speed(
    found: Sequence["_Part"],
    parts: Sequence[float],
    frame: Frame,
    size: int,
    options: Sequence[Option],
    batch: float,
) -> None:
    """Let each type have samples in proportion to its speed, one a replica at the least, where
    there are several replicas."""
    fill = np.array([part.fill for part in found])  # by type, option and shape
    even = 1 / np.tensordot(np.array(parts), 1 / np.maximum(fill, 1e-15), 1)
    samples = np.array([samples_of(batch, frame, size, each.team) for each in options])[:, None]
    is_alone = np.array([size * frame.pods == each.team.num_devices for each in options])[:, None]
    shared = np.maximum(even, (fill / samples).max(axis=0))
    shared = np.where(is_alone, fill.max(axis=0), shared)
    for part in found:
        scale = np.where(is_alone, 1.0, shared / np.maximum(part.fill, 1e-15))
        for name in _BY_SAMPLES:
            setattr(part, name, getattr(part, name) * scale)
        part.load = np.maximum(part.fill, part.host) + part.tail / frame.microbatches


_BY_SAMPLES = ("fill", "front", "weight", "saved_bytes", "deferred_bytes", "output_bytes")
"""What grows with the samples that a replica gets."""
_FIELDS = (
    "load", "fill", "front", "host", "weight", "tail", "fixed_bytes", "passing_bytes",
    "saved_bytes", "deferred_bytes", "output_bytes",
)  # fmt: skip


def samples_of(batch: float, frame: Frame, size: int, team: Team) -> float:
    """The samples of a microbatch that one team gets."""
    replicas = size // team.num_devices
    return batch / (frame.microbatches * frame.pods * replicas)


def option_fits(prices: LayerPrices, frame: Frame, size: int, option: Option) -> bool:
    """Teams and experts divide the devices, whole samples the batch; ZeRO has something to do; and
    there are as many replicas as the frame has, where it says so."""
    width = option.team.num_devices
    if size % width:
        return False
    replicas = size // width
    if replicas % option.team.expert:
        return False
    if frame.data and replicas * frame.pods != frame.data:
        return False
    if option.zero and replicas * frame.pods * option.team.context == 1:
        return False
    samples = samples_of(prices.stack.graph.batch, frame, size, option.team)
    return samples >= 1 and samples == int(samples)


def _number(teams: Sequence[Team]) -> tuple[list[int], list[Team]]:
    """The number of each team among those that differ, and these."""
    numbers: dict[Team, int] = {}
    return [numbers.setdefault(team, len(numbers)) for team in teams], list(numbers)


class _Part:
    """The arrays of one device type, by option and shape."""

    def __init__(
        self,
        prices: LayerPrices,
        shapes: Shapes,
        frame: Frame,
        size: int,
        options: Sequence[Option],
        type_name: str,
    ) -> None:
        batch = prices.stack.graph.batch
        self.num_ways = num_ways(prices.stack.graph)
        self.runtime = prices.runtime
        self.is_replayed = size * frame.pods == 1 and prices.is_replayed_alone
        """Whether a device that is the only stage replays its step."""
        rows = np.stack(
            [
                prices.rows(
                    each.team,
                    each.recompute,
                    type_name,
                    samples_of(batch, frame, size, each.team),
                )
                for each in options
            ]
        )
        self.rows = rows  # option x kind x column
        self.shapes = shapes
        self.place, teams = _number([each.team for each in options])
        lines = np.array([_lines(prices, frame, size, team) for team in teams])[self.place]
        self.zero = np.array([each.zero for each in options])[:, None]
        contexts = np.array([each.team.context for each in options])[:, None]
        widths = np.array([each.team.num_devices for each in options])[:, None]
        experts = np.array([each.team.expert for each in options])[:, None]
        self.holders = size // widths * frame.pods * contexts
        self.expert_holders = self.holders // experts
        self._set_seconds(lines, frame)
        self._set_bytes(prices, frame, size, teams, type_name)

    def _set_seconds(self, lines: Floats, frame: Frame) -> None:
        """The times of a microbatch, of its host and of a step once, by option and shape."""
        shapes, rows = self.shapes, self.rows
        gather, scatter, synchronise, regather = self._once(lines)
        forward, backward = self._sum(Column.FORWARD), self._sum(Column.BACKWARD)
        compute = rows[:, :, Column.FORWARD], rows[:, :, Column.BACKWARD]
        ends_of = shapes.first_kind, shapes.second_kind, shapes.last_kind
        order = LayerOrder(shapes.counts, shapes.pairs, *ends_of)
        shown = shown_seconds(gather, scatter, compute, order, self.runtime)
        forward, backward = forward + shown[0], backward + shown[1]
        # The first layer that is gathered, and what the last backward has still to scatter.
        gathered, scattered = gather @ shapes.counts.T, scatter @ shapes.counts.T
        left = np.minimum(gathered + scattered - backward, scattered)
        ends = self._most(gather) + np.maximum(self._most(scatter), left)
        # Buckets travel while the rest of the last backward runs; the last one is always late.
        runtime = self.runtime
        hidden = backward * (1 - 1 / MAX_BUCKETS) if runtime.overlaps_gradients else 0.0
        late = np.maximum(synchronise / MAX_BUCKETS, synchronise - hidden)
        update = self._sum(Column.UPDATE) / np.where(self.zero >= 1, self.holders, 1.0)
        self.tail = late + update + regather + ends
        calls = 2 * (self.zero >= 3) + 1 * (self.zero >= 2)
        calling = calls * shapes.counts.sum(axis=1) * runtime.shard_host_seconds
        neighbours = (shapes.before_kind >= 0) + 1 * shapes.has_next
        calling = calling + self.num_ways * neighbours * runtime.transfer_host_seconds
        launches = ~((neighbours == 0) & self.is_replayed)
        self.fill, self.host = forward + backward, (self._sum(Column.HOST) + calling) * launches
        if runtime.blocks_on_transfers:  # hosts have no lead over their devices
            self.fill = np.maximum(self.fill, self.host)
        self.front = np.minimum(forward, self.fill)
        self.load = np.maximum(self.fill, self.host) + self.tail / frame.microbatches
        self.weight = self._sum(Column.WEIGHT)

    def _set_bytes(
        self,
        prices: LayerPrices,
        frame: Frame,
        size: int,
        teams: Sequence[Team],
        type_name: str,
    ) -> None:
        """What is held all the time, for a microbatch, and for a moment, by option and shape."""
        rows, batch = self.rows, prices.stack.graph.batch
        self.saved_bytes = self._sum(Column.SAVED)
        self.deferred_bytes = self._sum(Column.DEFERRED)
        self.fixed_bytes = self._state() + self._buffers()
        library = prices.cluster.types[type_name].library_bytes
        self.passing_bytes = self._most(rows[:, :, Column.WORKSPACE]) + library

        def by_option(values: Sequence[float]) -> Floats:
            """A column of what depends on an option's team only."""
            return np.array(values, dtype=np.float64)[self.place, None]

        beside = [_beside_bytes(prices, frame, size, team, type_name) for team in teams]
        self.passing_bytes += by_option(beside)
        samples = [samples_of(batch, frame, size, team) for team in teams]
        side = by_option([prices.stack.side_bytes_at(each) for each in samples])
        widths = by_option([team.num_devices for team in teams])
        spread = by_option([team.num_devices if team.sequence else team.context for team in teams])
        output, growth = rows[:, :, Column.OUTPUT], by_option(samples)
        self.passing_bytes += (
            transfer_bytes(self.shapes, output, side, growth, self.num_ways) / spread
        )
        self.output_bytes = output_bytes(self.shapes, output, growth) / widths

    def _sum(self, column: Column) -> Floats:
        """Over the layers of a stage: by option and shape.

        A layer that cannot run on the type takes for ever, and a stage without it none of that.
        """
        values, counts = self.rows[:, :, column], self.shapes.counts.T
        can_run = np.isfinite(values)
        total: Floats = np.where(can_run, values, 0.0) @ counts
        if not can_run.all():
            total[~can_run @ (counts > 0)] = np.inf
        return total

    def _most(self, values: Floats) -> Floats:
        """The most over the kinds of layers that a stage has, of values by option and kind."""
        most = np.zeros((len(values), len(self.shapes.counts)))
        for kind, is_present in enumerate(self.shapes.is_present.T):
            np.maximum(most, values[:, kind, None] * is_present, out=most)
        return most

    def _once(self, lines: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """By kind: ZeRO's gather and scatter a microbatch; by shape: gradients' synchronisation and
        parameters' gather once a step."""
        rows, zero = self.rows, self.zero[:, 0]

        def spread(place: int, wanted: Bools, dense: Floats, experts: Floats) -> Floats:
            """The time where wanted, else none."""
            spent = np.zeros(dense.shape)
            spent[wanted] = _fastest(lines[wanted, place], dense[wanted])
            spent[wanted] += _fastest(lines[wanted, place + 2], experts[wanted])
            return spent

        parameters, gradients = rows[:, :, Column.PARAMETERS], rows[:, :, Column.GRADIENTS]
        own, slopes = rows[:, :, Column.EXPERT_PARAMETERS], rows[:, :, Column.EXPERT_GRADIENTS]
        # Places in `lines`: one pass (gather or scatter) dense 0, experts 2; all-reduce 1 and 3.
        gather = spread(0, zero >= 3, parameters, own)
        scatter = spread(0, zero >= 2, gradients, slopes)
        # Places from 4 on: the same while all other stages do so.
        total, experts = self._sum(Column.GRADIENTS), self._sum(Column.EXPERT_GRADIENTS)
        most = MAX_BUCKETS if self.runtime.overlaps_gradients else 1
        pieces = np.clip(np.ceil((total + experts) / BUCKET_BYTES), 1, most)
        bucket = (total / pieces, experts / pieces)
        synchronise = pieces * (spread(5, zero == 0, *bucket) + spread(4, zero == 1, *bucket))
        held, of_experts = self._sum(Column.PARAMETERS), self._sum(Column.EXPERT_PARAMETERS)
        regather = spread(4, (zero == 1) | (zero == 2), held, of_experts)
        return gather, scatter, synchronise, regather

    def _state(self) -> Floats:
        pairs = (
            (Column.PARAMETERS, Column.EXPERT_PARAMETERS, 3),
            (Column.GRADIENTS, Column.EXPERT_GRADIENTS, 2),
            (Column.OPTIMISER, Column.EXPERT_OPTIMISER, 1),
        )
        state = np.zeros((len(self.rows), len(self.shapes.counts)))
        for dense, experts, least in pairs:
            is_divided = self.zero >= least
            state = state + self._sum(dense) / np.where(is_divided, self.holders, 1.0)
            state = state + self._sum(experts) / np.where(is_divided, self.expert_holders, 1.0)
        return state

    def _buffers(self) -> Floats:
        """The bytes of gradient buckets and gathered parameters, as `meshwright.cost.stage` counts
        them."""
        rows = self.rows
        gradients = rows[:, :, Column.GRADIENTS] + rows[:, :, Column.EXPERT_GRADIENTS]
        parameters = rows[:, :, Column.PARAMETERS] + rows[:, :, Column.EXPERT_PARAMETERS]
        total = gradients @ self.shapes.counts.T
        bucket = np.minimum(total, np.maximum(BUCKET_BYTES, total / MAX_BUCKETS))
        bucket = np.where(self.holders > 1, bucket, 0.0)
        packed = self._most(gradients) * (2 + 1 / self.holders)
        buffers = np.where(self.zero >= 2, packed, bucket)
        # So many times the largest is never below as many of the largest; and what arrives.
        copies = 2 + self.runtime.gathered_ahead
        gathered = np.where(self.zero >= 3, copies * self._most(parameters), 0.0)
        return buffers + gathered


def _beside_bytes(
    prices: LayerPrices, frame: Frame, size: int, team: Team, type_name: str
) -> float:
    """What NCCL has on a device beyond what is kept free of it anyway.

    Groups of a device are told apart by their members and the distance of these. Neighbouring
    stages count as peers in the host, of which a device has as many as there are.
    """
    smallest = prices.smallest_driven[type_name]
    if smallest == np.inf:
        return 0.0
    width, replicas = team.num_devices, size // team.num_devices * frame.pods
    groups = {(team.tensor, 1), (team.context, team.tensor), (team.expert, width)}
    groups.add((replicas * team.context, team.tensor))
    if 1 < team.expert < replicas:  # those that hold the same experts
        groups.add((replicas * team.context // team.expert, team.expert * width))
    held = sum(communicator_bytes(members) for members, _ in groups)
    is_staged = size * frame.pods < len(prices.tiers.order)
    is_ring = team.context > 1 and team.keys is Keys.RING
    peers = team.expert - 1 + 2 * is_staged + 2 * is_ring
    near = min(peers, prices.most_in_host - 1)
    held += near * PEER_BYTES + NETWORK_BYTES * (peers > near)
    own, beside = (kept_bytes(smallest, CONTEXT_BYTES + each) for each in (0.0, held))
    return float(beside) - float(own)


def _fastest(lines: Floats, message_bytes: Floats) -> Floats:
    """The time by the fastest of each option's lines, of messages by option and something else."""
    spent = np.full(message_bytes.shape, np.inf)
    for number in np.flatnonzero(np.isfinite(lines[:, :, 0]).any(axis=0)).tolist():
        latency, slope = lines[:, number, :1], lines[:, number, 1:]
        np.minimum(spent, latency + message_bytes * slope, out=spent)
    return np.where(message_bytes > 0, spent, 0.0)


def _lines(prices: LayerPrices, frame: Frame, size: int, team: Team) -> Floats:
    """By collective (one pass and an all-reduce; dense, then experts) and algorithm: latency and
    seconds a byte; of the stage alone, then with all other stages."""
    pod = len(prices.tiers.order) // frame.pods
    axes = holder_axes(team, size // team.num_devices, frame.pods, pod)
    everyone = ((pod, 1), (frame.pods, pod))
    own, crowded = prices.holder_lines(*axes), prices.holder_lines(*axes[:2], everyone)
    return np.concatenate((own, crowded))
