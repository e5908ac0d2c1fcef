"""Turns a planned step into what a member of a tensor team runs: shards of ops, and collectives.

Every tensor of a divided part is held in one of four ways (`Held`), which follow from what its op
does and reads; where an op needs a tensor otherwise, a collective makes that of it, once for all
that need it so. Shoeybi et al. 2019, "Megatron-LM", section 3, and for `sequence` Korthikanti et
al. 2022, section 4.2:

- Row products and divided tables give terms, column products in backward as well: an all-reduce
  makes them whole. With `sequence` a reduce-scatter makes them rows, and an all-gather makes rows
  whole for the products of forward and, again, for those of backward. The second one of a tensor
  of forward waits for a gradient (an order without bytes), so that it runs beside the product that
  gives the gradient of what was read; the weight's gradient comes after that product.
- Sums of terms are terms, copies of terms too, unless they have more bytes. A sum of terms and of
  something that members have already is made of reduced terms, but where its only readers add more
  terms: then it is terms. What is not terms is counted once: only the first member adds what is
  whole, and each member adds its rows.
- Gradients of weights that members found on rows of their own are terms. They are all-reduced in
  phase UPDATE, after microbatches were added up.
- Ops over divided classes talk to the team while they run: a softmax in two all-reduces of four
  bytes a row (maximum, sum of exponentials), a loss in one (the target's logit), or in three where
  there is no softmax. As ops they come after the softmax and before the loss; the messages are
  tensors without origin. Backward needs no word: the sum over classes of a row's gradient follows
  from its target, which every member knows.
- The bias of a row product belongs to the sum: one member adds it, or each after the collective.

Collectives are called after the op whose tensor they move, `<op>.all_reduce`, and where there are
several, `<op>.all_reduce.1` and so on.
"""

from collections import Counter
from typing import Any

import numpy as np

from meshwright.cost.layer.team import Team, team_fits
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Bools, Graph, Phase, Split
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Role, Stack
from meshwright.plan.plan import Part, Plan
from meshwright.program.expand.expansion import Axis, Expansion, Held
from meshwright.program.expand.member import Members, find_members
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.expand.size import resize_ops
from meshwright.program.program import Kind

_BEFORE, _AFTER = -0.5, 0.25
"""Places beside an op: new ones stand right after what they read, or before what reads them."""
_SOFTMAX_WORDS, _LOSS_WORDS = 2, 1
"""All-reduces of an op over divided classes, as `meshwright.cost.layer.call` counts them."""


def shard(before: Expansion, graph: Graph, plan: Plan) -> Expansion:
    """What one member of each part's tensor team runs; InputError where that is not known."""
    for number, part in enumerate(plan.parts):
        for axis in ("context", "expert"):
            if getattr(part, axis) > 1:
                raise InputError(
                    f"part {number}: {axis} widths cannot be lowered op by op yet, "
                    f"got {getattr(part, axis)}"
                )
    if all(part.tensor == 1 for part in plan.parts):
        return before
    assert before.graph is graph, "shards come first"
    stack = find_layers(graph)
    members = find_members(stack)
    _check_parts(before, stack, members, plan)
    walk = _Sharding(before, stack, members, plan)
    return walk.run()


def _check_parts(before: Expansion, stack: Stack, members: Members, plan: Plan) -> None:
    """Teams have whole layers that they can divide, and all copies of their weights."""
    graph, part_of_op = stack.graph, before.part_of_op
    part_of_layer = np.zeros(stack.num_layers, dtype=np.int64)
    part_of_layer[stack.layer_of_op[::-1]] = part_of_op[::-1]
    here = part_of_layer[stack.layer_of_op]
    torn = np.flatnonzero(here != part_of_op)
    if len(torn):
        op = int(torn[0])
        raise InputError(
            f"part {part_of_op[op]}: must hold whole layers where a team divides them, op "
            f"{quoted(graph.op_names[op])} is of a layer in part {here[op]}"
        )
    is_expert = members.role == Role.EXPERT
    for number, part in enumerate(plan.parts):
        if part.tensor == 1:
            continue
        team = Team(tensor=part.tensor, sequence=part.sequence)
        for kind in {stack.layers[layer] for layer in np.flatnonzero(part_of_layer == number)}:
            if (rule := team_fits(stack.kinds[kind], team)) is not None:
                raise InputError(f"part {number}: {rule}")
        if part.sequence and is_expert[part_of_op == number].any():
            raise InputError(f"part {number}: experts of rows cannot be lowered op by op yet")
    _check_ties(graph, before)


