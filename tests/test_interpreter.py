"""Nothing in the current folder is run for its name; what a user names is found there."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from canary import heard, plant
from meshwright.cluster.file import read_cluster
from meshwright.errors import InputError
from meshwright.graph.graph import read_graph
from meshwright.interpreter import add_folder, leave_folder, module_command
from meshwright.plan.plan import Plan
from meshwright.profile.profile import read_profile
from meshwright.search import beside
from meshwright.search.method.deploy.tree.net import CheckpointError, read_weights
from meshwright.search.pool.worker import VERSION, start_worker
from meshwright.simulate.measured import Run

MODEL = """
import json, torch
def make():
    assert json.dumps([]) == "[]"  # the library's, not the canary's
    with torch.device("meta"):
        model, x = torch.nn.Linear(8, 1), torch.empty(4, 8)
        return {"model": model, "args": (x,), "loss": torch.mean}
"""


def run_in(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_canaries_are_heard(tmp_path: Path) -> None:
    log = plant(tmp_path)
    code = "import sys; sys.path.insert(0, ''); import numpy, json, meshwright"
    run_in(tmp_path, sys.executable, "-c", code)
    assert heard(log) == ["json", "meshwright", "numpy"]


def test_the_command_imports_nothing_of_the_folder(tmp_path: Path) -> None:
    log = plant(tmp_path)
    script = str(Path(sys.executable).parent / "meshwright")
    words = ["plan", "mlp", "--cluster", "cpu-x2", "--method", "data", "--budget", "1", "--json"]
    run_in(tmp_path, script, *words)
    assert heard(log) == []


def test_the_module_leaves_the_folder_that_python_adds(tmp_path: Path) -> None:
    log = plant(tmp_path, spared=("meshwright",))  # that one Python itself would run
    run_in(tmp_path, sys.executable, "-m", "meshwright", "zoo")
    assert heard(log) == []


@pytest.mark.parametrize(
    ("module", "version"), [("meshwright.search.pool", VERSION), (beside.__name__, beside.__file__)]
)
def test_workers_import_nothing_of_the_folder(
    module: str, version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = plant(tmp_path)
    monkeypatch.chdir(tmp_path)
    said, _ = start_worker(module).communicate(timeout=60)
    assert version.encode() in said
    assert heard(log) == []


def test_what_compiles_beside_imports_nothing_of_the_folder(tmp_path: Path) -> None:
    log = plant(tmp_path)
    run_in(tmp_path, *module_command("meshwright.search.warm", "placement"))
    assert heard(log) == []


@pytest.mark.slow
def test_a_factory_of_the_folder_is_found_and_shadows_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="capture needs the torch extra")
    log = plant(tmp_path)
    (tmp_path / "mymodel.py").write_text(MODEL)
    script = str(Path(sys.executable).parent / "meshwright")
    run_in(tmp_path, script, "capture", "mymodel:make", "-o", "step.json")
    assert (tmp_path / "step.json").exists()
    assert heard(log) == []


def test_the_folder_is_searched_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/first"])
    add_folder()
    add_folder()
    assert sys.path == ["/first", str(tmp_path)]


def test_what_the_library_has_stays_there_while_the_path_is_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Modules that were not imported yet can be, once the path is what it was."""
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "plistlib", raising=False)
        patch.setattr(sys, "path", ["elsewhere"])
        before = set(sys.modules)
        add_folder(str(tmp_path))
        added = {name: sys.modules.pop(name) for name in set(sys.modules) - before}
        assert sys.path == ["elsewhere", str(tmp_path)]
    assert "plistlib" not in added
    there = {name for name in added if find_spec(name) is not None}
    assert not there


def test_only_what_python_added_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    for before, after in (
        ([here, "/a", here], ["/a", here]),  # the second was asked for, as by PYTHONPATH
        (["", "/a"], ["/a"]),
        (["/a", here], ["/a", here]),
        ([], []),
    ):
        monkeypatch.setattr(sys, "path", list(before))
        leave_folder()
        assert sys.path == after


def test_a_deleted_folder_is_no_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")
    monkeypatch.setattr(sys, "path", ["/a"])
    add_folder()
    leave_folder()
    assert sys.path == ["/a"]


def test_the_folder_does_not_say_where_compiled_code_is(tmp_path: Path) -> None:
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: evil\ndisable_jit: 1\n")
    code = "import meshwright.compiled, numba; numba.core.config.reload_config(); "
    code += "print(repr(numba.config.CACHE_DIR), numba.config.DISABLE_JIT); import yaml"
    said = run_in(tmp_path, sys.executable, "-W", "error", "-c", code)
    assert said == "'' 0\n"
    assert run_in(tmp_path, sys.executable, "-c", code.replace("meshwright.compiled, ", "")) == (
        "'evil' 1\n"  # what it is about
    )


@pytest.mark.slow
def test_training_the_prior_leaves_the_folder_too(tmp_path: Path) -> None:
    log = plant(tmp_path, spared=("meshwright",))
    with pytest.raises(AssertionError, match="required: --out"):
        run_in(tmp_path, sys.executable, "-m", "meshwright.learn")
    assert heard(log) == []


@pytest.mark.parametrize("kind", ["pickle", "yaml"])
def test_files_that_would_like_to_be_code_are_refused(kind: str, tmp_path: Path) -> None:
    log, path = tmp_path / "log", tmp_path / "file"
    shout = f"open({str(log)!r}, 'a').write('file')"
    pickled = b"cbuiltins\nexec\n(V" + shout.encode() + b"\ntR."
    tagged = f'!!python/object/apply:builtins.exec ["{shout}"]'.encode()
    path.write_bytes(pickled if kind == "pickle" else tagged)
    readers: list[Callable[[Path], object]] = [
        read_graph, read_cluster, Plan.load, read_profile, Run.load, read_weights,
    ]  # fmt: skip
    for read in readers:
        with pytest.raises((InputError, CheckpointError)):
            read(path)
    assert heard(log) == []
