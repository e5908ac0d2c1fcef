"""PyTorch's ops as they stand on a tape: their kernels, forward and backward, and what these cost.

Sizes follow from the shapes; which views lie between kernels, and in which order gradients are
made, is that of torch 2.13, whose captured steps the tests compare with. Knows no model.
"""

import math
from typing import Any

from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import BOOL, FP32, ProductSize, Type, Value

WIDEST = 16
"""Bytes that a thread loads at once (see `Graph.product_alignment`)."""
NARROW_BYTES = 1024
"""Pieces of rows shorter than this are put together one number at a time, as `capture` has it."""
SUM_COLUMNS, SUM_ROWS, SUM_BLOCKS, SUM_LOADED = 128, 64, 16 * 132, 4
"""How sums over rows are cut into blocks, each of which keeps its partial sums in fp32."""
STORED_BYTES, STORED_BACKWARD_BYTES = 9, 12
"""What there is at once of a score that is stored, and of its gradients."""
SORTED_TOKENS = 3072
"""From so many on, gradients of tokens are sorted by their words and added up in fp32."""


def alignment(size: int, *steps: int) -> int:
    """Bytes that rows start at a multiple of, where they are `steps` numbers apart."""
    return math.gcd(WIDEST, *(size * step for step in steps))


def summed_rows(columns: int, depth: int) -> tuple[ProductSize, int]:
    """The product of a sum over `depth` rows, and the partial sums of its blocks in bytes."""
    if columns <= 1 or depth <= SUM_ROWS:
        return ProductSize(1, columns, depth, 1, 0), 0
    most = math.ceil(SUM_BLOCKS / math.ceil(columns / SUM_COLUMNS))
    blocks = min(math.ceil(depth / SUM_ROWS), most)
    threads = SUM_COLUMNS if columns % SUM_LOADED == 0 else SUM_COLUMNS // SUM_LOADED
    return ProductSize(1, columns, depth, 1, 0), FP32.size * threads * columns * blocks


