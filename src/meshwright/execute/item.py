"""What one rank does in a step, as data: segments to run, sends and collectives to start.

Made by `meshwright.execute.bind`, walked by `meshwright.execute.walk`.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from meshwright.execute.code import Segment
from meshwright.program.program import Kind

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
    inputs: tuple[Key, ...]
    """A `Piece` is made for this segment alone."""
    outputs: tuple[int, ...]
    sums: tuple[tuple[int, int], ...]
    """Places in `Held.sums` that are complete after it, and the buffers that they are."""
    waits: tuple[int, ...]
    """Instructions that run beside the main thread and must be done first."""
    drops: tuple[int, ...] = ()
    """Buffers of which it reads pieces, and nobody anything after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a send or a collective, or run a join."""

    instruction: int
    kind: Kind
    pieces: tuple[Piece, ...]
    """What it reads."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Receive:
    """A tensor that comes from another device."""

    instruction: int
    peer: int
    task: int
    output: Piece
    bytes: float


Item = RunSegment | Start


@dataclass(frozen=True, kw_only=True, eq=False)
class Part:
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
