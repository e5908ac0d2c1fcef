"""`meshwright capture`: a user's own function becomes a graph file."""

import importlib
import json
import sys
from pathlib import Path

import pytest
from cli_runner import refusal, run

from meshwright.graph.graph import Graph

pytest.importorskip("torch", reason="capture needs the torch extra")

FACTORIES = """
import torch
from torch import nn


def pair():
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(8, 4), nn.Flatten(0), nn.Softmax(0)), (torch.empty(4, 8),)


def mapping():
    with torch.device("meta"):
        return {
            "model": nn.Linear(8, 4),
            "args": (torch.empty(6, 8),),
            "loss": lambda y: y.square().mean(),
        }


def sized(*, batch=2, sequence=3, precision="fp32"):
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    with torch.device("meta"):
        model = nn.Linear(8, 4, dtype=dtype)
        return model, (torch.empty(sequence, batch, 8, dtype=dtype).transpose(0, 1),)


def total(y):
    return y.sum()


def strange():
    return {"model": nn.Linear(8, 4), "color": "red"}


def broken():
    raise RuntimeError("no such thing")


number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / f"factories_{tmp_path.name}.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_factory_is_called_and_captured(folder: Path) -> None:
    result = run("capture", f"factories_{folder.name}:mapping", "-o", "step.json.gz", "--json")
    assert result.code == 0, result.err
    assert "importing and calling" in result.err
    assert result.json["batch"] == 6
    assert result.json["parameter_bytes"] == 4 * (8 * 4 + 4)
    assert Graph.load(folder / "step.json.gz").num_ops == result.json["ops"]


def test_a_factory_can_be_planned_at_once(folder: Path) -> None:
    result = run(
        "plan", f"factories_{folder.name}:mapping", "--cluster", "h200-x1", "--method", "single",
        "--json",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert result.json["step_seconds"] > 0


@pytest.mark.parametrize("file", ["some model.py", "json.py", "own_file_factories.py"])
def test_a_factory_may_be_named_by_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """A name that is no module's, one that is another's already, and one of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_factories.py").write_text("WIDTH = 8")
    (tmp_path / file).write_text(
        f"from beside_factories import WIDTH\nassert WIDTH == 8\n{FACTORIES}"
    )
    for _ in range(2):  # the second time it is known
        result = run("capture", f"{tmp_path / file}:mapping", "-o", tmp_path / "a.json", "--json")
        assert result.code == 0, result.err
        assert result.json["batch"] == 6
    assert json.loads("3") == 3
    assert importlib.import_module("json") is json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def (", "cannot be imported (SyntaxError: invalid syntax (file.py, line 1))"),
        ("import nothing_of_that_name", "cannot be imported (No module named 'nothing_of_that"),
        ("1 / 0", "cannot be imported (ZeroDivisionError: division by zero)"),
        ("", "has no attribute 'mapping'"),
        (None, "cannot be imported (there is no file "),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    if text is not None:
        (tmp_path / "file.py").write_text(text)
    result = run("capture", f"{tmp_path / 'file.py'}:mapping", "-o", tmp_path / "a.json")
    assert result.code == 2
    (error,) = result.err.splitlines()[1:]  # the first says what is called
    assert "file.py:mapping': " in error
    assert message in error


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pair", "loss: must be a scalar tensor, got (16,)"),
        ("strange", "unknown entries color"),
        ("broken", "raised RuntimeError: no such thing"),
        ("number", "must be a function, got int"),
        ("missing", "cannot be imported"),
    ],
)
def test_what_a_factory_does_wrong_is_one_line(folder: Path, name: str, message: str) -> None:
    result = run("capture", f"factories_{folder.name}:{name}", "-o", "step.json")
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert not (folder / "step.json").exists()


def test_unknown_options_are_refused(folder: Path) -> None:
    name = f"factories_{folder.name}:mapping"
    result = run("capture", name, "-o", "step.json", "--autocast", "int4")
    assert (result.code, "autocast: must be one of bf16, fp16" in result.err) == (2, True)
    result = run("capture", name, "-o", "step.json", "--optimizer", "lion")
    assert (result.code, "optimizer: must be one of" in result.err) == (2, True)


def test_a_model_of_the_zoo_is_captured_by_its_name(tmp_path: Path) -> None:
    result = run("capture", "alexnet-32", "-o", tmp_path / "a.json.gz", "--batch", 4, "--json")
    assert result.code == 0, result.err
    assert result.json["batch"] == 4
    result = run("capture", "alexnet-33", "-o", tmp_path / "b.json.gz")
    assert (result.code, "did you mean alexnet-32" in result.err) == (2, True)


