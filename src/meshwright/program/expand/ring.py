"""Lets keys and values travel around a context team: ring attention, as ops of one member.

Attention of a member's queries is a block for each member's keys and values (Liu et al. 2023, "Ring
Attention", section 3; the way backward is that of Dao et al. 2022, "FlashAttention", section 3.1,
with the sums of all blocks). Blocks of keys go to the next member one after the other:

- A member packs its keys and values in one tensor and attends to them while it sends them on and
  gets those of the member before it; so it goes on until all have come by. A block is sent on when
  the block before it is done, so that there are no more than two at a time.
- Results of blocks are combined by the logarithms of the sums of exponentials of their scores; the
  last block makes what attention makes.
- In backward keys and values travel once more. The gradients of a block's keys go with them, from
  the second block on: a member adds its term and sends the sum on. When it has come around, its
  owner adds the term of its own block. These sums are ops of their own: a block need not wait for
  the sum that it adds to.

So as many bytes travel as for gathering and scattering, but beside attention, and a member holds
two blocks of them. All members run all blocks here. Where attention is causal, a member that comes
before the owner of a block leaves it out: the first member attends to one block, the last to all,
which is what others wait for.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from meshwright.cost.product import ITEM_BYTES
from meshwright.graph.column import OP_SIZES
from meshwright.program.expand.expansion import Axis, Owned
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.program import Kind

PACK, ADD = "cat", "add"
"""Kinds of the ops that put keys and values in one tensor, and that add up their gradients."""
_FIRST, _AFTER = -0.45, 0.01
"""Places of the first new op before an attention, and of the first one after it."""
_ROOM = 0.4
"""How much room there is for new ops before, and after."""
_SUM_BYTES = 4.0
"""What is combined of blocks is in fp32, as within a fused kernel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ring:
    """An attention, or its backward, in blocks."""

    op: int
    """The op of the last block, which is the attention itself."""
    blocks: tuple[int, ...]
    packed_bytes: float
    """Of one member's keys and values."""
    combined_bytes: float
    """Of what a block reads of the blocks before it."""


class Rings:
    """The rings of a rewrite."""

    def __init__(self, rewrite: Rewrite) -> None:
        self.rewrite = rewrite
        self.rings: list[_Ring] = []

    def attend(self, op: int, reads: list[int], size: float, width: int) -> None:
        """Make blocks of an attention. `reads`: the tensors that its keys and values are in;
        `size`: the bytes of those of all members."""
        _Blocks(self, op, size, width).run(reads, is_backward=False)

    def differentiate(
        self, op: int, reads: list[int], size: float, width: int, keys: list[int]
    ) -> int:
        """Make blocks of the backward of an attention; `keys`: the gradients of its keys and
        values. Gives the op that makes these."""
        return _Blocks(self, op, size, width).run(reads, is_backward=True, keys=keys)

    def describe(self) -> None:
        """Give blocks their sizes, once those of the attention of all keys are known."""
        made: Counter[int] = Counter()
        for tensor in self.rewrite.tensors if self.rings else ():
            made[tensor["source"]] += tensor["bytes"]
        for ring in self.rings:
            self._describe(ring, made)

    def _describe(self, ring: _Ring, made: Mapping[int, float]) -> None:
        rewrite, width = self.rewrite, len(ring.blocks)
        columns = [*OP_SIZES, *rewrite.times]
        whole: dict[str, Any] = {
            name: rewrite.value(ring.op, name)
            for name in columns
            if name not in ("saved_bytes", "calls")
        }
        for name in ("flops", "product_columns"):
            whole |= {each: whole[each] / width for each in (name, f"fixed_{name}")}
        others = ring.packed_bytes * (width - 1)
        whole["bytes_read"] = max(whole["bytes_read"] - others, 0.0)
        for block in ring.blocks:
            read = whole["bytes_read"] + (ring.combined_bytes if block != ring.blocks[0] else 0.0)
            rewrite.resize(block, **whole | {"bytes_read": read, "bytes_written": made[block]})


