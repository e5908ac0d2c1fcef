"""`meshwright doctor` says what holds on this machine, and names what is missing."""

import importlib.metadata
import json
import sys
from typing import Any

import pytest
from cli_runner import run

from meshwright.cli import doctor
from meshwright.cli.doctor import State, examine
from meshwright.cli.exit_code import ExitCode

CORE = ("numpy", "numba", "msgspec", "pyyaml", "rich", "pymetis", "ortools", "safetensors")


def state_of(name: str) -> tuple[State, str]:
    found = {each.name: each for each in examine()}
    return found[name].state, found[name].what


def hide(monkeypatch: pytest.MonkeyPatch, hidden: str, shown: str | None = None) -> None:
    """Let a package be found in another version, or (None) not at all."""

    def version(name: str) -> str:
        if name != hidden:
            return importlib.metadata.version(name)
        if shown is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return shown

    monkeypatch.setattr(doctor, "version", version)


def test_all_packages_of_the_core_are_there_in_their_versions() -> None:
    state, what = state_of("plan")
    assert state is State.OK
    assert f"Python {sys.version_info.major}.{sys.version_info.minor}." in what
    for name in CORE:
        assert f"{name} {importlib.metadata.version(name)}" in what
    assert "torch" not in what


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        (None, "ortools is not installed"),
        ("8.1.0", "ortools must be 9.10 or newer, is 8.1.0"),
        ("9.9.3963", "ortools must be 9.10 or newer, is 9.9.3963"),
    ],
)
def test_a_core_that_is_not_whole_is_refused(
    monkeypatch: pytest.MonkeyPatch, shown: str | None, said: str
) -> None:
    hide(monkeypatch, "ortools", shown)
    state, what = state_of("plan")
    assert state is State.MISSING
    assert said in what
    assert run("doctor").code == ExitCode.REFUSED


def test_extras_that_are_missing_are_named_with_what_installs_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hide(monkeypatch, "transformers")
    assert state_of("capture the zoo") == (
        State.MISSING, "needs transformers; install meshwright[zoo]"
    )  # fmt: skip
    assert run("doctor").code == 0


def test_without_pytorch_all_that_needs_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwright.source.find_spec", lambda _name: None)
    for name in ("capture and run", "run on GPUs", "run --compile"):
        assert state_of(name) == (State.MISSING, "needs PyTorch; install meshwright[torch]")


def test_a_gpu_that_pytorch_cannot_use_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="asks PyTorch for GPUs")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "_nvidia_gpus", lambda: ["NVIDIA H100 80GB HBM3"])
    state, what = state_of("run on GPUs")
    assert state is State.LIMITED
    assert "NVIDIA H100 80GB HBM3" in what


def test_programs_read_the_same() -> None:
    done = run("doctor", "--json")
    found: list[dict[str, Any]] = json.loads(done.out)["findings"]
    assert done.code == 0
    assert found[0]["name"] == "plan"
    assert {each["state"] for each in found} <= set(State)
    assert all(each.keys() == {"name", "state", "what"} for each in found)
