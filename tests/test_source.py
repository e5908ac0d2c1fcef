"""Graphs by name, path and factory, with the cache and without torch."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

import pytest

from formula import mlp
from meshwright import source
from meshwright.errors import InputError
from meshwright.function import check_function
from meshwright.graph.graph import Graph
from meshwright.profile.profile import Measured, Profile, Table
from meshwright.source import capture_model, find_optimizer, list_zoo, load_graph, zoo_graph
from meshwright.zoo.model import Choice


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda _: None)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Choice]:
    """A capture that costs nothing, and the steps that it was asked for."""
    asked: list[Choice] = []

    def capture(choice: Choice, _measured: Measured | None = None, _batches: object = ()) -> Graph:
        asked.append(choice)
        return mlp(choice.model.name, choice.batch, (3, 4))

    monkeypatch.setattr(source, "find_spec", lambda _: "there")
    monkeypatch.setattr(source, "_capture_choice", capture)
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path / "cache"))
    return asked


def test_a_file_comes_before_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    mlp("mine", 3, (4, 5)).save("gpt2")
    assert load_graph("gpt2").name == "mine"


@pytest.mark.usefixtures("no_torch")
def test_shipped_graphs_and_formulas_need_no_torch() -> None:
    shipped = load_graph("inception-v3")
    assert (shipped.name, shipped.batch) == ("inception-v3", 32)
    assert load_graph("inception-v3", 8).batch == 8
    assert load_graph("resnet50", 3).batch == 3
    assert zoo_graph("bert-large", 3, sequence=64, precision="bf16").batch == 3
    assert {origin for _, origin in list_zoo()} == {"shipped", "formula", "missing"}


@pytest.mark.usefixtures("no_torch")
def test_a_shape_is_built_from_formulas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "gpt:hidden=64,heads=4,layers=6,sequence=16,vocabulary=99"
    graph = load_graph(text, 5)
    assert (graph.name, graph.batch) == (text, 5)
    # Six layers of 12 w^2 + 13 w, a norm of 2 w, words and positions; in bf16.
    parameters = 6 * (12 * 64**2 + 13 * 64) + 2 * 64 + (99 + 16) * 64
    assert graph.parameter_bytes.sum() == 2 * parameters
    with pytest.raises(InputError, match="gpt: heads must be given, as in gpt:hidden=N,heads=N"):
        load_graph("gpt:hidden=64")
    monkeypatch.chdir(tmp_path)
    mlp("mine", 3, (4, 5)).save("gpt:hidden=64")
    assert load_graph("gpt:hidden=64").name == "mine"


@pytest.mark.usefixtures("no_torch")
def test_a_precision_is_that_of_the_zoos_models_and_of_shapes(tmp_path: Path) -> None:
    shape = "gpt:hidden=64,heads=4,layers=2,sequence=16,vocabulary=99"
    for name in ("llama-3-8b", shape, f"{shape},precision=fp32"):
        graph = load_graph(name, precision="mixed")
        weights = graph.parameter_bytes.sum()
        assert graph.state_bytes.sum() == pytest.approx(7 * weights, rel=1e-2)  # 2 + 12 bytes
        assert "_fused_mixed-adamw_" in graph.kind
    graph.save(tmp_path / "graph.json")
    for given in (graph, tmp_path / "graph.json"):
        with pytest.raises(InputError, match="a graph has its own precision, got 'mixed'"):
            load_graph(given, precision="mixed")
    with pytest.raises(InputError, match="precision must be mixed or bf16, got 'int4'"):
        load_graph("mixtral-8x7b", precision="int4")


def test_a_mixed_step_is_updated_by_way_of_copies() -> None:
    assert find_optimizer("gpt2", "mixed", "adamw") == "mixed-adamw"
    assert find_optimizer("gpt2", "mixed", "mixed-sgd") == "mixed-sgd"
    assert find_optimizer("gpt2", "bf16", "adamw") == "adamw"
    assert find_optimizer("resnet50", None, "adamw") == "adamw"
    assert find_optimizer("file.py:factory", None, "adamw") == "adamw"
    assert find_optimizer("file.py:factory", "mixed", "file.py:make") == "file.py:make"


@pytest.mark.usefixtures("no_torch")
def test_without_torch_one_line_says_what_to_install() -> None:
    with pytest.raises(InputError, match=r"swin-l: needs PyTorch; install meshwright\[torch\]"):
        load_graph("swin-l")
    with pytest.raises(InputError, match=r"alexnet-32: needs PyTorch; install meshwright\[torch"):
        capture_model("alexnet-32")
    with pytest.raises(InputError, match=r"capture: needs PyTorch; install meshwright\[torch\]"):
        capture_model("a.b:c")


def test_one_capture_at_the_usual_batch_serves_every_batch(captured: list[Choice]) -> None:
    lines: list[str] = []
    assert load_graph("semantic-fpn", say=lines.append).batch == 32
    assert load_graph("semantic-fpn", 7, say=lines.append).batch == 7
    assert [choice.batch for choice in captured] == [32]
    assert "capturing" in lines[0]
    assert "captured before" in lines[1]
    assert ("semantic-fpn", "cached") in [(model.name, origin) for model, origin in list_zoo()]


def test_capture_traces_at_the_batch_itself(captured: list[Choice]) -> None:
    for _ in range(2):
        capture_model("bert-large", "sgd", "bf16", 7, sequence=64, precision="bf16")
    (choice,) = captured
    assert (choice.batch, choice.sequence, choice.precision) == (7, 64, "bf16")
    assert (choice.optimizer, choice.autocast) == ("sgd", "bf16")
    capture_model("alexnet-32")  # also where a graph is shipped
    capture_model("alexnet-32", use_cache=False)
    assert len(captured) == 3


def test_measured_times_are_part_of_what_is_kept(captured: list[Choice], tmp_path: Path) -> None:
    def write(name: str, seconds: float, day: int) -> Path:
        table = Table(
            device_type="h200",
            device="NVIDIA H200",
            date=datetime(2026, 11, day, tzinfo=UTC),
            calls={'{"op":"aten.mm.default"}': seconds},
        )
        Profile(tables=(table,)).save(tmp_path / name)
        return tmp_path / name

    fast, same, slow = write("a.json", 1.0, 1), write("b.json.gz", 1.0, 2), write("c.json", 2.0, 1)
    capture_model("vit-l")
    assert captured[0].measured is None
    capture_model("vit-l", profiles=[fast])
    capture_model("vit-l", profiles=[str(same)])  # another file with the same times
    capture_model("vit-l", profiles=[slow, fast])  # the last counts
    assert len(captured) == 2
    capture_model("vit-l", profiles=[slow])
    assert len(captured) == 3
    assert captured[1].measured != captured[2].measured
    with pytest.raises(InputError, match=r"none\.json: cannot be read"):
        capture_model("vit-l", profiles=[tmp_path / "none.json"])


def test_a_missing_home_is_no_fault(
    captured: list[Choice], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MESHWRIGHT_CACHE", "XDG_CACHE_HOME", "HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    for _ in range(2):
        load_graph("swin-l")
    assert len(captured) == 2


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mlp", {}, "mlp: has no PyTorch model, so there is nothing to capture"),
        ("vit-l", {"batch": 2.5}, "batch: must be a whole number or None, got 2.5"),
        ("vit-l", {"batch": float("inf")}, "must be a whole number or None, got inf"),
        ("vit-l", {"sequence": 4}, "vit-l: has no sequence"),
        ("vit-l", {"loss": "a.b:c"}, "vit-l: a model of the zoo has its own loss, got 'a.b:c'"),
        ("nothing", {}, "no model is called 'nothing'"),
    ],
)
def test_what_cannot_be_captured_is_named(
    name: str, options: dict[str, float], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        capture_model(name, **options)  # type: ignore[arg-type]


MODULE = """
from os import path as place
if True:
    def make(): raise AssertionError("nothing of a module is run")
