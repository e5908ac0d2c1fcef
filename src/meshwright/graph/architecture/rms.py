"""The root-mean-square norm (Zhang and Sennrich 2019) op by op, as transformers computes it."""

from meshwright.graph.architecture.op import cast, power, shift, sum_inner, sum_rows
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import FP32, ProductSize, Value


def rms_norm(tape: StepTape, module: str, x: Value, weight: Value) -> Value:
    """Over rows as long as the weight; in fp32 but for the weight."""
    rows = x.elements // weight.elements
    wide = cast(tape, module, x, FP32)
    mean = _mean(tape, module, power(tape, module, wide), rows)
    inverse = _inverse_root(tape, module, shift(tape, module, mean))
    y = cast(tape, module, _times_rows(tape, module, wide, inverse), x.type)
    return _times_columns(tape, module, weight, y)


def _mean(tape: StepTape, module: str, x: Value, rows: int) -> Value:
    product = ProductSize(rows, 1, 1, 1, 0)
    made = tape.make(module, "mean", (x,), (rows, x.type), product=product)

    def backward(gradient: Value) -> list[Value]:
        tape.count_views(1)
        size = x.elements, x.type
        return [tape.make("", "div", (gradient,), size, kind="strided_div")]

    return tape.record(made, (x,), backward)


def _inverse_root(tape: StepTape, module: str, x: Value) -> Value:
    made = tape.make(module, "rsqrt", (x,))

    def backward(gradient: Value) -> list[Value]:
        cubed = tape.make("", "pow", (made,))
        half = tape.make("", "mul", (gradient,))
        return [tape.make("", "mul", (half, cubed))]

    return tape.record(made, (x,), backward)


def _times_rows(tape: StepTape, module: str, x: Value, factors: Value) -> Value:
    """Every row by a number of its own."""
    made = tape.make(module, "mul", (x, factors), kind="strided_mul")

    def backward(gradient: Value) -> list[Value]:
        products = tape.make("", "mul", (gradient, x))
        into = tape.make("", "mul", (gradient, factors), kind="strided_mul")
        return [into, sum_inner(tape, products, factors.elements)]

    return tape.record(made, (x, factors), backward)


def _times_columns(tape: StepTape, module: str, weight: Value, x: Value) -> Value:
    """Every column by its weight."""
    made = tape.make(module, "mul", (weight, x), (x.elements, x.type), kind="strided_mul")

    def backward(gradient: Value) -> list[Value]:
        into = tape.make("", "mul", (gradient, weight), kind="strided_mul")
        products = tape.make("", "mul", (gradient, x))
        of_weight = sum_rows(tape, products, weight.elements)
        tape.count_views(1)
        return [of_weight, into]

    return tape.record(made, (weight, x), backward)
