"""The layers of convolution networks: like `meshwright.graph.layer`, on values with a shape."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.graph.analytic import Gradient, StepBuilder, Value
from meshwright.graph.layer import add, elementwise, norm


@dataclass(frozen=True, slots=True)
class Image:
    """A value with channels, height and width."""

    value: Value
    channels: int
    height: int
    width: int

    @property
    def features(self) -> int:
        """Numbers in one sample."""
        return self.channels * self.height * self.width


Pair = tuple[int, int]


def image_input(step: StepBuilder, channels: int, side: int) -> Image:
    """The pictures of the batch, in fp32."""
    size = 4.0 * step.batch * channels * side * side
    return Image(step.input("input", size), channels, side, side)


def conv(
    step: StepBuilder,
    name: str,
    x: Image,
    channels: int,
    kernel: int | Pair,
    *,
    stride: int = 1,
    padding: int | Pair = 0,
    has_bias: bool = False,
) -> Image:
    """2 Cout Cin kh kw H W FLOPs a sample with H x W the output's; each gradient as many."""
    kh, kw = kernel if isinstance(kernel, tuple) else (kernel, kernel)
    height, width = _output_side(x, (kh, kw), stride, padding)
    features = channels * height * width
    flops = 2.0 * step.batch * features * x.channels * kh * kw
    weight = step.weight(name, channels * (x.channels * kh * kw + has_bias))
    value = step.apply(
        name, "conv", [x.value], step.batch * features, flops, _product_gradients(x, flops),
        weight=weight,
    )  # fmt: skip
    return Image(value, channels, height, width)


def double_conv_transpose(step: StepBuilder, name: str, x: Image, channels: int) -> Image:
    """Transposed convolution, kernel 2 and stride 2: doubles the sides, one product a number."""
    image = (channels, 2 * x.height, 2 * x.width)
    elements = step.batch * channels * 4 * x.height * x.width
    flops = 2.0 * elements * x.channels
    weight = step.weight(name, channels * (4 * x.channels + 1))
    gradients = _product_gradients(x, flops)
    return Image(
        step.apply(name, "conv", [x.value], elements, flops, gradients, weight=weight), *image
    )


def pool(
    step: StepBuilder,
    name: str,
    x: Image,
    kernel: int,
    *,
    stride: int,
    padding: int = 0,
    takes_mean: bool = False,
) -> Image:
    """Maximum, which keeps its input for backward, or mean, which keeps nothing."""
    height, width = _output_side(x, (kernel, kernel), stride, padding)
    elements = step.batch * x.channels * height * width
    kind = "avg_pool" if takes_mean else "max_pool"
    saved = () if takes_mean else (x.value,)
    flops = float(elements * kernel * kernel)
    backward = (Gradient(into=(0,), kind=f"{kind}_grad", flops=flops, saved=saved),)
    value = step.apply(name, kind, [x.value], elements, flops, backward)
    return Image(value, x.channels, height, width)


def relu(step: StepBuilder, name: str, x: Image) -> Image:
    """The positive part."""
    value = elementwise(step, name, "relu", x.value, step.batch * x.features)
    return Image(value, x.channels, x.height, x.width)


def batchnorm(step: StepBuilder, name: str, x: Image) -> Image:
    """Normalises each channel over the replica's share of the batch."""
    value = norm(step, name, "batchnorm", x.value, step.batch * x.features, x.channels)
    return Image(value, x.channels, x.height, x.width)


def conv_norm_relu(
    step: StepBuilder,
    name: str,
    x: Image,
    channels: int,
    kernel: int | Pair,
    *,
    stride: int = 1,
    padding: int | Pair = 0,
) -> Image:
    """Convolution without bias, batchnorm, relu."""
    x = conv(step, f"{name}.conv", x, channels, kernel, stride=stride, padding=padding)
    return relu(step, f"{name}.relu", batchnorm(step, f"{name}.bn", x))


def concatenate(step: StepBuilder, name: str, images: Sequence[Image]) -> Image:
    """Along channels; backward is one op that cuts the gradient into as many tensors."""
    first = images[0]
    channels = sum(image.channels for image in images)
    elements = step.batch * channels * first.height * first.width
    backward = (Gradient(into=tuple(range(len(images))), kind="split"),)
    values = [image.value for image in images]
    value = step.apply(name, "concat", values, elements, 0.0, backward)
    return Image(value, channels, first.height, first.width)


def add_images(step: StepBuilder, name: str, a: Image, b: Image) -> Image:
    """A residual's sum."""
    value = add(step, name, [a.value, b.value], step.batch * a.features)
    return Image(value, a.channels, a.height, a.width)


def _product_gradients(x: Image, flops: float) -> tuple[Gradient, Gradient]:
    return (
        Gradient(into=(0,), kind="conv", flops=flops, reads_weight=True),
        Gradient(kind="conv", flops=flops, saved=(x.value,)),
    )


def _output_side(x: Image, kernel: Pair, stride: int, padding: int | Pair) -> Pair:
    ph, pw = padding if isinstance(padding, tuple) else (padding, padding)
    height = (x.height + 2 * ph - kernel[0]) // stride + 1
    return height, (x.width + 2 * pw - kernel[1]) // stride + 1