class _Blocks:
    """The blocks of one attention, or of its backward, as they are made."""

    def __init__(self, rings: Rings, op: int, size: float, width: int) -> None:
        self.rings, self.rewrite, self.op, self.width = rings, rings.rewrite, op, width
        self.size = size / width
        self.blocks: list[int] = []
        step = _ROOM / (5 * width)
        self.before, self.after = count(op + _FIRST, step), count(op + _AFTER, step)

    def run(self, reads: list[int], *, is_backward: bool, keys: list[int] | None = None) -> int:
        """Add all ops; gives the last one."""
        rewrite = self.rewrite
        made = [t for t in self._made(self.op) if t not in (keys or ())]
        own = rewrite.reads[self.op]
        self.held = Owned(int(rewrite.tensors[reads[0]]["held"]))
        packed = self._compute(PACK, "pack", reads, 1, next(self.before), hop=0)
        parts: list[int] = []  # what a block combines with
        terms: list[int] = []  # of the gradients of keys
        total, combined = -1, 0.0
        for hop in range(self.width):
            is_last = hop == self.width - 1
            following = -1 if is_last else self._shift(packed, hop + 1)
            block = self._block(hop, is_last)
            rewrite.reads[block] = [*own, packed, *parts]
            combined = sum(rewrite.tensors[each]["bytes"] for each in parts)
            if not is_last:
                parts = [self._part(block, each) for each in made]
            if is_backward:
                terms.append(self._tensor(block))
                if hop:
                    total = self._add_term(terms[hop], total, hop)
            packed = following
        ring = _Ring(
            op=self.op, blocks=tuple(self.blocks), packed_bytes=self.size, combined_bytes=combined
        )
        self.rings.rings.append(ring)
        return self._finish(terms[0], total, keys or []) if is_backward else self.op

    def _made(self, op: int) -> list[int]:
        tensors = self.rewrite.graph.outputs[op].tolist()
        return [each for each in tensors if self.rewrite.tensors[each]["bytes"] > 0]

    def _block(self, hop: int, is_last: bool) -> int:
        block = self.op
        if not is_last:
            block = self.rewrite.copy_op(self.op, next(self.before), f"block.{hop}")
            is_captured = self.rewrite.value(self.op, "calls") > 0
            self.rewrite.resize(block, saved_bytes=0.0, calls=float(is_captured))
        self.rewrite.resize(block, hop=hop)
        self.blocks.append(block)
        return block

    def _part(self, block: int, tensor: int) -> int:
        """What a block makes of a result of attention; of products it is in fp32."""
        each = self.rewrite.tensors[tensor]
        largest = max(self.rewrite.tensors[t]["bytes"] for t in self._made(self.op))
        precision = self.rewrite.graph.precision[self.rewrite.rows[self.op]]
        growth = max(_SUM_BYTES / ITEM_BYTES.get(precision, _SUM_BYTES), 1.0)
        if each["bytes"] < largest:  # the logarithms of sums, which are in fp32 anyway
            growth = 1.0
        sizes = {name: each[name] * growth for name in ("bytes", "fixed_bytes")}
        return self.rewrite.like(tensor, block, origin=-1, **sizes)

    def _tensor(self, source: int) -> int:
        """A block of keys and values, or of their gradients, from an op."""
        return self.rewrite.add_tensor(source, self.size, 0.0, held=self.held, rows=True)

    def _shift(self, packed: int, hop: int) -> int:
        """The block of keys and values after this one, as soon as the block before it is done."""
        waits = [self.rewrite.add_tensor(self.blocks[-1], 0.0, 0.0)] if self.blocks else []
        shift = self._add(Kind.SHIFT, f"shift.{hop}", [packed, *waits], next(self.before), hop=hop)
        return self._tensor(shift)

    def _add_term(self, term: int, total: int, hop: int) -> int:
        """The gradients of a block's keys of all members so far, at the next member."""
        # What comes of the last block stands after it.
        places = self.after if hop == self.width - 1 else self.before
        if hop > 1:
            term = self._compute(ADD, f"add.{hop}", [term, total], 2, next(places))
        name = f"gradient.shift.{hop}"
        return self._tensor(self._add(Kind.SHIFT, name, [term], next(places)))

    def _finish(self, term: int, total: int, keys: list[int]) -> int:
        """The gradients of a member's own keys and values."""
        last = self._add(Kind.COMPUTE, "add", [term, total], next(self.after))
        self._resize(last, ADD, 2)
        for tensor in keys:
            self.rewrite.tensors[tensor]["source"] = last
        return last

    def _compute(
        self, kind: str, name: str, reads: list[int], times: int, place: float, **changed: Any
    ) -> int:
        """An op that reads some blocks of keys, or of their gradients, and makes one."""
        new = self._add(Kind.COMPUTE, name, reads, place, **changed)
        self._resize(new, kind, times)
        return self._tensor(new)

    def _resize(self, op: int, kind: str, times: int) -> None:
        read = times * self.size
        self.rewrite.resize(op, kind=kind, bytes_read=read, bytes_written=self.size)

    def _add(self, kind: Kind, name: str, reads: list[int], place: float, **changed: Any) -> int:
        axis = Axis.NONE if kind == Kind.COMPUTE else Axis.CONTEXT
        text = f"{self.rewrite.graph.op_names[self.rewrite.rows[self.op]]}.{name}"
        return self.rewrite.add_collective(kind, axis, self.op, place, reads, text, **changed)