def _check_ties(graph: Graph, before: Expansion) -> None:
    owner: dict[int, int] = {}
    for op in np.flatnonzero(graph.group >= 0).tolist():
        group, part = int(graph.group[op]), int(before.part_of_op[op])
        other = owner.setdefault(group, part)
        if part != other:
            raise InputError(
                f"part {part}: weights of op {quoted(graph.op_names[op])} are also in part "
                f"{other}, and such copies cannot be lowered op by op yet"
            )


class _Sharding:
    """One pass over the ops, in order."""

    def __init__(self, before: Expansion, stack: Stack, members: Members, plan: Plan) -> None:
        self.graph, self.stack, self.members = stack.graph, stack, members
        self.parts: tuple[Part, ...] = plan.parts
        self.part_of_op: list[int] = before.part_of_op.tolist()
        self.rewrite = Rewrite(before)
        self.on_rows: Bools = np.zeros(self.graph.num_ops, dtype=np.bool_)
        self.reduced: dict[int, int] = {}  # of terms: what they add up to
        self.gathered: dict[tuple[int, int], int] = {}  # of rows and a phase: all of them
        self.sliced: dict[tuple[int, int], int] = {}  # of a whole tensor in a part: rows of it
        self.words: dict[int, int] = {}  # of what a softmax makes: the team's last word on it
        self.names: Counter[str] = Counter()
        self.again: list[tuple[int, int]] = []  # readers of what is gathered again
        self.may_be_terms = self._find_terms()

    def run(self) -> Expansion:
        """The new expansion."""
        for op in range(self.graph.num_ops):
            part = self.parts[self.part_of_op[op]]
            if part.tensor == 1:
                self._visit_alone(op)
            elif self.members.role[op] != Role.WHOLE:
                self._visit_divided(op)
            else:
                self._visit_whole(op)
        self._defer_weights()
        self._describe()
        return self.rewrite.done()

    # What ops read and make

    def _visit_alone(self, op: int) -> None:
        """An op of a part without a tensor team."""
        self._read(op, [self._whole(op, self._arrive(op, each)) for each in self._inputs(op)])

    def _visit_divided(self, op: int) -> None:
        """An op of which members have their features: it reads all rows."""
        graph, members = self.graph, self.members
        inputs = self._inputs(op)
        read = [self._whole(op, self._arrive(op, each)) for each in inputs]
        if members.is_loss[op]:
            read.append(self._ask_before(op, inputs))
        read.extend(
            self.words[each]
            for each in inputs
            if each in self.words and graph.phase[op] == Phase.FORWARD
        )
        self._read(op, read)
        for tensor in graph.outputs[op].tolist():
            if members.is_cut[tensor]:
                self._hold(tensor, Held.FEATURES)
            elif members.makes_terms[op]:
                self._hold(tensor, Held.TERMS)
        if members.is_softmax[op]:
            self._ask_after(op)

    def _visit_whole(self, op: int) -> None:
        """An op that every member runs, on all rows or on its own."""
        inputs = self._inputs(op)
        outputs = self.graph.outputs[op].tolist()
        if self._keeps_terms(op, inputs):
            self._read(op, [each if self._is_terms(op, each) else self._arrive(op, each)
                            for each in inputs])  # fmt: skip
            for tensor in outputs:
                self._hold(tensor, Held.TERMS)
            return
        arrived = [self._arrive(op, each) for each in inputs]
        if not self._works_on_rows(op, arrived, outputs):
            self._read(op, [self._whole(op, each) for each in arrived])
            return
        self.on_rows[op] = True
        self._read(op, [self._rows(op, each) for each in arrived])
        for tensor in outputs:
            self._hold(tensor, self._made_of_rows(op, tensor))

    def _works_on_rows(self, op: int, arrived: list[int], outputs: list[int]) -> bool:
        """Whether members divide the rows of an op: they have rows of what it reads, or it makes
        rows of weights alone."""
        graph, members = self.graph, self.members
        if not self._part(op).sequence or not members.has_tokens[op]:
            return False
        if any(self._held(each) == Held.ROWS for each in arrived):
            return True
        is_table = graph.parameter_bytes[op] > 0 and graph.phase[op] == Phase.FORWARD
        has_rows = members.has_rows
        return bool(
            is_table
            and not any(has_rows[self._origin(each)] for each in arrived)
            and any(has_rows[each] for each in outputs)
        )

    def _made_of_rows(self, op: int, tensor: int) -> Held:
        if self.members.has_rows[tensor]:
            return Held.ROWS
        if self.graph.tensor_partial[tensor] or self.graph.split[op] == Split.SUM:
            return Held.TERMS
        raise InputError(
            f"op {quoted(self.graph.op_names[op])}: what it makes of a member's rows must have "
            f"rows or be a sum over them, to be lowered op by op"
        )

    def _keeps_terms(self, op: int, inputs: list[int]) -> bool:
        """Whether it makes terms of terms."""
        graph, members = self.graph, self.members
        terms = [each for each in inputs if self._is_terms(op, each)]
        if not terms or graph.phase[op] == Phase.UPDATE:
            return False
        partial = graph.tensor_partial
        if all(partial[each] for each in terms) and (
            graph.split[op] == Split.SUM or members.is_copy[op]
        ):
            return sum(bool(partial[each]) for each in inputs) == len(terms)
        if members.is_add[op]:
            return len(terms) == len(inputs) or self._is_added(op)
        size = graph.tensor_bytes
        grows = size[graph.outputs[op]].max(initial=0.0) > size[terms[0]]
        return bool(members.is_copy[op] and (not grows or self._is_added(op)))

    def _is_added(self, op: int) -> bool:
        """Whether all that an op makes is only added to other terms."""
        graph = self.graph
        for tensor in graph.outputs[op].tolist():
            readers = graph.readers[tensor].tolist()
            if graph.tensor_partial[tensor] or not readers:
                return False
            for reader in readers:
                others = [each for each in graph.inputs[reader].tolist() if each != tensor]
                is_sum = self.members.is_add[reader] and self._part(reader) is self._part(op)
                if not is_sum or not any(self.may_be_terms[each] for each in others):
                    return False
        return True

    def _find_terms(self) -> Bools:
        """Tensors that are terms, or may be: sums and copies of such."""
        graph, members = self.graph, self.members
        found = members.makes_terms[graph.tensor_source] & ~members.is_cut
        passes = (members.is_add | members.is_copy) & (members.role == Role.WHOLE)
        for op in np.flatnonzero(passes).tolist():
            if found[graph.inputs[op]].all() and len(graph.inputs[op]):
                found[graph.outputs[op]] = True
        return found

    # How tensors are held

    def _inputs(self, op: int) -> list[int]:
        return self.graph.inputs[op].tolist()

    def _read(self, op: int, tensors: list[int]) -> None:
        self.rewrite.reads[op] = list(dict.fromkeys(tensors))

    def _part(self, op: int) -> Part:
        return self.parts[self.part_of_op[op]]

    def _held(self, tensor: int) -> Held:
        return Held(self.rewrite.tensors[tensor]["held"])

    def _origin(self, tensor: int) -> int:
        return int(self.rewrite.tensors[tensor]["origin"])

    def _source(self, tensor: int) -> int:
        return int(self.rewrite.tensors[tensor]["source"])

    def _is_terms(self, op: int, tensor: int) -> bool:
        """Whether members of an op's own part hold terms."""
        here = self.part_of_op[self.graph.tensor_source[tensor]] == self.part_of_op[op]
        return here and self._held(tensor) == Held.TERMS

    def _hold(self, tensor: int, held: Held) -> None:
        source = int(self.graph.tensor_source[tensor])
        self.rewrite.tensors[tensor].update(
            held=int(held), **self._sizes(tensor, held, self._part(source).tensor)
        )

    def _sizes(self, origin: int, held: Held, tensor: int) -> dict[str, float]:
        whole = float(self.graph.tensor_bytes[origin])
        fixed = float(self.graph.fixed_tensor_bytes[origin])
        if held == Held.FEATURES:
            return {"bytes": whole / tensor, "fixed_bytes": fixed / tensor}
        if held == Held.ROWS:
            return {"bytes": fixed + (whole - fixed) / tensor, "fixed_bytes": fixed}
        return {"bytes": whole, "fixed_bytes": fixed}

    # What ops need

    def _arrive(self, op: int, tensor: int) -> int:
        """What an op gets of a tensor of the graph: no terms, and of a stream that members divide
        by rows its rows."""
        graph, source = self.graph, int(self.graph.tensor_source[tensor])
        there, here = self._part(source), self._part(op)
        if self._held(tensor) == Held.TERMS:
            tensor = self._reduce(op, tensor)
        if there is not here:
            if self._held(tensor) == Held.FEATURES:
                raise InputError(
                    f"op {quoted(graph.op_names[op])}: must read no features that only a team of "
                    f"another part divides, reads those of {quoted(graph.op_names[source])}"
                )
            agrees = (there.tensor, there.sequence) == (here.tensor, here.sequence)
            if self._held(tensor) == Held.ROWS and not agrees:
                tensor = self._gather(source, tensor)
        wants_rows = here.sequence and self.members.has_tokens[op] and self._is_entering(op, tensor)
        if wants_rows and self._held(tensor) == Held.WHOLE:
            tensor = self._slice(op, tensor)
        return tensor

    def _is_entering(self, op: int, tensor: int) -> bool:
        origin = self._origin(tensor)
        layer = self.stack.layer_of_op
        is_other = layer[self.graph.tensor_source[origin]] != layer[op]
        return bool(is_other and self.members.is_stream[origin] and self.members.has_rows[origin])

    def _whole(self, op: int, tensor: int) -> int:
        """All rows of what arrived at an op."""
        return self._gather(op, tensor) if self._held(tensor) == Held.ROWS else tensor

    def _rows(self, op: int, tensor: int) -> int:
        """A member's rows of what arrived at an op, if it has any."""
        is_whole = self._held(tensor) == Held.WHOLE and self.members.has_rows[self._origin(tensor)]
        return self._slice(op, tensor) if is_whole else tensor

    # Collectives

    def _collective(self, kind: Kind, op: int, tensor: int, place: float, **changed: Any) -> int:
        """A collective that moves a tensor, in the part and phase of an op."""
        name = f"{self._origin_name(tensor)}.{kind.name.lower()}"
        return self._add(kind, Axis.TENSOR, op, name, place, tensor, **changed)

    def _origin_name(self, tensor: int) -> str:
        return self.graph.op_names[self.graph.tensor_source[self._origin(tensor)]]

    def _add(
        self, kind: Kind, axis: Axis, op: int, name: str, place: float, tensor: int, **changed: Any
    ) -> int:
        number = self.names[name]
        self.names[name] += 1
        new = self.rewrite.add_collective(
            kind, axis, op, place, group=-1, role=int(Role.WHOLE), cut=0,
            op_names=f"{name}.{number}" if number else name, **changed,
        )  # fmt: skip
        self.rewrite.reads[new] = [tensor]
        return new

    def _make(self, tensor: int, source: int, held: Held, part: Part, **changed: Any) -> int:
        """What a new op makes of a tensor."""
        sizes = self._sizes(self._origin(tensor), held, part.tensor)
        return self.rewrite.like(tensor, source, held=int(held), **sizes, **changed)

    def _reduce(self, op: int, tensor: int) -> int:
        """What terms add up to: rows where members divide those, else all of it."""
        if tensor not in self.reduced:
            graph, source = self.graph, int(self.graph.tensor_source[tensor])
            part = self._part(source)
            is_partial = bool(graph.tensor_partial[tensor])
            scatters = part.sequence and self.members.has_tokens[source] and not is_partial
            scatters = scatters and bool(self.members.has_rows[tensor])
            kind = Kind.REDUCE_SCATTER if scatters else Kind.ALL_REDUCE
            place, split = self.rewrite.place[source], Split.SUM if is_partial else Split.BATCH
            if graph.phase[op] == Phase.UPDATE:
                source, place, split = op, op + _BEFORE, Split.NONE
            new = self._collective(kind, source, tensor, place, split=int(split))
            held = Held.ROWS if scatters else Held.WHOLE
            partial = is_partial and split == Split.SUM
            self.reduced[tensor] = self._make(tensor, new, held, part, is_partial=partial)
        return self.reduced[tensor]

    def _gather(self, op: int, tensor: int) -> int:
        """All rows, gathered in the part and phase of an op."""
        graph, source = self.graph, self._source(tensor)
        made = int(graph.tensor_source[self._origin(tensor)])
        key = tensor, 2 * self.part_of_op[op] + int(graph.phase[op] != graph.phase[made])
        if key not in self.gathered:
            is_again = graph.phase[op] != graph.phase[made]
            is_here = self.part_of_op[made] == self.part_of_op[op] and not is_again
            place = self.rewrite.place[source] if is_here else op + _BEFORE
            new = self._collective(Kind.ALL_GATHER, op, tensor, place)
            if is_again:
                self._wait(op, new)
            self.gathered[key] = self._make(tensor, new, Held.WHOLE, self._part(op))
        if graph.phase[op] != graph.phase[made]:
            self.again.append((op, self.gathered[key]))
        return self.gathered[key]

    def _wait(self, op: int, collective: int) -> None:
        """Let what is gathered again wait for the gradient that its reader reads."""
        for each in self._inputs(op):
            source = int(self.graph.tensor_source[each])
            is_here = self.part_of_op[source] == self.part_of_op[op]
            if is_here and self.graph.phase[source] == self.graph.phase[op]:
                order = self.rewrite.add_tensor(source, 0.0, 0.0)
                self.rewrite.reads[collective].append(order)
                return

    def _slice(self, op: int, tensor: int) -> int:
        """A member's rows of a tensor that it has all of, cut in the part of an op."""
        part = self._part(op)
        key = tensor, self.part_of_op[op]
        if key not in self.sliced:
            sizes = self._sizes(self._origin(tensor), Held.ROWS, part.tensor)
            moved = {
                name: sizes[f"{fixed}bytes"]
                for fixed in ("", "fixed_")
                for name in (f"{fixed}bytes_read", f"{fixed}bytes_written")
            }
            new = self._add(
                Kind.COMPUTE, Axis.NONE, op, f"{self._origin_name(tensor)}.slice", op + _BEFORE,
                tensor, **moved,
            )  # fmt: skip
            self.rewrite.changed[new]["kind"] = "slice"
            self.sliced[key] = self._make(tensor, new, Held.ROWS, part)
        return self.sliced[key]

    def _ask_after(self, op: int) -> None:
        """The team's words on a softmax; who reads it in forward waits for the last."""
        word = self._words(op, op, _SOFTMAX_WORDS, self.rewrite.place[op])
        for tensor in self.graph.outputs[op].tolist():
            self.words[tensor] = word

    def _ask_before(self, op: int, inputs: list[int]) -> int:
        """The team's words on a loss, which waits for them."""
        cut = next(each for each in inputs if self.members.is_cut[each])
        source = int(self.graph.tensor_source[cut])
        knows = any(each in self.words for each in inputs)
        count = _LOSS_WORDS if knows else _LOSS_WORDS + _SOFTMAX_WORDS
        return self._words(op, source, count, op + _BEFORE)

    def _words(self, op: int, source: int, count: int, place: float) -> int:
        """All-reduces of a number a row, one after the other; gives the last one's result."""
        size = float(self.members.loss_bytes[op])
        word = self.rewrite.add_tensor(source, size, 0.0, held=Held.TERMS)
        name = f"{self.graph.op_names[op]}.all_reduce"
        for _ in range(count):
            new = self._add(Kind.ALL_REDUCE, Axis.TENSOR, op, name, place, word,
                            split=int(Split.BATCH))  # fmt: skip
            word = self.rewrite.add_tensor(new, size, 0.0)
        return word

    # The end

    def _defer_weights(self) -> None:
        """Let gradients of weights that read what is gathered again come after the product that
        gives the gradient of what was read, where nobody waits for them before."""
        graph, members = self.graph, self.members
        gives = members.makes_terms & (graph.phase == Phase.BACKWARD) & (graph.partner >= 0)
        product = {int(graph.partner[op]): op for op in np.flatnonzero(gives).tolist()}
        for op, _ in self.again:
            other = product.get(int(graph.partner[op]), -1)
            first = min(graph.successors[op].tolist(), default=graph.num_ops)
            if op < other < first and graph.split[op] == Split.SUM:
                self.rewrite.place[op] = other + _AFTER

    def _describe(self) -> None:
        """Roles, cuts and sizes."""
        members, stack = self.members, self.stack
        part_of_op = np.array(self.part_of_op)
        first = np.zeros(stack.num_layers, dtype=np.int64)
        first[stack.layer_of_op] = part_of_op
        for number, part in enumerate(self.parts):
            if part.tensor == 1:
                continue
            for op in np.flatnonzero((part_of_op == number) & (members.role != Role.WHOLE)).tolist():
                self.rewrite.resize(op, role=int(members.role[op]), cut=int(members.cut[op]))
            layers = np.flatnonzero(first == number).astype(np.int32)
            resize_ops(self.rewrite, stack, layers, part.tensor, self.on_rows)
