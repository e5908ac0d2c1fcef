"""Formulas give the steps that PyTorch runs: op for op, column by column, to the last bit."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="captured steps need the torch extra")
pytest.importorskip("transformers", reason="these models need the zoo extra")

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.zoo import build, language  # noqa: E402
from meshwright.capture.zoo.vit import VisionTransformer  # noqa: E402
from meshwright.graph.architecture.shape import ARCHITECTURES  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.zoo.model import update_name  # noqa: E402
from meshwright.zoo.shape import find_shape, shape_names  # noqa: E402
from meshwright.zoo.table import find_model  # noqa: E402
from same_graph import assert_same  # noqa: E402

Sizes = dict[str, Any]
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "mixed": torch.bfloat16}
TOKENS = {"sequence": 12, "vocabulary": 100}
# Widths of heads that are no multiple of 16 bytes, key heads, tokens that fill no block.
GPT = {"hidden": 60, "heads": 3, "layers": 2, "positions": 20, **TOKENS}
BERT = {"hidden": 60, "heads": 3, "layers": 2, "positions": 20, **TOKENS}
LLAMA = {
    "hidden": 80, "heads": 4, "layers": 2, "key_heads": 2, "intermediate": 50, **TOKENS
}  # fmt: skip
MIXTRAL = {
    "hidden": 64, "heads": 4, "layers": 1, "key_heads": 2, "intermediate": 40, "experts": 4,
    "experts_per_token": 2, **TOKENS,
}  # fmt: skip
VIT = {
    "hidden": 60, "heads": 3, "layers": 2, "intermediate": 50, "patch": 4, "side": 13, "classes": 9
}  # fmt: skip


def make(family: str, sizes: Sizes, batch: int) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    if family == "vit":
        names = {"hidden": "width", "intermediate": "inner"}
        side, classes = sizes["side"], sizes["classes"]
        model = VisionTransformer(**{names.get(name, name): sizes[name] for name in sizes})
        return model, (torch.empty(batch, 3, side, side), torch.randint(classes, (batch,))), {}
    kind = {
        "gpt": language.GPT, "bert": language.BERT, "llama": language.LLAMA,
        "mixtral": language.MIXTRAL,
    }[family]  # fmt: skip
    model = language.build_transformer(kind, CONFIGS[family](sizes))
    return model, *kind.inputs(batch, sizes["sequence"], sizes["vocabulary"])


def gpt_config(sizes: Sizes) -> Sizes:
    end = sizes["vocabulary"] - 1
    config = language.gpt_config(**without(sizes, "sequence"))
    return {**config, "bos_token_id": end, "eos_token_id": end}


def bert_config(sizes: Sizes) -> Sizes:
    return language.bert_config(**without(sizes, "sequence"))


def llama_config(sizes: Sizes) -> Sizes:
    return language.llama_config(**without(sizes, "sequence"), positions=sizes["sequence"])


def mixtral_config(sizes: Sizes) -> Sizes:
    return language.mixtral_config(**without(sizes, "sequence"), positions=sizes["sequence"])


def without(sizes: Sizes, name: str) -> Sizes:
    return {each: size for each, size in sizes.items() if each != name}


CONFIGS: dict[str, Callable[[Sizes], Sizes]] = {
    "gpt": gpt_config,
    "bert": bert_config,
    "llama": llama_config,
    "mixtral": mixtral_config,
}


def capture_step(
    family: str, sizes: Sizes, batch: int, precision: str, optimizer: str, untie: bool = False
) -> Graph:
    before = torch.get_default_dtype()
    torch.set_default_dtype(TYPES[precision])
    try:
        with torch.device("meta"):
            model, args, kwargs = make(family, sizes, batch)
    finally:
        torch.set_default_dtype(before)
    own = update_name(precision, optimizer)
    return capture(model, args, kwargs, optimizer=own, batch=batch, untie=untie)


def check(
    family: str, sizes: Sizes, batch: int, precision: str, optimizer: str = "adamw", **more: bool
) -> None:
    if family == "mixtral" and torch.__version__ < "2.13":
        pytest.skip("formulas of grouped products are those of torch 2.13")
    captured = capture_step(family, sizes, batch, precision, optimizer, **more)
    built = ARCHITECTURES[family](
        **sizes, batch=batch, precision=precision, optimizer=optimizer, **more
    )
    assert_same(built, captured)


@pytest.mark.parametrize(
    ("family", "sizes", "precision"),
    [
        pytest.param("gpt", GPT, "fp32", marks=pytest.mark.slow),
        ("gpt", GPT, "mixed"),
        pytest.param("llama", LLAMA, "bf16", marks=pytest.mark.slow),
        pytest.param("llama", LLAMA, "mixed", marks=pytest.mark.slow),
        ("mixtral", MIXTRAL, "bf16"),
        pytest.param("mixtral", MIXTRAL, "mixed", marks=pytest.mark.slow),
        pytest.param("bert", BERT, "fp32", marks=pytest.mark.slow),
        pytest.param("bert", BERT, "mixed", marks=pytest.mark.slow),
        ("vit", VIT, "fp32"),
        pytest.param("vit", VIT, "mixed", marks=pytest.mark.slow),
    ],
)
def test_formulas_give_the_captured_step(family: str, sizes: Sizes, precision: str) -> None:
    check(family, sizes, 3, precision)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "sizes", "batch", "precision", "optimizer"),
    [
        # One sample, which is captured at two; wide rows, whose copies are others; many layers.
        ("gpt", GPT, 1, "bf16", "sgd"),
        ("gpt", {**GPT, "hidden": 512, "heads": 1, "layers": 1}, 5, "fp32", "momentum"),
        ("gpt", {**GPT, "layers": 5, "sequence": 130, "positions": 130}, 4, "bf16", "adam"),
        ("gpt", {**GPT, "layers": 5}, 2, "mixed", "sgd"),
        ("gpt", GPT, 1, "mixed", "momentum"),
        ("llama", {**LLAMA, "layers": 5}, 2, "fp32", "adam"),
        ("llama", {**LLAMA, "key_heads": 1, "hidden": 640}, 1, "fp32", "sgd"),
        ("llama", {**LLAMA, "heads": 1, "key_heads": 1, "sequence": 70}, 8, "bf16", "momentum"),
        ("llama", {**LLAMA, "key_heads": 4, "hidden": 4096}, 3, "bf16", "adamw"),
        ("mixtral", {**MIXTRAL, "experts": 8, "experts_per_token": 1}, 3, "bf16", "sgd"),
        ("mixtral", {**MIXTRAL, "layers": 5, "experts_per_token": 3}, 1, "bf16", "adamw"),
        ("mixtral", {**MIXTRAL, "hidden": 1024, "intermediate": 1000}, 4, "bf16", "adam"),
        ("bert", BERT, 1, "bf16", "adam"),
        ("bert", {**BERT, "layers": 5, "vocabulary": 1001}, 6, "bf16", "momentum"),
        ("bert", {**BERT, "hidden": 512, "heads": 4, "sequence": 20}, 2, "fp32", "sgd"),
        ("vit", VIT, 1, "fp32", "adam"),
        ("vit", {**VIT, "layers": 5, "side": 4}, 4, "bf16", "sgd"),
        ("vit", {**VIT, "hidden": 600, "heads": 2, "patch": 2}, 3, "bf16", "momentum"),
    ],
)
def test_formulas_give_captured_steps_of_many_sizes(
    family: str, sizes: Sizes, batch: int, precision: str, optimizer: str
) -> None:
    check(family, sizes, batch, precision, optimizer)


@pytest.mark.slow
@pytest.mark.parametrize(("family", "sizes"), [("gpt", GPT), ("bert", BERT)])
def test_formulas_give_captured_steps_with_copies_of_tied_weights(
    family: str, sizes: Sizes
) -> None:
    for precision in ("bf16", "mixed"):
        check(family, sizes, 3, precision, untie=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [each for each in shape_names() if find_model(each).source != "graph"]
)
def test_sizes_are_those_of_the_zoos_models(name: str) -> None:
    model = find_model(name)
    precision = model.precisions[0]
    workload = build(name, batch=2, precision=precision)
    shorten(workload.model, 2)
    own = update_name(precision, "adamw")
    captured = capture(workload.model, workload.args, workload.kwargs, batch=2, optimizer=own)
    shape = find_shape(name, model.sequence)
    assert shape is not None
    sizes = {**shape.sizes, "layers": 2}
    built = ARCHITECTURES[shape.architecture](**sizes, batch=2, precision=precision)
    assert_same(built, captured)
    assert shape.build(batch=2).num_ops > built.num_ops


def shorten(model: Any, layers: int) -> None:
    """Keep the first layers of a model."""
    for path in ("transformer.h", "model.layers", "bert.encoder.layer", "layers"):
        owner, _, last = path.rpartition(".")
        try:
            holder = model.get_submodule(owner)
        except AttributeError:
            continue
        if hasattr(holder, last):
            setattr(holder, last, getattr(holder, last)[:layers])
            return
    raise AssertionError("the model must have layers")


@pytest.mark.slow
def test_a_deep_model_of_the_zoo_is_given_whole() -> None:
    workload = build("gpt2-medium", batch=2, precision="bf16")
    captured = capture(workload.model, workload.args, workload.kwargs, batch=2)
    shape = find_shape("gpt2-medium", 1024)
    assert shape is not None
    assert_same(shape.build(batch=2, precision="bf16"), captured)