def test_a_captured_step_can_be_had_at_another_batch(folder: Path) -> None:
    name = f"factories_{folder.name}:mapping"
    result = run("capture", name, "-o", "step.json.gz", "--batch", 12, "--json")
    assert result.json["batch"] == 12


def test_a_model_of_the_zoo_takes_options(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="this model needs the zoo extra")
    options = ("--batch", 2, "--sequence", 16, "--precision", "bf16", "--optimizer", "sgd")
    result = run("capture", "bert-small", "-o", tmp_path / "a.json.gz", *options, "--json")
    assert result.code == 0, result.err
    assert (result.json["name"], result.json["batch"]) == ("bert-small", 2)
    # 29,058,876 weights of two bytes.
    assert result.json["parameter_bytes"] == 2 * 29_058_876


def test_a_model_of_the_zoo_is_captured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path / "cache"))
    first, again, without = (tmp_path / name for name in ("a.json", "b.json", "c.json"))
    model = ("alexnet-32", "--batch", 3)
    assert "capturing with PyTorch" in run("capture", *model, "-o", first).err
    (kept,) = (tmp_path / "cache").iterdir()
    assert "captured before, read from" in run("capture", *model, "-o", again).err
    kept.write_bytes(kept.read_bytes()[:-20])  # a damaged file is captured again
    result = run("capture", *model, "-o", without)
    assert "capturing with PyTorch" in result.err
    assert first.read_bytes() == again.read_bytes() == without.read_bytes()
    assert "captured before" in run("capture", *model, "-o", without).err
    kept.unlink()
    result = run("capture", *model, "-o", without, "--no-cache")
    assert "captured before" not in result.err
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bert-base", "--sequence", 0], "--sequence: must be a whole number from 1, got '0'"),
        (["bert-base", "--sequence", 513], "bert-base: sequence must be at most 512, got 513"),
        (["vit-l", "--sequence", 3], "vit-l: has no sequence, got sequence = 3"),
        (
            ["vit-l", "--precision", "fp8"],
            "vit-l: precision must be fp32 or tf32 or bf16 or mixed, got 'fp8'",
        ),
        (
            ["fnet-base", "--precision", "bf16"],
            "fnet-base: precision must be fp32 or tf32, got 'bf16'",
        ),
        (["vit-l", "--optimizer", "lion"], "optimizer: must be one of sgd, momentum, adam, adamw"),
        (["vit-l", "--autocast", "int4"], "autocast: must be one of bf16, fp16, got 'int4'"),
        (["mlp"], "mlp: has no PyTorch model, so there is nothing to capture"),
    ],
)
def test_bad_options_are_one_line(tmp_path: Path, arguments: list[object], message: str) -> None:
    assert message in refusal("capture", *arguments, "-o", tmp_path / "a.json")
    assert list(tmp_path.iterdir()) == []


def test_a_factory_is_given_what_it_has_arguments_for(folder: Path) -> None:
    file = f"factories_{folder.name}.py"
    arguments: list[object] = ["--loss-function", f"{file}:total", "--optimizer", "sgd"]
    result = run("capture", f"{file}:sized", "-o", "own.json", *arguments, "--json")
    assert result.code == 0, result.err
    assert result.json["batch"] == 2
    arguments += ["--batch", 5, "--sequence", 7, "--precision", "bf16"]
    result = run("capture", f"{file}:sized", "-o", "step.json", *arguments, "--json")
    assert result.code == 0, result.err
    assert result.json["batch"] == 5
    assert result.json["parameter_bytes"] == 2 * (8 * 4 + 4)
    # The product forward, and that of the weight's gradient.
    assert result.json["flops"] == 2 * 2 * (5 * 7 * 8 * 4)


def test_a_loss_function_comes_before_the_factorys_own(folder: Path) -> None:
    file = f"factories_{folder.name}.py"
    for more in ([], ["--loss-function", f"{file}:total"]):
        assert run("capture", f"{file}:mapping", "-o", "step.json", *more).code == 0
        kinds = set(Graph.load(folder / "step.json").kind)
        assert ("pow" in kinds) == (not more)
    result = run("capture", f"{file}:mapping", "-o", "x.json", "--loss-function", f"{file}:no")
    assert (result.code, f"'{file}:no': cannot be imported" in result.err) == (2, True)


def test_a_factory_has_its_own_sequence_and_precision(folder: Path) -> None:
    name = f"factories_{folder.name}:mapping"
    for option, value in (("sequence", 3), ("precision", "bf16")):
        result = run("capture", name, "-o", "step.json", f"--{option}", value)
        assert (result.code, f"a factory sets its own {option}" in result.err) == (2, True)
