"""What a Plan is made of: parts, a schedule, allocations, and the choices each of them has.

Knows the rules that hold for a part by itself; what a whole plan means for one Graph and Cluster
is checked by `meshwright.plan.check`.
"""

import re
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate, pairwise
from math import fsum, isfinite
from numbers import Integral

from meshwright.argument import is_number, is_whole, need_flag, need_type, read_choice, shown
from meshwright.cost.layer.mode import Keys, Recompute
from meshwright.errors import InputError, quoted
from meshwright.units import LEAST_RATE, format_count, need_quantity

__all__ = [
    "Allocation",
    "Discipline",
    "Keys",
    "Part",
    "Recompute",
    "Schedule",
    "ScheduleKind",
    "Sync",
]

SHARES_TOLERANCE = 1e-6
"""How far from one the shares of a part may add up: files hold them rounded."""


class Sync(StrEnum):
    """How replicas of a part make their gradients equal."""

    ALL_REDUCE = "all_reduce"
    """By the fastest all-reduce algorithm."""
    RING = "ring"
    TREE = "tree"
    PARAMETER_SERVER = "parameter_server"
    """Every replica sends to one of them, which sums and broadcasts; they take turns, one bucket of
    gradients each."""
    DUPLICATE = "duplicate"
    """Every replica gathers the inputs and runs all ops on the whole batch, so that there is
    nothing to synchronise; readers elsewhere take their rows of what it makes."""


class Discipline(StrEnum):
    """Which op a device runs next, in a plan without a schedule."""

    PRIORITY = "priority"
    """Of the ops that are ready the one with the highest priority."""
    FIFO = "fifo"
    """Of the ops that are ready the one that has been so longest."""
    ORDER = "order"
    """Strictly from the highest priority to the lowest, waiting where need be."""


