"""Records a training step as PyTorch would run it: kernels, what they read and make, and gradients.

A small autograd without tensors: forward ops leave nodes on the tape, and `finish` walks them
backwards, adds up gradients where several meet, and updates every weight. What an op costs is said
by whoever runs it; what follows from order (who reads what, how many calls, whose gradient it is)
is found here by the rules of `capture`. Knows no op and no model.
"""

from collections.abc import Callable, Sequence
from typing import Any

from meshwright.graph.architecture.value import (
    FP32,
    NO_PRODUCT,
    TYPES,
    Backward,
    ProductSize,
    Storage,
    TapeKernel,
    TapeNode,
    Type,
    Value,
    Weight,
)
from meshwright.graph.column import Phase
from meshwright.graph.path import encloses

_TF32 = ("mm", "addmm", "bmm", "baddbmm", "stored_")
"""What the kinds of ops start with that TF32 makes faster, as `capture.call` has it."""
STEP_BYTES = 4
"""Of the step's number that Adam keeps for each parameter, in fp32."""


class StepTape:
    """What has been recorded so far."""

    def __init__(self, precision: str) -> None:
        self.weight_type = TYPES[precision]
        self.has_tf32 = precision == "tf32"
        """Whether fp32 matrices are multiplied in TF32."""
        self.has_masters = precision == "mixed"
        """Whether the optimiser updates copies of weights in fp32 (`capture.master`)."""
        self.kernels: list[TapeKernel] = []
        self.storages: list[Storage] = []
        self.weights: list[Weight] = []
        self.made_gradients: list[int] = []
        """The storage of each weight's gradient, as backward makes it."""
        self.buffers: list[int] = []
        """What modules hold and never update, ..."""
        self.inputs: list[int] = []
        """... and what is fed into the step: storages."""
        self._nodes: list[TapeNode] = []
        self._phase = Phase.FORWARD
        self._current = -1
        self._partner = -1
        self._views = 0
        self._gradients: dict[int, Value] = {}
        self.stem = ""
        """Path of the layers' modules, to which the number of a layer is added."""
        self.forward_marks: list[int] = []
        """The first kernel of each layer, and the one behind the last layer's; so for ..."""
        self.backward_marks: list[int] = []
        """... backward, where the last layer comes first, ..."""
        self.update_marks: list[int] = []
        """... and the updates."""
        self._node_marks: list[int] = []

    def weight(self, module: str, elements: int) -> Value:
        """A parameter; weights are updated in the order in which they are made."""
        made = self._hold(elements, self.weight_type)
        made.needs_gradient = True
        self.weights.append(Weight(made, module))
        return made

    def copy(self, module: str, original: Value) -> Value:
        """A copy of a weight, which another device may hold.

        Both are updated with the sum of their gradients, so that they stay equal.
        """
        made = self.weight(module, original.elements)
        self.weights[-1] = Weight(made, module, original)
        return made

    def pair(self, module: str, elements: int, biases: int) -> tuple[Value, Value]:
        """A weight and a bias."""
        return self.weight(module, elements), self.weight(module, biases)

    def buffer(self, elements: int, number_type: Type) -> Value:
        """What a module holds and never updates."""
        made = self._hold(elements, number_type)
        self.buffers.append(made.storage)
        return made

    def input(self, elements: int, number_type: Type) -> Value:
        """What is fed into the step."""
        made = self._hold(elements, number_type)
        self.inputs.append(made.storage)
        return made

    def _hold(self, elements: int, number_type: Type) -> Value:
        self.storages.append(Storage(elements * number_type.size, -1))
        return Value(len(self.storages) - 1, elements, number_type)

    def run(
        self,
        module: str,
        name: str,
        reads: Sequence[Value],
        makes: Sequence[tuple[int, Type]],
        *,
        kind: str = "",
        precision: str = "",
        flops: int = 0,
        moved: int | None = None,
        written: int | None = None,
        product: ProductSize = NO_PRODUCT,
        workspace: int = 0,
        kept: int = 0,
        earliest: bool = False,
        plain: bool = False,
    ) -> list[Value]:
        """Run a kernel that makes so many numbers of a type each.

        `moved` and `written` are bytes where they are not those of `reads` and `makes`. In
        backward the module is that of the forward op that it belongs to, which with `earliest` is
        the earliest of those it reads. `plain`: a forward kernel without a gradient. `capture`
        tells forward ops by autograd's counter, which such kernels do not advance: the node before
        counts those of its module, and of modules around it, as its own.
        """
        number = len(self.kernels)
        partner = -1
        if self._phase is Phase.BACKWARD:
            partner = self._partner
            if earliest or partner < 0:
                partner = self._earliest(reads)
            module = self.kernels[partner].module if partner >= 0 else ""
        first = len(self.storages)
        self.storages += [Storage(count * each.size, number) for count, each in makes]
        storages = tuple(dict.fromkeys(value.storage for value in reads))
        for storage in storages:
            self.storages[storage].readers.append(number)
        made = list(range(first, len(self.storages)))
        self.kernels.append(
            TapeKernel(
                name,
                kind or name,
                module,
                self._phase,
                precision or self._precision(kind or name, reads, makes),
                flops,
                sum(value.bytes for value in reads) if moved is None else moved,
                sum(count * each.size for count, each in makes) if written is None else written,
                product,
                workspace,
                kept,
                self._views + 1,
                storages,
                made,
                partner,
                self._current,
            )
        )
        self._views = 0
        if plain:
            self._own(number)
        return [
            Value(storage, count, each) for storage, (count, each) in zip(made, makes, strict=True)
        ]

    def make(
        self,
        module: str,
        name: str,
        reads: Sequence[Value],
        makes: tuple[int, Type] | None = None,
        **more: Any,
    ) -> Value:
        """Run a kernel that makes one value: unless said, of numbers like the first it reads."""
        makes = makes or (reads[0].elements, reads[0].type)
        return self.run(module, name, reads, [makes], **more)[0]

    def make_plain(self, *given: Any, **more: Any) -> Value:
        """Likewise of a forward kernel that has no gradient."""
        return self.make(*given, plain=True, **more)

    def repeat(
        self, stem: str, layers: int, layer: Callable[[str, Value], Value], x: Value
    ) -> Value:
        """Run layers one after the other, each with the path of its module."""
        self.stem = stem
        for number in range(layers):
            self._mark()
            x = layer(f"{stem}.{number}", x)
        self._mark()
        return x

    def _mark(self) -> None:
        self.forward_marks.append(len(self.kernels))
        self._node_marks.append(len(self._nodes))
        self.update_marks.append(len(self.weights))

    def view(
        self,
        value: Value,
        elements: int | None = None,
        *,
        calls: int = 1,
        calls_back: int = 1,
        layout: str = "",
    ) -> Value:
        """The same memory in another shape; a part of it where `elements` are fewer."""
        self._views += calls
        made = Value(
            value.storage, value.elements if elements is None else elements, value.type,
            layout=layout,
        )  # fmt: skip
        if not value.needs_gradient:
            self._own(self.storages[value.storage].source)
            return made

        def backward(gradient: Value) -> list[Value]:
            self._views += calls_back
            return [Value(gradient.storage, value.elements, value.type, layout=value.layout)]

        return self.record(made, (value,), backward)

    def count_views(self, calls: int) -> None:
        """Views of something that is not followed here."""
        self._views += calls

    def _own(self, kernel: int) -> None:
        if not self._nodes or kernel < 0:
            return
        node, own = self._nodes[-1], self.kernels[kernel]
        if node.partner < 0 or encloses(own.module, self.kernels[node.partner].module):
            node.partner = kernel

    def record(
        self, output: Value, inputs: Sequence[Value], backward: Backward, *, known: bool = True
    ) -> Value:
        """Let the gradient of an output be found from now on."""
        self.record_all((output,), inputs, backward, known=known)
        return output

    def record_all(
        self,
        outputs: Sequence[Value],
        inputs: Sequence[Value],
        backward: Backward,
        *,
        known: bool = True,
    ) -> None:
        """As `record`, of several outputs; `known`: whether its forward kernel can be told."""
        for output in outputs:
            output.needs_gradient = True
        partner = self.storages[outputs[0].storage].source if known else -1
        self._nodes.append(TapeNode(tuple(outputs), tuple(inputs), backward, partner))

    def finish(self, loss: Value, optimizer: str) -> "StepTape":
        """Backward from the loss on, then the updates."""
        self._phase = Phase.BACKWARD
        self._partner = self.storages[loss.storage].source
        ones = self.make("", "ones_like", (), (1, loss.type), precision=loss.type.precision)
        self._gradients[id(loss)] = ones
        for number in range(len(self._nodes) - 1, -1, -1):
            if number + 1 in self._node_marks:
                self.backward_marks.append(len(self.kernels))
            self._differentiate(number)
        self._phase, self._current = Phase.UPDATE, -1
        self.made_gradients = [self._gradients[id(each.value)].storage for each in self.weights]
        self._add_copies()
        self.update_marks = [len(self.kernels) + each for each in self.update_marks]
        self._update(optimizer)
        self.kernels[-1].calls += self._views
        self._nodes.clear()
        return self

    def _differentiate(self, number: int) -> None:
        node = self._nodes[number]
        given = [self._gradients.pop(id(output), None) for output in node.outputs]
        if all(each is None for each in given):
            return
        self._current, self._partner = number, node.partner
        found = node.backward(*given)
        for value, gradient in zip(node.inputs, found, strict=True):
            if gradient is not None and value.needs_gradient:
                self._accumulate(value, gradient)
        self._current = -1

    def _accumulate(self, value: Value, gradient: Value) -> None:
        before = self._gradients.get(id(value))
        if before is not None:
            # Autograd adds between its ops, so the sum is no part of either.
            current, self._current = self._current, -1
            gradient = self.add_up(before, gradient)
            self._current = current
        self._gradients[id(value)] = gradient

    def add_up(self, one: Value, other: Value) -> Value:
        """The sum of two gradients, of the layout of the first."""
        kind = "add" if one.layout == other.layout else "strided_add"
        made = self.make("", "add", (one, other), kind=kind, earliest=True)
        made.layout = one.layout
        return made

    def _add_copies(self) -> None:
        for weight in self.weights:
            if weight.original is not None:
                both = [id(weight.value), id(weight.original)]
                gradients = [self._gradients[each] for each in both]
                size = weight.value.elements, self.weight_type
                self._gradients |= dict.fromkeys(both, self.make("", "add", gradients, size))

    def _update(self, optimizer: str) -> None:
        moments = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}[optimizer]
        kind = "sgd" if moments < 2 else optimizer
        name = "_fused_step_" if self.has_masters else f"_fused_{kind}_"
        step = STEP_BYTES if moments == 2 else 0
        for weight in self.weights:
            value = weight.value
            wide = value.elements * FP32.size
            gradient = self._gradients.pop(id(value))
            state = (1 + moments) * wide if self.has_masters else moments * value.bytes
            if step and not self.has_masters:
                self._views += 1  # the step's number is advanced by a call of its own
            self.run(
                weight.module,
                name,
                (value, gradient),
                (),
                kind=f"_fused_mixed-{kind}_" if self.has_masters else name,
                moved=2 * value.bytes + state + step,
                written=value.bytes + state + (step if self.has_masters else 0),
                workspace=wide if self.has_masters else 0,  # the gradient in fp32
            )
            self.kernels[-1].state = state + step

    def _precision(
        self, kind: str, reads: Sequence[Value], makes: Sequence[tuple[int, Type]]
    ) -> str:
        """As TF32 has it where matrices are multiplied, else that of what is computed."""
        found = _precision(reads, makes)
        return "tf32" if self.has_tf32 and found == "fp32" and kind.startswith(_TF32) else found

    def _earliest(self, reads: Sequence[Value]) -> int:
        found = []
        for value in reads:
            source = self.storages[value.storage].source
            if source >= 0:
                is_forward = self.kernels[source].phase is Phase.FORWARD
                found.append(source if is_forward else self.kernels[source].partner)
        return min((each for each in found if each >= 0), default=-1)


def _precision(reads: Sequence[Value], makes: Sequence[tuple[int, Type]]) -> str:
    """Of what is computed: the first floating-point input, else output."""
    for each in (*(value.type for value in reads), *(made for _, made in makes)):
        if each.precision:
            return each.precision
    return "fp32"
