"""The table of the zoo: one row a name, true to the models it names, readable without torch."""

import subprocess
import sys

import pytest

from meshwright.errors import InputError
from meshwright.zoo.model import choose
from meshwright.zoo.shipped import shipped_names
from meshwright.zoo.table import find_model, zoo_models


def test_every_name_stands_once() -> None:
    names = [model.name for model in zoo_models()]
    assert len(set(names)) == len(names) == 33
    assert set(shipped_names()) <= set(names)


def test_reading_it_needs_no_torch() -> None:
    code = (
        "import sys; from meshwright.zoo.table import zoo_models; zoo_models(); "
        "sys.exit(bool({'torch', 'numba'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_usual_step_is_as_the_table_has_it() -> None:
    choice = choose(find_model("mixtral-8x7b"))
    assert (choice.batch, choice.sequence, choice.precision) == (64, 4096, "mixed")
    assert (choice.optimizer, choice.autocast) == ("adamw", None)


def test_language_models_are_usually_mixed() -> None:
    for model in zoo_models():
        is_text = model.sequence is not None and model.name != "fnet-base"
        assert choose(model).precision == ("mixed" if is_text else "fp32"), model.name
    assert choose(find_model("llama-3-8b"), precision="fp32").precision == "fp32"


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bert-base", {"batch": 0}, "bert-base: batch must be positive, got 0"),
        ("resnet50", {"sequence": 9}, "resnet50: has no sequence, got sequence = 9"),
        ("bert-base", {"sequence": 513}, "bert-base: sequence must be at most 512, got 513"),
        (
            "vit-l",
            {"precision": "fp8"},
            "vit-l: precision must be fp32 or tf32 or bf16 or mixed, got 'fp8'",
        ),
        ("mlp", {"precision": "bf16"}, "mlp: precision must be fp32 or tf32, got 'bf16'"),
        ("mlp", {"optimizer": "lion"}, "optimizer: must be one of sgd, momentum, adam, adamw"),
        ("mlp", {"autocast": "int4"}, "autocast: must be one of bf16, fp16, got 'int4'"),
    ],
)
def test_wrong_steps_are_named(name: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        choose(find_model(name), **options)  # type: ignore[arg-type]


def test_unknown_names_get_a_hint() -> None:
    with pytest.raises(InputError, match="no model is called 'GPT2-XXL'; did you mean gpt2-xl"):
        find_model("GPT2-XXL")
    with pytest.raises(InputError, match="no model is called 'q'; known: alexnet, "):
        find_model("q")
