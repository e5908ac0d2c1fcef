"""A traced step prepared for running: what each kernel reads and writes, and how it lies in memory.

A version of a storage (see `meshwright.capture.ledger`) is run as one dense tensor, its base, in
the layout in which the kernel that allocated it made it. What kernels read are views of bases.
Knows nothing of plans and devices.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel, Ledger, counts_steps, storage_of, tensor_versions
from meshwright.capture.trace import Trace
from meshwright.errors import InputError

ARRIVED = 1_000_003
"""Stands in traces for a number of rows that is known at run time only: a prime, so that no size
is a multiple of it by chance."""

HELD_OPS = ("placeholder", "get_attr")
"""The kinds of nodes whose tensors are there before a step."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor lies in its storage."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    is_conjugate: bool = False

    @staticmethod
    def of(tensor: torch.Tensor) -> "Layout":
        """The layout of a tensor, fake or real."""
        return Layout(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
            bool(tensor.is_conj()),
        )

    @property
    def length(self) -> int:
        """How many elements of storage it spans."""
        if 0 in self.shape:
            return self.offset
        steps = zip(self.shape, self.stride, strict=True)
        return self.offset + 1 + sum((size - 1) * step for size, step in steps)

    def empty(self, device: torch.device) -> torch.Tensor:
        """A tensor of this layout; it spans its storage."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)

    def lay(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A tensor in this layout that spans its storage: where it lies, if it lies so already.

        A GPU copies from memory that is pinned while its host goes on.
        """
        own, at = Layout.of(tensor), tensor.device
        is_here = at.type == device.type and device.index in (None, at.index)
        if not is_here or replace(own, offset=0) != replace(self, offset=0):
            return self.empty(device).copy_(tensor, non_blocking=device.type == "cuda")
        unit, storage = tensor.element_size(), tensor.untyped_storage()
        here = storage[own.offset * unit : own.length * unit]
        return tensor.new_empty(0).set_(here, 0, self.shape, self.stride)


