"""Reads a traced step: which nodes are kernels, what they read and write, and who shares storage.

A view has no kernel and no memory of its own, so it is folded into whatever made its storage. A
storage that an op writes in place is a new version of it: later readers wait for that op.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.call import uses_tf32
from meshwright.capture.flops import count_flops
from meshwright.capture.product import Product, find_product
from meshwright.capture.torch_private import pytree
from meshwright.capture.workspace import find_kept, find_workspace

_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""They take memory and do nothing."""
_NO_CALLS = {operator.getitem, torch.ops.aten.detach.default}
"""What tracing adds: choices among outputs, and the detaching of parameters and saved tensors."""
_SHAPED = {
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full",
}  # fmt: skip
"""They look at the shape of their input, not at what is in it."""
_GATHERS = {"embedding", "index_select", "gather", "index"}
"""They read as much of their first input as they make, rows that are asked for twice too."""


@dataclass(slots=True)
class Version:
    """One content of one storage."""

    bytes: float
    source: int
    """The kernel that wrote it; -1: it is there from the start."""
    readers: list[int] = field(default_factory=list)
    replaces: int = -1
    """The version whose memory it takes over."""
    storage: int = 0
    """Which storage of the trace it is in."""


@dataclass(slots=True)
class Kernel:
    """A node that runs something."""

    node: Node
    flops: float
    bytes_read: float
    bytes_written: float
    product: Product
    workspace_bytes: float
    kept_bytes: float
    """What it keeps for its backward besides its tensors."""
    calls: int
    """Calls that run it: its own, and of the views made since the kernel before."""
    reads: dict[str, int] = field(default_factory=dict)
    """The version that each of its inputs is in, by node name."""
    made: list[int] = field(default_factory=list)
    """Versions that it writes."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Kernels in order and the versions of storages between them."""

    kernels: list[Kernel]
    versions: list[Version]
    start: list[int]
    """The version of each placeholder."""
    kernel_of: dict[str, int]
    """The kernel whose storage a node's value is in, by node name; -1 for placeholders."""
    returned: frozenset[int] = frozenset()
    """The versions that the step returns, or parts of them."""


def read_nodes(nodes: list[Node]) -> Ledger:
    """Walk the nodes once, keeping the newest version of every storage."""
    reader = _LedgerReader()
    for node in nodes:
        if node.op == "placeholder":
            reader.start_from(node)
        elif node.op == "get_attr":
            reader.hold(node)
        elif node.op == "call_function":
            reader.call(node)
        elif node.op == "output":
            reader.end(node)
    if reader.kernels:
        reader.kernels[-1].calls += reader.views
    return Ledger(
        reader.kernels, reader.versions, reader.start, reader.kernel_of, frozenset(reader.returned)
    )


def tensor_versions(ledger: Ledger) -> list[int]:
    """The version that each tensor of the graph is, in the graph's order.

    All that kernels make, but for what overwrites state (a parameter, a running mean) and is not
    read again in the step.
    """
    return [
        number
        for number, version in enumerate(ledger.versions)
        if version.source >= 0 and (version.readers or not _is_state(ledger, version))
    ]


def _is_state(ledger: Ledger, version: Version) -> bool:
    """Whether it is in a storage that is there from the start."""
    while version.replaces >= 0:
        version = ledger.versions[version.replaces]
    return version.source < 0


class _LedgerReader:
    """What has been read so far."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []
        self.versions: list[Version] = []
        self.start: list[int] = []
        self.kernel_of: dict[str, int] = {}
        self.newest: dict[int, int] = {}
        """The version that is in each storage."""
        self.views = 0
        """How many views were made since the last kernel."""
        self.returned: set[int] = set()

    def start_from(self, node: Node) -> None:
        """Read a placeholder, whose tensor is there from the start."""
        self.start.append(len(self.versions))
        self.hold(node)

    def hold(self, node: Node) -> None:
        """Read what is there from the start; constants of the model's code are, too."""
        tensor = node.meta["val"]
        storage = storage_of(tensor)
        self.newest[storage] = len(self.versions)
        self.versions.append(Version(_storage_bytes(tensor), -1, storage=storage))
        self.kernel_of[node.name] = -1

    def call(self, node: Node) -> None:
        """Read a call, which is a kernel or only a view."""
        inputs = [each for each in node.all_input_nodes if "val" in each.meta]
        known = {storage_of(tensor) for each in inputs for tensor in tensors_of(each.meta["val"])}
        made = list(tensors_of(node.meta.get("val")))
        fresh = [tensor for tensor in made if storage_of(tensor) not in known]
        written = _written(node)
        if (fresh or written) and not counts_steps(node):
            self._run(node, [] if op_name(node) in _SHAPED else inputs, fresh, written)
        elif node.target not in _NO_CALLS:
            self.views += 1
        if made:
            self.kernel_of[node.name] = self.versions[self.newest[storage_of(made[0])]].source

    def end(self, node: Node) -> None:
        """Read what the step returns."""
        for each in node.all_input_nodes:
            self.returned |= {self.newest[storage_of(one)] for one in tensors_of(each.meta["val"])}

    def _run(
        self,
        node: Node,
        inputs: list[Node],
        fresh: list[torch.Tensor],
        written: list[torch.Tensor],
    ) -> None:
        number = len(self.kernels)
        read = [tensor for each in inputs for tensor in tensors_of(each.meta["val"])]
        kernel = _price(node, read, [*fresh, *written], self.views + 1)
        self.views = 0
        self.kernels.append(kernel)
        for storage in dict.fromkeys(storage_of(tensor) for tensor in read):
            self.versions[self.newest[storage]].readers.append(number)
        for each in inputs:
            for tensor in tensors_of(each.meta["val"]):
                kernel.reads[each.name] = self.newest[storage_of(tensor)]
        for storage, tensor in {storage_of(each): each for each in (*fresh, *written)}.items():
            replaces = self.newest.get(storage, -1)
            self.newest[storage] = len(self.versions)
            kernel.made.append(len(self.versions))
            version = Version(_storage_bytes(tensor), number, replaces=replaces, storage=storage)
            self.versions.append(version)


