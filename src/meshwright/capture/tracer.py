"""Records the ops that a step runs on fake tensors, as the nodes of an FX graph.

Gives, node by node, what `make_fx` of torch does (tests hold one to the other) in half its time: a
step is flat and its sizes are known, so neither proxies nor symbols are needed.
"""

import contextlib
import functools
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import Node as Derivative
from torch.fx import Graph, Node
from torch.fx.node import map_aggregate

from meshwright.capture.fake import StepMode
from meshwright.capture.recall import Recall
from meshwright.capture.torch_private import (
    DispatchKey,
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    sequence_number,
    snapshot_fake,
)

_LIFT, _LIFT_COPY = torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default
_DEVICE = torch.ops.prim.device.default
_VALUE = torch.ops.aten._local_scalar_dense.default
_NODE = "_meshwright_node"
"""The attribute of a tensor that names what made it. Not a table of tensors, which would keep them
alive: autograd copies what it saves if somebody else holds it."""
_aten = torch.ops.aten
UNIFORM = frozenset({_aten.rand.default})
"""Ops that draw from [0, 1), of a shape that is their first argument."""
_COMPARISONS: dict[object, Callable[[float, float], bool]] = {
    _aten.lt.Scalar: operator.lt,
    _aten.le.Scalar: operator.le,
    _aten.gt.Scalar: operator.gt,
    _aten.ge.Scalar: operator.ge,
}
_LEAST, _GREATEST = 0.0, 1.0 - 2.0**-53
"""The greatest number below one that any floating-point type can draw."""


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this holds, every op is noted.

    A node's `meta` has "val", what it makes, as it is then; "module", the path of the module whose
    forward calls it; "seq_nr", autograd's number of the forward op that it belongs to; and
    "is_gradient_acc" where autograd adds up gradients between its ops.
    """

    def __init__(self, mode: StepMode) -> None:
        """`mode`: whose tensors the step runs on."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = Graph()
        self.constants: dict[str, torch.Tensor] = {}
        """Tensors that the step finds in the model's code, by the target of their nodes."""
        self._mode, self._recall = mode, Recall(mode)
        self._constant_names: dict[int, str] = {}
        self._asked: list[Node] = []
        """Comparisons whose outcome the model's code has asked for and was told."""
        self._modules: list[str] = []
        self._derivatives: list[int] = []
        self._is_between = False

    def add_input(self, tensor: torch.Tensor) -> None:
        """Note a tensor that the step starts from."""
        node = self.graph.placeholder(f"arg{len(self.graph.nodes)}_1")
        self._keep(tensor, snapshot_fake(tensor), node)

    def end(self, made: Sequence[torch.Tensor]) -> None:
        """Note what the step returns."""
        self.graph.output([self._argument(each) for each in made])

    def drop_branches(self) -> None:
        """Forget comparisons, and the draws they compare, that only served to choose a branch."""
        for node in dict.fromkeys(self._asked):
            for each in (node, *node.all_input_nodes):
                if not each.users:
                    self.graph.erase_node(each)
        self._asked.clear()

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note an op and run it."""
        kwargs = dict(kwargs or {})
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # what half of all calls are
        if func is _DEVICE or torch.Tag.data_dependent_output in func.tags:
            # The value of a tensor: fake ones know only those of the code's constants.
            return self._tell(func, args) if func is _VALUE else func(*args, **kwargs)
        if _is_composite(func):  # reached in inference mode only, which autograd does not see
            with self:
                return func.decompose(*args, **kwargs)
        # What is lifted is a constant of the code, to which the step must not write.
        target = _LIFT_COPY if func is _LIFT else func
        node = self._add(
            target,
            map_aggregate(args, self._argument),
            map_aggregate(kwargs, self._argument),
            _short_name(target),
        )
        made, value = self._recall(func, args, kwargs)
        self._keep(made, value, node)
        return made

    def _tell(self, func: OpOverload, args: tuple[Any, ...]) -> Any:
        """The value of a tensor of one number, where no draw of random numbers can change it."""
        node = getattr(args[0], _NODE, None)
        truth = None if node is None else find_certain_truth(node)
        if node is None or truth is None:
            return func(*args)
        self._asked.append(node)
        return truth

    def _add(self, target: Any, args: Any, kwargs: Any, name: str | None = None) -> Node:
        node = self.graph.create_node("call_function", target, args, kwargs, name)
        if self._modules:
            node.meta["module"] = self._modules[-1]
        if self._derivatives:
            node.meta["seq_nr"] = self._derivatives[-1]
        else:
            node.meta["seq_nr"] = sequence_number() - 1
            if self._is_between:
                node.meta["is_gradient_acc"] = True
        return node

    def _keep(self, made: Any, value: Any, node: Node) -> None:
        """Say of tensors which node made them, and of the node what it made."""
        if isinstance(made, torch.Tensor):
            setattr(made, _NODE, node)
            node.meta["val"] = value
        elif isinstance(made, (tuple, list)):
            node.meta["val"] = value
            for place, each in enumerate(made):
                self._keep(each, value[place], self._add(operator.getitem, (node, place), {}))

    def _argument(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        node = getattr(value, _NODE, None)
        # One that stayed in the model from another step is a constant of this one.
        return node if node is not None and node.graph is self.graph else self._add_constant(value)

    def _add_constant(self, tensor: torch.Tensor) -> Node:
        name = self._constant_names.get(id(tensor))
        if name is None:
            kind = "param" if isinstance(tensor, nn.Parameter) else "tensor"
            name = f"_{kind}_constant{sum(kind in each for each in self.constants)}"
            self._constant_names[id(tensor)] = name
            self.constants[name] = tensor
        node = self.graph.create_node("get_attr", name, (), {})
        with self._mode:
            node.meta["val"] = torch.empty_strided(
                tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device
            )
        return node

    @contextlib.contextmanager
    def named_modules(self, model: nn.Module) -> Iterator[None]:
        """While this holds, nodes carry the path of the module whose forward makes them."""
        handles = []
        for path, module in model.named_modules():
            enter = functools.partial(self._enter_module, path)
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(self._leave_module, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter_module(self, path: str, *_: object) -> None:
        self._modules.append(path)

    def _leave_module(self, *_: object) -> None:
        self._modules.pop()

    @contextlib.contextmanager
    def numbered(self, loss: torch.Tensor) -> Iterator[None]:
        """While this holds, nodes of the loss's backward carry the numbers of their forward ops."""
        for each in _all_derivatives(loss):
            enter = functools.partial(self._enter_derivative, each._sequence_nr())
            each.register_prehook(enter)
            each.register_hook(self._leave_derivative)
        try:
            yield
        finally:
            self._is_between = False
            self._derivatives.clear()

    def _enter_derivative(self, number: int, *_: object) -> None:
        self._derivatives.append(number)

    def _leave_derivative(self, *_: object) -> None:
        self._derivatives.pop()
        self._is_between = True


