"""Random numbers that no plan changes: a function of the seed, the step, the op and the sample.

A generator gives one number after the other, so what an op draws depends on all that was drawn
before it and on how many samples it is given. Here each op has, in each step, a generator for every
sample of the batch. Whichever device runs the op, in whichever microbatch, beside whichever other
samples: a sample gets the numbers that one process gives it. Knows nothing of plans.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from meshwright.capture.attention import Kept, attend_dropping, attend_dropping_backward
from meshwright.capture.ledger import op_name
from meshwright.execute.cut.around import Around
from meshwright.execute.cut.cut import Cut
from meshwright.execute.sample import Growth, count_blocks, find_growth
from meshwright.execute.shard import Share
from meshwright.execute.traced import Layout, TracedStep

Fill = Callable[[Tensor, torch.Generator], object]
"""Fills a tensor with numbers from a generator."""
Drawn = Callable[..., Any]
"""An op that draws: from a `Stream` and its arguments to its results."""

_NO_SAMPLE = -1
_FILLING = {
    "bernoulli_", "uniform_", "normal_", "exponential_", "log_normal_", "cauchy_", "geometric_",
    "random_",
}  # fmt: skip
"""They fill the tensor that they are given."""


@dataclass(frozen=True, slots=True)
class SampleDim:
    """How samples along in what is drawn: `blocks` times one after the other along a dimension."""

    dim: int
    times: int
    """How many entries of the dimension are of one sample, in all blocks together."""
    blocks: int


@dataclass(frozen=True, slots=True)
class Stream:
    """The numbers of one op in one step."""

    seed: int
    step: int
    op: int
    first: int
    """The first of the samples that it is run on, counted in the whole batch."""

    def fill(self, tensor: Tensor, along: SampleDim | None, fill: Fill) -> None:
        """Fill a tensor sample by sample; at once where there are no samples in it."""
        if along is None:
            self._fill_one(tensor, _NO_SAMPLE, fill)
            return
        count = tensor.shape[along.dim] // along.times
        sizes = (along.blocks, count, along.times // along.blocks)
        samples = tensor.unflatten(along.dim, sizes)  # type: ignore[no-untyped-call]
        for number in range(count):
            self._fill_one(samples.select(along.dim + 1, number), self.first + number, fill)

    def seeded(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function after torch's own generators are seeded: the numbers are the same
        wherever it runs, but depend on how many samples it sees."""
        torch.manual_seed(self._seed(self.first))
        return target(*args, **kwargs)

    def _seed(self, sample: int) -> int:
        text = f"{self.seed}/{self.step}/{self.op}/{sample}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1

    def _fill_one(self, tensor: Tensor, sample: int, fill: Fill) -> None:
        generator = torch.Generator(tensor.device).manual_seed(self._seed(sample))
        if tensor.is_contiguous():
            fill(tensor, generator)
        else:  # the order of numbers is that of indices, however the tensor lies in memory
            numbers = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            fill(numbers, generator)
            tensor.copy_(numbers)


@dataclass(frozen=True, slots=True)
class Draw:
    """An op of a traced step that draws."""

    op: int
    along: SampleDim | None
    """In the whole tensor, where a rank has a part of it."""
    parts: tuple[Share, ...] = ()
    """Which part of what is drawn for whole samples a rank has: one of one of it."""


def draws(node: Node) -> bool:
    """Whether a kernel draws random numbers, or uses again what another has drawn."""
    is_attention = op_name(node) in ("attention", "attention_backward")
    drops = is_attention and _dropout_of(node) > 0
    return drops or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _dropout_of(node: Node) -> float:
    """Of an attention or its backward: dropout stands before the last two arguments."""
    probability = node.args[-3]
    assert isinstance(probability, float)
    return probability


def find_draws(one: TracedStep, two: TracedStep) -> dict[int, Draw]:
    """By kernel that draws: which op's numbers it takes, and how samples lie in them.

    The steps are the same one on two numbers of samples.
    """
    found: dict[int, Draw] = {}
    blocks: dict[int, int] = {}
    for number, kernel in enumerate(one.ledger.kernels):
        if not draws(kernel.node):
            continue
        blocks = blocks or count_blocks(one, two)
        if op_name(kernel.node) == "attention_backward":
            made = kernel.node.args[4]  # what forward made, with a mask that is made again
            assert isinstance(made, Node)
            found[number] = found[one.ledger.kernel_of[made.name]]
            continue
        growth = _growth(one, two, number)
        times = 0 if growth is None else growth.times
        apart = blocks.get(kernel.made[0], 1) if times > 1 else 1
        along = None if growth is None else SampleDim(growth.dim, growth.times, apart)
        found[number] = Draw(number, along)
    return found


def _growth(one: TracedStep, two: TracedStep, number: int) -> Growth | None:
    values = [_drawn_value(step.ledger.kernels[number].node) for step in (one, two)]
    small, large = (tuple(each.shape) for each in values)
    return find_growth(small, large, tuple(values[0].stride()), one.samples, two.samples)


def _drawn_value(node: Node) -> Tensor:
    """The tensor whose shape the numbers have, but for the last dimensions of attention."""
    if op_name(node) in _FILLING or op_name(node) == "attention":
        first = node.args[0]
        assert isinstance(first, Node)
        value: Any = first.meta["val"]
    else:
        value = node.meta["val"]
    tensor: Tensor = value if isinstance(value, Tensor) else value[0]
    return tensor


