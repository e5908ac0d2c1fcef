"""The trace of a rank as it grows: calls on new nodes, and what the ops of the expansion read.

Between a kernel and the storage that it reads stand views. An op of the expansion may read another
storage than the planned kernel did (a second computation reads other versions, a member of a team
smaller tensors), so its views are followed back to where the storage begins and made again there.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph as Nodes
from torch.fx import Node

from meshwright.capture.ledger import Kernel, counts_steps, writes_argument
from meshwright.capture.torch_private import FakeTensor, FakeTensorMode
from meshwright.errors import InputError, quoted
from meshwright.execute.arrived import has_arrived_rows, with_arrived_rows
from meshwright.execute.cut.cut import WHOLE, AnyCut
from meshwright.execute.member import CUT, FROM, ROWS, MemberCutter
from meshwright.execute.on_parts import TeamPlace
from meshwright.execute.rebuild.held import HeldTensors
from meshwright.execute.rebuild.shares import RankShares
from meshwright.execute.rebuild.storage import storages_of, viewed_node
from meshwright.execute.traced import Layout, TracedStep
from meshwright.execute.tree import find_only, map_only
from meshwright.program.expand.expansion import Expansion, Owned


class Builder:
    """The trace as it grows. An old node is one of the planned step, a new one of the rank's."""

    def __init__(
        self,
        step: TracedStep,
        expansion: Expansion,
        shares: RankShares,
        segments: Mapping[str, tuple[int, ...]],
    ) -> None:
        """`segments`: by name of a weight that is several side by side, their sizes."""
        self.step, self.expansion, self.shares = step, expansion, shares
        self.tokens = shares.tokens
        self.graph, self.nodes = expansion.graph, Nodes()
        self.team = TeamPlace()
        """The rank's place in the tensor team of the op that is being built."""
        self.context = TeamPlace()
        """The rank's place in the context team of the op that is being built."""
        self.mode: FakeTensorMode = next(
            each.meta["val"].fake_mode
            for each in step.trace.graph.nodes
            if isinstance(each.meta.get("val"), FakeTensor)
        )
        self.held = HeldTensors(step, shares, self.nodes, self.mode)
        self.cutter = MemberCutter(self, segments)
        cuts = {name: shares.cut(name) for name in step.trace.parameter_names}
        self.cutter.cuts |= {name: cut for name, cut in cuts.items() if cut is not None}
        self.root: dict[int, Node] = {}
        """By tensor of the expansion: the new node whose storage it is in."""
        self.latest: dict[Node, Node] = dict(self.held.nodes)
        """By old node: the newest that was made of it."""
        self.gathered: dict[int, dict[Node, Layout]] = {}
        """By collective that gathers weights: where in its result each placeholder's are."""
        self.weights: dict[tuple[int, Node], Node] = {}
        """By tensor of gathered weights and placeholder: the weights."""
        self.received: set[int] = set()
        """Planned numbers of rows in place of which other rows arrive from replicas."""
        self.rows_of: dict[int, int] = {}
        """By tensor that counts the tokens of experts: the planned number of tokens."""

    def call(self, target: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Node:
        """Add a call on new nodes, with what it gives on fake tensors."""
        assert callable(target)
        if self.received and any(map(has_arrived_rows, find_only(Node, (args, kwargs)))):
            args, kwargs = with_arrived_rows((args, kwargs), self.received)
        node = self.nodes.call_function(target, args, kwargs)
        given = map_only(Node, lambda each: each.meta["val"], (args, kwargs))
        try:
            with self.mode, torch.no_grad():
                node.meta["val"] = target(*given[0], **given[1])
        except (RuntimeError, ValueError) as error:
            name = getattr(target, "__name__", str(target))
            raise InputError(
                f"op {quoted(name)}: a rank of this plan cannot run it on what it has: {error}"
            ) from error
        return node

    def call_by_member(
        self,
        old: Node,
        given: Callable[[Node], Node],
        held: Owned,
        wanted: AnyCut | None = None,
        has_rows: bool | None = None,
    ) -> Node:
        """Add the call of an old node as a member of the teams makes it, on its shards.

        `given` has the new node for each old argument. `held` is what the member should have of
        the result, `wanted` the cut to prefer; `has_rows`: whether the member of a context team
        should have its rows of it, None: as the rules say.
        """
        if self.team.width == 1 and self.context.width == 1:
            return self.call_whole(old, given)
        self._advance_counters(old)
        return self.cutter.call(old, given, held, wanted, has_rows)

    def call_whole(self, old: Node, given: Callable[[Node], Node]) -> Node:
        """Add the call of an old node on new ones as it is, whatever their cuts."""
        self._advance_counters(old)
        args, kwargs = map_only(Node, given, (old.args, old.kwargs))
        return self.call(old.target, *args, **kwargs)

    def _advance_counters(self, old: Node) -> None:
        """Advance the optimiser's counters that a kernel reads, which it does not do itself."""
        for each in old.all_input_nodes:
            if each.op == "call_function" and counts_steps(each):
                self.call(each.target, self.held.nodes[each.all_input_nodes[0]], *each.args[1:])

    def item(self, made: Node, place: int) -> Node:
        """Add a node for one of several results."""
        node = self.nodes.call_function(operator.getitem, (made, place))
        node.meta["val"] = made.meta["val"][place]
        for key in (CUT, ROWS):
            cuts = made.meta.get(key, WHOLE)
            node.meta[key] = cuts[place] if isinstance(cuts, tuple) else cuts
        node.meta[FROM] = made.meta.get(FROM, frozenset())
        return node

    def cut_state(self, name: str, cut: AnyCut) -> None:
        """Cut a weight, and what the optimiser has of it, for the tensor team of this op."""
        self.cutter.cuts[name] = cut
        self.held.cut_weight(name, cut, self.team)

    def gather(self, op: int, names: Sequence[str], layouts: Sequence[Layout]) -> None:
        """Let ops that read what a collective gives find weights there."""
        pairs = zip(names, layouts, strict=True)
        self.gathered[op] = {self.held.placeholders[name]: layout for name, layout in pairs}

    def kernel(self, op: int) -> Kernel:
        """The planned kernel that an op of the expansion stands for."""
        return self.step.ledger.kernels[int(self.expansion.origin[op])]

    def filled_inputs(self, op: int) -> list[int]:
        """The tensors that an op reads, without those that only keep an order."""
        return [t for t in self.graph.inputs[op].tolist() if self.graph.tensor_bytes[t] > 0]

    def planned_held(self, op: int) -> Owned:
        """What the expansion has a member of the tensor team have of the first result of an op."""
        made = self._planned_results(op)
        return Owned(int(self.expansion.held[made[0]])) if made else Owned.WHOLE

    def planned_rows(self, op: int) -> bool:
        """Whether the expansion has a member of the context team have its rows of the first result
        of an op."""
        made = self._planned_results(op)
        return bool(made and self.expansion.rows[made[0]])

    def _planned_results(self, op: int) -> list[int]:
        """The tensors that an op makes and the planned graph has."""
        return [t for t in self.graph.outputs[op].tolist() if self.expansion.tensor_origin[t] >= 0]

    def tensors_read(self, op: int) -> dict[int, int]:
        """By tensor of the planned graph: the tensor of the expansion that an op reads of it."""
        origin = self.expansion.tensor_origin
        return {int(origin[t]): t for t in self.graph.inputs[op].tolist() if origin[t] >= 0}

    def weights_read(self, op: int) -> dict[Node, Node]:
        """By placeholder: the gathered weights that an op reads in its place."""
        found = {}
        for tensor in self.graph.inputs[op].tolist():
            for old, layout in self.gathered.get(int(self.graph.tensor_source[tensor]), {}).items():
                if (tensor, old) not in self.weights:
                    self.weights[tensor, old] = self.call(
                        torch.ops.aten.as_strided.default,
                        self.root[tensor],
                        layout.shape,
                        layout.stride,
                        layout.offset,
                    )
                    self.weights[tensor, old].meta[CUT] = self.cutter.cuts[self.held.names[old]]
                found[old] = self.weights[tensor, old]
        return found

    def base(self, version: int, read: Mapping[int, int]) -> Node | None:
        """The new storage of a version of a planned one; None: it is held before the step.

        `read`: the tensors that the op reads, by tensor of the planned graph.
        """
        tensor = self.step.tensor_of.get(version)
        if tensor is None or tensor not in read:
            assert self.step.roots[version] in self.step.held, "what is read was made"
            return None
        return self.root[read[tensor]]

    def argument(self, op: int, kernel: Kernel, old: Node) -> Node:
        """What an op is given in place of an argument of a planned kernel."""
        base = self.base(kernel.reads[old.name], self.tensors_read(op))
        return self.view(old, base, weights=self.weights_read(op))

    def view(
        self,
        old: Node,
        base: Node | None,
        made: dict[Node, Node] | None = None,
        weights: Mapping[Node, Node] | None = None,
    ) -> Node:
        """Make an old node's view again: on a storage, or else on gathered weights or held tensors.

        `made`: views of this kernel that exist already; it grows.
        """
        made = {} if made is None else made
        if old in made:
            return made[old]
        source = viewed_node(old)
        if source is None:
            new = base
            if new is None:
                new = (weights or {}).get(old) or self.held.nodes[old]
        elif counts_steps(old) or writes_argument(old.target):
            new = self.view(source, base, made, weights)
        else:
            viewed = self.view(source, base, made, weights)
            new = self.call_by_member(old, lambda _: viewed, Owned.WHOLE)
            if storages_of(new) != storages_of(viewed):
                raise InputError(
                    f"op {quoted(old.name)}: a member's part must be a view of its shard, which "
                    f"{new.meta.get(CUT)!r} is not"
                )
        made[old] = self.latest[old] = new
        return new

    def shaped(self, old: Node) -> Node:
        """A node of the shape of a member's part of an old one, whatever its numbers are."""
        if old not in self.latest:
            self.latest[old] = self.call_by_member(old, self.shaped, Owned.WHOLE)
        return self.latest[old]
