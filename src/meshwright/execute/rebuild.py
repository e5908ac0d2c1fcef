"""Builds the trace of an expanded step: what a rank's kernels are, one for each op of its graph.

The planned step's kernels are called once more in the order of the expansion, on the tensors that
the expansion has them read: a copy reads other versions, a member of a team smaller ones. Views
stand between a kernel and the storage that it reads, so they are followed back to that storage and
made again. Knows nothing of processes; what a rank's shards are is told by `Ways`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph as Nodes
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from meshwright.capture.convert import read_trace
from meshwright.capture.ledger import Kernel, counts_steps
from meshwright.execute.traced import Layout, TracedStep
from meshwright.graph.graph import Phase
from meshwright.program.expand.expansion import Expansion


class Ways(Protocol):
    """How a rank runs the ops of an expansion: what it holds, and whom it talks to."""

    def hold(self, step: TracedStep, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What it has of a tensor that is there from the start."""

    def talk(self, builder: "Builder", op: int) -> list[Node]:
        """Call a collective, by `Builder.call`; one node for each tensor with bytes it makes."""

    def run(self, builder: "Builder", op: int) -> Node | None:
        """Call an op in a way of its own; None: as it was planned, on what the expansion says."""


class Builder:
    """The trace as it grows."""

    def __init__(self, step: TracedStep, expansion: Expansion, ways: Ways) -> None:
        self.step, self.expansion, self.ways = step, expansion, ways
        self.graph, self.nodes = expansion.graph, Nodes()
        old = step.trace.module.graph.nodes
        self.mode: FakeTensorMode = next(
            each.meta["val"].fake_mode
            for each in old
            if isinstance(each.meta.get("val"), FakeTensor)
        )
        self.held: dict[Node, Node] = {}
        """By old placeholder or constant: the new one."""
        self.root: dict[int, Node] = {}
        """By tensor of the expansion: the node whose storage it is in."""
        self.latest: dict[Node, Node] = {}
        """By old node: the newest that was made of it."""
        self.gathered: dict[int, dict[Node, Layout]] = {}
        """By collective that gathers weights: where in its result each placeholder's are."""
        self.weights: dict[tuple[int, Node], Node] = {}
        """By tensor of gathered weights and placeholder: the weights."""
        self.attributes: dict[str, torch.Tensor] = {}

    def build(self) -> TracedStep:
        """The step that the expansion describes."""
        for node in self.step.trace.module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self._hold(node)
        counts = [0, 0]
        for op in range(self.graph.num_ops):
            for place, phase in enumerate((Phase.FORWARD, Phase.BACKWARD)):
                if self.graph.phase[op] <= phase:
                    counts[place] = len(self.nodes.nodes)
            if self.expansion.is_collective[op]:
                self._keep(op, self.ways.talk(self, op))
            else:
                self._run(op)
            for place, phase in enumerate((Phase.FORWARD, Phase.BACKWARD)):
                if self.graph.phase[op] <= phase:
                    counts[place] = len(self.nodes.nodes)
        self.nodes.output([self._loss()])
        trace = replace(
            self.step.trace,
            module=GraphModule(self.attributes, self.nodes),
            num_forward=counts[0],
            num_backward=counts[1],
        )
        return self._finish(trace)

    def call(self, target: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Node:
        """A call on new nodes, and what it gives on fake tensors."""
        assert callable(target)
        node = self.nodes.call_function(target, args, kwargs)
        given = pytree.tree_map_only(Node, lambda each: each.meta["val"], (args, kwargs))
        with self.mode, torch.no_grad():
            node.meta["val"] = target(*given[0], **given[1])
        return node

    def call_like(self, old: Node, given: Callable[[Node], Node]) -> Node:
        """The call of an old node on new ones."""
        for each in old.all_input_nodes:
            self._count(each)
        args, kwargs = pytree.tree_map_only(Node, given, (old.args, old.kwargs))
        return self.call(old.target, *args, **kwargs)

    def item(self, made: Node, place: int) -> Node:
        """One of several results."""
        node = self.nodes.call_function(operator.getitem, (made, place))
        node.meta["val"] = made.meta["val"][place]
        return node

    def view(self, old: Node, base: Node) -> Node:
        """An old node's view, made again on a storage."""
        return self._view(old, base, {}, {})

    def gather(self, op: int, names: Sequence[str], layouts: Sequence[Layout]) -> None:
        """Let ops that read what a collective gives find weights there."""
        pairs = zip(names, layouts, strict=True)
        self.gathered[op] = {self._placeholders[name]: layout for name, layout in pairs}

    def state(self, name: str) -> Node:
        """What the rank holds under a name."""
        return self.held[self._placeholders[name]]

    def planned_state(self, name: str) -> torch.Tensor:
        """What a step that is not expanded holds under a name."""
        value: torch.Tensor = self._placeholders[name].meta["val"]
        return value

    @cached_property
    def _placeholders(self) -> dict[str, Node]:
        trace = self.step.trace
        names = [*trace.parameter_names, *trace.buffer_names, *trace.state_names]
        names += [f"input {number}" for number in range(trace.num_inputs)]
        nodes = [each for each in trace.module.graph.nodes if each.op == "placeholder"]
        return dict(zip(names, nodes, strict=True))

    @cached_property
    def _names(self) -> dict[Node, str]:
        return {node: name for name, node in self._placeholders.items()}

    def _hold(self, old: Node) -> None:
        value = old.meta["val"]
        if old.op == "get_attr":
            self.attributes[str(old.target)] = getattr(self.step.trace.module, str(old.target))
            new = self.nodes.get_attr(str(old.target))
        else:
            new = self.nodes.placeholder(str(old.target))
            with self.mode:
                value = self.ways.hold(self.step, self._names[old], value)
        new.meta["val"] = value
        self.held[old] = self.latest[old] = new

    def _run(self, op: int) -> None:
        """Call a kernel of the planned step once more."""
        kernel = self.step.ledger.kernels[int(self.expansion.origin[op])]
        read = self._tensors_read(op)
        weights = self._weights_read(op)
        made: dict[Node, Node] = {}

        def given(old: Node) -> Node:
            version = kernel.reads.get(old.name)
            if version is None:  # only its shape counts
                return self._shaped(old)
            return self._view(old, self._base(version, read), made, weights)

        new = self.ways.run(self, op) or self.call_like(kernel.node, given)
        self.latest[kernel.node] = new
        self._keep_kernel(op, kernel, new, read)

    def _count(self, old: Node) -> None:
        """Advance a counter of the optimiser, which its kernel does not do itself."""
        if old.op == "call_function" and counts_steps(old):
            self.call(old.target, self.held[old.all_input_nodes[0]], *old.args[1:])

    def _weights_read(self, op: int) -> dict[Node, Node]:
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
                found[old] = self.weights[tensor, old]
        return found

    def _tensors_read(self, op: int) -> dict[int, int]:
        """By tensor of the planned graph: the tensor of the expansion that an op reads of it."""
        origin = self.expansion.tensor_origin
        return {int(origin[t]): t for t in self.graph.inputs[op].tolist() if origin[t] >= 0}

    def _base(self, version: int, read: Mapping[int, int]) -> Node | None:
        """The new storage of a version; None: what is held from the start."""
        tensor = self.step.tensor_of.get(version)
        if tensor is None or tensor not in read:
            assert self.step.roots[version] in self.step.held, "what is read was made"
            return None
        return self.root[read[tensor]]

    def _view(
        self, old: Node, base: Node | None, made: dict[Node, Node], weights: Mapping[Node, Node]
    ) -> Node:
        """An old node's view, made again on a storage, or on weights that were gathered."""
        if old in made:
            return made[old]
        source = _viewed(old)
        if source is None:  # it is where the storage begins
            new = weights.get(old) or self.held[old] if base is None else base
        elif counts_steps(old) or _writes(old):
            new = self._view(source, base, made, weights)
        else:
            viewed = self._view(source, base, made, weights)
            args = tuple(viewed if each is source else each for each in old.args)
            new = self.call(old.target, *args, **old.kwargs)
        made[old] = self.latest[old] = new
        return new

    def _shaped(self, old: Node) -> Node:
        """A node of the shape of an old one, whatever is in it."""
        if old not in self.latest:
            args = tuple(
                self._shaped(each) if isinstance(each, Node) else each for each in old.args
            )
            self.latest[old] = self.call(old.target, *args, **old.kwargs)
        return self.latest[old]

    def _keep_kernel(self, op: int, kernel: Kernel, new: Node, read: Mapping[int, int]) -> None:
        """Note which storage each tensor that a kernel makes is in."""
        fresh = {each.version: each.place for each in self.step.outputs(kernel)}
        for tensor in self.graph.outputs[op].tolist():
            origin = int(self.expansion.tensor_origin[tensor])
            if origin < 0:
                continue
            version = self.step.versions[origin]
            if version in fresh:
                place = fresh[version]
                self.root[tensor] = new if place is None else self.item(new, place)
            else:
                old = self.step.ledger.versions[version].replaces
                base = self._base(old, read)
                self.root[tensor] = self._held_root(old) if base is None else base

    def _held_root(self, version: int) -> Node:
        root = self.step.roots[version]
        nodes = [
            n for n in self.step.trace.module.graph.nodes if n.op in ("placeholder", "get_attr")
        ]
        held = [k for k, each in enumerate(self.step.ledger.versions) if each.source < 0]
        return self.held[nodes[held.index(root)]]

    def _keep(self, op: int, made: Any) -> None:
        """Note what a collective gives: one node a tensor that it makes, in their order."""
        outputs = [
            tensor
            for tensor in self.graph.outputs[op].tolist()
            if self.graph.tensor_bytes[tensor] > 0
        ]
        for tensor, node in zip(outputs, made, strict=True):
            self.root[tensor] = node
            origin = int(self.expansion.tensor_origin[tensor])
            if origin >= 0:
                version = self.step.versions[origin]
                source = self.step.ledger.kernels[self.step.ledger.versions[version].source]
                if self.step.ledger.versions[version].replaces < 0 and len(source.made) == 1:
                    self.latest[source.node] = node

    def _loss(self) -> Node:
        output = next(n for n in self.step.trace.module.graph.nodes if n.op == "output")
        loss = next(each for each in pytree.tree_leaves(output.args) if isinstance(each, Node))
        return self._shaped(loss)

    def _finish(self, trace: Any) -> TracedStep:
        ledger = read_trace(trace)
        assert len(ledger.kernels) == self.graph.num_ops, "a kernel an op"
        found = []
        for tensor in range(self.graph.num_tensors):
            if tensor not in self.root:
                found.append(-1)
                continue
            value = self.root[tensor].meta["val"]
            storage = int(value.untyped_storage()._cdata)
            made = ledger.kernels[int(self.graph.tensor_source[tensor])].made
            found.append(next(v for v in made if ledger.versions[v].storage == storage))
        return TracedStep(
            trace=trace, ledger=ledger, samples=self.step.samples, known_versions=tuple(found)
        )


def rebuild(step: TracedStep, expansion: Expansion, ways: Ways) -> TracedStep:
    """The traced step of an expansion, on one rank."""
    return Builder(step, expansion, ways).build()


def _viewed(node: Node) -> Node | None:
    """The node whose storage a node's value is in; None: it has its own, or is one of several
    results of a kernel, each of which has its own."""
    if node.op != "call_function":
        return None
    storages = _storages(node)
    found = next((each for each in node.all_input_nodes if storages & _storages(each)), None)
    if node.target is operator.getitem and found is not None and _viewed(found) is None:
        return None
    return found


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _storages(node: Node) -> set[int]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return {int(each.untyped_storage()._cdata) for each in leaves if isinstance(each, torch.Tensor)}
