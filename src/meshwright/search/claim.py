"""What a lower bound is a bound on. Knows nothing of how bounds are proven."""

from enum import StrEnum


class Claim(StrEnum):
    """The plans that a bound holds for: none of these is faster."""

    PLACEMENT = "every op whole on one device"
    ALLOCATED = "every op whole on one device, whatever hosts are allocated of the network"
    UNDIVIDED = "no op divided but by its samples"
    """All plans of replicas, stages and microbatches, whatever they compute again and however they
    divide their state, and all placements, under any allocation."""
    LAYERED = "layers divided by degrees"
    """The plans of a scope of the hybrid search."""

    @property
    def wider(self) -> "tuple[Claim, ...]":
        """The claims that hold for at least the same plans, this one first."""
        if self is Claim.LAYERED:
            return (self,)
        order = (Claim.PLACEMENT, Claim.ALLOCATED, Claim.UNDIVIDED)
        return order[order.index(self) :]
