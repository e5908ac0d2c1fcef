"""What `pip install meshwright` brings: all that the package reads, and a program that plans."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "meshwright"
LEFT_OUT = ("__pycache__",)
MADE = (".nbi", ".nbc", ".pyc")
"""What compiling leaves beside the code."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    call(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation",
         "--disable-pip-version-check", "-w", str(folder), str(ROOT)]
    )  # fmt: skip
    (found,) = folder.glob("meshwright-*.whl")
    return found


def call(command: list[str], **environment: str) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, cwd="/"
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    """Templates, tables and shipped graphs, too, and that it has types."""
    wanted = {
        path.relative_to(PACKAGE.parent).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix not in MADE and not set(LEFT_OUT) & set(path.parts)
    }
    found = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("meshwright/")}
    assert found == wanted
    assert "meshwright/py.typed" in found
    assert any(name.endswith(".txt") for name in found)


def make_place(folder: Path, wanted: str) -> Path:
    """An environment with nothing but the wheel and what it asks for: the folder of programs."""
    venv.create(folder, with_pip=True)
    programs = folder / "bin"
    call(
        [str(programs / "python"), "-m", "pip", "install", "-qq", "--no-compile",
         "--disable-pip-version-check", "-c", str(ROOT / "constraints.txt"), wanted]
    )  # fmt: skip
    return programs


@pytest.mark.slow
def test_a_wheel_alone_plans_explains_and_exports(wheel: Path, tmp_path: Path) -> None:
    programs = make_place(tmp_path / "place", str(wheel))
    program = str(programs / "meshwright")
    clean = {"PYTHONPATH": "", "MESHWRIGHT_CACHE": str(tmp_path / "cache")}
    states = {
        each["name"]: each["state"]
        for each in json.loads(call([program, "doctor", "--json"], **clean))["findings"]
    }
    assert states["plan"] == "ok"
    assert states["capture and run"] == "missing"
    out = str(tmp_path / "out")
    plan = [program, "plan", "resnet50", "--cluster", "v100-32-x4", "--budget", "2", "-o", out]
    answer = json.loads(call([*plan, "--json"], **clean))
    assert 0 < answer["bound_seconds"] <= answer["step_seconds"]
    assert "compute" in call([program, "explain", out], **clean)
    taken = tmp_path / "taken"
    call([program, "export", out, "--to", "deepspeed", "-o", str(taken)], **clean)
    assert "torchrun" in (taken / "launch" / "torchrun.sh").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_wheel_with_its_extras_captures_and_runs(wheel: Path, tmp_path: Path) -> None:
    programs = make_place(tmp_path / "place", f"{wheel}[zoo]")
    program, out = str(programs / "meshwright"), str(tmp_path / "out")
    clean = {"PYTHONPATH": "", "MESHWRIGHT_CACHE": str(tmp_path / "cache")}
    model = "gpt:hidden=64,heads=4,layers=2,sequence=16,vocabulary=64,batch=8"
    call([program, "plan", model, "--cluster", "cpu-x2", "--budget", "1", "-o", out], **clean)
    ran = json.loads(call([program, "run", out, "--emulate", "--steps", "2", "--json"], **clean))
    assert ran["step_seconds"] > 0
