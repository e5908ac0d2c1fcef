"""Writes Python for a run of ops on one device: a function from tensors to tensors.

One line an op, locals for what stays inside, deleted after their last use: as little between two
kernels as Python allows. The same function serves every microbatch. Knows nothing of programs and
communication; what it is given and gives back are bases (see `meshwright.execute.traced`).
"""

from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel
from meshwright.capture.torch_private import add_each
from meshwright.execute.arrived import check_rows
from meshwright.execute.compiled import FILE_NAME, Compiled, Extra, Function, RankState
from meshwright.execute.draw import Draw, drawn_kernel, is_repeatable, seeded
from meshwright.execute.item import OpLine, Segment
from meshwright.execute.last_use import find_last_uses, made_name
from meshwright.execute.region.again import find_again
from meshwright.execute.region.find import find_stretches
from meshwright.execute.region.recipe import SCALE, Compiler, Region, RegionFunction, write_regions
from meshwright.execute.scope import CodeScope, OpCall
from meshwright.execute.steps import TracedSteps
from meshwright.execute.update import update_key


def compile_segment(
    segment: Segment,
    steps: TracedSteps,
    device: torch.device,
    held: RankState,
    extra: Extra,
    compiler: Compiler | None,
) -> Compiled:
    """The function of a segment; `steps` are the traced steps by samples.

    `held`: what it will be called with. `compiler`: it makes one function of each region of the
    segment; None: every op is a call.
    """
    regions: list[tuple[Region, RegionFunction]] = []
    if compiler is not None and extra is not Extra.CHECKS:
        regions = _compile_regions(segment, steps, compiler)
    scope = CodeScope(device, held, is_scaled=segment.is_scaled)
    writer = _SegmentWriter(segment, steps, scope, extra, regions)
    writer.write()
    return Compiled(writer.function(), tuple(writer.first_text), tuple(map(len, writer.runs)))


def _compile_regions(
    segment: Segment, steps: TracedSteps, compiler: Compiler
) -> list[tuple[Region, RegionFunction]]:
    """The regions of a segment and their functions; lines that are in none run as they are."""
    stretches = find_stretches(segment, steps)
    while True:
        again = find_again(segment, steps, stretches)
        regions = write_regions(segment, steps, stretches, again)
        made = [(each, compiler(each.recipe)) for each in regions]
        found = [(region, function) for region, function in made if function is not None]
        if len(found) == len(stretches):
            return found
        # What is left reads and returns something else without those that were refused.
        stretches = [region.lines for region, _ in found]


