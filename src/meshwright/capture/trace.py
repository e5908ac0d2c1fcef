"""Traces one training step, imperative as it is, into a flat list of ATen ops.

Forward, loss, backward and optimiser run once on fake tensors under a tracer: nothing is
allocated and nothing is computed, so a model on the meta device is enough.
"""

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from meshwright.capture.attention import fused_ops
from meshwright.capture.autocast import cuda_autocast
from meshwright.capture.channels import channels_last_strides
from meshwright.capture.divide import divide_convolutions
from meshwright.capture.eager import eager_branches
from meshwright.capture.explain import explained
from meshwright.capture.fake import StepMode
from meshwright.capture.inference import find_outputs, in_eval_mode
from meshwright.capture.ledger import Ledger, read_nodes
from meshwright.capture.optimiser import AnyOptimiser, update_parameter
from meshwright.capture.order import order_arguments
from meshwright.capture.torch_private import pytree, reparametrized
from meshwright.capture.tracer import Tracer
from meshwright.errors import InputError

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One training step as an FX graph whose placeholders are all tensors it starts from."""

    graph: Graph
    """Takes parameters, buffers, optimiser state and inputs, flat and in this order; returns the
    loss, then the gradients of `gradient_names`; of inference the model's outputs."""
    constants: Mapping[str, torch.Tensor]
    """Tensors of the model's code, by the target of their nodes."""
    parameter_names: tuple[str, ...]
    buffer_names: tuple[str, ...]
    gradient_names: tuple[str, ...]
    """Parameters that get a gradient (and an update); of copies (see `tied`) each has its own, not
    yet summed."""
    state_names: tuple[str, ...]
    """The optimiser's tensors, for each parameter that needs a gradient."""
    scalar_names: frozenset[str]
    """The last parts of the names of those that are one number, whatever the parameter."""
    num_inputs: int
    num_forward: int
    """How many nodes belong to forward, ..."""
    num_backward: int
    """... and how many to forward and backward."""
    tied: tuple[tuple[str, ...], ...] = ()
    """Names of copies of one parameter, the model's own name for it first. The update adds up their
    gradients and updates every copy that is read with the sum, so that equal ones stay equal."""

    @property
    def is_inference(self) -> bool:
        """Whether it is a model's outputs alone."""
        return not self.gradient_names

    @property
    def start(self) -> dict[str, Node]:
        """The placeholders, by the names of what they hold; inputs are "input 0", ..."""
        names = [*self.parameter_names, *self.buffer_names, *self.state_names]
        names += [f"input {number}" for number in range(self.num_inputs)]
        return dict(zip(names, self.graph.find_nodes(op="placeholder"), strict=True))

    @property
    def returned(self) -> list[Node]:
        """The nodes of what it returns."""
        made: Any = self.graph.output_node().args[0]
        return list(made)

    @cached_property
    def ledger(self) -> Ledger:
        """Its kernels, and what they read and write."""
        return read_nodes(list(self.graph.nodes))

    @cached_property
    def module(self) -> GraphModule:
        """The step as a function that can be called."""
        return GraphModule(dict(self.constants), self.graph)


def trace_step(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    loss: Loss | None,
    optimizer: AnyOptimiser,
    autocast: torch.dtype | None = None,
    untie: bool = False,
    channels_last: Collection[str] = (),
    inference: bool = False,
) -> Trace:
    """Trace a step of `model` on inputs of which only shapes and types count.

    `untie`: a parameter that several modules share is a copy in each of them. `channels_last`:
    parameters that lie so in the step, however they do in the model. `inference`: the model's
    outputs in `eval` mode, without gradients, a loss or an update.
    """
    step = _StepTrace(
        model, args, kwargs, loss, optimizer, autocast, untie, channels_last, inference
    )
    if not step.trained and not inference:
        raise InputError(
            f"model {type(model).__name__}: must have a parameter that needs a gradient"
        )
    mode = StepMode(allow_non_fake_inputs=True)
    start = step.fake_start(mode)
    tracer = Tracer(mode)
    for each in start:
        tracer.add_input(each)
    with explained(model), mode, tracer, _casts_apart():
        made = step.run(start, tracer)
    tracer.end(made)
    order_arguments(tracer.graph, step.num_forward)
    divided = divide_convolutions(tracer.graph)
    return Trace(
        graph=tracer.graph,
        constants=tracer.constants,
        parameter_names=tuple(step.parameters),
        buffer_names=tuple(step.buffers),
        gradient_names=tuple(step.gradient_names),
        state_names=tuple(f"{name}.{kind}" for name in step.trained for kind in optimizer.states),
        scalar_names=optimizer.scalars,
        num_inputs=len(step.tensors),
        num_forward=step.num_forward + sum(each < step.num_forward for each in divided),
        num_backward=step.num_backward + sum(each < step.num_backward for each in divided),
        tied=step.tied,
    )