def shape_of(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor with the shape, strides and type of another and no memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def relaid(tensor: torch.Tensor, stride: tuple[int, ...], copies: bool = False) -> torch.Tensor:
    """The tensor with other strides: where they differ in single rows only, without a copy."""
    pairs = zip(tensor.shape, tensor.stride(), stride, strict=True)
    if not copies and all(size <= 1 or one == other for size, one, other in pairs):
        return tensor.as_strided(tensor.shape, stride)
    return torch.empty_strided(
        tensor.shape, stride, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)


def retyped(
    tensor: torch.Tensor,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
    offset: int,
) -> torch.Tensor:
    """A view of the same storage as another type, as complex numbers as pairs of real ones."""
    view = torch.empty(0, dtype=dtype, device=tensor.device)
    return view.set_(tensor.untyped_storage(), offset, shape, stride)


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that a kernel allocates: which of its results, and the version it begins."""

    place: int | None
    """The place of the tensor in the kernel's tuple of results; None: the result itself."""
    version: int


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedStep:
    """One step at a number of samples."""

    trace: Trace
    ledger: Ledger
    samples: int
    known_versions: tuple[int, ...] | None = None
    """The version of each tensor of the graph, where the graph has other tensors than the trace
    (-1: nothing but an order); None: all that kernels make are its tensors."""
    known_layouts: tuple[Layout, ...] | None = None
    """The layout of each version's base, where kernels do not make all versions; None: they do."""

    @cached_property
    def versions(self) -> list[int]:
        """The version of each tensor of the graph."""
        if self.known_versions is not None:
            return list(self.known_versions)
        return tensor_versions(self.ledger)

    @cached_property
    def tensor_of(self) -> dict[int, int]:
        """The tensor of the graph that each version is; held state has none unless it is read."""
        return {version: tensor for tensor, version in enumerate(self.versions) if version >= 0}

    @cached_property
    def roots(self) -> list[int]:
        """For each version the first version in the same storage."""
        roots: list[int] = []
        for number, version in enumerate(self.ledger.versions):
            roots.append(number if version.replaces < 0 else roots[version.replaces])
        return roots

    @cached_property
    def layouts(self) -> list[Layout]:
        """The layout of each version's base."""
        if self.known_layouts is not None:
            return list(self.known_layouts)
        found: dict[int, Layout] = {}
        nodes = [node for node in self.trace.graph.nodes if node.op in HELD_OPS]
        held = [k for k, each in enumerate(self.ledger.versions) if each.source < 0]
        for version, node in zip(held, nodes, strict=True):
            found[version] = Layout.of(node.meta["val"])
        for kernel in self.ledger.kernels:
            for output in self.outputs(kernel):
                tensor = _leaves(kernel.node)[output.place or 0]
                found[output.version] = _whole(kernel.node, tensor)
        return [found[root] for root in self.roots]

    def outputs(self, kernel: Kernel) -> list[Output]:
        """What a kernel allocates, storage by storage."""
        fresh = [version for version in kernel.made if self.ledger.versions[version].replaces < 0]
        if not fresh:
            return []
        value = kernel.node.meta["val"]
        if isinstance(value, torch.Tensor):
            return [Output(None, fresh[0])]
        known = {
            storage_of(each.meta["val"])
            for each in kernel.node.all_input_nodes
            if isinstance(each.meta.get("val"), torch.Tensor)
        }
        places: dict[int, int] = {}
        for place, leaf in enumerate(value):
            if isinstance(leaf, torch.Tensor):
                storage = storage_of(leaf)
                if storage not in known:
                    places.setdefault(storage, place)
        assert len(places) == len(fresh), kernel.node.name
        return [
            Output(place, version) for place, version in zip(places.values(), fresh, strict=True)
        ]

    @cached_property
    def held(self) -> Mapping[int, str]:
        """The name of what is in each storage from the start, by its first version.

        Parameters, buffers and the optimiser's state by their own names, inputs as "input 0", ...,
        constants of the model's code as "constant 0", ...
        """
        held = [k for k, each in enumerate(self.ledger.versions) if each.source < 0]
        order = dict.fromkeys([*self.ledger.start, *held])
        return dict(zip(order, [*self.trace.start, *self.constants], strict=True))

    @cached_property
    def constants(self) -> dict[str, torch.Tensor]:
        """The tensors of the model's code."""
        nodes = self.trace.graph.find_nodes(op="get_attr")
        return {
            f"constant {number}": self.trace.constants[str(node.target)]
            for number, node in enumerate(nodes)
        }

    @cached_property
    def counters(self) -> dict[int, list[Node]]:
        """By kernel: the optimiser's counters that it advances first."""
        found: dict[int, list[Node]] = {}
        version_of = dict(zip(self.trace.start.values(), self.ledger.start, strict=True))
        for node in self.trace.graph.nodes:
            if node.op == "call_function" and counts_steps(node):
                version = version_of[node.all_input_nodes[0]]
                found.setdefault(self.ledger.versions[version].readers[0], []).append(node)
        return found

    @cached_property
    def loss_version(self) -> int:
        """The version that holds the loss."""
        loss = self.trace.returned[0]
        kernel = self.ledger.kernel_of[loss.name]
        made = list(self.ledger.kernels[kernel].made)
        storage = storage_of(loss.meta["val"])
        for output in self.outputs(self.ledger.kernels[kernel]):
            leaf = _leaves(self.ledger.kernels[kernel].node)[output.place or 0]
            if storage_of(leaf) == storage:
                return output.version
        return made[0]

    @cached_property
    def loss_layout(self) -> Layout:
        """Where in its storage the loss is."""
        return Layout.of(self.trace.returned[0].meta["val"])

    @cached_property
    def seed_kernel(self) -> int:
        """The kernel that backward starts from: ones, as many as the loss has numbers."""
        for number, kernel in enumerate(self.ledger.kernels):
            if kernel.node.target is torch.ops.aten.ones_like.default and not kernel.reads:
                source = kernel.node.args[0]
                if isinstance(source, Node) and source.meta["val"].numel() == 1:
                    return number
        raise InputError("step: backward must start from the loss, found no such op")


def prepare_step(trace: Trace, samples: int) -> TracedStep:
    """A trace at a number of samples, ready to be run."""
    return TracedStep(trace=trace, ledger=trace.ledger, samples=samples)


def _leaves(node: Node) -> list[Any]:
    value = node.meta["val"]
    return [value] if isinstance(value, torch.Tensor) else list(value)


def _whole(node: Node, tensor: torch.Tensor) -> Layout:
    """The layout of what a kernel allocates, which must be all of its storage."""
    layout = Layout.of(tensor)
    size = tensor.untyped_storage().nbytes()
    if layout.offset or layout.length * tensor.element_size() != size:
        raise InputError(
            f"op {node.name}: must fill the storage it makes ({size:,} bytes) to be run, got shape "
            f"{layout.shape} with strides {layout.stride}"
        )
    return layout