class _SegmentWriter:
    """The source text as it grows."""

    def __init__(
        self,
        segment: Segment,
        steps: TracedSteps,
        scope: CodeScope,
        extra: Extra,
        regions: Sequence[tuple[Region, RegionFunction]],
    ) -> None:
        self.segment, self.steps, self.scope, self.extra = segment, steps, scope, extra
        self.draws = steps.draws
        self.text, self.local = self.scope.text, self.scope.local
        self.made: dict[tuple[int, int], str] = {}
        """The variable of what each line makes."""
        self.last_use = find_last_uses(segment, steps, _find_unread(segment, regions))
        self.first_text: list[int] = []
        """Where the text of each line begins."""
        self.regions = {each[0].lines.start: each for each in regions}
        """By first line: the regions that are compiled, and their functions."""

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
        op = self._op(number)
        kernel = op.kernel
        self.first_text.append(len(self.text))
        self._load(op.names.values())
        self._call(op)
        if self.extra is Extra.CHECKS and kernel.bytes_written:  # else it is not initialised
            made = [(version, self.made[number, version]) for version in kernel.made]
            self.text += [f"held.look({version}, {name})" for version, name in made]
        self._finish(number)
        if self.extra is Extra.TIMES:
            self.text.append("held.mark()")

    def _op(self, number: int) -> OpCall:
        line = self.segment.lines[number]
        step = self.steps[line.samples]
        return OpCall(number, line, step, step.ledger.kernels[line.op], dict(line.reads))

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
            op = self._op(number)
            key = update_key(op.step, op.kernel, self.scope.group_of)
            before = runs[-1] if runs and key is not None and key == last else []
            made = {made_name(each, v) for each in before for v in self._op(each).kernel.made}
            if before and not made & {name for _, name in line.reads}:
                before.append(number)
            else:
                runs.append([number])
            last = key if self.extra is not Extra.CHECKS else None
        return runs

    def _run_region(self, region: Region, function: RegionFunction) -> None:
        """Run a region by its compiled function, which holds the only references to those of its
        inputs that nobody reads later, and lets go of them when it can."""
        self.first_text += [len(self.text)] * len(region.lines)
        self._load(region.inputs)
        given, made = self.scope.new("g"), self.scope.new("r")
        self.text.append(f"{given} = [{', '.join(self.local[name] for name in region.inputs)}]")
        for number in region.lines:
            self._keep_written(self._op(number))
        own = set(region.inputs)
        self.scope.let_go(
            name for k in region.lines for name in self.last_use.get(k, ()) if name in own
        )
        self.text.append(f"{made} = {self.scope.object_name(function)}({given})")
        for place, (number, version) in enumerate(region.outputs):
            self._keep_result(number, version, f"{made}[{place}]")
        self.text.append(f"del {given}, {made}")
        for number in region.lines:
            op = self._op(number)
            if op.step.loss_version in op.kernel.made:
                self._keep_loss(op)
            self._finish(number)
        if self.extra is Extra.TIMES:
            self.text.append("held.mark()")

    def _update(self, together: Sequence[int]) -> None:
        """Update several parameters by one call, which is one kernel instead of many."""
        counters: list[str] = []
        first, named = self._op(together[0]).kernel, list[str]()
        lists: list[list[str]] = [[] for _ in first.node.args]
        for number in together:
            op = self._op(number)
            self.first_text.append(len(self.text))
            self._load(op.names.values())
            self._copy_written(op)
            counters += self._counters(op)
            for several, own in zip(lists, op.kernel.node.args, strict=True):
                assert isinstance(own, list | tuple)  # see `update_key`
                several += [self.scope.value(each, op) for each in own]
            named = self.scope.named(op)
            self._keep_written(op)
        if counters:
            self.text.append(
                f"{self.scope.object_name(add_each)}([{', '.join(counters)}], {self.scope.counts})"
            )
        args = [f"[{', '.join(several)}]" for several in lists]
        self.text.append(f"{self.scope.target(first)}({', '.join([*args, *named])})")
        for number in together:
            self._finish(number)
        if self.extra is Extra.TIMES:
            self.text.append("held.mark()")

    def function(self) -> Function:
        """Compile what has been written."""
        body = "\n    ".join(["state = held.state", *self.text])
        source = f"def segment(given, held):\n    {body}\n"
        exec(compile(source, FILE_NAME, "exec"), self.scope.globals)
        function: Function = self.scope.globals["segment"]
        return function

    def _load(self, names: Iterable[Hashable]) -> None:
        """Bring inputs into locals when they are first read."""
        for name in names:
            if name in self.local:
                continue
            if name in self.segment.inputs:
                place = self.segment.inputs.index(name)
                self.local[name] = self.scope.new("i")
                self.text.append(f"{self.local[name]} = given[{place}]")
                if self.segment.last[place]:
                    self.text.append(f"given[{place}] = None")
            elif name == SCALE:
                self.local[name] = "held.scale.value"
            elif isinstance(name, tuple) and name[0] == "keys":
                self.local[name] = self.scope.new("k")
                self.text.append(f"{self.local[name]} = {_keys(*name[1:])}")
            else:
                assert isinstance(name, tuple) and name[0] == "state", name
                self.local[name] = f"state[{name[1]}]"

    def _call(self, op: OpCall) -> None:
        number, line, step, kernel = op.number, op.line, op.step, op.kernel
        self._copy_written(op)
        counters = self._counters(op)
        self.text += [f"{each}.add_({self.scope.counts})" for each in counters]
        self.scope.rows = self.scope.rows_of(op)
        by_place = [self.scope.value(each, op) for each in kernel.node.args]
        args = ", ".join([*by_place, *self.scope.named(op)])
        result = self.scope.new("r")
        draw = self.draws(line.samples).get(line.op)
        if hasattr(kernel.node.target, "begin"):  # a `Talk`
            self.text.append(
                f"{result} = held.talk({self.scope.object_name(kernel.node.target)}, {args})"
            )
        elif draw is None:
            self.text.append(f"{result} = {self.scope.target(kernel)}({args})")
        else:
            self.text.append(f"{result} = {self._drawn(line, kernel, draw)}, {args})")
        for output in step.outputs(kernel):
            check_rows(kernel, step.layouts[output.version])
            text = result if output.place is None else f"{result}[{output.place}]"
            self._keep_result(number, output.version, text)
        if line.op == step.seed_kernel:
            self.text.append(f"{result}.mul_({self.segment.weight!r})")
            if self.segment.is_scaled:
                self.text.append(f"{result}.mul_(held.scale.value)")
        if not any(self.made.get((number, v)) == result for v in kernel.made):
            self.text.append(f"del {result}")
        self._keep_written(op)
        if step.loss_version in kernel.made:
            self._keep_loss(op)

    def _drawn(self, line: OpLine, kernel: Kernel, draw: Draw) -> str:
        """The call of an op that draws, up to its first own argument."""
        if not is_repeatable(kernel.node):
            seed = f"held.seed_of({draw.op}, {line.samples})"
            target = self.scope.object_name(kernel.node.target)
            return f"{self.scope.object_name(seeded)}({seed}, {target}"
        function = self.scope.object_name(drawn_kernel(kernel.node, draw))
        return f"{function}({_keys(draw.op, draw.samples(line.samples))}"

    def _keep_result(self, number: int, version: int, text: str) -> None:
        """Keep a tensor that was made, in the layout that readers expect."""
        variable = text
        if "[" in text:
            variable = self.scope.new("b")
            self.text.append(f"{variable} = {text}")
        layouts = self.steps[self.segment.lines[number].samples].layouts
        stride = self.scope.object_name(layouts[version].stride)
        self.text.append(
            f"if {variable}.stride() != {stride}: {variable} = relaid({variable}, {stride})"
        )
        self._keep(number, version, variable)

    def _counters(self, op: OpCall) -> list[str]:
        """The optimiser's counters that an op advances first."""
        found = []
        for counter in op.step.counters.get(op.line.op, ()):
            first = counter.args[0]
            assert isinstance(first, Node)
            reads = op.kernel.reads
            version = reads.get(first.name, reads.get(counter.name, -1))
            found.append(self.local[op.names[version]])
        return found

    def _keep_written(self, op: OpCall) -> None:
        """Keep what was written in place, which is the same variable."""
        for version in op.kernel.made:
            old = op.step.ledger.versions[version].replaces
            if old >= 0 and op.names[old] in self.local:  # else a region has made it, too
                self._keep(op.number, version, self.local[op.names[old]])

    def _keep_loss(self, op: OpCall) -> None:
        step = op.step
        base = self.made[op.number, step.loss_version]
        view = self.scope.view(base, step.layouts[step.loss_version], step.loss_layout)
        self.text.append(f"held.losses.append({view}.detach() * {self.segment.loss_weight!r})")

    def _copy_written(self, op: OpCall) -> None:
        """Copy what is about to be written in place but is read elsewhere."""
        names = op.names
        for version in op.kernel.made:
            if (op.number, version) in self.segment.copied:
                old = op.step.ledger.versions[version].replaces
                copy = self.scope.new("c")
                stride = self.scope.object_name(op.step.layouts[old].stride)
                self.text.append(f"{copy} = relaid({self.local[names[old]]}, {stride}, True)")
                names[old] = made_name(op.number, version)
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
        self.scope.let_go(self.last_use.get(number, ()))


def _keys(op: int, samples: int) -> str:
    return f"held.keys({op}, {samples})"


def _find_unread(
    segment: Segment, regions: Sequence[tuple[Region, RegionFunction]]
) -> set[tuple[int, Hashable]]:
    """Lines, and names that they need not be given: their region has them, or makes them again."""
    return {
        (number, name)
        for region, _ in regions
        for number in region.lines
        for _, name in segment.lines[number].reads
        if name not in region.inputs
    }
