"""The tensors that a rank has before a step: its shards of weights, buffers and optimiser state.

The inputs of the step and the constants of the model's code are among them. Knows nothing of ops.
"""

from functools import cached_property

import torch
from torch.fx import Graph as Nodes
from torch.fx import Node

from meshwright.capture.torch_private import FakeTensorMode
from meshwright.execute.cut.cut import WHOLE, AnyCut, Cut, local_shape
from meshwright.execute.member import CUT, FROM
from meshwright.execute.on_parts import TeamPlace
from meshwright.execute.rebuild.shares import RankShares
from meshwright.execute.traced import HELD_OPS, TracedStep


class HeldTensors:
    """The placeholders and constants of a trace that is being built."""

    def __init__(
        self, step: TracedStep, shares: RankShares, nodes: Nodes, mode: FakeTensorMode
    ) -> None:
        """`nodes`: the graph to which they are added, in the order of the planned step."""
        self.step, self.shares, self.mode = step, shares, mode
        self.constants: dict[str, torch.Tensor] = {}
        """By the target of their nodes."""
        self.nodes: dict[Node, Node] = {}
        """By placeholder or constant of the planned step: the new one."""
        for old in step.trace.graph.nodes:
            if old.op in HELD_OPS:
                self._add(old, nodes)

    def _add(self, old: Node, nodes: Nodes) -> None:
        target = str(old.target)
        if old.op == "get_attr":
            self.constants[target] = self.step.trace.constants[target]
            self.nodes[old] = nodes.get_attr(target)
            self.nodes[old].meta["val"] = old.meta["val"]
            return
        self.nodes[old] = nodes.placeholder(target)
        self.nodes[old].meta["val"] = old.meta["val"]
        name = self.names[old]
        cut = self.shares.cut(name)
        if cut is not None:
            self._set_cut(name, cut, self.shares.team_of(name, self.step))

    @cached_property
    def placeholders(self) -> dict[str, Node]:
        """The placeholders of the planned step, by the name of what they hold."""
        return self.step.trace.start

    @cached_property
    def names(self) -> dict[Node, str]:
        """By placeholder of the planned step: the name of what it holds."""
        return {node: name for name, node in self.placeholders.items()}

    def node(self, name: str) -> Node:
        """The new placeholder of what the rank has under a name."""
        return self.nodes[self.placeholders[name]]

    def root(self, version: int) -> Node:
        """The new node in whose storage a version of a planned storage lies."""
        root = self.step.roots[version]
        nodes = [n for n in self.step.trace.graph.nodes if n.op in HELD_OPS]
        held = [k for k, each in enumerate(self.step.ledger.versions) if each.source < 0]
        return self.nodes[nodes[held.index(root)]]

    def planned(self, name: str) -> torch.Tensor:
        """What one process that runs the planned step alone has under a name."""
        value: torch.Tensor = self.placeholders[name].meta["val"]
        return value

    def part(self, name: str, team: TeamPlace) -> torch.Tensor:
        """A member's part of a tensor, of which ZeRO would divide the numbers further."""
        value, cut = self.planned(name), self.shares.cut(name)
        with self.mode:
            value = self.shares.own_experts(self.step, name, value)
        return self._part_of(value, cut, team)

    def cut_weight(self, name: str, cut: AnyCut, team: TeamPlace) -> None:
        """Cut a weight, and the optimiser's state of it, for a member of a tensor team."""
        states = self.step.trace.state_names
        for each in (name, *(state for state in states if state.startswith(f"{name}."))):
            self._set_cut(each, cut, team)

    def _set_cut(self, name: str, cut: AnyCut, team: TeamPlace) -> None:
        value, new = self.planned(name), self.node(name)
        if value.dim() == 0:  # a counter of steps, for instance
            cut = WHOLE
        value = self._part_of(value, cut, team)
        with self.mode:
            new.meta["val"] = self.shares.hold(self.step, name, value)
        new.meta[CUT] = cut
        new.meta[FROM] = frozenset((name,)) if isinstance(cut, Cut) else frozenset()

    def _part_of(self, value: torch.Tensor, cut: AnyCut | None, team: TeamPlace) -> torch.Tensor:
        """A tensor of the shape of a member's part."""
        if not isinstance(cut, Cut):
            return value
        shape = local_shape(value.shape, cut, team.width, team.member)
        with self.mode:
            return torch.empty(shape, dtype=value.dtype)