class Maker: ...
one, other = 1, 2
assert False
"""


@pytest.mark.parametrize("name", ["make", "Maker", "Maker.build", "place", "one", "other"])
def test_a_function_of_the_user_is_found_and_not_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    check_function("data", f"own_data:{name}")
    monkeypatch.chdir("/")
    check_function("data", f"{tmp_path / 'own_data.py'}:{name}")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_data:mkae", r"--data 'own_data:mkae': .*own_data.py has no 'mkae'"),
        ("own_dota:make", "there is no module 'own_dota', neither installed nor in the current"),
        ("own.data.deep:make", "there is no module 'own'"),
        ("own_data", "must be package.module:function"),
        ("own_data.py", "must be package.module:function or file.py:function"),
        ("./own_data.py:mkae", r"own_data.py has no 'mkae'"),
        ("other/own_data.py:make", "there is no file 'other/own_data.py'"),
        (f"{'a' * 5000}.py:make", "there is no file"),
    ],
)
def test_a_misspelt_function_is_refused_before_anything_runs(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_data.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    with pytest.raises(InputError, match=message):
        check_function("data", name)


def test_a_module_that_no_file_is_known_of_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "made_up", ModuleType("made_up"))  # as `__main__` may be
    with pytest.raises(InputError, match="there is no module 'made_up'"):
        check_function("data", "made_up:make")


@pytest.mark.parametrize(
    "text",
    ["from os import *", "def __getattr__(name): ...", "def (", "globals()['any' + 'thing'] = 1"],
)
def test_names_that_only_an_import_tells_are_left_to_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_data.py").write_text(text)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    check_function("data", "late_data:anything")
