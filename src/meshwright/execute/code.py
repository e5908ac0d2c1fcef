"""Writes Python for a run of ops on one device: a function from tensors to tensors.

One line an op, locals for what stays inside, deleted after their last use: as little between two
kernels as Python allows. The same function serves every microbatch. Knows nothing of programs and
communication; what it is given and gives back are bases (see `meshwright.execute.traced`).
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from meshwright.capture.ledger import Kernel, op_name
from meshwright.execute.arrived import check_rows, unknown_rows
from meshwright.execute.compiled import FILE_NAME, Compiled, Extra, Function
from meshwright.execute.draw import drawn_kernel
from meshwright.execute.item import Line, Segment
from meshwright.execute.last_use import find_last_uses, made_name
from meshwright.execute.region.compiler import Compiler, RegionFunction
from meshwright.execute.region.find import find_regions
from meshwright.execute.region.recipe import Region
from meshwright.execute.steps import TracedSteps
from meshwright.execute.traced import ARRIVED, Layout, TracedStep, relaid, retyped, shape_of
from meshwright.execute.update import update_key


def compile_segment(
    segment: Segment,
    steps: TracedSteps,
    device: torch.device,
    extra: Extra,
    compiler: Compiler | None = None,
) -> Compiled:
    """The function of a segment; `steps` are the traced steps by samples.

    `compiler`: it makes one function of each region of the segment; None: every op is a call.
    """
    writer = _Writer(segment, steps, device, extra)
    if compiler is not None and extra is not Extra.CHECKS:
        for region in find_regions(segment, steps):
            writer.regions[region.lines.start] = region, compiler(region.recipe)
    writer.write()
    return Compiled(writer.function(), tuple(writer.first_text), tuple(map(len, writer.runs)))


class _Writer:
    """The source text as it grows."""

    def __init__(
        self,
        segment: Segment,
        steps: TracedSteps,
        device: torch.device,
        extra: Extra,
    ) -> None:
        self.segment, self.steps, self.device, self.extra = segment, steps, device, extra
        self.draws = steps.draws
        self.text: list[str] = []
        self.globals: dict[str, Any] = {
            "as_strided": torch.as_strided,
            "relaid": relaid,
            "retyped": retyped,
        }
        self.objects: dict[Any, str] = {}
        self.local: dict[Hashable, str] = {}
        """The variable of each name."""
        self.views: dict[str, dict[Layout, str]] = {}
        """By variable: the variables of its views."""
        self.made: dict[tuple[int, int], str] = {}
        """The variable of what each line makes."""
        self.last_use = find_last_uses(segment, steps)
        self.first_text: list[int] = []
        """Where the text of each line begins."""
        self.regions: dict[int, tuple[Region, RegionFunction]] = {}
        """By first line: the regions that are compiled, and their functions."""
        self.count = 0
        self.rows = ""
        """How many rows the op has that is being written, where that is known at run time only."""

    def write(self) -> None:
        """One line after the other."""
        for together in self.runs:
            if together[0] in self.regions:
                self._run_region(*self.regions[together[0]])
            elif len(together) > 1:
                self._update(together)
            else:
                self._write_line(together[0])
        outputs = ", ".join(self.made[each] for each in self.segment.outputs)
        self.text.append(f"return [{outputs}]")

    def _write_line(self, number: int) -> None:
        line = self.segment.lines[number]
        step, kernel = self._kernel(number)
        self.first_text.append(len(self.text))
        self._load(name for _, name in line.reads)
        self._call(number, line, step, kernel)
        if self.extra is Extra.CHECKS and kernel.bytes_written:  # else it is not initialised
            made = [(version, self.made[number, version]) for version in kernel.made]
            self.text += [f"held.look({version}, {name})" for version, name in made]
        self._finish(number)
        if self.extra is Extra.TIMES:
            self.text.append("held.mark()")

    def _kernel(self, number: int) -> tuple[TracedStep, Kernel]:
        line = self.segment.lines[number]
        step = self.steps[line.samples]
        return step, step.ledger.kernels[line.op]

    @cached_property
    def runs(self) -> list[list[int]]:
        """Lines in turn; those of a region are together, and updates that one call can do."""
        runs: list[list[int]] = []
        last: Hashable = None
        until = 0
        for number, line in enumerate(self.segment.lines):
            if number in self.regions:
                runs.append(list(self.regions[number][0].lines))
                until, last = self.regions[number][0].lines.stop, None
            if number < until:
                continue
            key = update_key(self._kernel(number)[1].node)
            before = runs[-1] if runs and key is not None and key == last else []
            made = {made_name(each, v) for each in before for v in self._kernel(each)[1].made}
            if before and not made & {name for _, name in line.reads}:
                before.append(number)
            else:
                runs.append([number])
            last = key if self.extra is Extra.NOTHING else None
        return runs

    def _run_region(self, region: Region, function: RegionFunction) -> None:
        """Run a region by its compiled function, which holds the only references to those of its
        inputs that nobody reads later, and lets go of them when it can."""
        self.first_text += [len(self.text)] * len(region.lines)
        self._load(region.inputs)
        given, made = self._new("g"), self._new("r")
        self.text.append(f"{given} = [{', '.join(self.local[name] for name in region.inputs)}]")
        for number in region.lines:
            line, (step, kernel) = self.segment.lines[number], self._kernel(number)
            self._keep_written(number, step, kernel, dict(line.reads))
        own = set(region.inputs)
        self._let_go(name for k in region.lines for name in self.last_use.get(k, ()) if name in own)
        self.text.append(f"{made} = {self._object(function)}({given})")
        for place, (number, version) in enumerate(region.outputs):
            self._keep_result(number, version, f"{made}[{place}]")
        self.text.append(f"del {given}, {made}")
        for number in region.lines:
            step, kernel = self._kernel(number)
            if step.loss_version in kernel.made:
                self._keep_loss(number, step)
            self._finish(number)
        if self.extra is Extra.TIMES:
            self.text.append("held.mark()")

    def _update(self, together: Sequence[int]) -> None:
        """Update several parameters by one call, which is one kernel instead of many."""
        counters: list[str] = []
        node, named = self._kernel(together[0])[1].node, list[str]()
        lists: list[list[str]] = [[] for _ in node.args]
        for number in together:
            line, (step, kernel) = self.segment.lines[number], self._kernel(number)
            self.first_text.append(len(self.text))
            self._load(name for _, name in line.reads)
            names = dict(line.reads)
            self._copy_written(number, step, kernel, names)
            counters += self._counters(line, step, kernel, names)
            for several, own in zip(lists, kernel.node.args, strict=True):
                assert isinstance(own, list | tuple)  # see `update_key`
                several += [self._text(each, kernel, names, step) for each in own]
            named = self._named(kernel, names, step)
            self._keep_written(number, step, kernel, names)
        if counters:
            self.text.append(f"{self._object(torch._foreach_add_)}([{', '.join(counters)}], 1)")
        args = [f"[{', '.join(several)}]" for several in lists]
        self.text.append(f"{self._object(node.target)}({', '.join([*args, *named])})")
        for number in together:
            self._finish(number)

    def function(self) -> Function:
        """Compile what has been written."""
        body = "\n    ".join(["state = held.state", *self.text])
        source = f"def segment(given, held):\n    {body}\n"
        exec(compile(source, FILE_NAME, "exec"), self.globals)
        function: Function = self.globals["segment"]
        return function

    def _load(self, names: Iterable[Hashable]) -> None:
        """Bring inputs into locals when they are first read."""
        for name in names:
            if name in self.local:
                continue
            if name in self.segment.inputs:
                place = self.segment.inputs.index(name)
                self.local[name] = self._new("i")
                self.text.append(f"{self.local[name]} = given[{place}]")
                if self.segment.last[place]:
                    self.text.append(f"given[{place}] = None")
            else:
                assert isinstance(name, tuple) and name[0] == "state", name
                self.local[name] = f"state[{name[1]}]"

    def _call(self, number: int, line: Line, step: TracedStep, kernel: Kernel) -> None:
        names = dict(line.reads)
        self._copy_written(number, step, kernel, names)
        self.text += [f"{each}.add_(1)" for each in self._counters(line, step, kernel, names)]
        self.rows = self._rows_of(kernel, names, step)
        by_place = [self._text(each, kernel, names, step) for each in kernel.node.args]
        args = ", ".join([*by_place, *self._named(kernel, names, step)])
        result = self._new("r")
        draw = self.draws(line.samples).get(line.op)
        if hasattr(kernel.node.target, "begin"):  # a `Talk`
            self.text.append(f"{result} = held.talk({self._object(kernel.node.target)}, {args})")
        elif draw is None:
            self.text.append(f"{result} = {self._object(kernel.node.target)}({args})")
        else:
            function = self._object(drawn_kernel(kernel.node, draw, self.device))
            stream = f"held.stream({draw.op}, {line.samples})"
            self.text.append(f"{result} = {function}({stream}, {args})")
        for output in step.outputs(kernel):
            check_rows(kernel, step.layouts[output.version])
            text = result if output.place is None else f"{result}[{output.place}]"
            self._keep_result(number, output.version, text)
        if line.op == step.seed_kernel:
            self.text.append(f"{result}.mul_({self.segment.weight!r})")
        if not any(self.made.get((number, v)) == result for v in kernel.made):
            self.text.append(f"del {result}")
        self._keep_written(number, step, kernel, names)
        if step.loss_version in kernel.made:
            self._keep_loss(number, step)

    def _keep_result(self, number: int, version: int, text: str) -> None:
        """Keep a tensor that was made, in the layout that readers expect."""
        variable = text
        if "[" in text:
            variable = self._new("b")
            self.text.append(f"{variable} = {text}")
        layouts = self.steps[self.segment.lines[number].samples].layouts
        stride = self._object(layouts[version].stride)
        self.text.append(
            f"if {variable}.stride() != {stride}: {variable} = relaid({variable}, {stride})"
        )
        self._keep(number, version, variable)

    def _counters(
        self, line: Line, step: TracedStep, kernel: Kernel, names: Mapping[int, Hashable]
    ) -> list[str]:
        """The optimiser's counters that an op advances first."""
        found = []
        for counter in step.counters.get(line.op, ()):
            first = counter.args[0]
            assert isinstance(first, Node)
            version = kernel.reads.get(first.name, kernel.reads.get(counter.name, -1))
            found.append(self.local[names[version]])
        return found

    def _keep_written(
        self, number: int, step: TracedStep, kernel: Kernel, names: Mapping[int, Hashable]
    ) -> None:
        """What was written in place is the same variable."""
        for version in kernel.made:
            old = step.ledger.versions[version].replaces
            if old >= 0 and names[old] in self.local:  # else a region has made it, too
                self._keep(number, version, self.local[names[old]])

    def _keep_loss(self, number: int, step: TracedStep) -> None:
        base = self.made[number, step.loss_version]
        view = self._view(base, step.layouts[step.loss_version], step.loss_layout)
        self.text.append(f"held.losses.append({view}.detach() * {self.segment.loss_weight!r})")

    def _copy_written(
        self, number: int, step: TracedStep, kernel: Kernel, names: dict[int, Hashable]
    ) -> None:
        """Copy what is about to be written in place but is read elsewhere."""
        for version in kernel.made:
            if (number, version) in self.segment.copied:
                old = step.ledger.versions[version].replaces
                copy = self._new("c")
                stride = self._object(step.layouts[old].stride)
                self.text.append(f"{copy} = relaid({self.local[names[old]]}, {stride}, True)")
                names[old] = made_name(number, version)
                self.local[names[old]] = copy

    def _keep(self, number: int, version: int, variable: str) -> None:
        self.made[number, version] = variable
        self.local[made_name(number, version)] = variable

    def _finish(self, number: int) -> None:
        """Add up gradients, and let go of what is not read again."""
        for row, version, place, is_shared in self.segment.sums:
            if row == number:
                value = self.made[number, version]
                first = f"{value}.clone()" if is_shared else value
                self.text.append(
                    f"held.sums[{place}] = {first} if held.sums[{place}] is None "
                    f"else held.sums[{place}].add_({value})"
                )
        self._let_go(self.last_use.get(number, ()))

    def _let_go(self, names: Iterable[Hashable]) -> None:
        freed = [self.local.pop(name, "") for name in names]
        gone: list[str] = []
        for variable in dict.fromkeys(freed):
            # What was written in place goes by two names; the last of them frees it.
            if variable and not variable.startswith("state[") and variable not in self._living():
                gone += [variable, *self.views.pop(variable, {}).values()]
        if gone:
            self.text.append(f"del {', '.join(gone)}")

    def _living(self) -> set[str]:
        return set(self.local.values())

    def _text(
        self, value: Any, kernel: Kernel, names: Mapping[int, Hashable], step: TracedStep
    ) -> str:
        """A value that an op is called with."""
        if isinstance(value, Node):
            return self._argument(kernel, value, names, step)
        if isinstance(value, list | tuple) and any(
            isinstance(each, Node) for each in pytree.tree_leaves(value)
        ):
            return f"[{', '.join(self._text(each, kernel, names, step) for each in value)}]"
        if isinstance(value, torch.device):
            value = self.device
        return self._constant(value)

    def _named(self, kernel: Kernel, names: Mapping[int, Hashable], step: TracedStep) -> list[str]:
        """The arguments that go by name."""
        kwargs = {
            name: self._text(value, kernel, names, step)
            for name, value in kernel.node.kwargs.items()
        }
        if not kernel.reads and any(isinstance(each, Node) for each in kernel.node.args):
            # Of the likeness it is given, only the shape counts.
            kwargs["device"] = self._constant(self.device)
        if op_name(kernel.node).startswith("_fused_") and "lr" in kwargs:
            kwargs["lr"] = "held.learning_rate"
        return [f"{name}={value}" for name, value in kwargs.items()]

    def _argument(
        self, kernel: Kernel, node: Node, names: Mapping[int, Hashable], step: TracedStep
    ) -> str:
        version = kernel.reads.get(node.name)
        wanted = Layout.of(node.meta["val"])
        check_rows(kernel, wanted)
        if version is None:  # only its shape counts
            if ARRIVED in wanted.shape:
                raise unknown_rows(kernel)
            return self._object(shape_of(node.meta["val"]))
        base = self.local[names[version]]
        if ARRIVED in step.layouts[version].shape and ARRIVED not in wanted.shape:
            raise unknown_rows(kernel)
        return self._view(base, step.layouts[version], wanted)

    def _view(self, base: str, layout: Layout, wanted: Layout) -> str:
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
            text = f"retyped({base}, {self._object(wanted.dtype)}, {shape})"
        if wanted.is_conjugate:
            text += ".conj()"
        if is_state:
            return text
        views[wanted] = self._new("x")
        self.text.append(f"{views[wanted]} = {text}")
        return views[wanted]

    def _size(self, size: int, base: str, layout: Layout) -> str:
        """A size of a view; rows that are known at run time only are those of its base."""
        return f"{base}.shape[{layout.shape.index(ARRIVED)}]" if size == ARRIVED else repr(size)

    def _rows_of(self, kernel: Kernel, names: Mapping[int, Hashable], step: TracedStep) -> str:
        """How many rows an op has that are known at run time only, in the generated code."""
        for version in kernel.reads.values():
            layout = step.layouts[version]
            if ARRIVED in layout.shape:
                return self._size(ARRIVED, self.local[names[version]], layout)
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
        return self._object(value)

    def _object(self, value: Any) -> str:
        key = value if isinstance(value, tuple) else id(value)
        if key not in self.objects:
            name = f"o{len(self.objects)}"
            self.objects[key] = name
            self.globals[name] = value
        return self.objects[key]

    def _new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"
