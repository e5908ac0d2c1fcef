"""Where the graph of a model comes from: shipped, formulas that are equal, captured, others."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from formula import mlp
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.zoo.cache import GraphCache
from meshwright.zoo.find import find_graph, find_origin
from meshwright.zoo.model import Choice, choose
from meshwright.zoo.shape import shape_names
from meshwright.zoo.shipped import FOLDER, SUFFIX, is_shipped, shipped_names
from meshwright.zoo.table import find_model, zoo_models

BYTES = {"fp32": 4, "mixed": 2}
"""Of a weight."""
LIMIT_BYTES = 300_000


def capture(choice: Choice) -> Graph:
    return mlp(f"captured {choice.model.name}", choice.batch, (3, 4))


def refuse(_choice: Choice) -> Graph:
    raise AssertionError("nothing is to be captured")


def find(choice: Choice, *, has_torch: bool) -> Graph:
    way = capture if has_torch else None
    return find_graph(choice, capture=way, cache=None, say=lambda _: None)


def test_shipped_graphs_are_models_at_their_usual_batch_and_small() -> None:
    assert {"alexnet-32", "inception-v3"} <= set(shipped_names())
    for name in shipped_names():
        model = find_model(name)
        graph = find_graph(choose(model), capture=refuse, cache=None, say=lambda _: None)
        assert (graph.name, graph.batch) == (name, model.batch)
        assert graph.parameter_bytes.sum() == BYTES[model.precisions[0]] * model.parameters
        assert (FOLDER / f"{name}{SUFFIX}").stat().st_size < LIMIT_BYTES


def test_only_what_follows_from_the_usual_step_is_shipped() -> None:
    model = find_model("alexnet-32")
    assert is_shipped(choose(model))
    assert is_shipped(choose(model, batch=1, precision="tf32", optimizer="adam"))
    assert not is_shipped(choose(model, precision="bf16"))
    assert not is_shipped(choose(model, optimizer="sgd"))
    assert not is_shipped(replace(choose(model), compile=True))
    assert not is_shipped(choose(find_model("transformer"), precision="fp32"))
    assert not is_shipped(choose(find_model("transformer"), sequence=32))


def test_formulas_come_before_a_capture_only_where_they_are_equal() -> None:
    equal, other = choose(find_model("bert-large")), choose(find_model("resnet50"), optimizer="sgd")
    for has_torch in (True, False):
        built = find(equal, has_torch=has_torch)
        assert (built.name, built.batch) == ("bert-large", 32)
        shipped = find(choose(find_model("resnet50"), batch=7), has_torch=has_torch)
        assert (shipped.name, shipped.batch) == ("resnet50", 7)
    assert find(other, has_torch=True).name == "captured resnet50"


@pytest.mark.parametrize(
    "change", [{"autocast": "bf16"}, {"measured": "digest"}, {"compile": True}, {"untie": True}]
)
def test_what_changes_ops_or_times_is_captured(change: dict[str, Any]) -> None:
    choice = replace(choose(find_model("bert-large")), **change)
    assert find(choice, has_torch=True).name == "captured bert-large"


def test_autocast_without_torch_is_refused_and_not_left_out() -> None:
    choice = choose(find_model("bert-large"), autocast="bf16")
    assert find_origin(choice, can_capture=False, cache=None) == "missing"
    with pytest.raises(
        InputError, match=r"^bert-large: needs PyTorch and the package transformers"
    ):
        find(choice, has_torch=False)


def test_one_token_is_captured_where_it_can_be() -> None:
    choice = choose(find_model("llama-3-8b"), sequence=1)
    assert find(choice, has_torch=True).name == "captured llama-3-8b"
    with pytest.raises(InputError, match="gpt: sequence must be at least 2, got 1"):
        find(choose(find_model("gpt-1t"), sequence=1), has_torch=True)


def test_formulas_take_the_steps_of_the_zoo() -> None:
    # bert-base is 64 samples of 128 tokens in the zoo; ids are held with the op that reads them.
    for sequence in (None, 32):
        choice = choose(
            find_model("bert-base"), sequence=sequence, precision="fp32", optimizer="sgd"
        )
        graph = find(choice, has_torch=False)
        ids = graph.saved_bytes[graph.index["bert.embeddings.word_embeddings/embedding"]]
        assert ids == 64 * (sequence or 128) * 8
        assert "_fused_sgd_" in graph.kind


@pytest.mark.parametrize("name", shape_names())
def test_formulas_have_the_parameters_of_the_zoo(name: str) -> None:
    model = find_model(name)
    graph = find(choose(model), has_torch=False)
    assert graph.parameter_bytes.sum() == BYTES[model.precisions[0]] * model.parameters
    assert (graph.name, graph.batch) == (name, model.batch)


def test_models_without_pytorch_are_never_captured() -> None:
    assert find(choose(find_model("unet")), has_torch=True).name == "unet"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("swin-l", {}, r"swin-l: needs PyTorch; install meshwright\[torch\]"),
        ("fnet-base", {}, r"needs PyTorch and the package transformers; install meshwright\[zoo"),
        (
            "resnet50",
            {"precision": "bf16"},
            "shipped graph must be fp32 or tf32, got 'bf16'; anything else",
        ),
        ("vgg16", {"optimizer": "sgd"}, "graph must be adamw or adam, got 'sgd'; anything"),
        ("mlp", {"optimizer": "sgd"}, "graph must be adamw or adam, got 'sgd'$"),
    ],
)
def test_what_there_is_not_without_torch_is_named(
    name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        find(choose(find_model(name), **options), has_torch=False)  # type: ignore[arg-type]


def test_origins_say_what_would_be_found(tmp_path: Path) -> None:
    cache = GraphCache(folder=tmp_path, code="c", versions={})
    seen = choose(find_model("vgg19"))
    cache.write(seen, capture(seen))
    wanted = {
        "alexnet-32": ("shipped", "shipped"),
        "vgg19": ("cached", "missing"),
        "vgg16": ("shipped", "shipped"),
        "bert-large": ("formula", "formula"),
        "llama-3-8b": ("formula", "formula"),
        "fnet-base": ("torch", "missing"),
        "mlp": ("shipped", "shipped"),
    }
    for name, origins in wanted.items():
        choice = choose(find_model(name))
        found = (
            find_origin(choice, can_capture=can_capture, cache=cache)
            for can_capture in (True, False)
        )
        assert tuple(found) == origins


def test_every_origin_is_that_of_the_graph() -> None:
    for model in zoo_models():
        origin = find_origin(choose(model), can_capture=False, cache=None)
        if origin == "missing":
            with pytest.raises(InputError, match="install"):
                find(choose(model), has_torch=False)
