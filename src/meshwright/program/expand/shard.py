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
- Sums of terms are terms, copies of terms too, unless they have more bytes, or another reader has
  the terms reduced in any case, as of the stream between blocks. A sum of terms and of something
  that members have already is made of reduced terms, but where its only readers add more terms:
  then it is terms. What is not terms is counted once: only the first member adds what is whole, and
  each member adds its rows.
- Gradients of weights that members found on rows of their own are terms. They are all-reduced in
  phase UPDATE, after microbatches were added up.
- Ops over divided classes talk to the team while they run: a softmax in two all-reduces of four
  bytes a row (maximum, sum of exponentials), a loss in one (the target's logit), or in three where
  there is no softmax. As ops they come after the softmax and before the loss; the messages are
  tensors without origin, and all who read the softmax need its last one. The sum over classes of a
  row's gradient follows from its target, so that backward has no word; it is a tensor, too.
- Tokens are sorted by expert among all rows, whatever `sequence`: what lies between the tensor that
  routes and feeds the experts and the sum of their results with the stream runs on all rows.
- The bias of a row product belongs to the sum: one member adds it, or each after the collective.

Collectives are called after the op whose tensor they move, `<op>.all_reduce`, and where there are
several, `<op>.all_reduce.1` and so on.
"""

import numpy as np

from meshwright.cost.layer.team import team_fits
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Bools, Graph, Phase, Split
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Role, Stack
from meshwright.plan.plan import Plan
from meshwright.plan.stage import team_of
from meshwright.program.expand.exchange import TeamExchange
from meshwright.program.expand.expansion import Expansion, Owned
from meshwright.program.expand.member import Members, find_members
from meshwright.program.expand.size import resize_ops

_BEFORE, _AFTER = -0.5, 0.25
"""Places of what is moved before an op, and after one: before the next."""


def shard(before: Expansion, graph: Graph, plan: Plan) -> Expansion:
    """What one member of each part's tensor team runs; InputError where that is not known."""
    for number, part in enumerate(plan.parts):
        if part.expert > 1 and part.context > 1:
            raise InputError(
                f"part {number}: expert widths cannot be lowered op by op with context widths yet, "
                f"got expert {part.expert} and context {part.context}"
            )
    if all(part.tensor == part.expert == 1 for part in plan.parts):
        return before
    assert before.graph is graph, "shards come first"
    stack = find_layers(graph)
    members = find_members(stack)
    check_parts(before, stack, members, plan)
    walk = _Sharding(before, stack, members, plan)
    return walk.run()


def check_parts(before: Expansion, stack: Stack, members: Members, plan: Plan) -> None:
    """Teams have whole layers that they can divide, and all copies of their weights."""
    graph, part_of_op = stack.graph, before.part_of_op
    part_of_layer = np.zeros(stack.num_layers, dtype=np.int64)
    part_of_layer[stack.layer_of_op[::-1]] = part_of_op[::-1]
    here = part_of_layer[stack.layer_of_op]
    torn = np.flatnonzero(here != part_of_op)
    if len(torn):
        op = int(torn[0])
        raise InputError(
            f"part {part_of_op[op]}: must hold whole layers where tensor parallelism divides them, "
            f"op {quoted(graph.op_names[op])} is of a layer in part {here[op]}"
        )
    is_expert = members.role == Role.EXPERT
    for number, part in enumerate(plan.parts):
        if part.width == part.expert == 1:
            continue
        if part.expert > 1 and not is_expert.any():
            raise InputError(
                f"part {number}: expert must be 1 in a model without experts, got {part.expert}"
            )
        team = team_of(part)
        for kind in {stack.layers[layer] for layer in np.flatnonzero(part_of_layer == number)}:
            if (rule := team_fits(stack.kinds[kind], team)) is not None:
                raise InputError(f"part {number}: {rule}")


class _Sharding:
    """One pass over the ops, in order."""

    def __init__(self, before: Expansion, stack: Stack, members: Members, plan: Plan) -> None:
        self.graph, self.stack, self.members = stack.graph, stack, members
        self.parts = plan.parts
        self.exchange = TeamExchange(before, stack, members, plan)
        self.on_rows: Bools = np.zeros(self.graph.num_ops, dtype=np.bool_)
        self.may_be_terms = self._find_terms()
        self.is_whole: list[bool] = (members.role == Role.WHOLE).tolist()
        self.is_update: list[bool] = (self.graph.phase == Phase.UPDATE).tolist()

    def run(self) -> Expansion:
        """Go over all ops and return the expansion in which teams divide features."""
        for op in range(self.graph.num_ops):
            if self.exchange.part(op).tensor == 1:
                self._visit_alone(op)
                continue
            self._check_features(op)
            if self.is_whole[op]:
                self._visit_whole(op)
            else:
                self._visit_divided(op)
        self._defer_weights()
        self._describe()
        return self.exchange.rewrite.done()

    def _check_features(self, op: int) -> None:
        """Whole ops read no features, and the gradients of a weight's copies in one part are
        divided alike."""
        exchange, is_whole = self.exchange, self.is_whole[op]
        inputs = exchange.inputs(op)
        if self.is_update[op]:
            inputs = [each for each in inputs if exchange.is_near(op, each)]
        if not is_whole:
            inputs = [each for each in inputs if self.graph.tensor_partial[each]]
        of_features = [exchange.held(each) is Owned.FEATURES for each in inputs]
        if any(of_features) and (is_whole or not all(of_features)):
            raise InputError(
                f"op {quoted(self.graph.op_names[op])}: all copies of a tensor or weight must be "
                f"divided alike, but a tensor-parallel group has features of one that it reads and "
                f"all of another"
            )

    def _visit_alone(self, op: int) -> None:
        """An op of a part without a tensor team."""
        exchange = self.exchange
        arrived = [exchange.arrive(op, each) for each in exchange.inputs(op)]
        exchange.read(op, [exchange.whole(op, each) for each in arrived])

    def _visit_divided(self, op: int) -> None:
        """An op of which members have their features: it reads all rows."""
        exchange, members = self.exchange, self.members
        arrived = [exchange.arrive(op, each) for each in exchange.inputs(op)]
        known = [*(exchange.whole(op, each) for each in arrived), *exchange.heard(op)]
        partner = int(self.graph.partner[op])
        if members.is_loss[op]:
            known.append(exchange.ask_before(op, known))
        elif partner >= 0 and members.is_softmax[partner]:
            known.append(exchange.row_sums(op))
        exchange.read(op, known)
        for tensor in self.graph.outputs[op].tolist():
            if members.is_cut[tensor]:
                exchange.hold(tensor, Owned.FEATURES)
            elif members.makes_terms[op]:
                exchange.hold(tensor, Owned.TERMS)
        if members.is_softmax[op]:
            exchange.ask_after(op)

    def _visit_whole(self, op: int) -> None:
        """An op that every member runs, on all rows or on its own."""
        exchange, inputs = self.exchange, self.exchange.inputs(op)
        outputs = self.graph.outputs[op].tolist()
        keeps = self._keeps_terms(op, inputs)
        arrived = [
            each if keeps and exchange.is_terms(op, each) else exchange.arrive(op, each)
            for each in inputs
        ]
        if keeps:
            exchange.read(op, arrived)
            for tensor in outputs:
                exchange.hold(tensor, Owned.TERMS)
        elif self._works_on_rows(op, arrived, outputs):
            self.on_rows[op] = True
            exchange.read(op, [exchange.rows(op, each) for each in arrived])
            for tensor in outputs:
                exchange.hold(tensor, self._made_of_rows(op, tensor))
        else:
            exchange.read(op, [exchange.whole(op, each) for each in arrived])

    def _works_on_rows(self, op: int, arrived: list[int], outputs: list[int]) -> bool:
        """Whether members divide the rows of an op: they have rows of what it reads, or it makes
        rows of weights alone."""
        graph, members = self.graph, self.members
        if not self.exchange.part(op).sequence or not members.has_tokens[op]:
            return False
        if any(self.exchange.held(each) == Owned.ROWS for each in arrived):
            return True
        is_table = graph.parameter_bytes[op] > 0 and graph.phase[op] == Phase.FORWARD
        has_rows = members.has_rows
        return bool(
            is_table
            and not any(has_rows[self.exchange.origin(each)] for each in arrived)
            and any(has_rows[each] for each in outputs)
        )

    def _made_of_rows(self, op: int, tensor: int) -> Owned:
        if self.members.has_rows[tensor]:
            return Owned.ROWS
        if self.graph.tensor_partial[tensor] or self.graph.split[op] == Split.SUM:
            return Owned.TERMS
        raise InputError(
            f"op {quoted(self.graph.op_names[op])}: what it makes of a member's rows must have "
            f"rows or be a sum over them, to be lowered op by op"
        )

    def _keeps_terms(self, op: int, inputs: list[int]) -> bool:
        """Whether it makes terms of terms."""
        graph, members = self.graph, self.members
        terms = [each for each in inputs if self.exchange.is_terms(op, each)]
        if not terms or graph.phase[op] == Phase.UPDATE:
            return False
        partial = graph.tensor_partial
        if all(partial[each] for each in terms) and (
            graph.split[op] == Split.SUM or members.is_copy[op]
        ):
            return sum(bool(partial[each]) for each in inputs) == len(terms)
        if members.is_add[op]:
            are_terms = len(terms) == len(inputs)
            return (are_terms and not any(map(self._is_reduced, terms))) or self._is_added(op)
        return bool(members.is_copy[op] and (not self._grows(op, terms[0]) or self._is_added(op)))

    def _grows(self, op: int, tensor: int) -> bool:
        """Whether an op makes more bytes than a tensor that it reads has."""
        size = self.graph.tensor_bytes
        return bool(size[self.graph.outputs[op]].max(initial=0.0) > size[tensor])

    def _is_reduced(self, tensor: int) -> bool:
        """Whether terms become rows, or whole, for one of their readers in any case."""
        members = self.members
        for reader in self.graph.readers[tensor].tolist():
            is_copy = members.is_copy[reader] and not self._grows(reader, tensor)
            if members.role[reader] != Role.WHOLE or not (members.is_add[reader] or is_copy):
                return True
        return False

    def _is_added(self, op: int) -> bool:
        """Whether all that an op makes is only added to other terms."""
        graph, part = self.graph, self.exchange.part(op)
        for tensor in graph.outputs[op].tolist():
            readers = graph.readers[tensor].tolist()
            if graph.tensor_partial[tensor] or not readers:
                return False
            for reader in readers:
                others = [each for each in graph.inputs[reader].tolist() if each != tensor]
                is_sum = self.members.is_add[reader] and self.exchange.part(reader) is part
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

    def _defer_weights(self) -> None:
        """Let gradients of weights that read what is gathered again come after the product that
        gives the gradient of what was read, where nobody waits for them before, and the gathering
        begin before that product, which hides it."""
        graph, members = self.graph, self.members
        gives = members.makes_terms & (graph.phase == Phase.BACKWARD) & (graph.partner >= 0)
        product = {int(graph.partner[op]): op for op in np.flatnonzero(gives).tolist()}
        place = self.exchange.rewrite.place
        for op, collective in self.exchange.again:
            other = product.get(int(graph.partner[op]), -1)
            first = min(graph.successors[op].tolist(), default=graph.num_ops)
            if op < other < first and graph.split[op] == Split.SUM:
                place[op] = other + _AFTER
            elif 0 <= other < op:
                place[collective] = min(place[collective], other + _BEFORE)

    def _describe(self) -> None:
        """Roles, cuts and sizes; those of experts also where replicas divide them."""
        members, stack, rewrite = self.members, self.stack, self.exchange.rewrite
        part_of_op = np.array(self.exchange.part_of_op)
        first = np.zeros(stack.num_layers, dtype=np.int64)
        first[stack.layer_of_op] = part_of_op
        for number, part in enumerate(self.parts):
            if part.tensor == part.expert == 1:
                continue
            divided = (part_of_op == number) & (members.role != Role.WHOLE)
            if part.tensor == 1:
                divided &= members.role == Role.EXPERT
            for op in np.flatnonzero(divided).tolist():
                rewrite.resize(op, role=int(members.role[op]), cut=int(members.cut[op]))
            layers = np.flatnonzero(first == number).astype(np.int32)
            resize_ops(rewrite, stack, layers, part, self.on_rows)
