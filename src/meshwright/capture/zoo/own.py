"""The zoo's models in our own code, with their inputs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from meshwright.capture.zoo import resnet
from meshwright.capture.zoo.convnet import VGG, VGG19_CHANNELS, AlexNet
from meshwright.capture.zoo.fpn import ADE20K_CLASSES, SemanticFPN
from meshwright.capture.zoo.inception import InceptionV3
from meshwright.capture.zoo.seq2seq import VOCABULARY, Seq2SeqTransformer
from meshwright.capture.zoo.swin import Swin, SwinBackbone
from meshwright.capture.zoo.vit import VisionTransformer
from meshwright.capture.zoo.workload import Inputs, ZooRecipe
from meshwright.zoo.shape import find_sizes

IMAGENET_CLASSES = 1000
CIFAR_CLASSES = 10
SIDE = 512
"""Pixels of a side of pictures that are segmented."""
TRANSLATION_POSITIONS = 1024
"""As `meshwright.zoo.table` has it."""


def own_recipes() -> list[ZooRecipe]:
    """Convolution networks and transformers on pictures, and the translating Transformer."""
    small_alexnet = partial(AlexNet, is_small=True, classes=CIFAR_CLASSES)
    small_vgg16 = partial(VGG, side=32, classes=CIFAR_CLASSES)
    # Parmesan's largest Swin; heads of 32 features, as every Swin has them.
    swin_u: dict[str, Any] = {"width": 256, "depths": (2, 2, 24, 2), "heads": (8, 16, 32, 64)}
    return [
        _classifier("alexnet", AlexNet, 224),
        _classifier("alexnet-32", small_alexnet, 32, CIFAR_CLASSES),
        _classifier("vgg16", VGG, 224),
        _classifier("vgg16-32", small_vgg16, 32, CIFAR_CLASSES),
        _classifier("vgg19", partial(VGG, VGG19_CHANNELS), 224),
        _classifier("resnet50", partial(resnet.ResNet, resnet.RESNET50_BLOCKS), 224),
        _classifier("resnet101", partial(resnet.ResNet, resnet.RESNET101_BLOCKS), 224),
        _classifier("resnet152", partial(resnet.ResNet, resnet.RESNET152_BLOCKS), 224),
        _classifier("inception-v3", InceptionV3, 299),
        ZooRecipe(name="semantic-fpn", make=SemanticFPN, inputs=_segmented),
        _classifier("swin-l", lambda: Swin(SwinBackbone()), 224),
        _classifier("swin-u", lambda: Swin(SwinBackbone(**swin_u)), 224),
        _classifier("vit-l", partial(_vision_transformer, "vit-l"), 224),
        ZooRecipe(
            name="transformer",
            make=partial(Seq2SeqTransformer, positions=TRANSLATION_POSITIONS),
            inputs=_sentences,
        ),
    ]


def _vision_transformer(name: str) -> VisionTransformer:
    sizes = find_sizes(name)
    return VisionTransformer(layers=sizes["layers"], width=sizes["hidden"], heads=sizes["heads"])


def _classifier(
    name: str, make: Callable[[], nn.Module], side: int, classes: int = IMAGENET_CLASSES
) -> ZooRecipe:
    def inputs(batch: int, _sequence: int) -> Inputs:
        return (torch.empty(batch, 3, side, side), torch.randint(classes, (batch,))), {}

    return ZooRecipe(name=name, make=make, inputs=inputs)


def _segmented(batch: int, _sequence: int) -> Inputs:
    labels = torch.randint(ADE20K_CLASSES, (batch, SIDE, SIDE))
    return (torch.empty(batch, 3, SIDE, SIDE), labels), {}


def _sentences(batch: int, sequence: int) -> Inputs:
    source, target, labels = (torch.randint(VOCABULARY, (batch, sequence)) for _ in range(3))
    return (source, target, labels), {}