def _all_derivatives(loss: torch.Tensor) -> Iterator[Derivative]:
    assert loss.grad_fn is not None
    seen, queue = {loss.grad_fn}, deque([loss.grad_fn])
    while queue:
        each = queue.popleft()
        yield each
        for other, _ in each.next_functions:
            if other is not None and other not in seen:
                seen.add(other)
                queue.append(other)


@functools.cache
def _is_composite(func: OpOverload) -> bool:
    """Whether the op is made of others, and no kernel of a CPU does it at once."""
    key = DispatchKey
    return func.has_kernel_for_dispatch_key(
        key.CompositeImplicitAutograd
    ) and not func.has_kernel_for_dispatch_key(key.CPU)


@functools.cache
def _short_name(func: OpOverload) -> str:
    """The op's name without its overload's, as FX would write it."""
    return Graph()._target_to_str(func.overloadpacket.__name__)


def find_certain_truth(node: Node) -> bool | None:
    """Whether a comparison of a uniform draw with a number holds; None where the draw decides.

    Models with layer drop (BART, OPT, Whisper) draw a number for each layer and skip the layer
    where it is below a rate, which is zero by default: then no layer is ever skipped. A comparison
    with a number is monotonic, so that its ends decide for all that lies between.
    """
    compare = _COMPARISONS.get(node.target)
    if compare is None:
        return None
    drawn, limit = node.args[0], node.args[1]
    if not isinstance(drawn, Node) or drawn.target not in UNIFORM:
        return None
    if not isinstance(limit, int | float):
        return None
    ends = {compare(_LEAST, limit), compare(_GREATEST, limit)}
    return ends.pop() if len(ends) == 1 else None
