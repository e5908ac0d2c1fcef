"""Writes down what a region of a segment computes: calls on numbered tensors, as plain data.

Two regions that compute the same on tensors of the same layouts have equal recipes, whichever layer
of the model they are from, so that one compiled function serves both. Arguments are the views of
the traced step, not strides: a compiler sees through those. Knows nothing of compilers.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel, writes_argument
from meshwright.execute.draw import Draw, drawn_kernel
from meshwright.execute.item import OpLine, Segment
from meshwright.execute.last_use import made_name
from meshwright.execute.rebuild.storage import viewed_node
from meshwright.execute.steps import TracedSteps
from meshwright.execute.traced import Layout, relaid

SCALE: Hashable = ("scale",)
"""The name of the loss scale."""


@dataclass(frozen=True, slots=True)
class Base:
    """A tensor of a recipe by its number: inputs come first, then what calls make."""

    number: int


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor of which only the shape and the type count."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class RecipeCall:
    """A function called with tensors of the recipe, views of them, and constants."""

    target: Any
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class RecipeView:
    """A view of a tensor of the recipe."""

    call: RecipeCall
    base: Base
    layout: Layout
    """The layout that the traced step has there."""


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One op of a region."""

    call: RecipeCall
    made: tuple[tuple[int | None, Layout], ...]
    """What it allocates: the place among its results (None: the result itself) and its layout."""
    factor: float = 1.0
    """What its result is multiplied with."""
    scale: Base | None = None
    """A tensor that its result is multiplied with, too; None: there is none."""


@dataclass(frozen=True, slots=True)
class RegionRecipe:
    """What a region computes."""

    inputs: tuple[Layout, ...]
    steps: tuple[RecipeStep, ...]
    outputs: tuple[int, ...]
    """The numbers of the tensors that it returns."""


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a segment's lines, and its recipe."""

    lines: range
    inputs: tuple[Hashable, ...]
    """The names of the tensors that it is given."""
    outputs: tuple[tuple[int, int], ...]
    """Line and version of the tensors that it returns."""
    recipe: RegionRecipe


RegionFunction = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""From a list of a region's inputs, which it empties, to its outputs."""
Compiler = Callable[[RegionRecipe], RegionFunction | None]
"""Makes a function of a recipe; None: it cannot."""


def write_regions(
    segment: Segment,
    steps: TracedSteps,
    regions: Sequence[range],
    again: Sequence[Sequence[int]],
) -> list[Region]:
    """The regions of these lines of a segment; `again`: earlier lines that each runs once more."""
    writers = [
        _RecipeWriter(segment, steps, (*more, *lines))
        for lines, more in zip(regions, again, strict=True)
    ]
    wanted = {made_name(*each) for each in segment.outputs}
    wanted |= {made_name(line, version) for line, version, _, _ in segment.sums}
    inside = {number for lines in regions for number in lines}
    for number, line in enumerate(segment.lines):
        if number not in inside:
            wanted |= {name for _, name in line.reads}
    wanted |= {name for writer in writers for name in writer.inputs}
    return [writer.region(lines, wanted) for lines, writer in zip(regions, writers, strict=True)]


def run_recipe(
    recipe: RegionRecipe, given: Sequence[torch.Tensor], device: torch.device
) -> list[torch.Tensor]:
    """What a recipe makes of its inputs, which it may write to."""
    bases = list(given)
    for step in recipe.steps:
        result = _run_call(step.call, bases, device)
        for place, layout in step.made:
            made = result if place is None else result[place]
            made = made if step.factor == 1.0 else made * step.factor
            made = made if step.scale is None else made * bases[step.scale.number].to(made.dtype)
            assert made.dtype is layout.dtype, f"{step.call.target}: {layout.dtype}"
            bases.append(made if made.stride() == layout.stride else relaid(made, layout.stride))
    return [bases[number] for number in recipe.outputs]


def _run_call(call: RecipeCall, bases: Sequence[torch.Tensor], device: torch.device) -> Any:
    args = [_value(each, bases, device) for each in call.args]
    kwargs = {name: _value(each, bases, device) for name, each in call.kwargs}
    return call.target(*args, **kwargs)


def _value(value: Any, bases: Sequence[torch.Tensor], device: torch.device) -> Any:
    if isinstance(value, Base):
        return bases[value.number]
    if isinstance(value, RecipeView):
        found = _run_call(value.call, bases, device)
        if isinstance(found, torch.Tensor) and not _lies(found, value.layout):
            layout = value.layout  # a kernel of this device made other strides than the traced one
            base = bases[value.base.number]
            return base.as_strided(layout.shape, layout.stride, layout.offset)
        return found
    if isinstance(value, RecipeCall):
        return _run_call(value, bases, device)
    if isinstance(value, Like):
        return value.layout.empty(device)
    if isinstance(value, tuple):
        return [_value(each, bases, device) for each in value]
    return device if isinstance(value, torch.device) else value


def _lies(tensor: torch.Tensor, layout: Layout) -> bool:
    if tuple(tensor.shape) != layout.shape:
        return False
    triples = zip(tensor.shape, tensor.stride(), layout.stride, strict=True)
    return all(size <= 1 or one == other for size, one, other in triples)


