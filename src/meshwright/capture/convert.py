"""Turns traces of a step, at several batch sizes, into a Graph.

They give every quantity as a line in the batch: what does not grow is its fixed part. From the
same lines follows how an op splits (`meshwright.capture.split`).
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.call import uses_tf32
from meshwright.capture.growth import fit_parts, steep_kernels
from meshwright.capture.kind import name_kind
from meshwright.capture.ledger import Kernel, Ledger, Version, op_name, tensor_versions
from meshwright.capture.split import find_splits, find_whole
from meshwright.capture.trace import Trace
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.path import encloses
from meshwright.kernel.disjoint import DisjointSets
from meshwright.program.expand.synchronise import NORMS

_PRECISIONS = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}


def convert_trace(name: str, trace: Trace, ledgers: Sequence[Ledger], batch: int) -> Graph:
    """The graph of a step traced at `batch` samples; an op for each kernel, in the same order.

    `ledgers` are its own and those of 2, 3 ... times as many samples. Two do where no op compares
    samples (see `growth.py`), else four.
    """
    for times, other in enumerate(ledgers[1:], start=2):
        _check_alike(name, ledgers[0], other, (batch, times * batch))
    return _Converter(name, trace, ledgers, batch).graph()


def are_alike(one: Ledger, other: Ledger) -> bool:
    """Whether two ledgers are of the same kernels; views between them may differ."""
    return len(one.versions) == len(other.versions) and (
        [kernel.node.target for kernel in one.kernels]
        == [kernel.node.target for kernel in other.kernels]
    )


def _check_alike(name: str, one: Ledger, other: Ledger, sizes: tuple[int, int]) -> None:
    if are_alike(one, other):
        return
    for first, second in zip(one.kernels, other.kernels, strict=False):
        if first.node.target != second.node.target:
            raise InputError(
                f"model {name}: its ops must not depend on the batch size, but {first.node.name} "
                f"is {first.node.target} at {sizes[0]} and {second.node.target} at {sizes[1]}"
            )
    raise InputError(
        f"model {name}: must have as many ops at every batch size, got {len(one.kernels):,} at "
        f"{sizes[0]} and {len(other.kernels)} at {sizes[1]}"
    )


class _Converter:
    """One conversion; the methods follow the order in which a graph is put together."""

    def __init__(self, name: str, trace: Trace, ledgers: Sequence[Ledger], batch: int) -> None:
        small, large = ledgers[:2]
        self.trace, self.small, self.large = trace, small, large
        self.ledgers = ledgers
        self.is_steep = steep_kernels(small, large)
        self.builder = GraphBuilder(name, batch=batch)
        self.place = {node: i for i, node in enumerate(trace.graph.nodes)}
        self.phase = [self._find_phase(kernel) for kernel in small.kernels]
        self.reads: list[list[int]] = [[] for _ in small.kernels]
        for version, each in enumerate(small.versions):
            for reader in each.readers:
                self.reads[reader].append(version)
        self.is_whole = find_whole(small, large, self.reads, self.is_steep)
        self.split, self.partial = find_splits(small, large, self.reads, self.is_whole, self.phase)
        # The parameter of each placeholder of a parameter.
        pairs = zip(trace.start.values(), trace.parameter_names, strict=False)
        self.parameter_of = {node.name: name for node, name in pairs}
        self.copied_gradient = self._find_copied_gradients()
        self.partner = self._find_partners()
        self.copies = self._find_copies()

    def graph(self) -> Graph:
        """Ops first, then the tensors between them."""
        parameter_bytes, state_bytes = self._count_state()
        saved_bytes, lingering = self._count_held(), self._count_lingering()
        partner, group = self.partner, self._find_groups()
        for number, kernel in enumerate(self.small.kernels):
            module = self._module(number, partner[number])
            self.builder.add_op(
                f"{module}/{kernel.node.name}" if module else kernel.node.name,
                kind=name_kind(kernel.node),
                phase=self.phase[number],
                split=self.split[number],
                group=group[number],
                partner=partner[number],
                module=module,
                precision=_precision(kernel.node),
                mixes=self.is_whole[number],
                **self._sizes(number),
                calls=kernel.calls,
                parameter_bytes=parameter_bytes[number],
                state_bytes=state_bytes[number],
                saved_bytes=saved_bytes[number],
                workspace_bytes=kernel.workspace_bytes + lingering[number],
            )
        self._add_tensors()
        return self.builder.finish()

    def _sizes(self, number: int) -> dict[str, Any]:
        """The quantities of an op and their parts."""
        kernels = [ledger.kernels[number] for ledger in self.ledgers]
        is_steep = self.is_steep[number]
        sizes: dict[str, Any] = {"product_alignment": kernels[0].product.alignment}
        for name in ("flops", "bytes_read", "bytes_written"):
            sizes |= fit_parts(name, [getattr(each, name) for each in kernels], is_steep=is_steep)
        for name in ("rows", "columns", "depth", "count"):
            of_products = [getattr(each.product, name) for each in kernels]
            sizes |= fit_parts(f"product_{name}", of_products, is_steep=is_steep)
        return sizes

    def _find_phase(self, kernel: Kernel) -> Phase:
        place = self.place[kernel.node]
        if place < self.trace.num_forward:
            return Phase.FORWARD
        return Phase.BACKWARD if place < self.trace.num_backward else Phase.UPDATE

    def _find_partners(self) -> list[int]:
        """The forward kernel of each backward one: by autograd's number, else by its inputs."""
        by_sequence: dict[int, int] = {}
        for node in self.place:
            sequence = node.meta.get("seq_nr", -1)
            if self.place[node] < self.trace.num_forward and sequence >= 0:
                owner = self.small.kernel_of.get(node.name, -1)
                # What runs without gradients, as rotary tables after an embedding, has the number
                # of the last op that has some; modules beside that op's are others.
                first = by_sequence.get(sequence, owner)
                if owner >= 0 and encloses(self._module(owner, -1), self._module(first, -1)):
                    by_sequence[sequence] = owner
        partner = [-1] * len(self.small.kernels)
        for number, kernel in enumerate(self.small.kernels):
            if self.phase[number] is Phase.BACKWARD:
                sequence = kernel.node.meta.get("seq_nr", -1)
                if kernel.node.meta.get("is_gradient_acc"):
                    sequence = -1  # autograd adds between ops, under the number of the last one
                partner[number] = by_sequence.get(sequence, -1)
                if partner[number] < 0:
                    partner[number] = self._earliest_partner(number, partner)
        return partner

    def _earliest_partner(self, number: int, partner: list[int]) -> int:
        """Of a kernel between autograd's ops: the earliest partner of what it reads.

        A sum of gradients belongs to the value that all of them are for, so to the part of forward
        that comes first.
        """
        found = []
        # All inputs, also those of which only the shape counts: backward starts from ones_like of
        # the loss.
        for each in self.small.kernels[number].node.all_input_nodes:
            source = self.small.kernel_of.get(each.name, -1)
            if source >= 0:
                found.append(source if self.phase[source] is Phase.FORWARD else partner[source])
        return min((each for each in found if each >= 0), default=-1)

    def _module(self, number: int, partner: int) -> str:
        node = self.small.kernels[number].node
        if partner >= 0:
            node = self.small.kernels[partner].node
        if self.phase[number] is Phase.UPDATE:
            return self._updated_module(self.small.kernels[number].node)
        return str(node.meta.get("module", ""))

    def _updated_module(self, node: Node) -> str:
        for each in node.all_input_nodes:
            if each.name in self.parameter_of:
                return self.parameter_of[each.name].rpartition(".")[0]
        return ""

    def _count_state(self) -> tuple[list[float], list[float]]:
        """Parameters go to the first op that reads them, optimiser state to the update.

        What is only read is counted in every module that may have to hold a copy; modules
        on one device share one, so that the count is no less than what a run takes.
        """
        count = len(self.small.kernels)
        parameter, state = [0.0] * count, [0.0] * count
        num_parameters = len(self.trace.parameter_names)
        for position, copies in enumerate(self.copies):
            size = self.small.versions[self.small.start[position]].bytes
            for owner in (readers[0] for readers in copies if readers):
                state[owner] += size
                if position < num_parameters:
                    parameter[owner] += size
        return parameter, state

    def _count_held(self) -> list[float]:
        """The step's inputs stay with the first op that reads them, what inference returns although
        others read it with the op that makes it. Some kernels keep more for their backward."""
        saved = [
            0.0 if self.trace.is_inference else kernel.kept_bytes for kernel in self.small.kernels
        ]
        for version in self.small.start[len(self.small.start) - self.trace.num_inputs :]:
            each = self.small.versions[version]
            if each.readers:
                saved[each.readers[0]] += each.bytes
        for version in sorted(self.small.returned) if self.trace.is_inference else ():
            each = self.small.versions[version]
            if each.source >= 0 and each.readers:
                saved[each.source] += each.bytes
        return saved

    def _count_lingering(self) -> list[float]:
        """What backward kernels have read is freed when the last kernel of their op is done.

        Autograd's ops free what was saved for them at their end: a bias's gradient is summed while
        the input is still held that the weight's gradient was made of.
        """
        lingering = [0.0] * len(self.small.kernels)
        for version in self._find_dropped():
            lingering[self.small.versions[version].source] += self.small.versions[version].bytes
        numbers = [
            kernel.node.meta.get("seq_nr", -1) if self.phase[k] is Phase.BACKWARD else -1
            for k, kernel in enumerate(self.small.kernels)
        ]
        first = 0
        for k, number in enumerate(numbers):
            if number < 0 or k == 0 or number != numbers[k - 1]:
                first = k
            for version in {v for j in range(first, k) for v in self.reads[j]}:
                each = self.small.versions[version]
                if 0 <= each.source < first and each.readers[-1] < k:
                    lingering[k] += each.bytes
        return lingering

    def _find_dropped(self) -> set[int]:
        """What kernels of inference make for a backward that never comes: places of maxima, means
        of norms. It is let go when its kernel is done."""
        if not self.trace.is_inference:
            return set()
        made = tensor_versions(self.small)
        return {
            number
            for number in made
            if not self.small.versions[number].readers and number not in self.small.returned
        }

    def _find_groups(self) -> list[int]:
        """Kernels that share a parameter, its gradient, its optimiser state or a buffer's copy."""
        sets = DisjointSets(range(len(self.small.kernels)))
        return sets.number_groups(map(self._with_makers, chain.from_iterable(self.copies)))

    def _with_makers(self, readers: Sequence[int]) -> list[int]:
        """Who reads state, and who makes the gradients for its updates."""
        updates = (each for each in readers if self.phase[each] is Phase.UPDATE)
        return sorted({*readers, *map(self._gradient_maker, updates)} - {-1})

    def _find_copies(self) -> list[list[list[int]]]:
        """By placeholder that is no input: who reads each copy of what it holds.

        A buffer that is only read may be a copy in each module that reads it, and so may weights of
        inference, which nothing updates; all else is one.
        """
        first = 0 if self.trace.is_inference else len(self.trace.parameter_names)
        last = len(self.trace.parameter_names) + len(self.trace.buffer_names)
        found = []
        for position in range(len(self.small.start) - self.trace.num_inputs):
            held = self.small.versions[self.small.start[position]]
            is_copied = first <= position < last and not self._is_written(held)
            found.append(self._by_module(held.readers) if is_copied else [held.readers])
        return found

    def _is_written(self, held: Version) -> bool:
        """Whether a kernel writes what is there from the start."""
        # Batch norm writes its statistics, although its signature does not say so.
        readers = [self.small.kernels[k] for k in held.readers]
        made = (self.small.versions[each].storage for kernel in readers for each in kernel.made)
        return held.storage in made or any(op_name(each.node) in NORMS for each in readers)

    def _by_module(self, readers: Sequence[int]) -> list[list[int]]:
        """Kernels by their module; a child of a module that reads, too, goes with it.

        Those of the model's own `forward`, in which layers may be written out, go by the op that
        they are of.
        """
        modules = {number: self._module(number, self.partner[number]) for number in readers}
        found: dict[str | int, list[int]] = {}
        for number, module in modules.items():
            while (parent := module.rpartition(".")[0]) and parent in modules.values():
                module = parent
            op = self.partner[number] if self.partner[number] >= 0 else number
            found.setdefault(module or op, []).append(number)
        return list(found.values())

    def _find_copied_gradients(self) -> dict[str, list[Node]]:
        """The gradient of each copy of a tied parameter, before it is added to the others'."""
        if not self.trace.tied:
            return {}
        found: dict[str, list[Node]] = {name: [] for names in self.trace.tied for name in names}
        for name, gradient in zip(self.trace.gradient_names, self.trace.returned[1:], strict=True):
            if name in found:
                found[name].append(gradient)
        return found

    def _gradient_maker(self, update: int) -> int:
        """Of a copy it is that of its own gradient, although the update reads a sum."""
        inputs = self.small.kernels[update].node.all_input_nodes
        for each in inputs:
            if self.parameter_of.get(each.name) in self.copied_gradient:
                inputs = self.copied_gradient[self.parameter_of[each.name]]
                break
        for each in inputs:
            kernel = self.small.kernel_of.get(each.name, -1)
            if kernel >= 0 and self.phase[kernel] is Phase.BACKWARD:
                return kernel
        return -1

    def _add_tensors(self) -> None:
        dropped = self._find_dropped()
        for number in tensor_versions(self.small):
            if number in dropped:
                continue
            version = self.small.versions[number]
            readers = [each for each in dict.fromkeys(version.readers) if each > version.source]
            sizes = [ledger.versions[number].bytes for ledger in self.ledgers]
            is_steep = any(self.is_steep[each] for each in (version.source, *readers))
            parts = fit_parts("tensor_bytes", sizes, is_steep=is_steep)
            self.builder.add_tensor(
                version.source,
                parts.pop("tensor_bytes"),
                readers,
                fixed_bytes=parts.pop("fixed_tensor_bytes"),
                partial=self.partial[number],
                **parts,
            )


def _precision(node: Node) -> str:
    """Of what is computed: the first floating-point input, else output."""
    values = [each.meta.get("val") for each in node.all_input_nodes] + [node.meta.get("val")]
    for value in values:
        dtype = getattr(value, "dtype", None)
        if dtype in _PRECISIONS:
            return "tf32" if uses_tf32(node) else _PRECISIONS[dtype]
    return "fp32"
