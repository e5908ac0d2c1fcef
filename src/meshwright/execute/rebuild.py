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
from meshwright.errors import InputError, quoted
from meshwright.execute.cut.cut import WHOLE, AnyCut, Cut, local_shape
from meshwright.execute.member import (
    CUT,
    FROM,
    ROWS,
    Cutter,
    Segmented,
    Team,
    check_held,
    check_rows,
)
from meshwright.execute.traced import ARRIVED, Layout, TracedStep
from meshwright.graph.graph import Phase
from meshwright.graph.stack.stack import Role
from meshwright.program.expand.expansion import Expansion, Held


class Ways(Protocol):
    """How a rank runs the ops of an expansion: what it holds, and whom it talks to."""

    tokens: int
    """Of a sample, where a team divides them."""

    def team(self, op: int) -> Team:
        """Its place in the tensor team that runs an op."""

    def context(self, op: int) -> Team:
        """Its place in the context team that runs an op."""

    def brought(self, builder: "Builder", op: int) -> Mapping[Node, Node]:
        """By argument of a planned kernel: what an op reads in its place that is no tensor of the
        planned graph."""

    def team_of(self, name: str, step: TracedStep) -> Team:
        """Its place in the tensor team that holds a tensor."""

    def cut(self, name: str) -> AnyCut | None:
        """How a tensor that is there from the start is cut; None: that is to be found out."""

    def hold(self, step: TracedStep, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """What it has of a tensor that is there from the start."""

    def own_experts(self, step: TracedStep, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """As large as those of a tensor's experts that it holds; other tensors as they are."""

    def talk(self, builder: "Builder", op: int) -> list[Node]:
        """Call a collective, by `Builder.call`; one node for each tensor with bytes it makes."""

    def run(self, builder: "Builder", op: int) -> Node | None:
        """Call an op in a way of its own; None: as it was planned, on what the expansion says."""

    def wanted(self, builder: "Builder", op: int) -> AnyCut | None:
        """How what an op makes is best cut, where there is a choice."""


class Builder:
    """The trace as it grows."""

    def __init__(
        self,
        step: TracedStep,
        expansion: Expansion,
        ways: Ways,
        segments: Mapping[str, tuple[int, ...]] | None = None,
    ) -> None:
        """`segments`: of weights that are several side by side, their sizes."""
        self.step, self.expansion, self.ways = step, expansion, ways
        self.cutter = Cutter(self, segments or {})
        self.team = Team()
        """The tensor team of the op which is being built, ..."""
        self.context = Team()
        """... and its context team."""
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
        self.received: set[int] = set()
        """Numbers of rows in place of which others arrive from replicas: `ARRIVED`."""

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
            self.team = self.ways.team(op)
            # Updates read sums over all who hold the same weights, whatever terms these had.
            is_update = self.graph.phase[op] == Phase.UPDATE
            self.context = Team() if is_update else self.ways.context(op)
            if self.expansion.is_collective[op] or self.expansion.origin[op] < 0:
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
        if self.received and any(_has_rows(each) for each in pytree.tree_leaves((args, kwargs))):
            args, kwargs = _resized((args, kwargs), self.received)
        node = self.nodes.call_function(target, args, kwargs)
        given = pytree.tree_map_only(Node, lambda each: each.meta["val"], (args, kwargs))
        with self.mode, torch.no_grad():
            node.meta["val"] = target(*given[0], **given[1])
        return node

    def call_like(self, old: Node, given: Callable[[Node], Node]) -> Node:
        """The call of an old node on new ones."""
        return self._call_by(old, given, Held.WHOLE)

    def _call_by(
        self,
        old: Node,
        given: Callable[[Node], Node],
        held: Held,
        wanted: AnyCut | None = None,
        has_rows: bool | None = None,
    ) -> Node:
        """The call of an old node on new ones by a member of the team."""
        for each in old.all_input_nodes:
            self._count(each)
        if self.team.width > 1 or self.context.width > 1:
            return self.cutter.call(old, given, held, wanted, has_rows)
        return self._call_with(old, given)

    def call_whole(self, old: Node, given: Callable[[Node], Node]) -> Node:
        """The call of an old node on new ones as it is, whatever their cuts."""
        for each in old.all_input_nodes:
            self._count(each)
        return self._call_with(old, given)

    def _call_with(self, old: Node, given: Callable[[Node], Node]) -> Node:
        args, kwargs = pytree.tree_map_only(Node, given, (old.args, old.kwargs))
        return self.call(old.target, *args, **kwargs)

    def item(self, made: Node, place: int) -> Node:
        """One of several results."""
        node = self.nodes.call_function(operator.getitem, (made, place))
        node.meta["val"] = made.meta["val"][place]
        for key in (CUT, ROWS):
            cuts = made.meta.get(key, WHOLE)
            node.meta[key] = cuts[place] if isinstance(cuts, tuple) else cuts
        node.meta[FROM] = made.meta.get(FROM, frozenset())
        return node

    def view(self, old: Node, base: Node) -> Node:
        """An old node's view, made again on a storage."""
        return self._view(old, base, {}, {})

    def argument(self, op: int, kernel: Kernel, old: Node) -> Node:
        """What an op is given in place of an argument of a planned kernel."""
        version = kernel.reads[old.name]
        read = self._tensors_read(op)
        return self._view(old, self._base(version, read), {}, self._weights_read(op))

    def cut_state(self, name: str, cut: AnyCut) -> None:
        """Let the rank hold a weight, and what the optimiser has of it, cut so."""
        self.cutter.cuts[name] = cut
        for each, old in self._placeholders.items():
            if each == name or (each.startswith(f"{name}.") and each in self._states):
                self._set_cut(each, old, cut)

    @cached_property
    def _states(self) -> frozenset[str]:
        return frozenset(self.step.trace.state_names)

    def _set_cut(self, name: str, old: Node, cut: AnyCut) -> None:
        value = old.meta["val"]
        new = self.held[old]
        if value.dim() == 0:  # a counter of steps, for instance
            cut = WHOLE
        if isinstance(cut, Cut):
            team = self.team
            shape = local_shape(value.shape, cut, team.width, team.member)
            with self.mode:
                value = torch.empty(shape, dtype=value.dtype)
        with self.mode:
            new.meta["val"] = self.ways.hold(self.step, name, value)
        new.meta[CUT] = cut
        new.meta[FROM] = frozenset((name,)) if isinstance(cut, Cut) else frozenset()

    def planned_part(self, name: str) -> torch.Tensor:
        """The rank's part of what a step that is not expanded holds under a name, all numbers."""
        value, cut = self.planned_state(name), self.ways.cut(name)
        with self.mode:
            value = self.ways.own_experts(self.step, name, value)
        if not isinstance(cut, Cut):
            return value
        shape = local_shape(value.shape, cut, self.team.width, self.team.member)
        with self.mode:
            return torch.empty(shape, dtype=value.dtype)

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

    def planned_shape(self, tensor: int) -> tuple[int, ...]:
        """The shape that the storage of a tensor of the expansion has in a step that is not
        expanded."""
        version = self.step.versions[int(self.expansion.tensor_origin[tensor])]
        return self.step.layouts[version].shape

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
        new.meta["val"] = value
        self.held[old] = self.latest[old] = new
        if old.op == "placeholder":
            self._settle(old)

    def _settle(self, old: Node) -> None:
        """Give a placeholder what the rank holds, where that is known by now."""
        name = self._names[old]
        cut = self.ways.cut(name)
        if cut is None:
            return
        self.team = self.ways.team_of(name, self.step)
        self._set_cut(name, old, cut)
        if name in self.step.trace.parameter_names:
            self.cutter.cuts[name] = cut

    def _run(self, op: int) -> None:
        """Call a kernel of the planned step once more."""
        kernel = self.step.ledger.kernels[int(self.expansion.origin[op])]
        read = self._tensors_read(op)
        weights = self._weights_read(op)
        made: dict[Node, Node] = {}
        brought = self.ways.brought(self, op)

        def given(old: Node) -> Node:
            if old in brought:
                return brought[old]
            version = kernel.reads.get(old.name)
            if version is None:  # only its shape counts
                return self._shaped(old)
            return self._view(old, self._base(version, read), made, weights)

        held, has_rows = self._held(op), self._has_rows(op)
        self._find_cuts(op, kernel, held)
        new = self.ways.run(self, op)
        if new is None:
            wanted = self.ways.wanted(self, op)
            new = self._call_by(kernel.node, given, held, wanted, has_rows)
        self.latest[kernel.node] = new
        self._keep_kernel(op, kernel, new, read)

    def _made(self, op: int) -> list[int]:
        """The tensors of the planned graph that an op makes."""
        return [t for t in self.graph.outputs[op].tolist() if self.expansion.tensor_origin[t] >= 0]

    def _held(self, op: int) -> Held:
        """What a member has of the first tensor that an op makes."""
        made = self._made(op)
        return Held(int(self.expansion.held[made[0]])) if made else Held.WHOLE

    def _has_rows(self, op: int) -> bool:
        """Whether a member of a context team has its rows of the first tensor that an op makes."""
        made = self._made(op)
        return bool(made and self.expansion.rows[made[0]])

    def _find_cuts(self, op: int, kernel: Kernel, held: Held) -> None:
        """Decide how weights are cut that this op is the first to read."""
        unknown: dict[Node, str] = {}
        for old in kernel.node.all_input_nodes:
            start = _start(old)
            name = self._names.get(start, "")
            if name in self.step.trace.parameter_names and name not in self.cutter.cuts:
                unknown[start] = name
        if not unknown:
            return
        if self.team.width == 1 or self.expansion.role[op] == Role.WHOLE:
            for name in unknown.values():
                self.cut_state(name, WHOLE)
            return
        read = self._tensors_read(op)

        def base_of(old: Node) -> Node | None:
            version = kernel.reads.get(old.name)
            return None if version is None else self._base(version, read)

        def cut_of(old: Node, guess: Mapping[Node, AnyCut]) -> AnyCut:
            return self._cut_of(old, base_of(old), guess)

        rows = {old: self._rows_of(old, base_of(old)) for old in kernel.node.all_input_nodes}
        self.cutter.decide(kernel.node, unknown, rows, cut_of, held, self._has_rows(op))

    def _cut_of(self, old: Node, base: Node | None, guess: Mapping[Node, AnyCut]) -> AnyCut:
        """How an old node's view of a storage would be cut, with weights cut as guessed."""
        source = _viewed(old)
        if source is None:
            new = self.held.get(old) if base is None else base
            found: AnyCut = guess[old] if old in guess else new.meta.get(CUT, WHOLE)  # type: ignore[union-attr]
            return found
        if _writes(old):
            return self._cut_of(source, base, guess)
        own = self.cutter.take_rows(old, {source: self._rows_of(source, base)})
        cut = self._cut_of(source, base, guess)
        made: AnyCut = self.cutter.take_features(old, own, lambda _: cut, Held.WHOLE).cuts
        return made

    def _rows_of(self, old: Node, base: Node | None) -> AnyCut:
        """How a context team cuts an old node's view of a storage."""
        source = _viewed(old)
        if source is None:
            new = self.held.get(old) if base is None else base
            found: AnyCut = WHOLE if new is None else new.meta.get(ROWS, WHOLE)
            return found
        if _writes(old):
            return self._rows_of(source, base)
        made: AnyCut = self.cutter.take_rows(old, {source: self._rows_of(source, base)}).cuts
        return made

    def find_cut(self, old: Node, wanted: AnyCut | None) -> Cut:
        """How a storage must be cut for an old node's view of it to be cut so."""
        start = _start(old)
        for dim, size in enumerate(start.meta["val"].shape):
            if isinstance(wanted, Cut) and size == wanted.size:
                cut = replace(wanted, dim=dim)
                if self._cut_of(old, None, {start: cut}) == wanted:
                    return cut
        raise InputError(
            f"op {quoted(old.name)}: found no cut over a team of {self.team.width} by which it is "
            f"cut as {wanted!r}"
        )

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
                    self.weights[tensor, old].meta[CUT] = self.cutter.cuts[self._names[old]]
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
            new = self._call_by(old, lambda _: viewed, Held.WHOLE)
            if _storages(new) != _storages(viewed):
                raise InputError(
                    f"op {quoted(old.name)}: a member's part must be a view of its shard, which "
                    f"{new.meta.get(CUT)!r} is not"
                )
        made[old] = self.latest[old] = new
        return new

    def _shaped(self, old: Node) -> Node:
        """A node of the shape of an old one, whatever is in it."""
        if old not in self.latest:
            self.latest[old] = self._call_by(old, self._shaped, Held.WHOLE)
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
                name, meta = self.graph.op_names[op], self.root[tensor].meta
                if not meta["val"].numel():
                    continue
                if self.team.width > 1:
                    held = Held(int(self.expansion.held[tensor]))
                    check_held(name, meta.get(CUT, WHOLE), held)
                if self.context.width > 1:
                    has_rows = bool(self.expansion.rows[tensor])
                    check_rows(name, meta.get(ROWS, WHOLE), has_rows)
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


def find_cuts(step: TracedStep, expansion: Expansion, ways: Ways) -> dict[str, AnyCut]:
    """How a tensor team cuts every weight: as the ops that read them need it."""
    segments: dict[str, tuple[int, ...]] = {}
    while True:
        builder = Builder(step, expansion, ways, segments)
        try:
            builder.build()
        except Segmented as found:
            segments |= _alike(builder, found)
            continue
        return builder.cutter.cuts


def _alike(builder: Builder, found: Segmented) -> dict[str, tuple[int, ...]]:
    """The segments of all weights of the shapes of those that were found, which other layers have,
    too."""
    shapes = {tuple(builder.planned_state(name).shape) for name in found.names}
    return {
        name: found.sizes
        for name in builder.step.trace.parameter_names
        if tuple(builder.planned_state(name).shape) in shapes
    }


def _start(node: Node) -> Node:
    """Where the storage of a node's value begins."""
    source = _viewed(node)
    return node if source is None else _start(source)


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


def _has_rows(value: Any) -> bool:
    """Whether rows of a node's value are known at run time only."""
    made = value.meta.get("val") if isinstance(value, Node) else None
    return isinstance(made, torch.Tensor) and ARRIVED in made.shape


def _resized(value: Any, received: set[int]) -> Any:
    """Arguments in which shapes with so many rows have as many as there will be."""
    if isinstance(value, dict):
        return {key: _resized(each, received) for key, each in value.items()}
    if not isinstance(value, tuple | list):
        return value
    if value and all(type(each) is int for each in value) and value[0] in received:
        return type(value)((ARRIVED, *value[1:]))
    return type(value)(_resized(each, received) for each in value)


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _storages(node: Node) -> set[int]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return {int(each.untyped_storage()._cdata) for each in leaves if isinstance(each, torch.Tensor)}
