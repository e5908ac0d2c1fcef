"""How a rank runs the ops of an expansion: which shards it holds, and whom it talks to.

ZeRO divides a weight's numbers among its holders. What an update reads and writes are then shards:
rows of numbers, whatever the weight's shape, which suits every optimiser that treats numbers one by
one. Collectives of bundles turn gradients into shards and shards into weights.
"""

from collections.abc import Mapping
from functools import cached_property

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel, counts_steps
from meshwright.errors import InputError, quoted
from meshwright.execute.rebuild import Builder
from meshwright.execute.shard import Share, bounds
from meshwright.execute.talk import GatherWeights, ScatterGradients, SpreadWeights
from meshwright.execute.traced import Layout, TracedStep
from meshwright.plan.plan import Part, Plan
from meshwright.program.expand.expansion import Axis, Expansion
from meshwright.program.expand.zero import num_holders
from meshwright.program.program import Kind

aten = torch.ops.aten


class Ways:
    """One rank: that of a device of the plan."""

    def __init__(self, plan: Plan, expansion: Expansion, device: str) -> None:
        self.plan, self.expansion, self.device = plan, expansion, device

    def shares(self, step: TracedStep) -> Mapping[str, Share]:
        """What of a step's state the rank holds a shard of only, by name."""
        found: dict[str, Share] = {}
        for update, part in self._updates.items():
            name, states = _updated(step, update)
            share = self._share(part)
            names = [*states, name] if part.zero == 3 else states
            found |= dict.fromkeys(names, share)
        return found

    @cached_property
    def _updates(self) -> dict[int, Part]:
        """The planned updates whose state is divided, and their parts."""
        origin = self.expansion.origin
        place = {int(each): op for op, each in enumerate(origin.tolist()) if each >= 0}
        return {
            update: self.plan.parts[int(self.expansion.part_of_op[place[update]])]
            for bundle in self.expansion.bundles
            for update in bundle
        }

    def _share(self, part: Part) -> Share:
        """The rank's place among the holders of its weights; of a part it is not in, the first."""
        place = part.devices.index(self.device) if self.device in part.devices else 0
        return Share(num_holders(part), place // part.tensor)

    def hold(self, step: TracedStep, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What it has of a tensor that is there from the start: as large as that."""
        share = self._shares(step).get(name)
        if share is None:
            return tensor
        return torch.empty(share.of(tensor).shape, dtype=tensor.dtype)

    def _shares(self, step: TracedStep) -> Mapping[str, Share]:
        if step not in self._known:
            self._known[step] = self.shares(step)
        return self._known[step]

    @cached_property
    def _known(self) -> dict[TracedStep, Mapping[str, Share]]:
        return {}

    def talk(self, builder: Builder, op: int) -> list[Node]:
        """Call a collective; what it gives."""
        bundle = int(self.expansion.bundle[op])
        kind = Kind(int(self.expansion.collective[op]))
        assert bundle >= 0 and self.expansion.axis[op] == Axis.HOLDERS
        updates = self.expansion.bundles[bundle]
        part = self.plan.parts[int(self.expansion.part_of_op[op])]
        share = self._share(part)
        if kind == Kind.REDUCE_SCATTER:
            return self._scatter(builder, op, updates, share)
        names = [_updated(builder.step, update)[0] for update in updates]
        if part.zero == 3:
            layouts = self._layouts(builder, names)
            made = builder.call(
                GatherWeights(layouts, share.holders), *(builder.state(name) for name in names)
            )
            builder.gather(op, names, _in_row(layouts))
            return [made]
        builder.call(
            SpreadWeights(share.holders, share.holder), *(builder.state(name) for name in names)
        )
        return []

    def _layouts(self, builder: Builder, names: list[str]) -> tuple[Layout, ...]:
        layouts = tuple(Layout.of(builder.planned_state(name)) for name in names)
        types = sorted({str(each.dtype) for each in layouts})
        if len(types) > 1:
            raise InputError(
                f"part of parameter {quoted(names[0])}: weights that ZeRO 3 gathers together must "
                f"be of one type, got {' and '.join(types)}"
            )
        return layouts

    def _scatter(
        self, builder: Builder, op: int, updates: tuple[int, ...], share: Share
    ) -> list[Node]:
        """The gradients as updates read them, each once; and the shards of their sums."""
        step = builder.step
        found: dict[int, tuple[Node, Layout]] = {}
        wanted = {
            int(self.expansion.tensor_origin[t]): t for t in builder.graph.inputs[op].tolist()
        }
        for update in updates:
            name = _updated(step, update)[0]
            layout = Layout.of(builder.planned_state(name))
            for old, tensor in _gradients(step, update).items():
                if tensor in wanted and tensor not in found:
                    found[tensor] = builder.view(old, builder.root[wanted[tensor]]), layout
        views = [found[tensor] for tensor in wanted]
        talk = ScatterGradients(tuple(layout for _, layout in views), share.holders, share.holder)
        made = builder.call(talk, *(view for view, _ in views))
        return [builder.item(made, place) for place in range(len(views))]

    def run(self, builder: Builder, op: int) -> Node | None:
        """Call an op in a way of its own: an update of shards; None: as it was planned."""
        update = int(self.expansion.origin[op])
        part = self._updates.get(update)
        if part is None:
            return None
        step, share = builder.step, self._share(part)
        kernel = step.ledger.kernels[update]
        name, _ = _updated(step, update)
        shards = {
            int(self.expansion.tensor_origin[t]): builder.root[t]
            for t in builder.graph.inputs[op].tolist()
            if self.expansion.tensor_origin[t] >= 0
        }
        gradients = _gradients(step, update)

        def given(old: Node) -> Node:
            if old in gradients:
                return shards[gradients[old]]
            held = builder.held[old.all_input_nodes[0] if counts_steps(old) else old]
            if _held_name(step, kernel, old) == name and part.zero < 3:
                start, stop = bounds(held.meta["val"].numel(), share.holders, share.holder)
                return builder.call(aten.as_strided.default, held, [stop - start], [1], start)
            return held

        return builder.call_like(kernel.node, given)


def _in_row(layouts: tuple[Layout, ...]) -> list[Layout]:
    """Where each of them begins when they stand in a row."""
    found, start = [], 0
    for each in layouts:
        found.append(Layout(each.shape, each.stride, start, each.dtype))
        start += each.length
    return found


def _held_name(step: TracedStep, kernel: Kernel, old: Node) -> str:
    version = kernel.reads.get(old.name, -1)
    return step.held.get(step.roots[version], "") if version >= 0 else ""


def _updated(step: TracedStep, update: int) -> tuple[str, list[str]]:
    """The parameter that an op updates, and the optimiser's tensors of it with as many numbers."""
    kernel = step.ledger.kernels[update]
    names = [_held_name(step, kernel, old) for old in kernel.node.all_input_nodes]
    parameters = [name for name in names if name in step.trace.parameter_names]
    if len(parameters) != 1:
        raise InputError(
            f"op {quoted(kernel.node.name)}: must update one parameter to be divided by ZeRO, "
            f"updates {len(parameters)}"
        )
    states = [
        name for name in names if name in step.trace.state_names and not name.endswith(".step")
    ]
    return parameters[0], states


def _gradients(step: TracedStep, update: int) -> dict[Node, int]:
    """The nodes of an update that are gradients, and their tensors."""
    kernel = step.ledger.kernels[update]
    return {
        old: step.tensor_of[kernel.reads[old.name]]
        for old in kernel.node.all_input_nodes
        if step.roots[kernel.reads[old.name]] not in step.held
    }
