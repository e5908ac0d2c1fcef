"""Reads a traced step: which nodes are kernels, what they read and write, and who shares storage.

A view has no kernel and no memory of its own, so it is folded into whatever made its storage. A
storage that an op writes in place is a new version of it: later readers wait for that op.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from meshwright.capture.flops import count_flops

_FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""They take memory and do nothing."""
_GATHERS = {"embedding", "index_select", "gather", "index"}
"""They read as much of their first input as they make."""


@dataclass(slots=True)
class Version:
    """One content of one storage."""

    bytes: float
    source: int
    """The kernel that wrote it; -1: it is there from the start."""
    readers: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Kernel:
    """A node that runs something."""

    node: Node
    flops: float
    bytes_read: float
    bytes_written: float
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


def read_nodes(nodes: list[Node]) -> Ledger:
    """Walk the nodes once, keeping the newest version of every storage."""
    kernels: list[Kernel] = []
    versions: list[Version] = []
    newest: dict[int, int] = {}
    start: list[int] = []
    kernel_of: dict[str, int] = {}
    for node in nodes:
        if node.op == "placeholder":
            tensor = node.meta["val"]
            newest[_storage(tensor)] = len(versions)
            start.append(len(versions))
            versions.append(Version(_storage_bytes(tensor), -1))
            kernel_of[node.name] = -1
        elif node.op == "call_function":
            _read_call(node, kernels, versions, newest)
            first = next(iter(_tensors(node.meta.get("val"))), None)
            if first is not None:
                kernel_of[node.name] = versions[newest[_storage(first)]].source
    return Ledger(kernels, versions, start, kernel_of)


def _read_call(
    node: Node, kernels: list[Kernel], versions: list[Version], newest: dict[int, int]
) -> None:
    inputs = [each.meta["val"] for each in node.all_input_nodes if "val" in each.meta]
    read = [tensor for value in inputs for tensor in _tensors(value)]
    made = list(_tensors(node.meta.get("val")))
    known = {_storage(tensor) for tensor in read}
    fresh = [tensor for tensor in made if _storage(tensor) not in known]
    written = _written(node)
    if not fresh and not written:
        return  # a view, or a choice among outputs
    number = len(kernels)
    kernel = _price(node, read, [*fresh, *written])
    kernels.append(kernel)
    for storage in dict.fromkeys(_storage(tensor) for tensor in read):
        versions[newest[storage]].readers.append(number)
    for tensor in {_storage(each): each for each in (*fresh, *written)}.values():
        newest[_storage(tensor)] = len(versions)
        kernel.made.append(len(versions))
        versions.append(Version(_storage_bytes(tensor), number))


def _price(node: Node, read: list[torch.Tensor], made: list[torch.Tensor]) -> Kernel:
    """What the kernel computes and moves."""
    args, kwargs = pytree.tree_map_only(
        Node, lambda each: each.meta["val"], (node.args, node.kwargs)
    )
    name = getattr(getattr(node.target, "_overloadpacket", None), "__name__", "")
    written = sum(_tensor_bytes(tensor) for tensor in made)
    sizes = [_tensor_bytes(tensor) for tensor in read]
    if name in _GATHERS and sizes:
        sizes[0] = min(sizes[0], written)
    if name in _FREE:
        sizes, written = [], 0.0
    flops = count_flops(node.target, tuple(args), dict(kwargs), node.meta.get("val"))
    return Kernel(node, flops, sum(sizes), written)


def _written(node: Node) -> list[torch.Tensor]:
    """The arguments that an op writes in place."""
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.is_mutable:
        return []
    written: list[torch.Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = node.kwargs.get(argument.name)
            if position < len(node.args):
                given = node.args[position]
            for each in pytree.tree_leaves(given):
                if isinstance(each, Node):
                    written.extend(_tensors(each.meta["val"]))
    return written


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _storage_bytes(tensor: torch.Tensor) -> float:
    return float(tensor.untyped_storage().nbytes())


def _tensor_bytes(tensor: torch.Tensor) -> float:
    """What reading it moves: an expanded tensor is no larger than its storage."""
    return min(float(tensor.numel() * tensor.element_size()), _storage_bytes(tensor))
