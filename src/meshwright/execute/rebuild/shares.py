"""Which part of the state a rank holds, and its place in the teams that run an op.

ZeRO divides the numbers of a weight among its holders, the ranks that hold the same weight. An
update then reads and writes shards: ranges of the weight's numbers in memory order, whatever its
shape, which suits every optimiser that treats numbers one by one. Knows nothing of the trace that
is built for the rank.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch

from meshwright.execute.cut.cut import WHOLE, AnyCut
from meshwright.execute.on_parts import TeamPlace
from meshwright.execute.shard import Share
from meshwright.execute.traced import TracedStep
from meshwright.execute.update import updated
from meshwright.graph.stack.stack import Role
from meshwright.plan.plan import Part, Plan
from meshwright.program.expand.expansion import Expansion
from meshwright.program.expand.expert import divides_experts
from meshwright.program.expand.place import PartPlace, find_holder, find_place


class RankShares:
    """What the rank of one device holds of the state: its parts of the tensors that teams, ZeRO or
    experts divide, and its place in the teams that run each op."""

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

    def part(self, op: int) -> Part:
        """The plan's part that an op is in."""
        return self.plan.parts[int(self.expansion.part_of_op[op])]

    def team(self, op: int) -> TeamPlace:
        """The rank's place in the tensor team that runs an op."""
        return self._team(self.part(op))

    def _team(self, part: Part) -> TeamPlace:
        return TeamPlace(part.tensor, self._place(part).tensor)

    def context(self, op: int) -> TeamPlace:
        """The rank's place in the context team that runs an op."""
        part = self.part(op)
        return TeamPlace(part.context, self._place(part).context)

    def team_of(self, name: str, step: TracedStep) -> TeamPlace:
        """The rank's place in the tensor team that holds a tensor."""
        share = self.shares(step).get(name, Share())
        return TeamPlace(share.width, share.member)

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
        for update, part in self.updates.items():
            if part.tensor == 1 and update not in self.divided | self._of_experts:
                continue
            name, states = updated(step, update)
            cut, team = cuts.get(name, WHOLE), self._team(part)
            experts = TeamPlace()
            if update in self._of_experts:  # the replicas hold different ones
                experts = TeamPlace(part.expert, self._place(part).expert)
            whole = Share(
                cut, team.width, team.member, experts=experts.width, expert=experts.member
            )
            row = whole
            if update in self.divided:
                holders, holder = self.holders(part, update)
                row = replace(whole, holders=holders, holder=holder)
            found |= dict.fromkeys(states, row)
            found[name] = row if part.zero == 3 else whole
        return found

    @cached_property
    def _op_of(self) -> dict[int, int]:
        """By planned op: the op of the expansion, the last where it runs several times."""
        return {int(each): op for op, each in enumerate(self.expansion.origin.tolist())}

    @cached_property
    def updates(self) -> dict[int, Part]:
        """By planned update of a parameter: the plan's part that it is in."""
        return {
            update: self.part(op)
            for update, op in self._op_of.items()
            if update >= 0 and self.expansion.graph.kind[op].startswith("_fused_")
        }

    def whole_weights(self, step: TracedStep) -> frozenset[str]:
        """The names of the weights that every member of a tensor team updates alike."""
        if step.samples not in self._whole:
            role = self.expansion.role
            whole = [each for each in self.updates if role[self._op_of[each]] == Role.WHOLE]
            self._whole[step.samples] = frozenset(updated(step, each)[0] for each in whole)
        return self._whole[step.samples]

    @cached_property
    def divided(self) -> frozenset[int]:
        """The planned updates whose state ZeRO divides among holders."""
        return frozenset(update for bundle in self.expansion.bundles for update in bundle)

    @cached_property
    def _of_experts(self) -> frozenset[int]:
        """The planned updates of experts that replicas divide."""
        return frozenset(
            update
            for update, part in self.updates.items()
            if divides_experts(self.expansion, part, self._op_of[update])
        )

    def _place(self, part: Part) -> PartPlace:
        """The rank's place among the devices of a part."""
        return find_place(part, self.device)

    def holders(self, part: Part, update: int) -> tuple[int, int]:
        """How many ranks hold the weight of an update, and this rank's place among them."""
        return find_holder(part, self._place(part), of_experts=update in self._of_experts)

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