class ScheduleKind(StrEnum):
    """The order in which a pipeline's stages take their microbatches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved-1f1b"
    ZERO_BUBBLE = "zero-bubble"


MOST_MICROBATCHES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A pipeline's schedule; the plan's parts are its stages, in order."""

    kind: ScheduleKind
    microbatches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", read_choice(self.kind, ScheduleKind, "schedule: kind"))
        if not is_whole(self.microbatches):
            raise InputError(
                f"schedule {self.kind}: microbatches must be a whole number, got "
                f"{self.microbatches!r:.60}"
            )
        if not 1 <= self.microbatches <= MOST_MICROBATCHES:
            raise InputError(
                f"schedule {self.kind}: microbatches must be from 1 to {MOST_MICROBATCHES}, "
                f"got {self.microbatches}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some ops, the devices they run on, and how."""

    ops: tuple[str, ...] = ()
    """By name; empty: `layers` says which."""
    layers: str = ""
    """Layers of the graph instead of ops, as summaries number them: "1-12", "embedding,1-4,9",
    "7-head"; a number or a list of these will do. `Plan.in_ops` names their ops."""
    devices: tuple[str, ...]
    """One a replica, in order; with teams, `width` a replica, team after team, the devices that
    share tensors next to each other."""
    shares: tuple[float, ...] = ()
    """Each replica's share of the batch, adding up to one; empty: equal."""
    sync: Sync = Sync.ALL_REDUCE
    zero: int = 0
    """ZeRO stage: 1 shards the optimiser state over the replicas, 2 the gradients too, 3 the
    parameters too."""
    recompute: Recompute = Recompute.NONE
    priorities: tuple[float, ...] = ()
    """One an op, larger first; empty: the graph's order."""
    tensor: int = 1
    """How many devices of a team share each layer's heads and features."""
    context: int = 1
    """How many share the tokens of each sample."""
    keys: Keys = Keys.GATHERED
    """How those that share tokens get at each other's keys and values."""
    expert: int = 1
    """How many replicas in a row hold different experts."""
    sequence: bool = False
    """Whether those that share tensors also share the rows of what lies between products."""

    def __repr__(self) -> str:
        return f"Part({self._describe()})"

    def __post_init__(self) -> None:
        for name in ("ops", "devices", "shares", "priorities"):
            need_type(getattr(self, name), (tuple, list), f"part: {name}", "a tuple")
        for kind in set(map(type, self.devices)):  # of thousands, far fewer than devices
            if not issubclass(kind, str):
                raise InputError(f"part: devices: must be names, got one of type {kind.__name__}")
        object.__setattr__(self, "layers", _spell_layers(self.layers))
        if not self.ops and not self.layers:
            raise self._error("must have at least one op")
        if self.ops and self.layers:
            raise self._error(f"must have ops or layers, got both ops and layers {self.layers}")
        if not self.devices:
            raise self._error("must have at least one device")
        if len(set(self.devices)) != len(self.devices):
            twice = Counter(self.devices).most_common(1)[0][0]
            raise self._error(
                f"replicas must be on different devices, {quoted(twice)} stands twice"
            )
        if not is_whole(self.zero) or self.zero not in (0, 1, 2, 3):
            raise self._error(f"zero must be 0, 1, 2 or 3, got {shown(self.zero)}")
        if self.sequence is not True and self.sequence is not False:
            need_flag(self.sequence, f"{self._describe()}: sequence")
        if isinstance(self.recompute, bool):  # as before there were choices
            chosen = Recompute.FULL if self.recompute else Recompute.NONE
            object.__setattr__(self, "recompute", chosen)
        for name, kind in (("sync", Sync), ("recompute", Recompute), ("keys", Keys)):
            if not isinstance(getattr(self, name), kind):
                what = f"{self._describe()}: {name}"
                object.__setattr__(self, name, read_choice(getattr(self, name), kind, what))
        self._check_widths()
        if self.shares:
            self._check_shares()
        if self.priorities:
            self._check_priorities()

    @property
    def width(self) -> int:
        """How many devices run one replica: its team."""
        return self.tensor * self.context

    @property
    def num_replicas(self) -> int:
        """How many replicas the part has: its devices over the width of a team."""
        return len(self.devices) // self.width

    @property
    def is_plain(self) -> bool:
        """Whether every device runs its ops whole, as they are, with all that they need."""
        has_team = self.width > 1 or self.expert > 1
        return not (has_team or self.zero or self.recompute is not Recompute.NONE)

    def teams(self) -> tuple[tuple[str, ...], ...]:
        """The devices of each replica."""
        starts = range(0, len(self.devices), self.width)
        return tuple(self.devices[start : start + self.width] for start in starts)

    def _check_widths(self) -> None:
        for name in ("tensor", "context", "expert"):
            width = getattr(self, name)
            if not is_whole(width) or width < 1:
                raise self._error(f"{name} must be a whole number of at least 1, got {width!r:.60}")
        if len(self.devices) % self.width:
            raise self._error(
                f"devices must be a multiple of tensor x context ({self.tensor} x {self.context}), "
                f"got {len(self.devices):,}"
            )
        if self.num_replicas % self.expert:
            raise self._error(
                f"expert must divide the number of replicas ({self.num_replicas}), "
                f"got {self.expert}"
            )
        if self.sequence and self.tensor == 1:
            raise self._error("sequence needs a tensor width above 1, got 1")
        if self.keys is not Keys.GATHERED and self.context == 1:
            raise self._error(f"keys {self.keys} needs a context width above 1, got 1")

    def _check_shares(self) -> None:
        if len(self.shares) != self.num_replicas:
            each = "device" if self.width == 1 else "replica"
            raise self._error(
                f"shares must be one a {each} ({self.num_replicas}), got {len(self.shares):,}"
            )
        for share in self.shares:
            if not is_number(share) or not 0 < share <= 1:
                raise self._error(f"a share must be above 0 and at most 1, got {shown(share)}")
        if abs(fsum(self.shares) - 1) > SHARES_TOLERANCE:
            raise self._error(f"shares must add up to 1, got {fsum(self.shares)}")

    def _check_priorities(self) -> None:
        if self.layers:
            raise self._error("priorities must be one an op, got them for layers")
        if len(self.priorities) != len(self.ops):
            raise self._error(
                f"priorities must be one an op ({len(self.ops)}), got {len(self.priorities):,}"
            )
        # Plans have tens of thousands of priorities: only where one is wrong are they walked.
        types = set(map(type, self.priorities)) - {int, float}
        if not types and all(map(isfinite, self.priorities)):
            return
        for op, each in zip(self.ops, self.priorities, strict=True):
            if not is_number(each) or not isfinite(each):
                bad = shown(each)
                raise self._error(f"priorities must be finite, got {bad} for op {quoted(op)}")

    def _error(self, rule: str) -> InputError:
        return InputError(f"{self._describe()}: {rule}")

    def _describe(self) -> str:
        return f"part of {self.what} on {quoted(', '.join(self.devices), 60)}"

    @property
    def what(self) -> str:
        """What it runs, in short, for people."""
        if self.layers:
            return f"layers {quoted(self.layers, 60)}"
        return format_count(len(self.ops), "op")

    def rows(self) -> tuple[tuple[float, float], ...]:
        """Each replica's rows of the batch, as fractions from and to.

        Equal shares, written out or not, meet at exactly i / n, so that two parts of as many
        replicas agree to the last bit about which rows are whose.
        """
        count = self.num_replicas
        if all(share == self.shares[0] for share in self.shares):
            bounds = [number / count for number in range(count + 1)]
        else:
            sums = tuple(accumulate(self.shares))
            bounds = [0.0, *(each / sums[-1] for each in sums)]
        return tuple(pairwise(bounds))


_LAYER = r"\d{1,9}|[a-z]{1,20}"
_LAYERS = re.compile(rf"({_LAYER})(-({_LAYER}))?(,({_LAYER})(-({_LAYER}))?)*")


def _spell_layers(layers: object) -> str:
    """Layers in one text without spaces; whether a graph has them is not known here."""
    pieces = layers if isinstance(layers, (tuple, list, range)) else (layers,)
    if not all(isinstance(each, (str, Integral)) and not isinstance(each, bool) for each in pieces):
        raise InputError(f"layers must be text, numbers or a list of these, got {layers!r:.60}")
    text = "".join(",".join(map(str, pieces)).split())
    if text and not _LAYERS.fullmatch(text):
        raise InputError(f"layers must be such as 1-4,9 or embedding-6, got {quoted(text, 60)}")
    return text


LEAST_ALLOCATION = 1e-6 * LEAST_RATE
"""Of a pair of hosts that hardly ever speak: a small share of the slowest link."""
SHARE_TOLERANCE = 1e-9
"""Of the sum of an allocation's shares, which are quotients of whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A share of the network: what traffic from one host to another may use."""

    source: str
    target: str
    bytes_per_second: float
    shares: tuple[float, ...] = ()
    """The part of it on each way between the two hosts, as the cluster's `ways` number them; empty:
    all of it on the route that the cluster has anyway."""

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            need_type(getattr(self, name), str, f"allocation: {name}", "a host's name")
        what = f"allocation {self.source} -> {self.target}"
        need_type(self.shares, (tuple, list), f"{what}: shares", "a tuple")
        rate = self.bytes_per_second
        if not is_number(rate):
            raise InputError(f"{what}: bytes_per_second must be a number, got {shown(rate)}")
        need_quantity(rate, f"{what}: bytes_per_second", least=LEAST_ALLOCATION, is_positive=True)
        if not self.shares:
            return
        for each in self.shares:
            if not is_number(each) or not 0 <= each <= 1:
                raise InputError(f"{what}: a share must be from 0 to 1, got {shown(each)}")
        if abs(sum(self.shares) - 1) > SHARE_TOLERANCE:
            raise InputError(f"{what}: shares must add up to 1, got {sum(self.shares)}")
