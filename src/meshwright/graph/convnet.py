"""Convolution networks as training steps: VGG-16, ResNet-50, Inception-v3, U-Net.

Shapes follow torchvision and, for U-Net, Ronneberger et al. (2015) with padded convolutions.
"""

from meshwright.graph.analytic import StepBuilder, Value
from meshwright.graph.graph import Graph
from meshwright.graph.image import (
    Image,
    add_images,
    batchnorm,
    concatenate,
    conv,
    conv_norm_relu,
    double_conv_transpose,
    image_input,
    pool,
    relu,
)
from meshwright.graph.layer import cross_entropy, elementwise, linear

CLASSES = 1000
"""ImageNet's."""


def build_vgg16(name: str, batch: float, side: int = 224, classes: int = CLASSES) -> Graph:
    """Simonyan and Zisserman (2015), configuration D, for side x side pictures.

    At 224 the last feature map is 7 x 7; at 32 (CIFAR's pictures) it is 1 x 1 and the first
    fully connected layer is that much smaller.
    """
    step = StepBuilder(name, batch)
    x = image_input(step, 3, side)
    number = 0
    for channels, repeats in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(repeats):
            x = conv(step, f"features.{number}", x, channels, 3, padding=1, has_bias=True)
            x = relu(step, f"features.{number + 1}", x)
            number += 2
        x = pool(step, f"features.{number}", x, 2, stride=2)
        number += 1
    value, features = x.value, x.features
    for number in (0, 3):  # torchvision's numbers; the rest of the classifier is relu and dropout
        value = linear(step, f"classifier.{number}", value, batch, features, 4096)
        value = elementwise(step, f"classifier.{number + 1}", "relu", value, batch * 4096)
        features = 4096
    return _classify(step, "classifier.6", value, features, classes)


def build_resnet50(name: str, batch: float) -> Graph:
    """He et al. (2016) with the stride in the 3 x 3 convolution ("v1.5"), as torchvision has it."""
    step = StepBuilder(name, batch)
    x = image_input(step, 3, 224)
    x = conv_norm_relu(step, "stem", x, 64, 7, stride=2, padding=3)
    x = pool(step, "maxpool", x, 3, stride=2, padding=1)
    for layer, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3)), start=1):
        for block in range(blocks):
            stride = 2 if block == 0 and layer > 1 else 1
            x = _bottleneck(step, f"layer{layer}.{block}", x, width, stride)
    x = pool(step, "avgpool", x, 7, stride=7, takes_mean=True)
    return _classify(step, "fc", x.value, x.features)


def _bottleneck(step: StepBuilder, name: str, x: Image, width: int, stride: int) -> Image:
    y = conv_norm_relu(step, f"{name}.1", x, width, 1)
    y = conv_norm_relu(step, f"{name}.2", y, width, 3, stride=stride, padding=1)
    y = batchnorm(step, f"{name}.3.bn", conv(step, f"{name}.3.conv", y, 4 * width, 1))
    if x.channels != y.channels:
        x = conv(step, f"{name}.downsample.conv", x, 4 * width, 1, stride=stride)
        x = batchnorm(step, f"{name}.downsample.bn", x)
    return relu(step, f"{name}.relu", add_images(step, f"{name}.add", y, x))


def build_inception_v3(name: str, batch: float) -> Graph:
    """Szegedy et al. (2016) for 299 x 299 pictures, without the auxiliary classifier."""
    step = StepBuilder(name, batch)
    x = image_input(step, 3, 299)
    x = conv_norm_relu(step, "stem.1", x, 32, 3, stride=2)
    x = conv_norm_relu(step, "stem.2", x, 32, 3)
    x = conv_norm_relu(step, "stem.3", x, 64, 3, padding=1)
    x = pool(step, "stem.pool1", x, 3, stride=2)
    x = conv_norm_relu(step, "stem.4", x, 80, 1)
    x = conv_norm_relu(step, "stem.5", x, 192, 3)
    x = pool(step, "stem.pool2", x, 3, stride=2)
    for number, pooled in enumerate((32, 64, 64)):
        x = _inception_a(step, f"a{number}", x, pooled)
    x = _inception_b(step, "b", x)
    for number, width in enumerate((128, 160, 160, 192)):
        x = _inception_c(step, f"c{number}", x, width)
    x = _inception_d(step, "d", x)
    for number in range(2):
        x = _inception_e(step, f"e{number}", x)
    x = pool(step, "avgpool", x, 8, stride=8, takes_mean=True)
    return _classify(step, "fc", x.value, x.features)


