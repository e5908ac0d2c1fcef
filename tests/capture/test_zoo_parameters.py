"""Parameter counts against published ones, and what `build` refuses."""

import importlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the zoo needs the torch extra")

from meshwright.capture.zoo import build, zoo_models  # noqa: E402
from meshwright.capture.zoo.inception import InceptionV3  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.zoo.table import find_model  # noqa: E402
from quick import few  # noqa: E402

OWN = {
    # torchvision's model pages, for the weights of the same architectures.
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
    "vit-l": 304_326_632,
    # torchvision has 27,161,264 with the auxiliary head, which holds 3,326,696: convolutions
    # 768 x 128 and 128 x 768 x 25, norms 2 x (128 + 768), and 768 x 1000 + 1000.
    "inception-v3": 27_161_264 - 3_326_696,
    # Convolutions 1,792 + 307,392 + 663,936 + 884,992 + 590,080, then 1024 x 4096 + 4096,
    # 4096 x 4096 + 4096 and 4096 x 10 + 10.
    "alexnet-32": 2_448_192 + 4_198_400 + 16_781_312 + 40_970,
    # VGG-16's 14,714,688 convolution weights, then 512 x 4096 + 4096, 4096 x 4096 + 4096 and
    # 4096 x 10 + 10.
    "vgg16-32": 14_714_688 + 2_101_248 + 16_781_312 + 40_970,
    # ResNet-50 less 2048 x 1000 + 1000; laterals 256 x 3840 + 4 x 256; 4 x (256 x 256 x 9 + 256);
    # head 4 x 256 x 128 x 9 + 3 x 128 x 128 x 9, seven norms of 2 x 128, and 128 x 150 + 150.
    "semantic-fpn": 23_508_032 + 984_064 + 2_360_320 + 1_622_016 + 1_792 + 19_350,
    # Liu et al. (2021), table 1: 197 million; the exact count is the released checkpoint's.
    "swin-l": 196_532_476,
    # Patches 48 x 256 + 256 and a norm of 512; blocks of 12 w^2 + 13 w and 169 biases for each of
    # w / 32 heads, w = 256, 512, 1024, 2048; merges of 8 w^2 + 8 w, w = 256, 512, 1024; a norm of
    # 4096 and 2048 x 1000 + 1000.
    "swin-u": 13_056
    + 2 * 791_112
    + 2 * 3_155_088
    + 24 * 12_601_632
    + 2 * 50_369_088
    + 11_024_384
    + 2_053_096,
    # Embeddings 37,000 x 512, six encoder layers of 4 x (512 x 512 + 512) + 2 x 512 x 2048 + 2048
    # + 512 + 2 x 1024 and six decoder layers with one attention and one norm more.
    "transformer": 18_944_000 + 6 * 3_152_384 + 6 * 4_204_032,
}
TRANSFORMERS = {
    # Devlin et al. (2019): 110 and 340 million. Exact: 109,482,240 and 335,141,888 without heads;
    # the heads have (w x w + w) + 2 w + 30,522 (decoder tied) and 2 w + 2.
    "bert-base": 109_482_240 + 590_592 + 1_536 + 30_522 + 1_538,
    "bert-large": 335_141_888 + 1_049_600 + 2_048 + 30_522 + 2_050,
    # Turc et al. (2019): 28.8 million, here 28,763,648, and the heads as above.
    "bert-small": 28_763_648 + 262_656 + 1_024 + 30_522 + 1_026,
    # 12 or 24 layers of 12 x 1024 x 1024 + 13 x 1024 more than bert-large.
    "bert-36": 336_226_108 + 12 * 12_596_224,
    "bert-48": 336_226_108 + 24 * 12_596_224,
    # The released checkpoints of Radford et al. (2019), head tied.
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    # Brown et al. (2020): 174.6 billion without biases and norms. 96 x (12 w^2 + 13 w) + 2 w +
    # (50,257 + 2,048) w with w = 12,288.
    "gpt3-175b": 96 * (12 * 12_288**2 + 13 * 12_288) + 2 * 12_288 + 52_305 * 12_288,
    # The released checkpoints.
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
}
ROUNDED = {
    # Millions, as the papers print them: Parmesan (Liu et al. 2024); Lee-Thorp et al. (2022), table
    # 1; Vaswani et al. (2017), table 3 (their vocabulary is not stated exactly).
    "swin-u": (424, 0.001),
    "fnet-base": (83, 0.01),
    "transformer": (65, 0.04),
    # Fan et al. (2021, DAPPLE) and Brown et al. (2020).
    "bert-48": (640, 0.005),
    "gpt3-175b": (174_600, 0.001),
}