def is_repeatable(node: Node) -> bool:
    """Whether a kernel that draws gives each sample the same numbers, however it is run."""
    return _find_kernel(_name(node.target)) is not None


def drawn_kernel(node: Node, draw: Draw, device: torch.device) -> Drawn:
    """The kernel of a node that draws, as a function of a stream and its arguments."""
    return _drawn(node.target, node, draw, device)


def _drawn(target: Any, node: Node, draw: Draw, device: torch.device) -> Drawn:
    if isinstance(target, Around):
        inner = _drawn(target.target, node, draw, device)
        return lambda stream, *args, **kwargs: target.call(partial(inner, stream), *args, **kwargs)
    kernel = _find_kernel(_name(target))
    if kernel is None:
        return lambda stream, *args, **kwargs: stream.seeded(target, *args, **kwargs)
    value = node.meta["val"]
    layout = Layout.of(value) if isinstance(value, Tensor) else None
    make = None if layout is None else partial(layout.empty, device)
    return partial(_run, kernel, draw, make)


def draw_again(target: Any, draw: Draw, stream: Stream, args: Any, kwargs: Any) -> Any:
    """Run an op that draws, in a program as it was written, with the numbers of a stream."""
    kernel = _find_kernel(_name(target))
    assert kernel is not None, "only what is repeatable is drawn again"
    return _run(kernel, draw, lambda: target(*args, **kwargs), stream, *args, **kwargs)


def _run(
    kernel: "_Kernel",
    draw: Draw,
    make: Callable[[], Tensor] | None,
    stream: Stream,
    *args: Any,
    **_: Any,
) -> Any:
    return kernel(Drawing(stream, draw, make), *args)


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a kernel needs to know to draw."""

    stream: Stream
    draw: Draw
    make: Callable[[], Tensor] | None
    """Makes its result, where that is a tensor of numbers that are yet to be drawn."""

    def fill(self, tensor: Tensor, method: str, *args: Any) -> Tensor:
        """Fill a tensor by one of its own methods that draw."""

        def fill(part: Tensor, generator: torch.Generator) -> None:
            getattr(part, method)(*args, generator=generator)

        parts = [each for each in self.draw.parts if isinstance(each.cut, Cut)]
        if not parts:
            self.stream.fill(tensor, self.draw.along, fill)
            return tensor
        shape = list(tensor.shape)
        for each in reversed(parts):
            assert isinstance(each.cut, Cut)
            shape[each.cut.dim] = each.cut.size
        whole = tensor.new_empty(shape)
        self.stream.fill(whole, self.draw.along, fill)
        for each in parts:
            whole = each.part(whole)
        return tensor.copy_(whole)

    def fill_new(self, method: str, *args: Any) -> Tensor:
        """Fill a new tensor."""
        assert self.make is not None
        return self.fill(self.make(), method, *args)

    def keep(self, shape: Sequence[int], dropout: float, device: torch.device) -> Kept:
        """Which numbers of a tensor of this shape are not dropped."""
        mask = torch.empty(tuple(shape), dtype=torch.bool, device=device)
        self.fill(mask, "bernoulli_", 1 - dropout)
        return Kept(mask, 0.0 if dropout == 1 else 1 / (1 - dropout))


_Kernel = Callable[..., Any]
"""From a `Drawing` and the arguments of an op to its results."""


def _find_kernel(name: str) -> _Kernel | None:
    """The kernel of an op by its name and overload; None: samples cannot be told apart in it."""
    if name in _KERNELS:
        return _KERNELS[name]
    method, _, overload = name.partition(".")
    if method in _FILLING and overload != "Tensor":  # of which probabilities are a tensor
        return lambda drawing, tensor, *args: drawing.fill(tensor, method, *args)
    return None


def _name(target: Any) -> str:
    """As in `native_dropout.default`."""
    packet = getattr(target, "_overloadpacket", None)
    return f"{getattr(packet, '__name__', '')}.{getattr(target, '_overloadname', '')}"


def _drop(
    drawing: Drawing, values: Tensor, probability: float, _: bool | None = True
) -> tuple[Tensor, Tensor]:
    kept = drawing.keep(values.shape, probability, values.device)
    return kept.of(values), kept.mask


def _attend(drawing: Drawing, query: Tensor, key: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    value, mask, dropout, is_causal, scale = rest
    kept = drawing.keep((*query.shape[:-1], key.shape[-2]), dropout, query.device)
    return attend_dropping(query, key, value, mask, kept, is_causal, scale)


def _attend_backward(
    drawing: Drawing, gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any
) -> tuple[Tensor, Tensor, Tensor]:
    made, log_sum, mask, dropout, is_causal, scale = rest
    kept = drawing.keep((*query.shape[:-1], key.shape[-2]), dropout, query.device)
    return attend_dropping_backward(
        (query, key, value), gradient, made, log_sum, mask, kept, is_causal, scale
    )


_KERNELS: dict[str, _Kernel] = {
    "native_dropout.default": _drop,
    "attention.default": _attend,
    "attention_backward.default": _attend_backward,
    "rand.default": lambda drawing, *_: drawing.fill_new("uniform_"),
    "rand_like.default": lambda drawing, *_: drawing.fill_new("uniform_"),
    "randn.default": lambda drawing, *_: drawing.fill_new("normal_"),
    "randn_like.default": lambda drawing, *_: drawing.fill_new("normal_"),
    "bernoulli.p": lambda drawing, _, probability: drawing.fill_new("bernoulli_", probability),
}
