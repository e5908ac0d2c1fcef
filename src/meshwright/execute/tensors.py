"""Does what a rank's instructions say with tensors.

Keeps what the program's buffers hold, each until its last reader is done. Knows nothing of the
order of instructions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from meshwright.errors import RankError
from meshwright.execute.blame import Inspector
from meshwright.execute.clip import Clip
from meshwright.execute.code import compile_segment
from meshwright.execute.compiled import Compiled, Extra, RankState
from meshwright.execute.exchange import RankExchange
from meshwright.execute.item import Key, Piece, RankPart, Receive, RunSegment, Segment, StartItem
from meshwright.execute.lowered import Lowered
from meshwright.execute.marks import Marks
from meshwright.execute.region.recipe import Compiler
from meshwright.execute.sample import count_blocks
from meshwright.execute.steps import TracedSteps
from meshwright.execute.talk import Begun, Talk, nothing
from meshwright.execute.traced import Layout
from meshwright.execute.walk import Times
from meshwright.execute.work import All, Communication, Finish
from meshwright.program.program import Kind


class TensorWorker:
    """The worker that computes."""

    def __init__(
        self,
        lowered: Lowered,
        part: RankPart,
        steps: TracedSteps,
        exchange: RankExchange,
        held: RankState,
        *,
        inspector: Inspector | None = None,
        compiler: Compiler | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`clip`: how gradients are clipped. `inspector`: it looks at the results of all ops,
        unless a step is timed. `compiler`: it makes one function of each region of ops; None: every
        op is a call."""
        self.lowered, self.part, self.steps = lowered, part, steps
        self.program, self.rows = lowered.program, lowered.rows
        self.exchange, self.held, self.device = exchange, held, exchange.device
        self.inspector, self.compiler, self.clip = inspector, compiler, clip
        self.kept: dict[Key, Any] = {}
        self.added = [0] * part.num_sums
        """By sum: how many microbatches a collective has added to it."""
        self.times: Times | None = None
        self.blocks: list[int] = []
        """By tensor; counted when it first matters."""
        self.marks = Marks(self.device, self.program.instructions["seconds"])
        self.compiled: dict[tuple[Segment, Extra], Compiled] = {}
        segments = [item for item in part.items if isinstance(item, RunSegment)]
        segments += [each.run for each in part.starts if each.run]
        first, bound = self.program.instructions["rows_from"], self.rows.bound
        self.first_row = {id(item): bound(first[item.instructions[0]]) for item in segments}
        self.functions = {id(each): self._compiled(each).run for each in segments}

    def begin(self, inputs: Mapping[Key, torch.Tensor], times: Times | None) -> None:
        """Begin a step on these inputs, which is timed where there are times to fill."""
        self.kept.update(inputs)
        self.times = times
        if times is not None and times.when_fed is not None:
            times.when_fed()

    def end(self) -> None:
        """End the step: let go of all that was kept, and read its times."""
        self.kept.clear()
        if self.times is not None:
            self.marks.read(self.times)

    def compute(self, item: RunSegment) -> None:
        """Run a segment, and keep what others read of its results."""
        kept, held = self.kept, self.held
        given = self._given(item)
        held.moment = item.microbatch, self.first_row[id(item)]
        if self.inspector is not None:
            self._inspect(item, given, self.inspector)
        function = self.functions[id(item)]
        if self.times is not None:
            compiled = self._compiled(item)
            function = compiled.run
            held.mark = self.marks.begin(item.instructions, compiled.calls)
            held.mark()
        try:
            made = function(given, held)
        except Exception as error:
            raise self._explain(item, error) from error
        kept.update(zip(item.outputs, made, strict=True))
        for place, buffer in item.sums:
            kept[buffer] = held.sums[place]
            held.sums[place] = None

    def _given(self, item: RunSegment) -> list[Any]:
        """What a segment reads of what is kept; what nobody reads after it is let go of."""
        segment, kept = item.segment, self.kept
        assert segment is not None
        given = [
            self._take(key) if isinstance(key, Piece) else kept.pop(key) if last else kept[key]
            for key, last in zip(item.inputs, segment.last, strict=True)
        ]
        for buffer in item.drops:
            del kept[buffer]
        return given

    def _inspect(self, item: RunSegment, given: list[torch.Tensor], inspector: Inspector) -> None:
        """Look at what a segment is given, which may be a sum that no op has made."""
        versions = self.steps.any().versions
        for key, tensor in zip(item.inputs, given, strict=True):
            number = int(self.program.buffers["tensor"][key]) if isinstance(key, int) else -1
            if number >= 0:
                inspector.look(versions[number], tensor, item.microbatch, is_sum=True)

    def _take(self, piece: Piece) -> torch.Tensor:
        """A piece of a buffer by itself, in the layout that it has when it is all there is.

        A gradient that is in no buffer is zero: others have all of it.
        """
        if piece.buffer < 0:
            return self._layout(piece).empty(self.device).zero_()
        if not piece.has_rows:
            scaled: torch.Tensor = self.kept[piece.buffer] * piece.factor
            return scaled
        whole = replace(piece, samples=piece.count, start=0)
        base = self._layout(whole).empty(self.device)
        self._opened(base, whole)[0].copy_(self._rows(piece))
        return base

    def _explain(self, item: RunSegment, error: Exception) -> RankError:
        """Which op it was: the line of the generated function says."""
        compiled = self._compiled(item)
        op = self.program.describe(item.instructions[compiled.failed_line(error)])
        return RankError(op, f"{type(error).__name__}: {error}")

    def _compiled(self, item: RunSegment) -> Compiled:
        """The function of a segment, with what this step asks for besides."""
        assert item.segment is not None
        extra = Extra.CHECKS if self.inspector is not None else Extra.NOTHING
        extra = Extra.TIMES if self.times is not None else extra
        key = item.segment, extra
        if key not in self.compiled:
            self.compiled[key] = compile_segment(
                item.segment, self.steps, self.device, self.held, extra, self.compiler
            )
        return self.compiled[key]

    def pack(self, item: StartItem) -> torch.Tensor:
        """What is sent, as bytes in a row."""
        flats = [self._flat_rows(piece) for piece in item.pieces]
        self._drop(item)
        return flats[0] if len(flats) == 1 else torch.cat(flats)

    def _flat_rows(self, piece: Piece) -> torch.Tensor:
        if piece.is_empty:
            return torch.zeros(1, dtype=torch.uint8, device=self.device)
        if piece.is_whole:
            return flat_bytes(self.kept[piece.buffer])
        return flat_bytes(self._rows(piece).clone())  # in the same order in memory

    def empty(self, receive: Receive) -> torch.Tensor:
        """Room for what is received."""
        piece = receive.output
        size = round(receive.bytes)  # of a bucket of gradients
        if piece.is_empty:
            size = 1  # nothing cannot be sent
        elif piece.tensor >= 0:
            layout = self._layout(piece)
            size = layout.length * layout.dtype.itemsize
        return torch.empty(size, dtype=torch.uint8, device=self.device)

    def accept(self, receive: Receive, flat: torch.Tensor) -> None:
        """Keep what was received, in the layout that it has here."""
        piece = receive.output
        self.kept[piece.buffer] = flat
        if piece.tensor >= 0 and not piece.is_empty:
            layout = self._layout(piece)
            shaped = flat.view(layout.dtype).as_strided(layout.shape, layout.stride)
            self.kept[piece.buffer] = shaped

    def collect(self, item: StartItem) -> tuple[Communication, Finish]:
        """Start a collective; returns what to wait for, and what to do then."""
        if item.run is not None:
            return self._talk(item, item.run)
        if not item.pieces:
            started = self._clip(item)
        elif item.output is None:
            started = self._collect_bucket(item)
        elif item.kind == Kind.ALL_REDUCE:
            started = self._add_up(item, item.output.buffer)
        else:
            started = self._gather(item, item.output)
        self._drop(item)
        return started

    def _talk(self, item: StartItem, run: RunSegment) -> tuple[Communication, Finish]:
        """Begin a collective that is an op; its results are there before they hold anything."""
        begun: list[Begun] = []

        def begin(talk: Talk, *args: Any) -> Any:
            begun.append(talk.begin(self.exchange, item.group, args))
            return begun[0].made

        before, self.held.talk = self.held.talk, begin
        made = self.functions[id(run)](self._given(run), self.held)
        self.held.talk = before  # not to hold the collective's buffers until the next
        work = begun[0].work
        work.then(begun[0].finish)
        count = len(run.outputs)
        self.kept.update(zip(run.outputs, made[:count], strict=True))
        sums = list(zip(item.sums, made[count:], strict=True))

        def finish() -> None:
            for (place, buffer), value in sums:
                self._add(place, buffer, value)

        return work, finish

    def _add(self, place: int, buffer: int, value: torch.Tensor) -> None:
        """Add what a microbatch has to a sum; they may come in any order."""
        total = self.held.sums[place]
        self.held.sums[place] = value if total is None else total.add_(value)
        self.added[place] += 1
        if self.added[place] == self.program.microbatches:
            self.kept[buffer] = self.held.sums[place]
            self.held.sums[place] = None
            self.added[place] = 0

    def _add_up(self, item: StartItem, buffer: int) -> tuple[Communication, Finish]:
        base = self.kept[item.pieces[0].buffer].clone()
        work = self.exchange.all_reduce(_flat(base), item.group)
        return work, lambda: self.kept.update({buffer: base})

    def _collect_bucket(self, item: StartItem) -> tuple[Communication, Finish]:
        """Add up or overwrite a bucket of gradients, as one flat tensor of each type."""
        bases = [self.kept[piece.buffer] for piece in item.pieces]
        is_sum = item.kind == Kind.ALL_REDUCE
        start = self.exchange.all_reduce if is_sum else self.exchange.broadcast
        works = []
        for dtype in dict.fromkeys(each.dtype for each in bases):
            alike = [each for each in bases if each.dtype is dtype]
            if len(alike) == 1:
                works.append(start(_flat(alike[0]), item.group))
                continue
            flat = torch.cat([_flat(each) for each in alike])
            works.append(start(flat, item.group))
            works[-1].then(partial(_unpack, alike, flat))
        return All(works), nothing

    def _clip(self, item: StartItem) -> tuple[Communication, Finish]:
        """Find the norm of all gradients, and make those smaller that this rank updates with."""
        clip, kept = self.clip, self.kept
        assert clip is not None
        values = [self._take(key) if isinstance(key, Piece) else kept[key] for key in clip.read]
        squares = clip.squares(values)
        is_alone = len(self.program.groups[item.group]) == 1
        work = All([] if is_alone else [self.exchange.all_reduce(squares, item.group)])
        return work, lambda: clip.scale(kept, squares)

    def _gather(self, item: StartItem, output: Piece) -> tuple[Communication, Finish]:
        """All rows of a tensor from its replicas, padded to the longest."""
        own = self._rows(item.pieces[0])
        dim = self._opened(self.kept[item.pieces[0].buffer], item.pieces[0])[1]
        counts = self._member_counts(item)
        unit = own.shape[dim] // item.pieces[0].count
        longest = (*own.shape[:dim], unit * max(counts), *own.shape[dim + 1 :])
        padded = own.new_zeros(longest)
        padded.narrow(dim, 0, own.shape[dim]).copy_(own)
        parts = [torch.empty_like(padded) for _ in counts]
        flats = [flat_bytes(each) for each in parts]
        work = self.exchange.all_gather(flats, flat_bytes(padded), item.group)

        def finish() -> None:
            pairs = zip(parts, counts, strict=True)
            rows = [each.narrow(dim, 0, unit * count) for each, count in pairs]
            base = self._layout(output).empty(self.device)
            self._opened(base, output)[0].copy_(torch.cat(rows, dim))
            self.kept[output.buffer] = base

        return work, finish

    def _member_counts(self, item: StartItem) -> list[int]:
        """How many samples each member of a collective has, in the order of the group."""
        rows, reads = self.program.instructions, self.program.reads
        found = []
        for instruction in (rows["task"] == item.task).nonzero()[0].tolist():
            buffer = int(reads["second"][reads["first"] == instruction][0])
            writer = rows[self.program.buffers["writer"][buffer]]
            found.append(self.rows.count(writer["rows_from"], writer["rows_to"]))
        return found

    def join(self, item: StartItem) -> None:
        """Concatenate rows, or add up partial sums."""
        mark = nothing if self.times is None else self.marks.begin((item.instruction,), (1,))
        mark()
        if item.kind == Kind.CONCATENATE:
            assert item.output is not None
            base = self._layout(item.output).empty(self.device)
            opened, dim = self._opened(base, item.output)
            unit, done = opened.shape[dim] // item.output.samples, 0
            pieces = [each for each in item.pieces if not each.is_empty]
            for piece in sorted(pieces, key=self._first_row):
                opened.narrow(dim, done * unit, piece.count * unit).copy_(self._rows(piece))
                done += piece.count
            self.kept[item.output.buffer] = base
        elif item.output is not None:
            total = self.kept[item.pieces[0].buffer].clone()
            for piece in item.pieces[1:]:
                total.add_(self.kept[piece.buffer])
            self.kept[item.output.buffer] = total
        else:
            self._add_buckets(item)
        self._drop(item)
        mark()

    def _add_buckets(self, item: StartItem) -> None:
        """On a parameter server: add the received buckets of gradients to its own."""
        received = [self.kept[piece.buffer] for piece in item.pieces if piece.tensor < 0]
        offset = 0
        for piece in item.pieces:
            if piece.tensor < 0:
                continue
            base = self.kept[piece.buffer]
            flat = _flat(base)
            size = flat.numel() * flat.element_size()
            for each in received:
                flat.add_(each[offset : offset + size].view(base.dtype))
            offset += size

    def _first_row(self, piece: Piece) -> float:
        writer = self.program.buffers["writer"][piece.buffer]
        return float(self.program.instructions["rows_from"][writer])

    def _drop(self, item: StartItem) -> None:
        for buffer in item.drops:
            self.kept.pop(buffer, None)

    def _layout(self, piece: Piece) -> Layout:
        step = self.steps[piece.samples] if piece.samples else self.steps.any()
        return step.layouts[step.versions[piece.tensor]]

    def _rows(self, piece: Piece) -> torch.Tensor:
        """The samples that are meant, in an opened tensor."""
        opened, dim = self._opened(self.kept[piece.buffer], piece)
        unit = opened.shape[dim] // piece.samples
        return opened.narrow(dim, piece.start * unit, piece.count * unit)

    def _opened(self, base: torch.Tensor, piece: Piece) -> tuple[torch.Tensor, int]:
        """A tensor of as many samples as the piece's, and a dimension in which each of them is in a
        row; blocks that have all samples get a dimension of their own before it."""
        step, other = self.steps[piece.samples], self.steps.other(piece.samples)
        one, two = (each.layouts[each.versions[piece.tensor]].shape for each in (step, other))
        dim = next(k for k, pair in enumerate(zip(one, two, strict=True)) if pair[0] != pair[1])
        if not self.blocks:
            found = count_blocks(step, other)
            self.blocks = [found.get(version, 1) for version in step.versions]
        blocks = self.blocks[piece.tensor]
        if blocks == 1:
            return base, dim
        return base.view((*base.shape[:dim], blocks, -1, *base.shape[dim + 1 :])), dim + 1


def _unpack(bases: Sequence[torch.Tensor], flat: torch.Tensor) -> None:
    """Copy what stands one after the other in a flat tensor into its tensors."""
    offset = 0
    for base in bases:
        base.copy_(flat.as_strided(base.shape, base.stride(), offset))
        offset += _span(base)


def _span(base: torch.Tensor) -> int:
    return Layout.of(base).length


def _flat(base: torch.Tensor) -> torch.Tensor:
    """The storage of a base in a row, in its own type."""
    return base.as_strided((_span(base),), (1,), 0)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The part of its storage that a tensor spans, as bytes, without a copy."""
    offset = int(tensor.storage_offset())
    return tensor.as_strided((_span(tensor) - offset,), (1,), offset).view(torch.uint8)