def count_parameters(model: Any) -> int:
    return sum(each.numel() for each in model.parameters())


def need_package(name: str) -> None:
    source = {each.name: each.source for each in zoo_models()}[name]
    if source == "transformers":
        pytest.importorskip("transformers", reason="these models need the zoo extra")


@pytest.mark.parametrize(
    "name", few([*OWN, *TRANSFORMERS], "semantic-fpn", "swin-u", "vit-l", "gpt2")
)
def test_parameters_are_the_published_number(name: str) -> None:
    need_package(name)
    assert count_parameters(build(name, batch=2).model) == {**OWN, **TRANSFORMERS}[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_parameters_are_what_the_paper_prints(name: str) -> None:
    need_package(name)
    millions, tolerance = ROUNDED[name]
    count = count_parameters(build(name, batch=2).model)
    assert count / 1e6 == pytest.approx(millions, rel=tolerance)


def test_inception_has_an_auxiliary_head_when_asked() -> None:
    with torch.device("meta"):
        assert count_parameters(InceptionV3(has_auxiliary=True)) == 27_161_264


def test_every_model_has_an_expected_count() -> None:
    assert {each.name for each in zoo_models()} == {*OWN, *TRANSFORMERS, *ROUNDED}


NAMES = [each.name for each in zoo_models()]


@pytest.mark.parametrize("name", few(NAMES, *NAMES[::5]))
def test_models_are_on_the_meta_device_with_inputs_of_the_batch(name: str) -> None:
    need_package(name)
    workload = build(name, batch=3)
    inputs = [*workload.args, *workload.kwargs.values()]
    assert workload.batch == 3
    assert all(each.shape[0] == 3 and each.is_meta for each in inputs)
    assert all(each.is_meta for each in workload.model.parameters())
    assert all(each.is_meta for each in workload.model.buffers())
    assert workload.model.training
    assert count_parameters(workload.model) == find_model(name).parameters


def test_semantic_fpn_is_trained_on_squares_of_512_pixels() -> None:
    pictures, labels = build("semantic-fpn", batch=3).args
    assert pictures.shape == (3, 3, 512, 512)
    assert labels.shape == (3, 512, 512)


def test_usual_batches_are_the_papers() -> None:
    batches = {each.name: (each.batch, each.sequence) for each in zoo_models()}
    assert batches["alexnet-32"] == batches["vgg16-32"] == (512, None)
    assert batches["bert-base"] == batches["fnet-base"] == (64, 128)


@pytest.mark.parametrize("name", ["vgg16-32", "swin-l", "bert-small", "llama-3-8b"])
def test_precision_sets_the_type_of_parameters(name: str) -> None:
    need_package(name)
    assert torch.get_default_dtype() is torch.float32
    half = build(name, batch=1, precision="bf16")
    assert {each.dtype for each in half.model.parameters()} == {torch.bfloat16}
    assert torch.get_default_dtype() is torch.float32


def test_sequence_sets_the_tokens() -> None:
    source, target, labels = build("transformer", batch=2, sequence=7).args
    assert source.shape == target.shape == labels.shape == (2, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "resnet51"}, "no model is called 'resnet51'; did you mean resnet50 or"),
        ({"name": "mlp"}, "mlp: has no PyTorch model, so there is nothing to capture"),
        ({"name": "bert-base", "batch": 0}, "bert-base: batch must be positive, got 0"),
        ({"name": "resnet50", "sequence": 9}, "resnet50: has no sequence, got sequence = 9"),
        ({"name": "bert-base", "sequence": 513}, "sequence must be at most 512, got 513"),
        ({"name": "llama-3-8b", "sequence": 0}, "sequence must be positive, got 0"),
        (
            {"name": "vit-l", "precision": "fp8"},
            "precision must be fp32 or tf32 or bf16 or mixed, got 'fp8'",
        ),
        ({"name": "fnet-base", "precision": "bf16"}, "precision must be fp32 or tf32, got 'bf16'"),
        (
            {"name": "mixtral-8x7b", "precision": "fp32"},
            "precision must be mixed or bf16, got 'fp32'",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build(**arguments)


def test_missing_transformers_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.import_module

    def fail(name: str, package: str | None = None) -> Any:
        if name == "transformers":
            raise ModuleNotFoundError(name)
        return find(name, package)

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(InputError, match=r"install meshwright\[zoo\]"):
        build("bert-base")
