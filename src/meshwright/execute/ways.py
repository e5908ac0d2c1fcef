"""How a rank runs the ops of an expansion: which shards it holds, and whom it talks to."""

from typing import Any

import torch

from meshwright.execute.rebuild import Builder, Ways
from meshwright.plan.plan import Plan
from meshwright.program.expand.expansion import Expansion


def find_ways(plan: Plan, expansion: Expansion, device: str) -> Ways:
    """The ways of the rank of a device."""
    return _Ways(plan, expansion, device)


class _Ways:
    """One rank."""

    def __init__(self, plan: Plan, expansion: Expansion, device: str) -> None:
        self.plan, self.expansion, self.device = plan, expansion, device

    def hold(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What it has of a tensor that is there from the start."""
        return tensor

    def talk(self, builder: Builder, op: int) -> Any:
        """Call a collective."""
        raise NotImplementedError
