"""Where a device stands in a part: its team, its replica, and who holds the same weights.

Devices of a part stand replica by replica, in each context member by context member, tensor member
by tensor member. Of `expert` replicas in a row each holds other experts. Knows nothing of graphs.
"""

from dataclasses import dataclass

from meshwright.plan.part import Part
from meshwright.program.expand.expert import num_expert_holders
from meshwright.program.expand.zero import num_holders


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlace:
    """One device's place in a part."""

    tensor: int
    """Its number among those that share features."""
    context: int
    """Its number among those that share tokens."""
    replica: int
    expert: int
    """Its number among replicas that hold different experts."""


def find_place(part: Part, device: str) -> PartPlace:
    """The place of a device of a part; of one that is not in it the first."""
    number = part.devices.index(device) if device in part.devices else 0
    rest, tensor = divmod(number, part.tensor)
    replica, context = divmod(rest, part.context)
    return PartPlace(tensor=tensor, context=context, replica=replica, expert=replica % part.expert)


def find_holder(part: Part, place: PartPlace, *, of_experts: bool) -> tuple[int, int]:
    """How many devices hold the same weights, or the same experts, and which of them one is."""
    if of_experts:
        return num_expert_holders(part), place.replica // part.expert * part.context + place.context
    return num_holders(part), place.replica * part.context + place.context