class _RecipeWriter:
    """A region's calls as they are written."""

    def __init__(self, segment: Segment, steps: TracedSteps, lines: Sequence[int]) -> None:
        self.segment, self.steps, self.lines = segment, steps, lines
        self.inputs: dict[Hashable, Layout] = {}
        self.numbers: dict[Hashable, Base] = {}
        """The tensor of each name."""
        own = set(lines)
        for number in lines:
            self._take_inputs(number, own)
        self.count = len(self.inputs)

    def _take_inputs(self, number: int, own: Set[int]) -> None:
        line = self.segment.lines[number]
        for version, name in line.reads:
            is_own = isinstance(name, tuple) and name[0] == "made" and name[1] in own
            if not is_own and name not in self.inputs:
                self.numbers[name] = Base(len(self.inputs))
                self.inputs[name] = self.steps[line.samples].layouts[version]
        draw = self.steps.draws(line.samples).get(line.op)
        name = None if draw is None else _keys_name(draw, line)
        if draw is not None and name not in self.inputs:
            self.numbers[name] = Base(len(self.inputs))
            shape = max(1, draw.samples(line.samples)), 2
            self.inputs[name] = Layout(shape, (2, 1), 0, torch.int32)
        if self.segment.is_scaled and line.op == self.steps[line.samples].seed_kernel:
            self.numbers.setdefault(SCALE, Base(len(self.inputs)))
            self.inputs[SCALE] = Layout((), (), 0, torch.float32)

    def region(self, lines: range, wanted: Set[Hashable]) -> Region:
        """The region, which returns what others want of its own lines."""
        calls = tuple(self.write(number) for number in self.lines)
        outputs = tuple(self._find_outputs(lines, wanted))
        recipe = RegionRecipe(
            inputs=tuple(self.inputs.values()),
            steps=calls,
            outputs=tuple(self.numbers[made_name(*each)].number for each in outputs),
        )
        return Region(lines, tuple(self.inputs), outputs, recipe)

    def _find_outputs(self, lines: range, wanted: Set[Hashable]) -> Iterator[tuple[int, int]]:
        """Line and version of what is wanted, and the loss; not what it wrote to its inputs."""
        for number in lines:
            line = self.segment.lines[number]
            step = self.steps[line.samples]
            for version in step.ledger.kernels[line.op].made:
                name = made_name(number, version)
                is_own = self.numbers[name].number >= len(self.inputs)
                if is_own and (name in wanted or version == step.loss_version):
                    yield number, version

    def write(self, number: int) -> RecipeStep:
        """The call of a line."""
        line = self.segment.lines[number]
        step = self.steps[line.samples]
        kernel = step.ledger.kernels[line.op]
        names = dict(line.reads)
        call = self._call(kernel, names)
        draw = self.steps.draws(line.samples).get(line.op)
        if draw is not None:
            drawn = drawn_kernel(kernel.node, draw, is_written=True)
            keys = self.numbers[_keys_name(draw, line)]
            call = RecipeCall(drawn, (keys, *call.args), call.kwargs)
        made = []
        for output in step.outputs(kernel):
            self.numbers[made_name(number, output.version)] = Base(self.count)
            self.count += 1
            made.append((output.place, step.layouts[output.version]))
        for version in kernel.made:
            old = step.ledger.versions[version].replaces
            if old >= 0:
                self.numbers[made_name(number, version)] = self.numbers[names[old]]
        if line.op != step.seed_kernel:
            return RecipeStep(call, tuple(made))
        return RecipeStep(call, tuple(made), self.segment.weight, self.numbers.get(SCALE))

    def _call(self, kernel: Kernel, names: Mapping[int, Hashable]) -> RecipeCall:
        def value(node: Node) -> Any:
            version = kernel.reads.get(node.name)
            if version is None:
                return Like(Layout.of(node.meta["val"]))
            return _view(node, self.numbers[names[version]])

        node = kernel.node
        args = tuple(_frozen(each, value) for each in node.args)
        kwargs = {name: _frozen(each, value) for name, each in node.kwargs.items()}
        if not kernel.reads and any(isinstance(each, Node) for each in node.args):
            kwargs["device"] = torch.device("cpu")  # stands for the rank's own
        return RecipeCall(node.target, args, tuple(kwargs.items()))


def _keys_name(draw: Draw, line: OpLine) -> Hashable:
    """The name of the keys that an op draws with."""
    return "keys", draw.op, draw.samples(line.samples)


def _frozen(value: Any, of_node: Any) -> Any:
    """An argument of a traced call as data that can be compared."""
    if isinstance(value, Node):
        return of_node(value)
    if isinstance(value, list | tuple):
        return tuple(_frozen(each, of_node) for each in value)
    return value


def _view(node: Node, base: Base) -> Any:
    """The value of a node that lies in a tensor of the recipe."""
    source = viewed_node(node)
    if source is None:
        return base
    if writes_argument(node.target):
        return _view(source, base)

    def value(each: Node) -> Any:
        assert each is source, f"{node.name}: a view of one tensor"
        return _view(each, base)

    call = RecipeCall(
        node.target,
        tuple(_frozen(each, value) for each in node.args),
        tuple((name, _frozen(each, value)) for name, each in node.kwargs.items()),
    )
    if not isinstance(node.meta["val"], torch.Tensor):
        return call  # several views of which one is taken
    return RecipeView(call, base, Layout.of(node.meta["val"]))