def find_copies(model: nn.Module) -> tuple[dict[str, nn.Parameter], tuple[tuple[str, ...], ...]]:
    """Parameters by every name that can hold a tensor of its own, and the names of tied ones.

    A module that is registered twice has one name for each of its parameters, its first.
    """
    found: dict[str, nn.Parameter] = {}
    for path, module in model.named_modules():
        found |= module.named_parameters(path, recurse=False, remove_duplicate=False)
    names: dict[int, list[str]] = {}
    for name, each in found.items():
        names.setdefault(id(each), []).append(name)
    return found, tuple(tuple(each) for each in names.values() if len(each) > 1)


@dataclass(eq=False)
class _StepTrace:
    """The step as a function of every tensor it starts from, and what is noticed as it runs."""

    model: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    loss: Loss | None
    optimizer: AnyOptimiser
    autocast: torch.dtype | None
    untie: bool
    channels_last: Collection[str]
    is_inference: bool

    def __post_init__(self) -> None:
        self.tied: tuple[tuple[str, ...], ...] = ()
        self.parameters = dict(self.model.named_parameters())  # tied ones once
        if self.untie:
            self.parameters, self.tied = find_copies(self.model)
        self.strides = {
            name: channels_last_strides(each) if name in self.channels_last else each.stride()
            for name, each in self.parameters.items()
        }
        self.buffers = dict(self.model.named_buffers())
        trained = {} if self.is_inference else self.parameters
        self.trained = [name for name, each in trained.items() if each.requires_grad]
        self.leaves, self.structure = pytree.tree_flatten((list(self.args), dict(self.kwargs)))
        self.tensors = [each for each in self.leaves if isinstance(each, torch.Tensor)]
        self.gradient_names: list[str] = []
        self.num_forward = self.num_backward = 0

    def fake_start(self, mode: StepMode) -> list[torch.Tensor]:
        """Fake tensors for parameters, buffers, optimiser state and inputs."""
        states = (
            self._fake_state(mode, name, kind)
            for name in self.trained
            for kind in self.optimizer.states
        )
        return [
            *(
                mode.lay(each.shape, self.strides[name], each.dtype)
                for name, each in self.parameters.items()
            ),
            *(mode.lay(each.shape, each.stride(), each.dtype) for each in self.buffers.values()),
            *states,
            *(mode.lay(each.shape, each.stride(), each.dtype) for each in self.tensors),
        ]

    def _fake_state(self, mode: StepMode, name: str, kind: str) -> torch.Tensor:
        if kind in self.optimizer.scalars:
            return mode.lay((), (), torch.float32)
        parameter = self.parameters[name]
        is_wide = kind in self.optimizer.wide and parameter.dtype.itemsize == 2
        dtype = torch.float32 if is_wide else parameter.dtype
        return mode.lay(parameter.shape, self.strides[name], dtype)

    def run(self, start: Sequence[torch.Tensor], tracer: Tracer) -> list[torch.Tensor]:
        """Forward, backward and update; returns the loss and the gradients, or the outputs."""
        rest = list(start)
        given = {name: rest.pop(0) for name in self.parameters}
        held = {name: rest.pop(0) for name in self.buffers}
        state = {name: [rest.pop(0) for _ in self.optimizer.states] for name in self.trained}
        leaf = {name: each.detach().requires_grad_(name in state) for name, each in given.items()}
        # Around backward, too: activation checkpointing runs modules again in it.
        with (
            reparametrized(
                self.model,
                {**leaf, **self._name_buffers(held)},
                tie_weights=not self.untie,
                stack_weights=True,  # or a module of two names would keep a tensor of ours
            ),
            tracer.named_modules(self.model),
            fused_ops(),
            cuda_autocast(),
            eager_branches(),
        ):
            if self.is_inference:
                with in_eval_mode(self.model), torch.no_grad():
                    outputs = find_outputs(self.model, self._call(rest))
                tracer.drop_branches()
                self.num_forward = self.num_backward = len(tracer.graph.nodes)
                return outputs
            value = find_loss(self._call(rest), self.loss)
            tracer.drop_branches()
            self.num_forward = len(tracer.graph.nodes)
            wanted = [leaf[name] for name in self.trained]
            with tracer.numbered(value):
                found = torch.autograd.grad(value, wanted, allow_unused=True)
        gradients = {
            name: _laid_out(gradient, given[name])
            for name, gradient in zip(self.trained, found, strict=True)
            if gradient is not None
        }
        self.gradient_names = list(gradients)
        if not gradients:
            raise InputError(
                f"model {type(self.model).__name__}: its loss must have a gradient for a parameter;"
                f" checkpoint() of torch needs use_reentrant=False to give one"
            )
        self.num_backward = len(tracer.graph.nodes)
        with torch.no_grad():
            for name, gradient in self._sum_copies(gradients, tracer.graph).items():
                update_parameter(self.optimizer, given[name], gradient, state[name])
        return [value, *gradients.values()]

    def _name_buffers(self, held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Buffers by all their names where torch does not look for the names of tied tensors."""
        if not self.untie:
            return held
        given = {id(each): held[name] for name, each in self.buffers.items()}
        return {
            name: given[id(each)]
            for path, module in self.model.named_modules()
            for name, each in module.named_buffers(path, recurse=False, remove_duplicate=False)
        }

    def _sum_copies(
        self, gradients: dict[str, torch.Tensor], graph: Graph
    ) -> dict[str, torch.Tensor]:
        """What each parameter is updated with: copies that are read, with the sum of theirs.

        Added up in the order in which forward reads them: so that a pipeline can do all of it where
        the first of them is, and no stage has to wait for an update and to be waited for. The first
        that is read is updated where the tied parameter would be, and the others come last, as
        `meshwright.program.untie` has them.
        """
        if not self.tied:
            return gradients
        in_order = _order_by_reader(list(self.parameters), list(graph.nodes))
        found = dict(gradients)
        place = {name: number for number, name in enumerate(self.parameters)}
        for names in self.tied:
            read = [name for name in in_order if name in names]
            parts = [gradients[name] for name in read if name in gradients]
            if parts:
                found |= dict.fromkeys(read, functools.reduce(torch.add, parts))
                place |= {name: len(self.parameters) + place[name] for name in read[1:]}
                place[read[0]] = place[names[0]]
        in_place = sorted((name for name in self.trained if name in found), key=place.__getitem__)
        return {name: found[name] for name in in_place}

    def _call(self, tensors: list[torch.Tensor]) -> Any:
        """What the model returns."""
        queue = iter(tensors)
        inputs = [next(queue) if isinstance(each, torch.Tensor) else each for each in self.leaves]
        args, kwargs = pytree.tree_unflatten(inputs, self.structure)
        dtype = self.autocast
        with torch.autocast("cpu", dtype=dtype) if dtype else contextlib.nullcontext():
            return self.model(*args, **kwargs)


def find_loss(output: Any, loss: Loss | None) -> torch.Tensor:
    """The scalar to differentiate: `loss(output)`, the output itself, or its `loss` entry."""
    value = output
    if loss is not None:
        value = loss(output)
    elif not isinstance(output, torch.Tensor):
        value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise InputError(
            f"loss: must be a scalar tensor, got {shape}; pass loss= (--loss-function), a "
            f"function from the model's output to a scalar"
        )
    if not value.requires_grad:
        raise InputError("loss: must depend on a parameter that needs a gradient")
    return value


def _laid_out(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """The gradient with its parameter's strides, copied if need be.

    What `backward()` does when it accumulates into `.grad`, and what fused optimisers rely on.
    """
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)


def _order_by_reader(names: Sequence[str], nodes: Sequence[Node]) -> list[str]:
    """The parameters that are read, in the order of the first nodes that do."""
    place = {node: number for number, node in enumerate(nodes)}
    readers = {
        # A parameter is read as its leaf, which is detached from what it is given as.
        name: [place[reader] for leaf in given.users for reader in leaf.users]
        for name, given in zip(names, nodes, strict=False)
    }
    return sorted((name for name in names if readers[name]), key=lambda name: min(readers[name]))


@contextlib.contextmanager
def _casts_apart() -> Iterator[None]:
    """While this holds, autocast keeps no casts: one from before the step is unknown to it."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)
