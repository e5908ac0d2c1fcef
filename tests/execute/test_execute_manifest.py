"""Folders of checkpoints that somebody else has made: forged manifests, pickles, older formats."""

import hashlib
import io
import json
import os
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.checkpoint import (  # noqa: E402
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from meshwright.execute.manifest import FILE_NAME, VersionError  # noqa: E402

DATA = "rank-00000.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints, the newest of step 2."""
    for step in (1, 2):
        save_checkpoint(tmp_path, step, {"w": torch.full((2, 3), float(step))})
    return tmp_path


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the newest manifest, and let its digest be right for what it is then."""
    path = folder / "step-00000002" / FILE_NAME
    manifest = json.loads(path.read_bytes())["manifest"]
    change(manifest)
    body = json.dumps(manifest)
    digest = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"sha256": "{digest}", "manifest": {body}}}')


def rename_file(name: str) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["files"] = {name: manifest["files"][DATA]}
        manifest["tensors"]["w"]["pieces"][0]["file"] = name

    return change


def set_in_piece(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda manifest: manifest["tensors"]["w"]["pieces"][0].update({name: value})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename_file("../step-00000001/rank-00000.safetensors"), "a file must be called like"),
        (rename_file("/etc/passwd"), "a file must be called like"),
        (rename_file("sub/rank-00000.safetensors"), "a file must be called like"),
        (rename_file("rank-00000.safetensors\n"), "a file must be called like"),
        (rename_file("rank-00007.safetensors"), "'rank-00007.safetensors' cannot be read"),
        (lambda m: m["files"][DATA].update(bytes="88"), r"Expected `int`, got `str`"),
        (lambda m: m["files"][DATA].update(bytes=-1), "Expected `int` >= 0"),
        (lambda m: m["files"][DATA].update(bytes=10**15), "must have 1,000,000,000,000,000 bytes"),
        (lambda m: m["files"][DATA].update(sha256="00"), "it has another digest"),
        (lambda m: m["files"][DATA].update(pickle="x"), "unknown field `pickle`"),
        (lambda m: m.update(files=[]), r"Expected `object`, got `array`"),
        (lambda m: m.update(files={}), "'w' must be in one of its files"),
        (lambda m: m.update(step=3), "must be of the folder's step, is of step 3"),
        (lambda m: m.update(step=10**40), "Expected `int` <= "),
        (lambda m: m.pop("tensors"), "missing required field `tensors`"),
        (lambda m: m["tensors"]["w"].update(shape=[-1, 3]), "Expected `int` >= 0"),
        (lambda m: m["tensors"]["w"].update(pieces=[]), "must be one piece, the whole tensor"),
        (lambda m: m["tensors"]["w"]["pieces"].append({}), "missing required field"),
        (set_in_piece("offset", [0, 1]), "must be one piece, the whole tensor"),
        (set_in_piece("shape", [1, 3]), "must be one piece, the whole tensor"),
        (set_in_piece("file", None), r"Expected `str`, got `null`"),
        (lambda m: m.update(nested=eval("[" * 50 + "]" * 50)), "unknown field"),
    ],
)
def test_a_forged_manifest_is_passed_over_and_named(
    folder: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    forge(folder, change)
    said: list[str] = []
    found = find_checkpoint(folder, said.append)
    assert found is not None
    assert found.step == 1
    assert len(said) == 1
    assert re.search(words, said[0])


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "9" * 400, "[" * 100_000, '{"sha256": "", "manifest": {}}']
)
def test_what_is_no_manifest_is_passed_over(folder: Path, text: str) -> None:
    (folder / "step-00000002" / FILE_NAME).write_text(text)
    said: list[str] = []
    found = find_checkpoint(folder, said.append)
    assert found is not None
    assert (found.step, len(said)) == (1, 1)


@pytest.mark.parametrize("change", [{"version": 3, "new": 1}, {"format": "others"}])
def test_an_intact_checkpoint_of_another_version_is_refused(
    folder: Path, change: dict[str, Any]
) -> None:
    # To go on from an older one would soon remove it.
    forge(folder, lambda manifest: manifest.update(change))
    with pytest.raises(
        VersionError, match="must be a meshwright checkpoint of version 1 or 2, is a "
    ):
        find_checkpoint(folder, pytest.fail)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other", "does not contain tensor w"),
        ("w", r"'w' must be torch.float32 of shape \[2, 3\], is torch.float32 of \[3, 2\]"),
    ],
)
def test_a_file_with_other_tensors_than_its_manifest_is_refused(
    folder: Path, name: str, words: str
) -> None:
    data = safetensors.torch.save({name: torch.zeros(3, 2)})
    (folder / "step-00000002" / DATA).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    forge(folder, lambda m: m["files"].update({DATA: {"bytes": len(data), "sha256": digest}}))
    found = find_checkpoint(folder, pytest.fail)
    assert found is not None
    with pytest.raises(InputError, match=words):
        load_checkpoint(found, {"w": torch.zeros(2, 3)})


# Code in the folder.


@pytest.fixture
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file that appears when somebody runs what `hostile_files` has; nobody may."""
    path = tmp_path_factory.mktemp("canary") / "sang"
    yield path
    assert not path.exists()


def hostile_files(canary: Path) -> dict[str, bytes]:
    """What loaders of other formats would run, under the names that they look for."""

    class Singing:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return os.mkdir, (str(canary),)

    plain, archive = pickle.dumps(Singing()), io.BytesIO()
    torch.save({"w": Singing()}, archive)
    text = f"import os; os.mkdir({str(canary)!r})\n".encode()
    pickles = (".metadata", "__0.metadata", "__0_0.distcp", "data.pkl", "w.pickle")
    scripts = ("__init__.py", "sitecustomize.py", "conftest.py", "safetensors.py")
    return {
        **dict.fromkeys(pickles, plain),
        **dict.fromkeys(scripts, text),
        "checkpoint.pt": archive.getvalue(),
        "model.bin": archive.getvalue(),
    }


def test_the_canary_sings_when_it_is_loaded(tmp_path: Path) -> None:
    files = hostile_files(tmp_path / "sang")
    pickle.loads(files[".metadata"])
    assert (tmp_path / "sang").exists()


@pytest.fixture
def no_pickles(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    monkeypatch.setattr(torch, "load", refuse)


def plant(folder: Path, canary: Path) -> None:
    for place in (folder, *folder.glob("step-*")):
        for name, data in hostile_files(canary).items():
            (place / name).write_bytes(data)


@pytest.mark.usefixtures("no_pickles")
def test_nothing_beside_the_files_of_a_checkpoint_is_touched(folder: Path, canary: Path) -> None:
    plant(folder, canary)
    found = find_checkpoint(folder, pytest.fail)
    assert found is not None
    state = {"w": torch.zeros(2, 3)}
    load_checkpoint(found, state)
    assert state["w"].eq(2.0).all()
    save_checkpoint(folder, 3, state)


@pytest.mark.usefixtures("no_pickles")
@pytest.mark.parametrize("name", [FILE_NAME, DATA])
def test_a_file_that_holds_code_is_damage(folder: Path, canary: Path, name: str) -> None:
    plant(folder, canary)
    for code in hostile_files(canary).values():
        (folder / "step-00000002" / name).write_bytes(code)
        said: list[str] = []
        found = find_checkpoint(folder, said.append)
        assert found is not None
        assert (found.step, len(said)) == (1, 1)


@pytest.mark.usefixtures("no_pickles")
def test_a_checkpoint_of_the_older_format_is_refused_in_one_line(
    folder: Path, canary: Path
) -> None:
    old = folder / "step-00000003"
    old.mkdir()
    (old / ".metadata").write_bytes(hostile_files(canary)[".metadata"])
    with pytest.raises(VersionError, match="is of an older version of Meshwright") as caught:
        find_checkpoint(folder, pytest.fail)
    assert len(str(caught.value).splitlines()) == 1
    assert old.exists()