def op_name(node: Node) -> str:
    """The name of the ATen op that a node calls, without its overload; "" where it calls none."""
    return str(getattr(getattr(node.target, "_overloadpacket", None), "__name__", ""))


def named_arguments(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by their names in the op's schema, without those left out."""
    names = (each.name for each in target._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of a node's call, by name."""
    return named_arguments(node.target, node.args, node.kwargs)


def counts_steps(node: Node) -> bool:
    """Whether it advances an optimiser's counter, which the fused update does for all at once."""
    counter = node.args[0] if node.args else None
    return (
        node.target is torch.ops.aten.add_.Tensor
        and isinstance(counter, Node)
        and counter.op == "placeholder"
        and counter.meta["val"].dim() == 0
        and bool(counter.meta["val"].is_floating_point())
    )


def _price(node: Node, read: list[torch.Tensor], made: list[torch.Tensor], calls: int) -> Kernel:
    """What the kernel computes and moves."""
    args = _with_values(node.args)
    kwargs = {name: _with_values(each) for name, each in node.kwargs.items()}
    name = op_name(node)
    written = sum(_tensor_bytes(tensor) for tensor in made)
    sizes = [_tensor_bytes(tensor) for tensor in read]
    if name in _GATHERS and sizes:
        sizes[0] = written
    if name in _FREE:
        sizes, written = [], 0.0
    if name.startswith("nll_loss"):  # one number a target is read, in backward none
        is_backward = name.endswith("backward")
        scores, targets = args[1:3] if is_backward else args[:2]
        picked = 0 if is_backward else targets.numel() * scores.element_size()
        sizes = [*sizes, picked - _tensor_bytes(scores)]
    if name == "convolution" and args[2] is not None:  # a kernel of its own adds the bias
        sizes, written = [*sizes, written], 2 * written
    if name == "convolution_backward":
        sizes += _backward_sizes(args)
    value = node.meta.get("val")
    product = find_product(node.target, args, value)
    return Kernel(
        node=node,
        flops=count_flops(node.target, args, kwargs, value),
        bytes_read=sum(sizes),
        bytes_written=written,
        product=product,
        workspace_bytes=find_workspace(node.target, args, product, is_tf32=uses_tf32(node)),
        kept_bytes=find_kept(node.target, args, product),
        calls=calls,
    )


def _backward_sizes(args: Any) -> list[float]:
    """What a convolution's backward reads besides its arguments, and what of them it does not.

    A kernel of its own sums the bias's gradient. The input's gradient is made of the weight and not
    of the input, the weight's of the input and not of the weight.
    """
    gradient, values, weight = (_tensor_bytes(each) for each in args[:3])
    of_values, of_weight, of_bias = args[10]
    return [gradient * of_bias, -values * (not of_weight), -weight * (not of_values)]


def _written(node: Node) -> list[torch.Tensor]:
    """The arguments that an op writes in place."""
    found = written_arguments(node.target, node.args, node.kwargs)
    # Fused optimisers may unscale gradients in place; without a scaler they do not.
    leaves = pytree.tree_leaves([each for name, each in found.items() if name != "grads"])
    nodes = [each for each in leaves if isinstance(each, Node)]
    return [tensor for each in nodes for tensor in tensors_of(each.meta["val"])]


def writes_argument(target: Any) -> bool:
    """Whether an op writes into one of its arguments."""
    schema = getattr(target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def written_arguments(
    target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Those arguments of a call that the op writes in place, by name."""
    if not writes_argument(target):
        return {}
    given = named_arguments(target, args, kwargs)
    is_written = {
        each.name: each.alias_info is not None and each.alias_info.is_write
        for each in target._schema.arguments
    }
    return {name: each for name, each in given.items() if is_written[name]}


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of what an op is given or makes, which may be sequences of them."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors_of(each)


def _with_values(argument: Any) -> Any:
    """What an op is called with, for what stands for it in the trace."""
    if isinstance(argument, Node):
        return argument.meta["val"]
    if isinstance(argument, tuple | list):
        return type(argument)(map(_with_values, argument))
    return argument


def storage_of(tensor: torch.Tensor) -> int:
    """A number that tensors have in common which lie in the same storage."""
    return int(tensor.untyped_storage()._cdata)


def _storage_bytes(tensor: torch.Tensor) -> float:
    return float(tensor.untyped_storage().nbytes())


def _tensor_bytes(tensor: torch.Tensor) -> float:
    """What reading it moves: an expanded tensor is no larger than its storage."""
    return min(float(tensor.numel() * tensor.element_size()), _storage_bytes(tensor))
