"""Binds a lowered plan to one rank: the traced steps as it runs them, and what it runs of them."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

from meshwright.execute.apart import check_sums
from meshwright.execute.bind import bind_part
from meshwright.execute.cut.cut import WHOLE, AnyCut
from meshwright.execute.draw import Draw
from meshwright.execute.item import RankPart
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered
from meshwright.execute.member import CUT, ROWS
from meshwright.execute.rebuild.rebuild import find_cuts, rebuild
from meshwright.execute.rebuild.ring import KEYS
from meshwright.execute.rebuild.shares import RankShares
from meshwright.execute.settings import Settings
from meshwright.execute.shard import Share
from meshwright.execute.steps import PlannedSteps, TracedSteps
from meshwright.execute.traced import TracedStep
from meshwright.graph.stack.find import find_tokens


def bind_rank(
    lowered: Lowered, planned: PlannedSteps, device: int, settings: Settings
) -> tuple[TracedSteps, RankPart]:
    """The steps as the rank of a device runs them, and what it runs of them."""
    steps: TracedSteps = planned
    if not lowered.plan.is_plain or lowered.expansion.graph is not lowered.graph:
        steps = ExpandedSteps(planned, lowered, device)
    lookup = Lookup(
        lowered=lowered,
        steps=steps,
        is_mean=settings.is_mean,
        is_scaled=settings.loss_scale is not None,
    )
    check_sums(lookup, lowered.partial)
    return steps, bind_part(lookup, device)


class ExpandedSteps(TracedSteps):
    """Traced steps of what a rank really runs of an expansion; those that are missing are built."""

    def __init__(self, planned: PlannedSteps, lowered: Lowered, device: int) -> None:
        """`device`: the number of the device that this rank runs."""
        super().__init__()
        self.planned, self.plan, self.expansion = planned, lowered.plan, lowered.expansion
        self.shard_expansion, self.device = lowered.shards, lowered.program.device_names[device]

    @cached_property
    def rank_shares(self) -> RankShares:
        """How this rank runs; found out on the first step that is traced."""
        cuts: Mapping[str, AnyCut] = {}
        tokens = 0
        if self.shard_expansion is not None:
            tokens = find_tokens(self.planned.graph)
            alone = replace(
                self.plan, parts=tuple(replace(each, zero=0, expert=1) for each in self.plan.parts)
            )
            finder = RankShares(alone, self.shard_expansion, self.device, None, tokens)
            cuts = find_cuts(self.planned.any(), self.shard_expansion, finder)
        return RankShares(self.plan, self.expansion, self.device, cuts, tokens)

    def _make(self, samples: int) -> TracedStep:
        return rebuild(self.planned[samples], self.expansion, self.rank_shares)

    def _find_draws(self, samples: int) -> dict[int, Draw]:
        """The draws of planned ops; what is computed again draws the same numbers."""
        known = self.planned.draws(samples)
        return {
            op: self._own_draw(samples, op, known[each])
            for op, each in enumerate(self.expansion.origin.tolist())
            if each in known
        }

    def _own_draw(self, samples: int, op: int, draw: Draw) -> Draw:
        """A member of a team draws for whole samples, and uses its part."""
        meta = self[samples].ledger.kernels[op].node.meta
        parts = []
        for key, team in ((ROWS, self.rank_shares.context(op)), (CUT, self.rank_shares.team(op))):
            cut = meta.get(key, WHOLE)
            first = cut[0] if isinstance(cut, tuple) else cut
            parts.append(Share(first, team.width, team.member))
        parts += [meta[KEYS]] if KEYS in meta else []
        return replace(draw, parts=tuple(parts))

    def shares(self) -> Mapping[str, Share]:
        """What of the state the rank holds a shard of only, by name."""
        return self.rank_shares.shares(self.planned.any())

    def _find_other(self, samples: int) -> int:
        return self.planned.other(samples).samples