def _chain(step: StepBuilder, name: str, x: Image, *layers: tuple[int, int, int]) -> Image:
    """Convolutions (channels, kernel height, kernel width) that keep height and width."""
    for number, (channels, kh, kw) in enumerate(layers):
        same = (kh // 2, kw // 2)
        x = conv_norm_relu(step, f"{name}.{number}", x, channels, (kh, kw), padding=same)
    return x


def _pooled(step: StepBuilder, name: str, x: Image, channels: int) -> Image:
    mean = pool(step, f"{name}.pool", x, 3, stride=1, padding=1, takes_mean=True)
    return _chain(step, name, mean, (channels, 1, 1))


def _inception_a(step: StepBuilder, name: str, x: Image, pooled: int) -> Image:
    branches = [
        _chain(step, f"{name}.1x1", x, (64, 1, 1)),
        _chain(step, f"{name}.5x5", x, (48, 1, 1), (64, 5, 5)),
        _chain(step, f"{name}.3x3", x, (64, 1, 1), (96, 3, 3), (96, 3, 3)),
        _pooled(step, f"{name}.pool", x, pooled),
    ]
    return concatenate(step, f"{name}.concat", branches)


def _inception_b(step: StepBuilder, name: str, x: Image) -> Image:
    double = _chain(step, f"{name}.double", x, (64, 1, 1), (96, 3, 3))
    branches = [
        conv_norm_relu(step, f"{name}.3x3", x, 384, 3, stride=2),
        conv_norm_relu(step, f"{name}.double.last", double, 96, 3, stride=2),
        pool(step, f"{name}.pool", x, 3, stride=2),
    ]
    return concatenate(step, f"{name}.concat", branches)


def _inception_c(step: StepBuilder, name: str, x: Image, c: int) -> Image:
    double = ((c, 1, 1), (c, 7, 1), (c, 1, 7), (c, 7, 1), (192, 1, 7))
    branches = [
        _chain(step, f"{name}.1x1", x, (192, 1, 1)),
        _chain(step, f"{name}.7x7", x, (c, 1, 1), (c, 1, 7), (192, 7, 1)),
        _chain(step, f"{name}.double", x, *double),
        _pooled(step, f"{name}.pool", x, 192),
    ]
    return concatenate(step, f"{name}.concat", branches)


def _inception_d(step: StepBuilder, name: str, x: Image) -> Image:
    three = _chain(step, f"{name}.3x3", x, (192, 1, 1))
    seven = _chain(step, f"{name}.7x7", x, (192, 1, 1), (192, 1, 7), (192, 7, 1))
    branches = [
        conv_norm_relu(step, f"{name}.3x3.last", three, 320, 3, stride=2),
        conv_norm_relu(step, f"{name}.7x7.last", seven, 192, 3, stride=2),
        pool(step, f"{name}.pool", x, 3, stride=2),
    ]
    return concatenate(step, f"{name}.concat", branches)


def _inception_e(step: StepBuilder, name: str, x: Image) -> Image:
    three = _chain(step, f"{name}.3x3", x, (384, 1, 1))
    double = _chain(step, f"{name}.double", x, (448, 1, 1), (384, 3, 3))
    branches = [_chain(step, f"{name}.1x1", x, (320, 1, 1))]
    for branch, y in (("3x3", three), ("double", double)):
        branches += [
            _chain(step, f"{name}.{branch}.wide", y, (384, 1, 3)),
            _chain(step, f"{name}.{branch}.tall", y, (384, 3, 1)),
        ]
    branches.append(_pooled(step, f"{name}.pool", x, 192))
    return concatenate(step, f"{name}.concat", branches)


def build_unet(name: str, batch: float, side: int = 256, classes: int = 2) -> Graph:
    """Four halvings and doublings from 64 to 1024 channels, with a skip at each level."""
    step = StepBuilder(name, batch)
    x = _double_conv(step, "down.0", image_input(step, 3, side), 64)
    skips = []
    for level, channels in enumerate((128, 256, 512, 1024), start=1):
        skips.append(x)
        x = pool(step, f"down.{level}.pool", x, 2, stride=2)
        x = _double_conv(step, f"down.{level}", x, channels)
    for level, skip in enumerate(reversed(skips)):
        x = double_conv_transpose(step, f"up.{level}.double", x, skip.channels)
        x = concatenate(step, f"up.{level}.concat", [skip, x])
        x = _double_conv(step, f"up.{level}", x, skip.channels)
    x = conv(step, "out", x, classes, 1, has_bias=True)
    rows = step.batch * x.height * x.width
    return step.finish(cross_entropy(step, "loss", x.value, rows, classes))


def _double_conv(step: StepBuilder, name: str, x: Image, channels: int) -> Image:
    for number in range(2):
        x = conv_norm_relu(step, f"{name}.{number}", x, channels, 3, padding=1)
    return x


def _classify(
    step: StepBuilder, name: str, x: Value, features: int, classes: int = CLASSES
) -> Graph:
    logits = linear(step, name, x, step.batch, features, classes)
    return step.finish(cross_entropy(step, "loss", logits, step.batch, classes))
