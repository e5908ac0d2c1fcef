"""Every model of the zoo by name.

Knows no layers: those are in `capture.zoo` (PyTorch), `zoo.shape` (formulas) and `zoo.shipped`.

Batches are the papers' where a few hosts of today can train on them; comments say where they
differ.
"""

import difflib
from collections.abc import Iterable

from meshwright.errors import InputError, quoted
from meshwright.zoo.model import FULL, MIXED, ZooModel

PRETRAINING = "pre-training with both heads"
TIED = "head tied to the embeddings"
TEXT = (MIXED, "bf16", *FULL)
"""Precisions of language models, which are trained with 16-bit weights and fp32 copies of them."""


def _pictures(name: str, description: str, batch: int, parameters: int) -> ZooModel:
    return ZooModel(
        name=name, description=description, batch=batch, parameters=parameters, source="own"
    )


def _text(
    name: str,
    description: str,
    batch: int,
    sequence: int,
    parameters: int,
    longest: int | None = None,
    precisions: tuple[str, ...] = TEXT,
) -> ZooModel:
    return ZooModel(
        name=name,
        description=description,
        batch=batch,
        sequence=sequence,
        parameters=parameters,
        source="transformers",
        longest=longest,
        precisions=precisions,
    )


_MODELS = (
    # 512 samples is what the placement papers train the 32-pixel variants with; 256 and 128 are
    # from Simonyan and Zisserman (2015), section 3.1, and Krizhevsky et al. (2012), section 5.
    _pictures("alexnet", "AlexNet on 224 x 224 pictures", 128, 61_100_840),
    _pictures("alexnet-32", "AlexNet on 32 x 32 pictures", 512, 23_468_874),
    _pictures("vgg16", "VGG-16 on 224 x 224 pictures", 256, 138_357_544),
    _pictures("vgg16-32", "VGG-16 on 32 x 32 pictures", 512, 33_638_218),
    _pictures("vgg19", "VGG-19 on 224 x 224 pictures", 256, 143_667_240),
    # He et al. (2016), section 3.4: 256 samples a step. Szegedy et al. (2016), section 8: 50
    # replicas with 32 samples each; one replica's here.
    _pictures("resnet50", "ResNet-50 (v1.5) on 224 x 224 pictures", 256, 25_557_032),
    _pictures("resnet101", "ResNet-101 (v1.5) on 224 x 224 pictures", 256, 44_549_160),
    _pictures("resnet152", "ResNet-152 (v1.5) on 224 x 224 pictures", 256, 60_192_808),
    _pictures(
        "inception-v3", "Inception-v3 on 299 x 299 pictures, no auxiliary head", 32, 23_834_568
    ),
    # Parmesan's: 150 classes on 512 x 512; 32 pictures a step are from Kirillov et al. (2019).
    _pictures("semantic-fpn", "Semantic FPN, ResNet-50, ADE20K crops of 512 x 512", 32, 28_495_574),
    # Liu et al. (2021), section 4.1 trains 1024 and Dosovitskiy et al. (2021), table 3, 4096
    # samples a step on large clusters; 128 and 256 fit hosts of eight devices.
    _pictures("swin-l", "Swin-L (windows of 7) on 224 x 224 pictures", 128, 196_532_476),
    _pictures(
        "swin-u", "Parmesan's Swin-U (depths 2, 2, 24, 2, width 256) on 224 x 224 pictures",
        128, 424_160_280,
    ),
    _pictures("vit-l", "ViT-L/16 on 224 x 224 pictures", 256, 304_326_632),
    # Batches: 64 samples of 128 tokens for base (the placement papers'); 32 of 512, one host's
    # share of the 256 of Devlin et al. (2019) on eight hosts.
    ZooModel(
        name="transformer",
        description="Transformer (base) for translation, embeddings tied to the scores",
        batch=384,  # with 64 tokens: 24,576 a side; the paper has 25,000 (section 5.1)
        sequence=64,
        parameters=63_082_496,
        source="own",
        longest=1024,  # longer sentences than WMT 2014's
        precisions=TEXT,
    ),
    _text("bert-small", f"BERT-Small (Turc et al.), {PRETRAINING}", 64, 128, 29_058_876, 512),
    _text("bert-base", f"BERT-Base, {PRETRAINING}", 64, 128, 110_106_428, 512),
    _text("bert-large", f"BERT-Large, {PRETRAINING}", 32, 512, 336_226_108, 512),
    _text("bert-36", f"BERT-Large with 36 layers, {PRETRAINING}", 32, 512, 487_380_796, 512),
    _text("bert-48", f"BERT-Large with 48 layers, {PRETRAINING}", 32, 512, 638_535_484, 512),
    _text(
        "fnet-base", f"FNet-Base, {PRETRAINING}", 64, 128, 83_486_722, 512,
        precisions=FULL,  # torch has no such FFT in bf16
    ),
    # Radford et al. (2019), section 2.3: 512 samples of 1,024 tokens; here 8, a host's share.
    # Brown et al. (2020), table 2.1: 3.2 million tokens a step, 2,048 a sample.
    _text("gpt2", f"GPT-2, {TIED}", 8, 1024, 124_439_808, 1024),
    _text("gpt2-medium", f"GPT-2 medium, {TIED}", 8, 1024, 354_823_168, 1024),
    _text("gpt2-large", f"GPT-2 large, {TIED}", 8, 1024, 774_030_080, 1024),
    _text("gpt2-xl", f"GPT-2 XL, {TIED}", 8, 1024, 1_557_611_200, 1024),
    _text(
        "gpt3-175b",
        "GPT-3 of 175 billion parameters, all attention dense (half of the paper's is banded)",
        1536, 2048, 174_604_259_328, 2048,
    ),
    # 8 million tokens a step, 8,192 a sample, for the largest (Grattafiori et al. 2024, section
    # 3.4.1); 64 samples, which a few hosts can train on, for the others.
    _text("llama-2-7b", "Llama 2 of 7 billion parameters", 64, 4096, 6_738_415_616),
    _text("llama-3-8b", "Llama 3 of 8 billion parameters", 64, 8192, 8_030_261_248),
    _text("llama-3-70b", "Llama 3 of 70 billion parameters", 64, 8192, 70_553_706_496),
    _text("llama-3-405b", "Llama 3 of 405 billion parameters", 1024, 8192, 405_853_388_800),
    _text(
        "mixtral-8x7b", "Mixtral, eight experts, two a token", 64, 4096, 46_702_792_704,
        precisions=(MIXED, "bf16"),  # torch's shape rule for grouped products knows bf16 only
    ),
    # Narayanan et al. (2021), table 1.
    ZooModel(
        name="gpt-1t", description=f"GPT of a trillion parameters, 128 layers of 25,600, {TIED}",
        batch=3072, sequence=2048, parameters=1_008_038_758_400, source="graph", longest=2048,
        precisions=TEXT,
    ),
    ZooModel(
        name="mlp", description="linear layers of widths 1024, 4096, 4096, 4096, 4096, 1000",
        batch=256, parameters=58_639_336, source="graph", precisions=FULL,
    ),
    ZooModel(
        name="unet", description="U-Net on 256 x 256 pictures, two classes", batch=16,
        parameters=31_037_698, source="graph", precisions=FULL,
    ),
)  # fmt: skip
"""Pictures first, then language, then those without PyTorch."""


def zoo_models() -> tuple[ZooModel, ...]:
    """All models of the zoo, in the order in which they are listed."""
    return _MODELS


def find_model(name: str) -> ZooModel:
    """A model by its name."""
    models = {model.name: model for model in zoo_models()}
    if name not in models:
        raise InputError(f"zoo: no model is called {quoted(name)}; {near_names(name, models)}")
    return models[name]


def near_names(name: str, names: Iterable[str]) -> str:
    """What to suggest in place of a name that there is not."""
    names = list(names)
    near = difflib.get_close_matches(name[:80].lower(), names, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"
