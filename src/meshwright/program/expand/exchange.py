"""Adds the collectives of tensor teams: they turn what members hold of a tensor into what an op
needs.

Collectives and slices are added to a rewrite, each once for all ops that need the same. What an op
needs is decided in `meshwright.program.expand.shard`.
"""

from typing import Any

from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Phase, Split
from meshwright.graph.stack.stack import Role, Stack
from meshwright.plan.plan import Part, Plan
from meshwright.program.expand.expansion import Axis, Expansion, Owned
from meshwright.program.expand.member import Members
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.program import Kind

_BEFORE = -0.5
"""The place of a new op before the one that reads it; others stand right after what they read."""
_OWNED = tuple(Owned)
"""By number: found in a fifth of the time that `Owned` takes."""
_SOFTMAX_WORDS, _LOSS_WORDS = 2, 1
"""All-reduces of an op over divided classes, as `meshwright.cost.layer.call` counts them."""


class TeamExchange:
    """What members hold so far, and what was made of it."""

    def __init__(self, before: Expansion, stack: Stack, members: Members, plan: Plan) -> None:
        self.graph, self.stack, self.members = stack.graph, stack, members
        self.parts: tuple[Part, ...] = plan.parts
        self.part_of_op: list[int] = before.part_of_op.tolist()
        self.rewrite = Rewrite(before)
        self.again: list[tuple[int, int]] = []
        """Ops of backward that read what is gathered again for them, each with that collective."""
        self._reduced: dict[int, int] = {}  # of terms: what they add up to
        self._gathered: dict[tuple[int, int, bool], int] = {}  # of rows, by part and whether again
        self._sliced: dict[tuple[int, int], int] = {}  # of a whole tensor, by part: rows of it
        self._words: dict[int, int] = {}  # of what a softmax makes: the team's last word on it

    def inputs(self, op: int) -> list[int]:
        """The tensors that an op reads in the planned graph."""
        tensors: list[int] = self.graph.inputs[op].tolist()
        return tensors

    def read(self, op: int, tensors: list[int]) -> None:
        """Let an op read these, each once."""
        self.rewrite.reads[op] = list(dict.fromkeys(tensors))

    def part(self, op: int) -> Part:
        """The part that an op of the planned graph is in."""
        return self.parts[self.part_of_op[op]]

    def held(self, tensor: int) -> Owned:
        """What members have of a tensor."""
        number: int = self.rewrite.tensors[tensor]["held"]
        return _OWNED[number]

    def origin(self, tensor: int) -> int:
        """The tensor of the planned graph that a tensor was made of."""
        return int(self.rewrite.tensors[tensor]["origin"])

    def _source(self, tensor: int) -> int:
        return int(self.rewrite.tensors[tensor]["source"])

    def is_near(self, op: int, tensor: int) -> bool:
        """Whether a tensor of the planned graph is made in an op's own part."""
        return bool(self.part_of_op[self.graph.tensor_source[tensor]] == self.part_of_op[op])

    def is_terms(self, op: int, tensor: int) -> bool:
        """Whether members of an op's own part hold terms."""
        return self.is_near(op, tensor) and self.held(tensor) == Owned.TERMS

    def hold(self, tensor: int, held: Owned) -> None:
        """Say what members have of a tensor of the planned graph."""
        source = int(self.graph.tensor_source[tensor])
        self.rewrite.tensors[tensor].update(
            held=int(held), **self._sizes(tensor, held, self.part(source).tensor)
        )

    def _sizes(self, origin: int, held: Owned, tensor: int) -> dict[str, float]:
        whole = float(self.graph.tensor_bytes[origin])
        fixed = float(self.graph.fixed_tensor_bytes[origin])
        if held == Owned.FEATURES:
            return {"bytes": whole / tensor, "fixed_bytes": fixed / tensor}
        if held == Owned.ROWS:
            return {"bytes": fixed + (whole - fixed) / tensor, "fixed_bytes": fixed}
        return {"bytes": whole, "fixed_bytes": fixed}

    def arrive(self, op: int, tensor: int) -> int:
        """What an op gets of a tensor of the graph: no terms, and of a stream that members divide
        by rows its rows."""
        graph, source = self.graph, int(self.graph.tensor_source[tensor])
        there, here = self.part(source), self.part(op)
        if self.held(tensor) == Owned.TERMS:
            tensor = self._reduce(op, tensor)
        if there is not here:
            if graph.phase[op] == Phase.UPDATE:
                return self._arrive_gradient(op, tensor)
            if self.held(tensor) == Owned.FEATURES:
                raise InputError(
                    f"op {quoted(graph.op_names[op])}: must read no features that only a group of "
                    f"another part divides, reads those of {quoted(graph.op_names[source])}"
                )
            agrees = (there.tensor, there.sequence) == (here.tensor, here.sequence)
            if self.held(tensor) == Owned.ROWS and not agrees:
                tensor = self._gather(source, tensor)
        wants_rows = here.sequence and self.members.has_tokens[op] and self._is_entering(op, tensor)
        if wants_rows and self.held(tensor) == Owned.WHOLE:
            tensor = self._slice(op, tensor)
        return tensor

    def _arrive_gradient(self, op: int, tensor: int) -> int:
        """What an update gets of the gradient of a copy of its weights in another part: features
        where its team divides them, as they are where both teams do so alike."""
        source = int(self.graph.tensor_source[self.origin(tensor)])
        there, here = self.part(source), self.part(op)
        divides = here.tensor > 1 and self.members.role[op] != Role.WHOLE
        if self.held(tensor) == Owned.FEATURES and not (divides and there.tensor == here.tensor):
            key = tensor, self.part_of_op[source], False
            if key not in self._gathered:
                new = self._collective(
                    Kind.ALL_GATHER, source, tensor, op + _BEFORE,
                    phase=int(Phase.UPDATE), split=int(Split.NONE),
                )  # fmt: skip
                self._gathered[key] = self._make(tensor, new, Owned.WHOLE, there, is_partial=False)
            tensor = self._gathered[key]
        if divides and self.held(tensor) == Owned.WHOLE:
            tensor = self._slice(op, tensor, Owned.FEATURES)
        return tensor

    def _is_entering(self, op: int, tensor: int) -> bool:
        origin = self.origin(tensor)
        layer = self.stack.layer_of_op
        is_other = layer[self.graph.tensor_source[origin]] != layer[op]
        return bool(is_other and self.members.is_stream[origin] and self.members.has_rows[origin])

    def whole(self, op: int, tensor: int) -> int:
        """All rows of what arrived at an op."""
        return self._gather(op, tensor) if self.held(tensor) == Owned.ROWS else tensor

    def rows(self, op: int, tensor: int) -> int:
        """A member's rows of what arrived at an op, if it has any."""
        is_whole = self.held(tensor) == Owned.WHOLE and self.members.has_rows[self.origin(tensor)]
        return self._slice(op, tensor) if is_whole else tensor

    def _collective(self, kind: Kind, op: int, tensor: int, place: float, **changed: Any) -> int:
        """A collective that moves a tensor, in the part and phase of an op."""
        name = f"{self._origin_name(tensor)}.{kind.name.lower()}"
        return self._add(kind, Axis.TENSOR, op, name, place, [tensor], **changed)

    def _origin_name(self, tensor: int) -> str:
        source = int(self.graph.tensor_source[self.origin(tensor)])
        return self.graph.op_names[source]

    def _add(
        self,
        kind: Kind,
        axis: Axis,
        op: int,
        name: str,
        place: float,
        tensors: list[int],
        **changed: Any,
    ) -> int:
        name = self.rewrite.number_name(name)
        return self.rewrite.add_collective(kind, axis, op, place, tensors, name, **changed)

    def _make(self, tensor: int, source: int, held: Owned, part: Part, **changed: Any) -> int:
        """What a new op makes of a tensor."""
        sizes = self._sizes(self.origin(tensor), held, part.tensor)
        return self.rewrite.like(tensor, source, held=int(held), **sizes, **changed)

    def _reduce(self, op: int, tensor: int) -> int:
        """What terms add up to: rows where members divide those, else all of it."""
        if tensor not in self._reduced:
            graph, source = self.graph, int(self.graph.tensor_source[tensor])
            part = self.part(source)
            is_partial = bool(graph.tensor_partial[tensor])
            scatters = part.sequence and self.members.has_tokens[source] and not is_partial
            scatters = scatters and bool(self.members.has_rows[tensor])
            kind = Kind.REDUCE_SCATTER if scatters else Kind.ALL_REDUCE
            place, split = self.rewrite.place[source], Split.SUM if is_partial else Split.BATCH
            phase = graph.phase[source]
            if graph.phase[op] == Phase.UPDATE:
                phase, place, split = Phase.UPDATE, op + _BEFORE, Split.NONE
            new = self._collective(kind, source, tensor, place, split=int(split), phase=int(phase))
            held = Owned.ROWS if scatters else Owned.WHOLE
            partial = is_partial and split == Split.SUM
            self._reduced[tensor] = self._make(tensor, new, held, part, is_partial=partial)
        return self._reduced[tensor]

    def _gather(self, op: int, tensor: int) -> int:
        """All rows, gathered in the part and phase of an op."""
        graph, source = self.graph, self._source(tensor)
        made = int(graph.tensor_source[self.origin(tensor)])
        is_again = bool(graph.phase[op] != graph.phase[made])
        key = tensor, self.part_of_op[op], is_again
        if key not in self._gathered:
            is_here = self.part_of_op[made] == self.part_of_op[op] and not is_again
            place = self.rewrite.place[source] if is_here else op + _BEFORE
            new = self._collective(Kind.ALL_GATHER, op, tensor, place)
            if is_again:  # after the gradient that its reader reads
                order = self.rewrite.add_order(op, self.inputs(op), self.part_of_op)
                self.rewrite.reads[new] += order
            self._gathered[key] = self._make(tensor, new, Owned.WHOLE, self.part(op))
        if is_again:
            self.again.append((op, self._source(self._gathered[key])))
        return self._gathered[key]

    def _slice(self, op: int, tensor: int, held: Owned = Owned.ROWS) -> int:
        """A member's rows, or features, of a tensor that it has all of, cut in the part of an op.

        Features are those of a gradient that is complete.
        """
        part = self.part(op)
        key = tensor, self.part_of_op[op]
        if key not in self._sliced:
            sizes = self._sizes(self.origin(tensor), held, part.tensor)
            moved: dict[str, Any] = {
                name: sizes[f"{fixed}bytes"]
                for fixed in ("", "fixed_")
                for name in (f"{fixed}bytes_read", f"{fixed}bytes_written")
            }
            changed = {}
            if held == Owned.FEATURES:
                moved["split"], changed["is_partial"] = int(Split.NONE), False
            new = self._add(
                Kind.COMPUTE, Axis.NONE, op, f"{self._origin_name(tensor)}.slice", op + _BEFORE,
                [tensor], **moved,
            )  # fmt: skip
            self.rewrite.changed[new]["kind"] = "slice"
            self._sliced[key] = self._make(tensor, new, held, part, **changed)
        return self._sliced[key]

    def heard(self, op: int) -> list[int]:
        """The all-reduced numbers that an op needs because it reads a softmax over divided
        classes."""
        return [self._words[each] for each in self.inputs(op) if each in self._words]

    def ask_after(self, op: int) -> None:
        """Add the all-reduces after a softmax over divided classes; its readers need the result of
        the last one."""
        own = self.rewrite.add_tensor(op, float(self.members.loss_bytes[op]), 0.0, held=Owned.TERMS)
        word = self._all_reduce_words(op, [own], _SOFTMAX_WORDS, self.rewrite.place[op])
        for tensor in self.graph.outputs[op].tolist():
            self._words[tensor] = word

    def ask_before(self, op: int, known: list[int]) -> int:
        """Add the all-reduces before a loss over divided classes, which read all that the loss
        reads."""
        knows = any(each in self._words for each in self.inputs(op))
        count = _LOSS_WORDS if knows else _LOSS_WORDS + _SOFTMAX_WORDS
        return self._all_reduce_words(op, known, count, op + _BEFORE)

    def row_sums(self, op: int) -> int:
        """By row, the sum over all classes of the gradient that the backward of a softmax reads;
        the op that makes the gradient knows it from the targets."""
        backward = [
            int(self.graph.tensor_source[each])
            for each in self.inputs(op)
            if self.graph.phase[self.graph.tensor_source[each]] == Phase.BACKWARD
        ]
        return self.rewrite.add_tensor(backward[0], float(self.members.loss_bytes[op]), 0.0)

    def _all_reduce_words(self, op: int, known: list[int], count: int, place: float) -> int:
        """All-reduces of a number a row, one after the other; gives the last one's result."""
        size = float(self.members.loss_bytes[op])
        name = f"{self.graph.op_names[op]}.all_reduce"
        for _ in range(count):
            new = self._add(Kind.ALL_REDUCE, Axis.TENSOR, op, name, place, known)
            known = [self.rewrite.add_tensor(new, size, 0.0)]
        return known[0]