def sum_rows(tape: StepTape, value: Value, columns: int) -> Value:
    """Add up the rows of a gradient, `columns` numbers each."""
    product, workspace = summed_rows(columns, value.elements // columns)
    size = columns, value.type
    return tape.make("", "sum", (value,), size, product=product, workspace=workspace)


def sum_inner(tape: StepTape, value: Value, rows: int) -> Value:
    """Add up the numbers of each row of a gradient."""
    product = ProductSize(rows, 1, 1, 1, 0)
    return tape.make("", "sum", (value,), (rows, value.type), product=product)


class Linear:
    """x W + b on rows of tokens, in the two forms that PyTorch has: with a bias and without."""

    def __init__(self, tape: StepTape, module: str, inputs: int, outputs: int) -> None:
        self.tape, self.module, self.inputs, self.outputs = tape, module, inputs, outputs

    def _product(
        self, name: str, reads: tuple[Value, ...], rows: int, columns: int, depth: int
    ) -> Value:
        number_type = reads[0].type
        aligned = alignment(number_type.size, self.inputs, self.outputs)
        product = ProductSize(rows, columns, depth, 1, aligned)
        flops, size = 2 * rows * columns * depth, (rows * columns, number_type)
        return self.tape.make(self.module, name, reads, size, flops=flops, product=product)

    def biased(
        self, x: Value, weight: Value, bias: Value, *, shaped: bool = True, stored: bool = False
    ) -> Value:
        """With a bias: one `addmm`.

        `shaped`: whether tokens have a batch dimension, which is folded for the product. `stored`:
        whether the weight lies in memory as the product reads it (GPT-2), else transposed.
        """
        tape, inputs, outputs = self.tape, self.inputs, self.outputs
        flat = tape.view(x) if shaped else x
        read = weight if stored else tape.view(weight)
        rows = x.elements // inputs
        made = self._product("addmm", (bias, flat, read), rows, outputs, inputs)

        def backward(gradient: Value) -> list[Value]:
            tape.count_views(1)
            into = self._product("mm", (gradient, weight), rows, inputs, outputs)
            tape.count_views(1)
            sides = (inputs, outputs) if stored else (outputs, inputs)
            of_weight = self._product("mm", (flat, gradient), *sides, rows)
            tape.count_views(0 if stored else 1)
            of_bias = sum_rows(tape, gradient, outputs)
            tape.count_views(1)
            return [of_bias, into, of_weight]

        tape.record(made, (bias, flat, read), backward)
        return tape.view(made) if shaped else made

    def plain(self, x: Value, weight: Value, *, shaped: bool = True) -> Value:
        """Without a bias: one `mm`, whose backward has the weight's gradient first."""
        tape, inputs, outputs = self.tape, self.inputs, self.outputs
        read = tape.view(weight)
        flat = tape.view(x) if shaped else x
        rows = x.elements // inputs
        made = self._product("mm", (flat, read), rows, outputs, inputs)

        def backward(gradient: Value) -> list[Value]:
            tape.count_views(1)
            of_weight = self._product("mm", (flat, gradient), outputs, inputs, rows)
            tape.count_views(2)
            into = self._product("mm", (gradient, weight), rows, inputs, outputs)
            return [into, of_weight]

        tape.record(made, (flat, read), backward)
        return tape.view(made) if shaped else made


def layer_norm(tape: StepTape, module: str, x: Value, weight: Value, bias: Value) -> Value:
    """Ba et al. (2016), over rows as long as the weight."""
    rows = x.elements // weight.elements
    product = ProductSize(1, 1, rows, 1, 0)
    sizes = [(elements, x.type) for elements in (x.elements, rows, rows)]
    made, *moments = tape.run(
        module, "native_layer_norm", (x, weight, bias), sizes, product=product
    )

    def backward(gradient: Value) -> list[Value]:
        reads = (gradient, x, *moments, weight, bias)
        makes = [(each.elements, x.type) for each in (x, weight, bias)]
        return tape.run(module, "native_layer_norm_backward", reads, makes, product=product)

    return tape.record(made, (x, weight, bias), backward)


def dropout(tape: StepTape, module: str, x: Value) -> Value:
    """Zeroes some numbers and keeps a mask of them."""
    made, mask = tape.run(
        module, "native_dropout", (x,), [(x.elements, x.type), (x.elements, BOOL)]
    )

    def backward(gradient: Value) -> list[Value]:
        return [tape.make(module, "native_dropout_backward", (gradient, mask))]

    return tape.record(made, (x,), backward)


def activation(tape: StepTape, module: str, name: str, x: Value, *, strided: bool = False) -> Value:
    """An op number by number whose backward reads its input, or for tanh its output."""
    before, back = "strided_" if strided else "", f"{name}_backward"
    made = tape.make(module, name, (x,), kind=before + name)

    def backward(gradient: Value) -> list[Value]:
        saved = made if name == "tanh" else x
        return [tape.make(module, back, (gradient, saved), kind=before + back)]

    return tape.record(made, (x,), backward)


def softmax(tape: StepTape, module: str, name: str, x: Value, **more: Any) -> Value:
    """A softmax or its logarithm, whose backward reads its output; `more` are of both kernels."""
    made = tape.make(module, name, (x,), **more)

    def backward(gradient: Value) -> list[Value]:
        return [tape.make(module, f"{name}_backward_data", (gradient, made), **more)]

    return tape.record(made, (x,), backward)


def add(tape: StepTape, module: str, one: Value, other: Value) -> Value:
    """Both of one shape: each has the gradient of the sum."""
    made = tape.make(module, "add", (one, other))
    return tape.record(made, (one, other), lambda gradient: [gradient, gradient])


def add_broadcast(tape: StepTape, module: str, one: Value, other: Value) -> Value:
    """To every sample of `one` the same `other`, whose gradient is a sum over the samples."""
    made = tape.make(module, "add", (one, other), kind="strided_add")

    def backward(gradient: Value) -> list[Value]:
        return [gradient, sum_rows(tape, gradient, other.elements)]

    return tape.record(made, (one, other), backward)


def scale(tape: StepTape, module: str, x: Value) -> Value:
    """Multiply every number by a constant."""
    made = tape.make(module, "mul", (x,))
    return tape.record(made, (x,), lambda gradient: [tape.make(module, "mul", (gradient,))])


def shift(tape: StepTape, module: str, x: Value) -> Value:
    """Add a constant to every number."""
    return tape.record(tape.make(module, "add", (x,)), (x,), lambda gradient: [gradient])


def power(tape: StepTape, module: str, x: Value) -> Value:
    """To a constant power n; backward has n times the power n - 1."""

    def backward(gradient: Value) -> list[Value]:
        slope = tape.make(module, "mul", (tape.make(module, "pow", (x,)),))
        return [tape.make(module, "mul", (gradient, slope))]

    return tape.record(tape.make(module, "pow", (x,)), (x,), backward)


def times(tape: StepTape, module: str, one: Value, other: Value) -> Value:
    """Both of one shape."""

    def backward(gradient: Value) -> list[Value]:
        into_other = tape.make(module, "mul", (gradient, one))
        return [tape.make(module, "mul", (gradient, other)), into_other]

    return tape.record(tape.make(module, "mul", (one, other)), (one, other), backward)


def cast(tape: StepTape, module: str, x: Value, number_type: Type) -> Value:
    """To numbers of another type, where it is another."""
    if x.type == number_type:
        return x
    made = tape.make(module, "_to_copy", (x,), (x.elements, number_type))
    back = x.elements, x.type
    return tape.record(
        made, (x,), lambda gradient: [tape.make(module, "_to_copy", (gradient,), back)]
    )


def embedding(
    tape: StepTape, module: str, weight: Value, ids: Value, elements: int, tokens: int = 0
) -> Value:
    """Rows of a table; as much of it is read as is made. `tokens`: how many rows, where all samples
    have the same ids and those are there once."""
    moved = elements * weight.type.size + ids.bytes
    made = tape.make(module, "embedding", (weight, ids), (elements, weight.type), moved=moved)

    def backward(gradient: Value) -> list[Value]:
        is_sorted = (tokens or ids.elements) > SORTED_TOKENS
        size, workspace = (weight.elements, weight.type), FP32.size * gradient.elements * is_sorted
        back = "embedding_dense_backward"
        return [tape.make(module, back, (gradient, ids), size, workspace=workspace)]

    return tape.record(made, (weight,), backward)


def attention(
    tape: StepTape,
    module: str,
    kind: str,
    queries: Value,
    keys: Value,
    values: Value,
    *,
    heads: int,
    width: int,
    sequence: int,
    steps: tuple[int, ...],
) -> Value:
    """Fused attention; rows of the three lie `steps` numbers apart.

    `kind` says what it does besides, before the op's own word: "", "causal_", "dropout_" or both.

    Forward has two products, backward five: the scores once more, and two for each of the two. In
    fp32 no fused kernel takes heads in groups or of any size: then scores are stored, as `capture`
    has it (`stores_scores`, `workspace`).
    """
    samples = queries.elements // (sequence * heads * width)
    product = ProductSize(
        sequence, sequence, width, samples * heads, alignment(queries.type.size, *steps)
    )
    pairs = 2 * samples * heads * sequence * sequence * width
    scores = samples * heads * sequence * sequence
    is_grouped = keys.elements != queries.elements
    is_fp32 = queries.type.size == FP32.size
    is_stored = is_fp32 and (is_grouped or width * FP32.size % WIDEST > 0)
    drops = "dropout_" in kind
    kept = (2 * FP32.size + 1 if drops else FP32.size) * scores
    repeated = 2 * (queries.elements - keys.elements) * queries.type.size
    if is_stored:
        kind = f"stored_{'dropout_' * drops}"
    made, sums = tape.run(
        module,
        "attention",
        (queries, keys, values),
        [(queries.elements, queries.type), (samples * heads * sequence, FP32)],
        kind=f"{kind}attention",
        flops=2 * pairs,
        product=product,
        workspace=STORED_BYTES * scores - kept if is_stored else 0,
        kept=kept + repeated if is_stored else 0,
    )

    def backward(gradient: Value) -> list[Value]:
        # Their gradient is added up in fp32; those of grouped keys are made for each head first.
        wide = FP32.size + 2 * queries.type.size * is_grouped
        return tape.run(
            module,
            "attention_backward",
            (gradient, queries, keys, values, made, sums),
            [(each.elements, each.type) for each in (queries, keys, values)],
            kind=f"{kind}attention_backward",
            flops=5 * pairs,
            product=product,
            workspace=STORED_BACKWARD_BYTES * scores if is_stored else wide * queries.elements,
        )

    return tape.record(made, (queries, keys, values), backward)


def linear(
    tape: StepTape,
    module: str,
    x: Value,
    inputs: int,
    outputs: int,
    *,
    shaped: bool = True,
    stored: bool = False,
) -> Value:
    """x W + b with a weight and a bias of its own; `shaped`, `stored` as in `Linear.biased`."""
    weights = tape.pair(module, inputs * outputs, outputs)
    return Linear(tape, module, inputs, outputs).biased(x, *weights, shaped=shaped, stored=stored)


def norm(tape: StepTape, module: str, x: Value, columns: int) -> Value:
    """A layer norm of rows of `columns` numbers, with a scale and a shift of its own."""
    return layer_norm(tape, module, x, *tape.pair(module, columns, columns))


def cat_kind(columns: int, value: Value) -> str:
    """The kind of an op that puts rows together from pieces of `columns` numbers."""
    return "strided_cat" if columns * value.type.size < NARROW_BYTES else "cat"


def split_columns(tape: StepTape, x: Value, parts: int, columns: int) -> list[Value]:
    """Equal parts of every row: views, whose gradients are put together again."""
    tape.count_views(1)
    made = [Value(x.storage, x.elements // parts, x.type) for _ in range(parts)]
    size, kind = [(x.elements, x.type)], cat_kind(columns, x)
    tape.record_all(made, (x,), lambda *given: tape.run("", "cat", given, size, kind=kind))
    return made


def separate_attention(
    tape: StepTape, module: str, kind: str, x: Value, *, hidden: int, heads: int, sequence: int
) -> Value:
    """Self-attention with a product each for queries, keys and values, as BERT and ViT have it, of
    `sequence` tokens a sample; `kind` as in `attention`."""
    parts = []
    for part in ("query", "key", "value"):
        y = linear(tape, f"{module}.{part}", x, hidden, hidden)
        parts.append(tape.view(tape.view(y)))
    y = attention(
        tape, module, kind, *parts,
        heads=heads, width=hidden // heads, sequence=sequence, steps=(hidden,),
    )  # fmt: skip
    return tape.view(tape.view(y))


def select_first(tape: StepTape, x: Value, elements: int) -> Value:
    """The first token of every sample: a view, whose gradient is zero elsewhere."""
    return view_part(tape, x, elements, "select_backward")


def view_part(tape: StepTape, x: Value, elements: int, backward: str) -> Value:
    """A part of a value: a view, whose gradient an op puts where it was, among zeros."""
    tape.count_views(1)
    made, back = Value(x.storage, elements, x.type), (x.elements, x.type)
    return tape.record(made, (x,), lambda gradient: [tape.make("", backward, (gradient,), back)])
