"""Builds the trace of an expanded step: the kernels of one rank, one for each op of its graph.

The planned step's kernels are called once more in the order of the expansion, on the tensors that
the expansion has them read; collectives and other ops that no planned kernel stands for are called
by `dispatch`. Knows nothing of processes.
"""

from dataclasses import replace

from torch.fx import Node

from meshwright.capture.ledger import Kernel, storage_of
from meshwright.capture.trace import Trace
from meshwright.execute.cut.cut import WHOLE, AnyCut
from meshwright.execute.member import CUT, ROWS, Segmented, check_held, check_rows
from meshwright.execute.on_parts import TeamPlace
from meshwright.execute.rebuild.builder import Builder
from meshwright.execute.rebuild.dispatch import (
    call_collective,
    find_brought,
    find_wanted,
    run_changed,
)
from meshwright.execute.rebuild.shares import RankShares
from meshwright.execute.rebuild.weight_cut import decide_cuts
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Phase
from meshwright.program.expand.expansion import Expansion, Owned


def rebuild(step: TracedStep, expansion: Expansion, shares: RankShares) -> TracedStep:
    """The traced step of an expansion, on one rank."""
    return _build(Builder(step, expansion, shares, {}))


def find_cuts(step: TracedStep, expansion: Expansion, shares: RankShares) -> dict[str, AnyCut]:
    """How a tensor team cuts every weight, by name: as the ops that read the weight need it."""
    segments: dict[str, tuple[int, ...]] = {}
    while True:
        builder = Builder(step, expansion, shares, segments)
        try:
            _build(builder)
        except Segmented as found:
            segments |= _alike(builder, found)
            continue
        return builder.cutter.cuts


def _alike(builder: Builder, found: Segmented) -> dict[str, tuple[int, ...]]:
    """The segments of all weights of the shapes of those that were found, which other layers have,
    too."""
    shapes = {tuple(builder.held.planned(name).shape) for name in found.names}
    return {
        name: found.sizes
        for name in builder.step.trace.parameter_names
        if tuple(builder.held.planned(name).shape) in shapes
    }


def _build(builder: Builder) -> TracedStep:
    """Call all ops of the expansion, and read the trace that they make."""
    graph, expansion = builder.graph, builder.expansion
    num_forward = num_backward = 0
    for op in range(graph.num_ops):
        builder.team = builder.shares.team(op)
        # Updates read sums over all who hold the same weights, whatever terms these had.
        is_update = graph.phase[op] == Phase.UPDATE
        builder.context = TeamPlace() if is_update else builder.shares.context(op)
        if expansion.is_collective[op] or expansion.origin[op] < 0:
            _keep_results(builder, op, call_collective(builder, op))
        else:
            _run_kernel(builder, op)
        if graph.phase[op] <= Phase.FORWARD:
            num_forward = len(builder.nodes.nodes)
        if graph.phase[op] <= Phase.BACKWARD:
            num_backward = len(builder.nodes.nodes)
    builder.nodes.output([builder.shaped(builder.step.trace.returned[0])])
    trace = replace(
        builder.step.trace,
        graph=builder.nodes,
        constants=builder.held.constants,
        num_forward=num_forward,
        num_backward=num_backward,
    )
    return _read(builder, trace)


def _run_kernel(builder: Builder, op: int) -> None:
    """Call the planned kernel of an op on what the op reads."""
    kernel = builder.kernel(op)
    read, weights = builder.tensors_read(op), builder.weights_read(op)
    brought = find_brought(builder, op)
    made: dict[Node, Node] = {}

    def given(old: Node) -> Node:
        if old in brought:
            return brought[old]
        version = kernel.reads.get(old.name)
        if version is None:  # only its shape counts
            return builder.shaped(old)
        return builder.view(old, builder.base(version, read), made, weights)

    decide_cuts(builder, op, kernel, builder.shares.whole_weights(builder.step))
    new = run_changed(builder, op, given)
    if new is None:
        held, has_rows = builder.planned_held(op), builder.planned_rows(op)
        wanted = find_wanted(builder, op)
        new = builder.call_by_member(kernel.node, given, held, wanted, has_rows)
    builder.latest[kernel.node] = new
    _keep_kernel(builder, op, kernel, new)


def _keep_kernel(builder: Builder, op: int, kernel: Kernel, new: Node) -> None:
    """Note which storage each tensor that a kernel makes is in."""
    step, read = builder.step, builder.tensors_read(op)
    fresh = {each.version: each.place for each in step.outputs(kernel)}
    for tensor in builder.graph.outputs[op].tolist():
        origin = int(builder.expansion.tensor_origin[tensor])
        if origin < 0:
            continue
        version = step.versions[origin]
        if version in fresh:
            place = fresh[version]
            builder.root[tensor] = new if place is None else builder.item(new, place)
            _check_cuts(builder, op, tensor)
        else:  # the kernel wrote into a storage that was there
            written = step.ledger.versions[version].replaces
            base = builder.base(written, read)
            builder.root[tensor] = builder.held.root(written) if base is None else base


def _check_cuts(builder: Builder, op: int, tensor: int) -> None:
    """Check that a member has of a tensor what it was planned to have."""
    name, meta = builder.graph.op_names[op], builder.root[tensor].meta
    if not meta["val"].numel():
        return
    if builder.team.width > 1:
        check_held(name, meta.get(CUT, WHOLE), Owned(int(builder.expansion.held[tensor])))
    if builder.context.width > 1:
        check_rows(name, meta.get(ROWS, WHOLE), bool(builder.expansion.rows[tensor]))


def _keep_results(builder: Builder, op: int, made: list[Node]) -> None:
    """Note what a collective gives: one node a tensor that it makes, in their order."""
    graph, ledger = builder.graph, builder.step.ledger
    outputs = [each for each in graph.outputs[op].tolist() if graph.tensor_bytes[each] > 0]
    for tensor, node in zip(outputs, made, strict=True):
        builder.root[tensor] = node
        origin = int(builder.expansion.tensor_origin[tensor])
        if origin >= 0:
            version = ledger.versions[builder.step.versions[origin]]
            source = ledger.kernels[version.source]
            if version.replaces < 0 and len(source.made) == 1:
                builder.latest[source.node] = node


def _read(builder: Builder, trace: Trace) -> TracedStep:
    """Read a trace that was built, and find the version of each tensor of the expansion."""
    graph, ledger = builder.graph, trace.ledger
    assert len(ledger.kernels) == graph.num_ops, "a kernel an op"
    found = []
    for tensor in range(graph.num_tensors):
        if tensor not in builder.root:
            found.append(-1)
            continue
        storage = storage_of(builder.root[tensor].meta["val"])
        made = ledger.kernels[int(graph.tensor_source[tensor])].made
        found.append(next(v for v in made if ledger.versions[v].storage == storage))
    return TracedStep(
        trace=trace, ledger=ledger, samples=builder.step.samples, known_versions=tuple(found)
    )
