"""Binds a lowered plan to one rank: the traced steps as it runs them, and what it runs of them."""

from meshwright.execute.apart import check_sums
from meshwright.execute.bind import bind_part
from meshwright.execute.expanded import ExpandedSteps
from meshwright.execute.item import RankPart
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered
from meshwright.execute.steps import PlannedSteps, TracedSteps


def bind_rank(
    lowered: Lowered,
    planned: PlannedSteps,
    device: int,
    *,
    is_mean: bool = True,
    is_scaled: bool = False,
) -> tuple[TracedSteps, RankPart]:
    """The steps as the rank of a device runs them, and what it runs of them."""
    steps: TracedSteps = planned
    if not lowered.plan.is_plain or lowered.expansion.graph is not lowered.graph:
        steps = ExpandedSteps(planned, lowered, device)
    lookup = Lookup(lowered=lowered, steps=steps, is_mean=is_mean, is_scaled=is_scaled)
    check_sums(lookup, lowered.partial)
    return steps, bind_part(lookup, device)
