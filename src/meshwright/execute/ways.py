"""How a rank runs the ops of an expansion: which shards it holds, and which collectives it calls.

ZeRO divides the numbers of a weight among its holders, the ranks that hold the same weight. An
update then reads and writes shards: ranges of the weight's numbers in memory order, whatever its
shape, which suits every optimiser that treats numbers one by one. A reduce-scatter turns the
gradients of a bundle of weights into shards, an all-gather turns shards into weights. The
collectives of a tensor or context team turn its members' parts and partial sums into whole tensors,
and back.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel, counts_steps, op_name
from meshwright.errors import InputError, quoted
from meshwright.execute.cut.cut import TERMS, WHOLE, AnyCut, Cut
from meshwright.execute.member import CUT, ROWS, token_cut, with_cuts
from meshwright.execute.on_parts import Team
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.rebuild.loss import LOSSES, has_words, run_loss, say
from meshwright.execute.rebuild.norm import add_moments, run_norm, word_of
from meshwright.execute.rebuild.ring import block_keys, pack_or_add, run_block, shift_block
from meshwright.execute.rebuild.tokens import exchange_tokens, is_of_tokens, keys_of, travel
from meshwright.execute.rebuild.weight_cut import find_cut
from meshwright.execute.shard import Share, bounds
from meshwright.execute.talk import (
    AllReduce,
    GatherParts,
    GatherWeights,
    ScatterGradients,
    ScatterTerms,
    SpreadWeights,
    TakePart,
)
from meshwright.execute.traced import Layout, TracedStep
from meshwright.execute.update import gradients, held_name, updated
from meshwright.graph.stack.stack import Role
from meshwright.plan.plan import Part, Plan
from meshwright.program.expand.expansion import Axis, Expansion, Owned
from meshwright.program.expand.expert import divides_experts, num_expert_holders
from meshwright.program.expand.ring import ADD, PACK
from meshwright.program.expand.zero import num_holders
from meshwright.program.program import Kind

aten = torch.ops.aten


class Ways:
    """How the rank of one device of the plan runs."""

    def __init__(
        self,
        plan: Plan,
        expansion: Expansion,
        device: str,
        cuts: Mapping[str, AnyCut] | None = None,
        tokens: int = 0,
    ) -> None:
        """`cuts`: how tensor teams cut the weights, by name; None: the ops that read a weight
        decide. `tokens`: how many tokens a sample has, where a team divides them."""
        self.plan, self.expansion, self.device = plan, expansion, device
        self.cuts, self.tokens = cuts, tokens
        self._known: dict[int, Mapping[str, Share]] = {}
        self._whole: dict[int, frozenset[str]] = {}
        self._rows: dict[int, int] = {}
        """By tensor that counts the tokens of experts: the planned number of tokens, in the step
        that is being built."""

    def team(self, op: int) -> Team:
        """The rank's place in the tensor team that runs an op."""
        return self._team(self.plan.parts[int(self.expansion.part_of_op[op])])

    def _team(self, part: Part) -> Team:
        return Team(part.tensor, self._place(part) % part.tensor)

    def context(self, op: int) -> Team:
        """The rank's place in the context team that runs an op."""
        part = self.plan.parts[int(self.expansion.part_of_op[op])]
        return Team(part.context, self._place(part) // part.tensor % part.context)

    def brought(self, builder: Builder, op: int) -> Mapping[Node, Node]:
        """The keys and values of all members of a context team, or of the member whose block it
        is, by the key and value arguments of the planned attention."""
        expansion, graph = self.expansion, builder.graph
        if expansion.hop[op] >= 0:
            return block_keys(builder, op)
        gathered = [
            builder.root[t]
            for t in graph.inputs[op].tolist()
            if expansion.axis[graph.tensor_source[t]] == Axis.CONTEXT
            and expansion.tensor_origin[t] < 0
        ]
        if not gathered:
            return {}
        kernel = builder.step.ledger.kernels[int(expansion.origin[op])]
        return dict(zip(keys_of(kernel), gathered, strict=True))

    def team_of(self, name: str, step: TracedStep) -> Team:
        """The rank's place in the tensor team that holds a tensor."""
        share = self.shares(step).get(name, Share())
        return Team(share.width, share.member)

    def cut(self, name: str) -> AnyCut | None:
        """How its tensor team cuts a tensor that is there before the step; None: the ops that read
        it decide."""
        if self.cuts is not None:
            weight = name.rpartition(".")[0]  # of which the optimiser has a tensor
            return self.cuts.get(name, self.cuts.get(weight, WHOLE))
        return WHOLE if name.startswith("input ") else None

    def shares(self, step: TracedStep) -> Mapping[str, Share]:
        """The share that the rank holds of each tensor of the state that is divided, by name."""
        if step.samples not in self._known:
            self._known[step.samples] = self._find_shares(step)
        return self._known[step.samples]

    def _find_shares(self, step: TracedStep) -> Mapping[str, Share]:
        found: dict[str, Share] = {}
        cuts = self.cuts or {}
        for update, part in self._updates.items():
            if part.tensor == 1 and update not in self._divided | self._of_experts:
                continue
            name, states = updated(step, update)
            cut, team = cuts.get(name, WHOLE), self._team(part)
            experts = self._expert_team(part) if update in self._of_experts else Team()
            whole = Share(
                cut, team.width, team.member, experts=experts.width, expert=experts.member
            )
            row = whole
            if update in self._divided:
                holders, holder = self._holders(part, update)
                row = replace(whole, holders=holders, holder=holder)
            found |= dict.fromkeys(states, row)
            found[name] = row if part.zero == 3 else whole
        return found

    @cached_property
    def _op_of(self) -> dict[int, int]:
        """By planned op: the op of the expansion, the last where it runs several times."""
        return {int(each): op for op, each in enumerate(self.expansion.origin.tolist())}

    @cached_property
    def _updates(self) -> dict[int, Part]:
        """By planned update of a parameter: the plan's part that it is in."""
        return {
            update: self.plan.parts[int(self.expansion.part_of_op[op])]
            for update, op in self._op_of.items()
            if update >= 0 and self.expansion.graph.kind[op].startswith("_fused_")
        }

    def whole_weights(self, step: TracedStep) -> frozenset[str]:
        """The names of the weights that every member of a tensor team updates alike."""
        if step.samples not in self._whole:
            role = self.expansion.role
            whole = [each for each in self._updates if role[self._op_of[each]] == Role.WHOLE]
            self._whole[step.samples] = frozenset(updated(step, each)[0] for each in whole)
        return self._whole[step.samples]

    @cached_property
    def _divided(self) -> frozenset[int]:
        """The planned updates whose state ZeRO divides among holders."""
        return frozenset(update for bundle in self.expansion.bundles for update in bundle)

    @cached_property
    def _of_experts(self) -> frozenset[int]:
        """The planned updates of experts that replicas divide."""
        return frozenset(
            update
            for update, part in self._updates.items()
            if divides_experts(self.expansion, part, self._op_of[update])
        )

    def _expert_team(self, part: Part) -> Team:
        """The rank's place among the replicas that hold different experts."""
        return Team(part.expert, self._place(part) // part.width % part.expert)

    def _place(self, part: Part) -> int:
        """The rank's place among the devices of a part; 0 in a part that it is not in."""
        return part.devices.index(self.device) if self.device in part.devices else 0

    def _holders(self, part: Part, update: int) -> tuple[int, int]:
        """How many ranks hold the weight of an update, and this rank's place among them."""
        replica, member = divmod(self._place(part) // part.tensor, part.context)
        if update in self._of_experts:
            return num_expert_holders(part), replica // part.expert * part.context + member
        return num_holders(part), replica * part.context + member

    def hold(self, step: TracedStep, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the size of the shard that the rank holds of its team's part of a tensor."""
        share = self.shares(step).get(name)
        if share is None:
            return tensor
        tensor = self.own_experts(step, name, tensor)
        if share.holders == 1:
            return tensor
        return torch.empty(share.row(tensor).shape, dtype=tensor.dtype)

    def own_experts(self, step: TracedStep, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the size of those experts that the rank holds; other tensors as they are."""
        share = self.shares(step).get(name)
        if share is None or share.experts == 1:
            return tensor
        return torch.empty(
            (tensor.shape[0] // share.experts, *tensor.shape[1:]), dtype=tensor.dtype
        )

    def wanted(self, builder: Builder, op: int) -> AnyCut | None:
        """The cut of the weight that an op's result is the gradient of, by itself or as a term of a
        sum; None: it is no gradient."""
        return self._weight_cut(
            builder, int(self.expansion.origin[op]), int(self.expansion.part_of_op[op])
        )

    def _weight_cut(self, builder: Builder, kernel: int, part: int) -> AnyCut | None:
        """The cut of the weight that a kernel updates, or that is updated by the kernel's result.

        Where a gradient updates several copies of a weight, the copy in this part counts.
        """
        ledger = builder.step.ledger
        readers = [kernel]
        while True:
            found = [each for each in readers if each in self._updates]
            near = [each for each in found if self._updates[each] is self.plan.parts[part]]
            if found:
                name, _ = updated(builder.step, (near or found)[0])
                return builder.cutter.cuts.get(name)
            if len(readers) != 1 or not ledger.kernels[readers[0]].made:
                return None
            readers = ledger.versions[ledger.kernels[readers[0]].made[0]].readers

    def talk(self, builder: Builder, op: int) -> list[Node]:
        """Call a collective, or take the rank's part of a whole tensor; returns the results."""
        if self.expansion.axis[op] == Axis.REPLICAS:
            return [add_moments(builder, op)]
        bundle = int(self.expansion.bundle[op])
        kind = Kind(int(self.expansion.collective[op]))
        part = self.plan.parts[int(self.expansion.part_of_op[op])]
        if kind == Kind.ALL_TO_ALL:
            return travel(builder, op, part.expert, self._rows)
        if kind == Kind.SHIFT:
            return [shift_block(builder, op)]
        if builder.graph.kind[op] in (PACK, ADD):
            return pack_or_add(builder, op)
        if bundle < 0 and is_of_tokens(builder, op):
            return exchange_tokens(builder, op, kind, self.tokens)
        if bundle < 0:
            return [self._exchange(builder, op, kind)]
        updates = self.expansion.bundles[bundle]
        holders = self._holders(part, updates[0])
        if kind == Kind.REDUCE_SCATTER:
            return self._scatter(builder, op, updates, holders)
        names = [updated(builder.step, update)[0] for update in updates]
        states = [builder.held.node(name) for name in names]
        if part.zero == 3:
            layouts = self._layouts(builder, names)
            made = builder.call(GatherWeights(layouts, holders[0]), *states)
            builder.gather(op, names, _in_row(layouts))
            return [made]
        builder.call(SpreadWeights(*holders), *states)
        return []

    def _exchange(self, builder: Builder, op: int, kind: Kind) -> Node:
        """Call a collective of a tensor team, or take the member's part of a tensor that it has all
        of."""
        team, origin = builder.team, self.expansion.tensor_origin
        read = [t for t in builder.graph.inputs[op].tolist() if builder.graph.tensor_bytes[t] > 0]
        made = builder.graph.outputs[op].tolist()[0]
        if origin[made] < 0:
            return say(builder, op, read, made)
        given = builder.root[read[0]]
        cut, rows = given.meta.get(CUT, WHOLE), given.meta.get(ROWS, WHOLE)
        if kind == Kind.ALL_REDUCE:
            assert cut is TERMS, "only terms are added up"
            return with_cuts(builder.call(AllReduce(), given), WHOLE, rows)
        if kind == Kind.ALL_GATHER:
            assert isinstance(cut, Cut), "only parts are gathered"
            return with_cuts(builder.call(GatherParts(cut, team.width), given), WHOLE, rows)
        if self.expansion.held[made] == Owned.FEATURES:
            return self._take_features(builder, op, given, int(origin[made]))
        count = self.tokens // builder.context.width
        tokens = token_cut(given.meta["val"].shape, builder.step.samples, count)
        talk = ScatterTerms if kind == Kind.REDUCE_SCATTER else TakePart
        return with_cuts(builder.call(talk(tokens, team.width, team.member), given), tokens, rows)

    def _take_features(self, builder: Builder, op: int, given: Node, tensor: int) -> Node:
        """A member's part of a gradient that another part of the plan found for a copy of its
        weight.

        It is cut as the weight is that the reader updates.
        """
        made, team = builder.graph.outputs[op].tolist()[0], builder.team
        reader = int(builder.graph.readers[made][0])
        planned = int(self.expansion.origin[reader])
        kernel = builder.step.ledger.kernels[planned]
        wanted = self._weight_cut(builder, planned, int(self.expansion.part_of_op[op]))
        for old in kernel.node.all_input_nodes:
            if builder.step.tensor_of.get(kernel.reads.get(old.name, -1)) == tensor:
                cut = find_cut(builder, old, wanted)
                return with_cuts(builder.call(TakePart(cut, team.width, team.member), given), cut)
        raise AssertionError("it is cut for who reads it")

    def _layouts(self, builder: Builder, names: list[str]) -> tuple[Layout, ...]:
        layouts = tuple(Layout.of(builder.held.part(name, builder.team)) for name in names)
        types = sorted({str(each.dtype) for each in layouts})
        if len(types) > 1:
            raise InputError(
                f"part of parameter {quoted(names[0])}: weights that ZeRO 3 gathers together must "
                f"be of one type, got {' and '.join(types)}"
            )
        return layouts

    def _scatter(
        self, builder: Builder, op: int, updates: tuple[int, ...], holders: tuple[int, int]
    ) -> list[Node]:
        """Call the reduce-scatter of a bundle's gradients, each once; returns the shards of their
        sums."""
        step = builder.step
        found: dict[int, tuple[Node, Layout]] = {}
        origin = self.expansion.tensor_origin
        wanted = {int(origin[t]): t for t in builder.graph.inputs[op].tolist()}
        for update in updates:
            layout = Layout.of(builder.held.part(updated(step, update)[0], builder.team))
            for old, tensor in gradients(step, update).items():
                if tensor in wanted and tensor not in found:
                    found[tensor] = builder.view(old, builder.root[wanted[tensor]]), layout
        views = [found[int(origin[t])] for t in builder.graph.outputs[op].tolist()]
        talk = ScatterGradients(tuple(layout for _, layout in views), *holders)
        made = builder.call(talk, *(view for view, _ in views))
        return [builder.item(made, place) for place in range(len(views))]

    def run(self, builder: Builder, op: int, given: Callable[[Node], Node]) -> Node | None:
        """Call an op that is not called as it was planned: an update of shards, a block of a ring,
        a synchronised batch norm, a loss over divided classes. None: it is none of these."""
        planned = int(self.expansion.origin[op])
        kernel = builder.step.ledger.kernels[planned]
        if planned in self._divided:
            return self._update(builder, op, planned, kernel)
        if self.expansion.hop[op] >= 0:
            return run_block(builder, op, kernel, given)
        word = word_of(builder, op)
        if word is not None:
            part = self.plan.parts[int(self.expansion.part_of_op[op])]
            return run_norm(builder, op, kernel, word, part.num_replicas)
        is_loss = op_name(kernel.node) in LOSSES and builder.team.width > 1
        if is_loss and has_words(builder, op):
            return run_loss(builder, op, kernel)
        return None

    def _update(self, builder: Builder, op: int, update: int, kernel: Kernel) -> Node:
        """Call an update on the shards of its weight, gradient and optimiser state."""
        step = builder.step
        part = self._updates[update]
        name, _ = updated(step, update)
        shards = {
            int(self.expansion.tensor_origin[t]): builder.root[t]
            for t in builder.graph.inputs[op].tolist()
            if self.expansion.tensor_origin[t] >= 0
        }
        found = gradients(step, update)

        def given(old: Node) -> Node:
            if old in found:
                return shards[found[old]]
            held = builder.held.nodes[old.all_input_nodes[0] if counts_steps(old) else old]
            if held_name(step, kernel, old) == name and part.zero < 3:
                start, stop = bounds(held.meta["val"].numel(), *self._holders(part, update))
                return builder.call(aten.as_strided.default, held, [stop - start], [1], start)
            return held

        return builder.call_whole(kernel.node, given)


def _in_row(layouts: tuple[Layout, ...]) -> list[Layout]:
    """The layouts of weights that lie one after the other in one buffer."""
    found, start = [], 0
    for each in layouts:
        found.append(Layout(each.shape, each.stride, start, each.dtype))
        start += each.length
    return found
