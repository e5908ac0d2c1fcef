"""The zoo's models in our own code, with their inputs and usual batch sizes.

Batches are the papers' where one host of today can train on them; comments say where they differ.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from meshwright.capture.zoo import resnet
from meshwright.capture.zoo.convnet import VGG, VGG19_CHANNELS, AlexNet
from meshwright.capture.zoo.fpn import CITYSCAPES_CLASSES, SemanticFPN
from meshwright.capture.zoo.inception import InceptionV3
from meshwright.capture.zoo.seq2seq import VOCABULARY, Seq2SeqTransformer
from meshwright.capture.zoo.swin import Swin, SwinBackbone
from meshwright.capture.zoo.upernet import ADE20K_CLASSES, SwinUPerNet
from meshwright.capture.zoo.vit import VisionTransformer
from meshwright.capture.zoo.workload import Inputs, Recipe, ZooModel

IMAGENET_CLASSES = 1000
CIFAR_CLASSES = 10
TRANSLATION_POSITIONS = 1024
"""Longer sentences than WMT 2014's."""


def own_recipes() -> list[Recipe]:
    """Convolution networks and transformers on pictures, and the translating Transformer."""
    return [*_chains(), *_residual(), *_dense(), *_transformers()]


def _chains() -> list[Recipe]:
    alexnet = partial(AlexNet, is_small=True, classes=CIFAR_CLASSES)
    vgg16 = partial(VGG, side=32, classes=CIFAR_CLASSES)
    vgg19 = partial(VGG, VGG19_CHANNELS)
    # 512 samples is what the placement papers train the 32-pixel variants with; 256 and 128 are
    # from Simonyan and Zisserman (2015), section 3.1, and Krizhevsky et al. (2012), section 5.
    return [
        _classifier("alexnet", "AlexNet on 224 x 224 pictures", 128, AlexNet, 224),
        _classifier("alexnet-32", "AlexNet on 32 x 32 pictures", 512, alexnet, 32, CIFAR_CLASSES),
        _classifier("vgg16", "VGG-16 on 224 x 224 pictures", 256, VGG, 224),
        _classifier("vgg16-32", "VGG-16 on 32 x 32 pictures", 512, vgg16, 32, CIFAR_CLASSES),
        _classifier("vgg19", "VGG-19 on 224 x 224 pictures", 256, vgg19, 224),
    ]


def _residual() -> list[Recipe]:
    blocks = {
        50: resnet.RESNET50_BLOCKS,
        101: resnet.RESNET101_BLOCKS,
        152: resnet.RESNET152_BLOCKS,
    }
    # He et al. (2016), section 3.4: 256 samples a step.
    recipes = [
        _classifier(
            f"resnet{depth}",
            f"ResNet-{depth} (v1.5) on 224 x 224 pictures",
            256,
            partial(resnet.ResNet, each),
            224,
        )
        for depth, each in blocks.items()
    ]
    # Szegedy et al. (2016), section 8: 50 replicas with 32 samples each; one replica's here.
    text = "Inception-v3 on 299 x 299 pictures, no auxiliary head"
    return [*recipes, _classifier("inception-v3", text, 32, InceptionV3, 299)]


def _dense() -> list[Recipe]:
    # Kirillov et al. (2019): Cityscapes crops of 512 x 1024, 32 pictures a step.
    # Liu et al. (2021), section 4.3: ADE20K, Swin-L on 640 x 640, 16 pictures a step.
    fpn_text = "Semantic FPN, ResNet-50, Cityscapes crops of 512 x 1024"
    swin_text = "Swin-L with UPerNet and its auxiliary head, ADE20K crops of 640 x 640"
    return [
        _segmenter("semantic-fpn", fpn_text, 32, SemanticFPN, (512, 1024), CITYSCAPES_CLASSES),
        _segmenter(
            "swin-u",
            swin_text,
            16,
            lambda: SwinUPerNet(SwinBackbone(side=640)),
            (640, 640),
            ADE20K_CLASSES,
        ),
    ]


def _transformers() -> list[Recipe]:
    # Liu et al. (2021), section 4.1 trains 1024 and Dosovitskiy et al. (2021), table 3, 4096
    # samples a step on large clusters; 128 and 256 fit hosts of eight devices.
    swin_text = "Swin-L (windows of 7) on 224 x 224 pictures"
    translator = ZooModel(
        name="transformer",
        description="Transformer (base) for translation, embeddings tied to the scores",
        batch=384,  # with 64 tokens: 24,576 a side; the paper has 25,000 (section 5.1)
        sequence=64,
        source="own",
    )
    return [
        _classifier("swin-l", swin_text, 128, lambda: Swin(SwinBackbone()), 224),
        _classifier("vit-l", "ViT-L/16 on 224 x 224 pictures", 256, VisionTransformer, 224),
        Recipe(
            about=translator,
            make=partial(Seq2SeqTransformer, positions=TRANSLATION_POSITIONS),
            inputs=_sentences,
            longest=TRANSLATION_POSITIONS,
        ),
    ]


def _classifier(
    name: str,
    description: str,
    batch: int,
    make: Callable[[], nn.Module],
    side: int,
    classes: int = IMAGENET_CLASSES,
) -> Recipe:
    def inputs(batch: int, _sequence: int) -> Inputs:
        return (torch.empty(batch, 3, side, side), torch.randint(classes, (batch,))), {}

    return Recipe(about=_picture_model(name, description, batch), make=make, inputs=inputs)


def _segmenter(
    name: str,
    description: str,
    batch: int,
    make: Callable[[], nn.Module],
    size: tuple[int, int],
    classes: int,
) -> Recipe:
    def inputs(batch: int, _sequence: int) -> Inputs:
        return (torch.empty(batch, 3, *size), torch.randint(classes, (batch, *size))), {}

    return Recipe(about=_picture_model(name, description, batch), make=make, inputs=inputs)


def _picture_model(name: str, description: str, batch: int) -> ZooModel:
    return ZooModel(name=name, description=description, batch=batch, sequence=None, source="own")


def _sentences(batch: int, sequence: int) -> Inputs:
    source, target, labels = (torch.randint(VOCABULARY, (batch, sequence)) for _ in range(3))
    return (source, target, labels), {}
