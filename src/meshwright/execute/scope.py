"""The variables of generated code, and how the values that an op is called with are written in it.

Kernels read views of bases (see `meshwright.execute.traced`); a view is made once and has a
variable beside that of its base. Knows nothing of segments.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel
from meshwright.capture.torch_private import pytree
from meshwright.execute.arrived import check_rows, unknown_rows
from meshwright.execute.compiled import RankState
from meshwright.execute.groups import group_values
from meshwright.execute.item import OpLine
from meshwright.execute.traced import ARRIVED, Layout, TracedStep, relaid, retyped, shape_of
from meshwright.execute.update import is_update, takes_step, updated_name


@dataclass(frozen=True, slots=True)
class OpCall:
    """An op of a segment, as it is written into the text."""

    number: int
    """The number of its line in the segment."""
    line: OpLine
    step: TracedStep
    kernel: Kernel
    names: dict[int, Hashable]
    """By version that it reads: the name of that, which is another one once it was copied."""


class CodeScope:
    """A function's text as it grows, and its variables."""

    def __init__(self, device: torch.device, held: RankState, *, is_scaled: bool) -> None:
        """`held`: what the function will be called with; `is_scaled`: whether updates may be left
        out for the loss scale's sake."""
        self.device, self.group_of = device, held.group_of
        self.has_rates = bool(held.rates)
        """Whether learning rates are tensors."""
        self.is_scaled = is_scaled
        self.counts = "held.scale.counts" if is_scaled else "1"
        """What counters of steps advance by."""
        self.text: list[str] = []
        self.globals: dict[str, Any] = {
            "as_strided": torch.as_strided,
            "relaid": relaid,
            "retyped": retyped,
        }
        self.objects: dict[Any, str] = {}
        """The global of each object that the text names."""
        self.local: dict[Hashable, str] = {}
        """The variable of each name."""
        self.views: dict[str, dict[Layout, str]] = {}
        """By variable: the variables of its views."""
        self.count = 0
        self.rows = ""
        """How many rows the op has that is being written, where that is known at run time only."""

    def let_go(self, names: Iterable[Hashable]) -> None:
        """Delete the variables of what nobody reads any more, and of views of it."""
        freed = [self.local.pop(name, "") for name in names]
        gone: list[str] = []
        for variable in dict.fromkeys(freed):
            # What was written in place goes by two names; the last of them frees it.
            if (
                variable
                and not variable.startswith("state[")
                and variable not in self.local.values()
            ):
                gone += [variable, *self.views.pop(variable, {}).values()]
        if gone:
            self.text.append(f"del {', '.join(gone)}")

    def value(self, value: Any, op: OpCall) -> str:
        """A value that an op is called with."""
        if isinstance(value, Node):
            return self._argument(value, op)
        if isinstance(value, list | tuple) and any(
            isinstance(each, Node) for each in pytree.tree_leaves(value)
        ):
            return f"[{', '.join(self.value(each, op) for each in value)}]"
        if isinstance(value, torch.device):
            value = self.device
        return self._constant(value)

    def named(self, op: OpCall) -> list[str]:
        """The arguments that go by name."""
        kernel = op.kernel
        kwargs = {name: self.value(value, op) for name, value in kernel.node.kwargs.items()}
        if not kernel.reads and any(isinstance(each, Node) for each in kernel.node.args):
            # Of the likeness it is given, only the shape counts.
            kwargs["device"] = self._constant(self.device)
        if is_update(kernel):
            group = self.group_of[updated_name(op.step, kernel)]
            if takes_step(kernel):
                rate = f"held.rates[{group}]" if self.has_rates else "None"
                return [f"group={group}", "is_first=held.is_first", f"rate={rate}"]
            kwargs |= group_values(kwargs, group, has_rates=self.has_rates)
            if self.is_scaled:
                kwargs["found_inf"] = "held.scale.skips"
        return [f"{name}={value}" for name, value in kwargs.items()]

    def target(self, kernel: Kernel) -> str:
        """The function of an op."""
        target = kernel.node.target
        if takes_step(kernel):
            return "held.update"
        if self.has_rates and is_update(kernel):
            target = target.overloadpacket.tensor_lr  # type: ignore[union-attr]
        return self.object_name(target)

    def _argument(self, node: Node, op: OpCall) -> str:
        kernel = op.kernel
        version = kernel.reads.get(node.name)
        wanted = Layout.of(node.meta["val"])
        check_rows(kernel, wanted)
        if version is None:  # only its shape counts
            if ARRIVED in wanted.shape:
                raise unknown_rows(kernel)
            return self.object_name(shape_of(node.meta["val"]))
        base, layout = self.local[op.names[version]], op.step.layouts[version]
        if ARRIVED in layout.shape and ARRIVED not in wanted.shape:
            raise unknown_rows(kernel)
        return self.view(base, layout, wanted)

    def view(self, base: str, layout: Layout, wanted: Layout) -> str:
        """The variable of a view; state, which lives on, has none of its views."""
        if wanted == layout:
            return base
        is_state = base.startswith("state[")
        views = {} if is_state else self.views.setdefault(base, {})
        if wanted in views:
            return views[wanted]
        sizes = [self._size(each, base, layout) for each in wanted.shape]
        shape = f"({''.join(f'{each}, ' for each in sizes)}), {wanted.stride!r}, {wanted.offset}"
        if wanted.dtype is layout.dtype:
            text = f"as_strided({base}, {shape})"
        else:
            text = f"retyped({base}, {self.object_name(wanted.dtype)}, {shape})"
        if wanted.is_conjugate:
            text += ".conj()"
        if is_state:
            return text
        views[wanted] = self.new("x")
        self.text.append(f"{views[wanted]} = {text}")
        return views[wanted]

    def _size(self, size: int, base: str, layout: Layout) -> str:
        """A size of a view; rows that are known at run time only are those of its base."""
        return f"{base}.shape[{layout.shape.index(ARRIVED)}]" if size == ARRIVED else repr(size)

    def rows_of(self, op: OpCall) -> str:
        """How many rows an op has that are known at run time only, in the generated code."""
        for version in op.kernel.reads.values():
            layout = op.step.layouts[version]
            if ARRIVED in layout.shape:
                return self._size(ARRIVED, self.local[op.names[version]], layout)
        return ""

    def _constant(self, value: Any) -> str:
        if value == ARRIVED and isinstance(value, int):
            assert self.rows, "what is known at run time only is read off what an op reads"
            return self.rows
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if isinstance(value, float) and value == value and abs(value) != float("inf"):
            return repr(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self._constant(each) for each in value)}]"
        return self.object_name(value)

    def object_name(self, value: Any) -> str:
        """The global by which the text names an object."""
        key = value if isinstance(value, tuple) else id(value)
        if key not in self.objects:
            name = f"o{len(self.objects)}"
            self.objects[key] = name
            self.globals[name] = value
        return self.objects[key]

    def new(self, prefix: str) -> str:
        """A variable that there was not before."""
        self.count += 1
        return f"{prefix}{self.count}"
