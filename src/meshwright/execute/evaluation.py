"""What a model computes in `eval` mode: changes of the ops of its training step, and forward with
these changes, which a rank runs between the steps that train.

Both steps are traced and their kernels walked side by side. Evaluation has the kernels of training
but for those that drop something at random, whose results stand for what they were given, and batch
norms and attention, which are told their mode. Any other difference is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node

from meshwright.capture.ledger import Kernel, op_name
from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError, quoted
from meshwright.execute.batch_norm import batch_norm, stored_batch_norm
from meshwright.execute.bind import bind_part
from meshwright.execute.cut.around import Around
from meshwright.execute.draw import Draw
from meshwright.execute.item import Key
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered
from meshwright.execute.progress import Progress
from meshwright.execute.shard import Share
from meshwright.execute.steps import PlannedSteps, TracedSteps
from meshwright.execute.tensors import TensorWorker
from meshwright.execute.traced import Layout, Output, TracedStep
from meshwright.execute.walk import ProgramWalk
from meshwright.program.expand.synchronise import NORMS
from meshwright.program.forward import keep_needed

_MODE = {**dict.fromkeys(NORMS, 5), "attention": 4}
"""By name of an op: the place of the argument that tells it its mode, which may differ."""


@dataclass(frozen=True, slots=True)
class Passed:
    """In place of an op: one of its arguments is its result."""

    argument: int
    place: int | None
    """Which of its results, where there are several."""
    is_written: bool
    """Whether the op writes into that argument, so that there is nothing to do."""


@dataclass(frozen=True, slots=True)
class Told:
    """An op that is told another mode."""

    mode: Any


Change = Passed | Told


def find_changes(training: TracedStep, evaluation: TracedStep) -> dict[int, Change]:
    """By kernel of a training step: how it differs in the step of the same model in `eval` mode."""
    return _Pairs(training, evaluation).changes()


class _Pairs:
    """The versions and kernels of a training step that stand for those of an evaluation."""

    def __init__(self, training: TracedStep, evaluation: TracedStep) -> None:
        self.training, self.evaluation = training, evaluation
        first = {name: version for version, name in evaluation.held.items()}
        self.stands = {
            version: first[name] for version, name in training.held.items() if name in first
        }
        """By version of training: the version of evaluation that has the same numbers."""
        self.extra: set[int] = set()
        """Kernels of training that evaluation has not."""
        self.bound: dict[int, int] = {}
        """What versions that such kernels make have to stand for, because of their readers."""
        self.found: dict[int, Change] = {}

    def changes(self) -> dict[int, Change]:
        theirs = list(_needed(self.evaluation))
        place = 0
        for op in _needed(self.training):
            if place < len(theirs) and self._pair(op, theirs[place]):
                place += 1
            else:
                self.extra.add(op)
        if place < len(theirs):
            kernel = self.evaluation.ledger.kernels[theirs[place]]
            raise _refused(f"op {quoted(kernel.node.name)} has no counterpart in training")
        loss = self.training.loss_version
        self.bound.setdefault(loss, self.stands.get(loss, self.evaluation.loss_version))
        for version, wanted in self.bound.items():
            if self.stands.get(version) != wanted and not self._pass(version, wanted):
                kernel = self.training.ledger.kernels[self._source(version)]
                raise _refused(f"op {quoted(kernel.node.name)} of training does more than to drop")
        return self.found

    def _source(self, version: int) -> int:
        return self.training.ledger.versions[version].source

    def _pair(self, op: int, other: int) -> bool:
        """Whether two kernels do the same, if what the first reads has the right numbers."""
        one, two = self.training.ledger.kernels[op], self.evaluation.ledger.kernels[other]
        if one.node.target is not two.node.target:
            return False
        mode, bound = _MODE.get(op_name(one.node), -1), dict[int, int]()
        is_told = mode >= 0 and one.node.args[mode] != two.node.args[mode]
        for ours, theirs in zip(*(_arguments(each, mode) for each in (one, two)), strict=False):
            if isinstance(ours, Node) and isinstance(theirs, Node):
                if not self._agrees(one.reads.get(ours.name), two.reads.get(theirs.name), bound):
                    return False
                ours, theirs = (Layout.of(each.meta["val"]) for each in (ours, theirs))
            if ours != theirs:
                return False
        self.bound |= bound
        if is_told:
            self.found[op] = Told(two.node.args[mode])
        pairs = {each.place: each.version for each in self.evaluation.outputs(two)}
        for each in self.training.outputs(one):
            self.stands[each.version] = pairs[each.place]
        if not is_told:
            written = zip(_written(self.training, one), _written(self.evaluation, two), strict=True)
            self.stands |= dict(written)
        return True

    def _agrees(self, ours: int | None, theirs: int | None, bound: dict[int, int]) -> bool:
        """Whether a version has the numbers of another, or may come to have them."""
        if ours is None or theirs is None:  # only the shape counts
            return ours is theirs
        known = self.stands.get(ours, self.bound.get(ours, bound.get(ours)))
        if known is None and self._source(ours) in self.extra:
            bound[ours] = known = theirs
        return known == theirs

    def _pass(self, version: int, wanted: int) -> bool:
        """Let a kernel that evaluation has not pass an argument on that has the right numbers."""
        op = self._source(version)
        if op not in self.extra:
            return False
        kernel, whole = self.training.ledger.kernels[op], self.training.layouts[version]
        places = {each.version: each.place for each in self.training.outputs(kernel)}
        replaced = self.training.ledger.versions[version].replaces
        for number, node in enumerate(kernel.node.args):
            read = kernel.reads.get(node.name) if isinstance(node, Node) else None
            if not isinstance(node, Node) or read is None or replaced not in (-1, read):
                continue
            is_whole = self.training.layouts[read].length == whole.length
            is_alike = is_whole and Layout.of(node.meta["val"]) == whole
            if replaced < 0 and not is_alike:
                continue
            change = Passed(number, places.get(version), is_written=replaced >= 0)
            if self.stands.get(read) == wanted or self._pass(read, wanted):
                return self.found.setdefault(op, change) == change
        return False


def _needed(step: TracedStep) -> Iterator[int]:
    """The kernels that the loss needs, in order."""
    ledger = step.ledger
    found, left = set[int](), [ledger.versions[step.loss_version].source]
    while left:
        number = left.pop()
        if number < 0 or number in found:
            continue
        found.add(number)
        kernel = ledger.kernels[number]
        before = [ledger.versions[each].replaces for each in kernel.made]
        read = [*kernel.reads.values(), *(each for each in before if each >= 0)]
        left += [ledger.versions[each].source for each in read]
    return iter(sorted(found))


def _arguments(kernel: Kernel, mode: int) -> list[Any]:
    """What a kernel is given but for its mode, flat, and how many things that is."""
    args = [each for number, each in enumerate(kernel.node.args) if number != mode]
    leaves = pytree.tree_leaves((args, dict(kernel.node.kwargs)))
    return [len(leaves), *leaves]


def _written(step: TracedStep, kernel: Kernel) -> list[int]:
    """What a kernel writes in place."""
    return [each for each in kernel.made if step.ledger.versions[each].replaces >= 0]


def _refused(why: str) -> InputError:
    return InputError(
        f"evaluation: a model must compute in eval mode what it does in training, less what it "
        f"drops at random, but {why}"
    )


class EvaluatedSteps(TracedSteps):
    """The steps of a rank in `eval` mode, of which forward is there to be run."""

    def __init__(self, steps: TracedSteps, changes: Mapping[int, Change]) -> None:
        super().__init__()
        self.steps, self.changes = steps, changes
        self[steps.any().samples] = self._make(steps.any().samples)  # so that one is there

    def _make(self, samples: int) -> TracedStep:
        step = self.steps[samples]
        return _changed(step, self.changes) if self.changes else step

    def _find_draws(self, samples: int) -> dict[int, Draw]:
        known = self.steps.draws(samples)
        return {op: draw for op, draw in known.items() if op not in self.changes}

    def _find_other(self, samples: int) -> int:
        return self.steps.other(samples).samples

    def shares(self) -> Mapping[str, Share]:
        """What of the state the rank holds a shard of only, by name."""
        return self.steps.shares()

    def only(self) -> dict[int, set[int]]:
        """By op that is changed: the tensors that it still reads."""
        step = self.any()
        return {
            op: {step.tensor_of.get(each, -1) for each in step.ledger.kernels[op].reads.values()}
            for op in self.changes
        }


def _changed(step: TracedStep, changes: Mapping[int, Change]) -> TracedStep:
    """A copy of a step with other kernels."""
    graph, copy_of = Graph(), dict[Node, Node]()
    for node in step.trace.graph.nodes:
        copy_of[node] = graph.node_copy(node, copy_of.__getitem__)
    kernels = []
    for op, kernel in enumerate(step.ledger.kernels):
        copied = replace(kernel, node=copy_of[kernel.node])
        change = changes.get(op)
        kernels.append(copied if change is None else _apply(change, copied, step.outputs(kernel)))
    return replace(
        step,
        trace=replace(step.trace, graph=graph),
        ledger=replace(step.ledger, kernels=kernels),
        known_layouts=tuple(step.layouts),
    )


def _apply(change: Change, kernel: Kernel, outputs: Sequence[Output]) -> Kernel:
    """A kernel as evaluation has it; its node is changed."""
    node = kernel.node
    if isinstance(node.target, Around) and not isinstance(change, Told):
        raise _refused(f"op {quoted(node.name)} runs on a part of what it drops")
    if isinstance(change, Passed):
        if change.is_written:
            return _replaced(kernel, _same, [node.args[change.argument]], kernel.made)
        return _first(kernel, _copy, [node.args[change.argument]], outputs, change.place)
    if op_name(node) == "attention":
        place = _MODE["attention"]
        node.args = (*node.args[:place], change.mode, *node.args[place + 1 :])
        return kernel
    given = list(node.args)
    read = [given[0], *given[2:6]] if node.target is batch_norm else given[:5]
    return _first(kernel, stored_batch_norm, [*read, given[-1]], outputs, 0)


def _first(
    kernel: Kernel, target: Any, args: list[Any], outputs: Sequence[Output], place: int | None
) -> Kernel:
    """A kernel that makes one of its results alone."""
    version = next(each.version for each in outputs if each.place == place)
    if place is not None:
        kernel.node.meta["val"] = kernel.node.meta["val"][place]
    return _replaced(kernel, target, args, [version])


def _replaced(kernel: Kernel, target: Any, args: list[Any], made: list[int]) -> Kernel:
    node = kernel.node
    names = {each.name for each in args if isinstance(each, Node)}
    node.target, node.args, node.kwargs = target, tuple(args), {}
    reads = {name: version for name, version in kernel.reads.items() if name in names}
    return replace(kernel, reads=reads, made=made)


def _same(values: torch.Tensor) -> torch.Tensor:
    return values


def _copy(values: torch.Tensor) -> torch.Tensor:
    return values.clone()  # readers may write to it


_TWO = 2
"""Samples at which steps are compared: one sample may need other ops than the graph has."""


class RankEvaluation:
    """One rank's forward; every rank opens and runs it alike."""

    def __init__(
        self,
        planned: PlannedSteps,
        trained: TensorWorker,
        progress: Progress,
        *,
        is_mean: bool,
    ) -> None:
        """`trained`: what the rank does in a step that trains, and the state that it holds."""
        lowered = trained.lowered
        samples = next((each for each in planned if each >= _TWO), _TWO)
        changes = find_changes(planned[samples], planned.evaluated(samples))
        origin = lowered.expansion.origin.tolist()
        evaluated = EvaluatedSteps(
            trained.steps, {op: changes[each] for op, each in enumerate(origin) if each in changes}
        )
        self.lowered = lower_forward(lowered, evaluated)
        lookup = Lookup(lowered=self.lowered, steps=evaluated, is_mean=is_mean)
        self.part = bind_part(lookup, trained.part.device)
        self.trained = trained.held
        self.places = [trained.part.state.index(name) for name in self.part.state]
        self.held = replace(trained.held, state=[], sums=[None] * self.part.num_sums, losses=[])
        exchange, compiler = trained.exchange, trained.compiler
        worker = TensorWorker(
            self.lowered, self.part, evaluated, exchange, self.held, compiler=compiler
        )
        self.walk = ProgramWalk(self.lowered.program, self.part, exchange, worker, progress)

    def run(self, inputs: Mapping[Key, torch.Tensor]) -> list[torch.Tensor]:
        """This rank's parts of the loss of one batch, with the state as it is now."""
        self.held.state[:] = [self.trained.state[each] for each in self.places]
        self.walk.run(inputs)
        losses, self.held.losses = self.held.losses, []
        return losses


def lower_forward(lowered: Lowered, steps: EvaluatedSteps) -> Lowered:
    """What a lowered plan has to run for its losses alone."""
    step, timeline = steps.any(), lowered.timeline
    loss = step.ledger.versions[step.loss_version].source
    program, kept = keep_needed(lowered.program, {loss}, steps.only())
    return replace(
        lowered,
        program=program,
        timeline=replace(
            timeline, program=program, start=timeline.start[kept], finish=timeline.finish[kept]
        ),
        num_planned=int(kept[: lowered.num_planned].sum()),
    )
