"""Random numbers that no plan changes: a function of the seed, the step, the op and the sample.

A generator gives one number after the other, so what an op draws depends on all that was drawn
before it and on how many samples it is given. Here each op has, in each step, a key for every
sample of the batch, and its numbers are those of the key (see `meshwright.execute.random`).
Whichever device runs the op, in whichever microbatch, beside whichever other samples: a sample gets
the numbers that one process gives it. Knows nothing of plans.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from meshwright.capture.attention import Kept, attend_dropping, attend_dropping_backward
from meshwright.capture.attention_kernel import Attended
from meshwright.capture.ledger import op_name
from meshwright.execute.cut.around import Around
from meshwright.execute.cut.cut import Cut
from meshwright.execute.random.attention import (
    fused_attention,
    fused_attention_backward,
    may_fuse,
)
from meshwright.execute.random.bits import KERNELS, WRITTEN, BitSource, limit
from meshwright.execute.random.distribution import DISTRIBUTIONS, whole, whole_end
from meshwright.execute.random.keys import sample_keys
from meshwright.execute.sample import count_blocks, find_growth
from meshwright.execute.shard import Share
from meshwright.execute.traced import Layout, TracedStep

_FILLING = {"bernoulli_", "random_", *DISTRIBUTIONS}
"""They fill the tensor that they are given."""


@dataclass(frozen=True, slots=True)
class SampleDim:
    """How samples lie in what is drawn: `blocks` times one after the other along a dimension."""

    dim: int
    times: int
    """How many entries of the dimension are of one sample, in all blocks together."""
    blocks: int

    def count(self, shape: Sequence[int]) -> int:
        """How many samples there are."""
        return shape[self.dim] // self.times


@dataclass(frozen=True, slots=True)
class Draw:
    """An op of a traced step that draws."""

    op: int
    along: SampleDim | None
    """In the whole tensor, where a rank has a part of it."""
    parts: tuple[Share, ...] = ()
    """Which part of what is drawn for whole samples a rank has: one of one of it."""

    def samples(self, samples: int) -> int:
        """How many keys it needs where a step runs on so many samples; 0: that of none."""
        return 0 if self.along is None else samples


def draws(node: Node) -> bool:
    """Whether a kernel draws random numbers, or uses again what another has drawn."""
    args: Any = node.args
    is_attention = op_name(node) in ("attention", "attention_backward")
    drops = is_attention and args[-3] > 0  # dropout stands before the last two arguments
    return drops or torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


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
        values = [_drawn_value(step.ledger.kernels[number].node) for step in (one, two)]
        small, large = (tuple(each.shape) for each in values)
        growth = find_growth(small, large, values[0].stride(), one.samples, two.samples)
        times = 0 if growth is None else growth.times
        apart = blocks.get(kernel.made[0], 1) if times > 1 else 1
        along = None if growth is None else SampleDim(growth.dim, growth.times, apart)
        found[number] = Draw(number, along)
    return found


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


def seeded(seed: int, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function after torch's own generators are seeded: the numbers are the same wherever
    it runs, but depend on how many samples it sees."""
    torch.manual_seed(seed)
    return target(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Drawn:
    """A repeatable op that draws, as a function of keys and its arguments.

    Equal for equal ops of equal layers.
    """

    target: Any
    along: SampleDim | None
    parts: tuple[Share, ...]
    layout: Layout | None
    """Of its result, where that is a tensor."""
    source: BitSource
    is_fused: bool | None = None
    """Whether it is attention that one kernel computes with its dropout; None: if there is one."""

    @property
    def name(self) -> str:
        """The name of the op and its overload."""
        return _name(self.target)

    def __call__(self, keys: Tensor, *args: Any, **kwargs: Any) -> Any:
        """Run the op with the numbers of these keys."""
        return self._call(self.target, keys, *args, **kwargs)

    def _call(self, target: Any, keys: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(target, Around):
            return target.call(partial(self._call, target.target, keys), *args, **kwargs)
        kernel = _find_kernel(_name(target))
        assert kernel is not None, "only what is repeatable has keys"
        make = None if self.layout is None else partial(self.layout.empty, keys.device)
        drawing = Drawing(self.along, self.parts, lambda _: keys, self.source, make, self.is_fused)
        return kernel(drawing, *args)


def drawn_kernel(node: Node, draw: Draw, *, is_written: bool = False) -> Drawn:
    """The kernel of a node that draws; `is_written`: in ops that a compiler merges with others."""
    value = node.meta["val"]
    layout = Layout.of(value) if isinstance(value, Tensor) else None
    if is_written:  # by its formula, until a kernel is chosen (`meshwright.execute.region`)
        return Drawn(node.target, draw.along, draw.parts, layout, WRITTEN, is_fused=False)
    return Drawn(node.target, draw.along, draw.parts, layout, KERNELS)


def draw_again(target: Any, draw: Draw, seed: int, step: int, args: Any, kwargs: Any) -> Any:
    """Run an op that draws, in a program as it was written, with the numbers of a step; the batch
    is whole."""
    kernel = _find_kernel(_name(target))
    assert kernel is not None, "only what is repeatable is drawn again"
    keys, make = partial(sample_keys, seed, step, draw.op), partial(target, *args, **kwargs)
    return kernel(Drawing(draw.along, draw.parts, keys, KERNELS, make), *args)


def drawn_alone(
    target: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Callable[[], Any] | None:
    """What a rank runs in the place of an op that draws, for an op that is timed by itself; None:
    it runs the op, or seeds torch's generators and runs it. Samples lie along the first dimension.
    """
    tensors = [each for each in args if isinstance(each, Tensor)]
    drops_nothing = _name(target).startswith("attention") and args[-3] == 0
    kernel = _find_kernel(_name(target))
    if kernel is None or drops_nothing or not tensors or not tensors[0].dim():
        return None
    keys = sample_keys(0, 0, 0, len(tensors[0])).to(tensors[0].device)
    make = partial(target, *args, **kwargs)
    drawing = Drawing(SampleDim(0, 1, 1), (), lambda _: keys, KERNELS, make)
    return partial(kernel, drawing, *args)


@dataclass(frozen=True, slots=True)
class Drawing:
    """What a kernel needs to know to draw."""

    along: SampleDim | None
    """In the whole tensor, where a rank has a part of it."""
    parts: tuple[Share, ...]
    keys: Callable[[int], Tensor]
    """Those of so many samples; 0: the key of what has none."""
    source: BitSource
    make: Callable[[], Tensor] | None
    """Makes its result, where that is a tensor of numbers that are yet to be drawn."""
    is_fused: bool | None = None
    """As `Drawn` has it."""

    def fuses(self, given: Attended) -> bool:
        """Whether attention drops whole samples' weights in one kernel with all else."""
        is_whole = not any(isinstance(each.cut, Cut) for each in self.parts)
        if not is_whole or self.along != SampleDim(0, 1, 1):
            return False
        return may_fuse(given) if self.is_fused is None else self.is_fused

    def fill(self, tensor: Tensor, method: str, *args: Any) -> Tensor:
        """Fill a tensor as one of its own methods does that draw."""
        if method == "bernoulli_":
            return tensor.copy_(self.mask(tensor.shape, tensor.device, *args))
        bits = self._draw(tensor.shape, tensor.device, self.source.bits)
        if method == "random_":
            return tensor.copy_(whole(bits, *_bounds(tensor.dtype, *args)))
        return tensor.copy_(DISTRIBUTIONS[method](bits, *args))

    def fill_new(self, method: str, *args: Any) -> Tensor:
        """Fill a new tensor."""
        assert self.make is not None
        return self.fill(self.make(), method, *args)

    def mask(self, shape: Sequence[int], device: torch.device, share: float = 0.5) -> Tensor:
        """Numbers that are true with a probability."""
        return self._draw(
            shape, device, lambda keys, rows, inner: self.source.mask(keys, rows, inner, share)
        )

    def keep(self, shape: Sequence[int], dropout: float, device: torch.device) -> Kept:
        """Which numbers of a tensor of this shape are not dropped."""
        return Kept(self.mask(shape, device, 1 - dropout), _kept_scale(dropout))

    def keep_weights(self, given: Attended, dropout: float) -> Kept:
        """Which weights of attention are not dropped."""
        shape = (*given.query.shape[:-1], given.key.shape[-2])
        return self.keep(shape, dropout, given.query.device)

    def _draw(
        self,
        shape: Sequence[int],
        device: torch.device,
        draw: Callable[[Tensor, int, int], Tensor],
    ) -> Tensor:
        """What is drawn for whole samples, and the part of it that a rank has."""
        parts = [each for each in self.parts if isinstance(each.cut, Cut)]
        sizes = list(shape)
        for each in reversed(parts):
            assert isinstance(each.cut, Cut)
            sizes[each.cut.dim] = each.cut.size
        drawn = self._draw_all(sizes, device, draw)
        for each in parts:
            drawn = each.part(drawn)
        return drawn

    def _draw_all(
        self,
        sizes: Sequence[int],
        device: torch.device,
        draw: Callable[[Tensor, int, int], Tensor],
    ) -> Tensor:
        if self.along is None:
            return draw(self.keys(0).to(device), 1, math.prod(sizes)).view(sizes)
        dim, blocks = self.along.dim, self.along.blocks
        samples = self.along.count(sizes)
        keys = self.keys(samples).to(device)
        assert len(keys) == samples, f"{len(keys)} keys for {samples:,} samples"
        inner = self.along.times // blocks * math.prod(sizes[dim + 1 :])
        return draw(keys, math.prod(sizes[:dim]) * blocks, inner).view(sizes)


def _bounds(dtype: torch.dtype, *given: int | None) -> tuple[int, int]:
    """Where whole numbers begin and end, of the arguments of `random_`: both, the end, or none."""
    low, high = given if len(given) == 2 else (0, *given, None)[:2]
    return low or 0, whole_end(dtype) if high is None else high


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
    """The name of an op and its overload, such as `native_dropout.default`."""
    packet = getattr(target, "_overloadpacket", None)
    return f"{getattr(packet, '__name__', '')}.{getattr(target, '_overloadname', '')}"


def _drop(
    drawing: Drawing, values: Tensor, probability: float, _: bool | None = True
) -> tuple[Tensor, Tensor]:
    kept = drawing.keep(values.shape, probability, values.device)
    return kept.of(values), kept.mask


def _attend(drawing: Drawing, *args: Any) -> tuple[Tensor, Tensor]:
    query, key, value, mask, dropout, is_causal, scale = args
    given = Attended(query, key, value, mask, is_causal, scale)
    if drawing.fuses(given):
        made: tuple[Tensor, Tensor] = fused_attention(
            drawing.keys(len(query)), query, key, value, *_limits(dropout), is_causal, scale
        )
        return made
    return attend_dropping(given, drawing.keep_weights(given, dropout))


def _attend_backward(
    drawing: Drawing, gradient: Tensor, *args: Any
) -> tuple[Tensor, Tensor, Tensor]:
    query, key, value, made, log_sum, mask, dropout, is_causal, scale = args
    given = Attended(query, key, value, mask, is_causal, scale)
    if drawing.fuses(given):
        found: tuple[Tensor, Tensor, Tensor] = fused_attention_backward(
            drawing.keys(len(query)), gradient, query, key, value, made, log_sum, *_limits(dropout),
            is_causal, scale,
        )  # fmt: skip
        return found
    kept = drawing.keep_weights(given, dropout)
    return attend_dropping_backward(given, gradient, made, log_sum, kept)


def _limits(dropout: float) -> tuple[int, float]:
    """What bits of weights that are kept are below, and what those are multiplied with."""
    return limit(1 - dropout), _kept_scale(dropout)


def _kept_scale(dropout: float) -> float:
    """What numbers that are kept are multiplied with."""
    return 0.0 if dropout == 1 else 1 / (1 - dropout)


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
