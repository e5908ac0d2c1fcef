"""Which releases of PyTorch are taken, and that its private parts are taken in one place."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import meshwright
from meshwright import source
from meshwright.errors import InputError

SOURCES = Path(meshwright.__file__).parent
OWNERS = ("capture/torch_private.py", "execute/region/inductor.py")
PRIVATE = re.compile(r"torch(?!\.ops)(\.\w+)*\._(?!_)\w*|torch\.fx\.experimental\S*")


def private_names(path: Path) -> list[str]:
    """The private parts of PyTorch that a module imports or names."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch"):
            found += [f"{node.module}.{each.name}" for each in node.names]
        elif isinstance(node, ast.Import):
            found += [each.name for each in node.names]
        elif isinstance(node, ast.Attribute):
            found.append(ast.unparse(node))
    return [each for each in found if PRIVATE.fullmatch(each)]


def test_private_parts_are_taken_in_one_place() -> None:
    owners = {SOURCES / name for name in OWNERS}
    taken = {path: private_names(path) for path in SOURCES.rglob("*.py")}
    assert not {path: names for path, names in taken.items() if names and path not in owners}
    assert all(taken[path] for path in owners)  # or this test sees nothing


@pytest.mark.parametrize("found", ["2.11.0", "2.13.0+cpu", "2.15.9"])
def test_releases_between_the_tested_ones_are_taken(
    found: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(source, "version", lambda _: found)
    source.need_torch("run")
    assert not recwarn


def test_older_releases_are_refused_and_newer_ones_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(source, "version", lambda _: "2.10.1")
    with pytest.raises(InputError, match=r"run: PyTorch must be 2.11 to 2.15, is 2.10.1"):
        source.need_torch("run")
    monkeypatch.setattr(source, "version", lambda _: "2.16.0a0+git123")
    with pytest.warns(UserWarning, match=r"PyTorch 2.16.0a0\+git123 is newer than those that"):
        source.need_torch("run")


def test_the_package_asks_for_the_same_releases() -> None:
    path = Path(__file__).parents[2] / "pyproject.toml"
    extras = tomllib.loads(path.read_text())["project"]["optional-dependencies"]
    (low, high) = source.OLDEST_TORCH, source.NEWEST_TORCH
    wanted = f"torch>={low[0]}.{low[1]},<{high[0]}.{high[1] + 1}"
    assert wanted in extras["torch"]
    assert wanted in extras["zoo"]
