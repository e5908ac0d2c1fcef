"""What one rank does in a step, as data: segments of ops to run, sends and collectives to start.

Made by `meshwright.execute.bind`, walked by `meshwright.execute.walk`.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from meshwright.program.program import Kind


@dataclass(frozen=True, slots=True)
class OpLine:
    """One op of a segment: where each version that it reads comes from."""

    op: int
    samples: int
    """Which of the traced steps it is run from."""
    reads: tuple[tuple[int, Hashable], ...]
    """Version and its name: that of an input, of state, or of what an earlier line makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Ops that run one after the other without any communication between them."""

    lines: tuple[OpLine, ...]
    inputs: tuple[Hashable, ...]
    """Names of what it is given."""
    last: tuple[bool, ...]
    """Which inputs nobody reads after it."""
    outputs: tuple[tuple[int, int], ...]
    """Line and version of what it gives back."""
    sums: tuple[tuple[int, int, int, bool], ...] = ()
    """Line, version, place in `RankState.sums`, and whether others read that version, too."""
    copied: frozenset[tuple[int, int]] = frozenset()
    """Line and version of what it writes in place although somebody else still reads it."""
    weight: float = 1.0
    """The share of the batch that a microbatch of these rows is."""
    loss_weight: float = 1.0  # the same, less where several replicas compute the same loss
    is_scaled: bool = False
    """Whether backward starts from the loss scale, and updates may be left out."""


def state_name(slot: int) -> Hashable:
    """The name of a place in `RankState.state`."""
    return "state", slot


Key = Hashable
"""Of what a rank keeps during a step: a buffer's number, or an input's name and rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Some rows of a tensor in a buffer."""

    buffer: int
    tensor: int
    """-1: a bucket of gradients, which has no rows."""
    samples: int
    """All that the buffer has."""
    start: int
    count: int
    """Those that are meant."""
    has_rows: bool = True
    """Whether there are samples in it; else the three numbers above are zero."""
    factor: float = 1.0
    """What a reader that sees another share of the batch multiplies it with."""

    @property
    def is_whole(self) -> bool:
        """Whether all that the buffer has is meant."""
        return self.count == self.samples

    @property
    def is_empty(self) -> bool:
        """Whether no sample is meant: rows of a plan may be less than one."""
        return self.has_rows and self.count == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSegment:
    """Run a segment for one microbatch."""

    segment: Segment | None
    """None where compute is emulated."""
    instructions: tuple[int, ...]
    microbatch: int
    waits: tuple[int, ...]
    """Instructions that run beside the main thread and must be done first."""
    inputs: tuple[Key, ...] = ()
    """A `Piece` is made for this segment alone."""
    outputs: tuple[int, ...] = ()
    sums: tuple[tuple[int, int], ...] = ()
    """Places in `RankState.sums` that are complete after it, and the buffers that they are."""
    drops: tuple[int, ...] = ()
    """Buffers of which it reads pieces, and nobody anything after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartItem:
    """Start a send or a collective, or run a join."""

    instruction: int
    kind: Kind
    pieces: tuple[Piece, ...]
    """The rows of buffers that it reads."""
    peer: int = -1
    group: int = -1
    task: int = -1
    output: Piece | None = None
    """What it writes, if not what it reads."""
    offset: int = 0
    """Of a join: the first sample that it writes."""
    waits: tuple[int, ...] = ()
    drops: tuple[int, ...] = ()
    """Buffers that nobody reads after it."""
    run: RunSegment | None = None
    """Of a collective that is an op: its call, as a segment of one line. What it adds to sums
    stands among the outputs of the segment, after the buffers."""
    sums: tuple[tuple[int, int], ...] = ()
    """Places in `RankState.sums` of these, and the buffers that they are once all were added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A tensor that comes from another device."""

    instruction: int
    peer: int
    task: int
    output: Piece
    bytes: float
    place: int
    """The item before which it is posted: the first that the simulation does not have done when the
    transfer starts."""


Item = RunSegment | StartItem


@dataclass(frozen=True, kw_only=True, eq=False)
class RankPart:
    """What one rank does in a step."""

    device: int
    items: tuple[Item, ...]
    receives: tuple[Receive, ...]
    """In the order in which they are expected; from one peer, in that in which it sends them."""
    state: tuple[str, ...]
    """Names of what it holds from step to step."""
    num_sums: int
    inputs: tuple[tuple[Key, int, int, int], ...]
    """The step's inputs that it reads: key, number, first row of the batch, how many."""

    @property
    def segments(self) -> list[tuple[RunSegment, Segment]]:
        """The segments that it runs on tensors."""
        runs = [item for item in self.items if isinstance(item, RunSegment)]
        return [(item, item.segment) for item in runs if item.segment is not None]

    @property
    def starts(self) -> list[StartItem]:
        """The sends and collectives that it starts, and its joins."""
        return [item for item in self.items if isinstance(item, StartItem)]

    @property
    def lines(self) -> list[OpLine]:
        """The ops that it runs."""
        return [line for _, segment in self.segments for line in segment.lines]
