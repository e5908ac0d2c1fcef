"""What kernels are compiled for, and how often; and what becomes of a damaged cache."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba.core.caching import CacheImpl

import meshwright.compiled
from meshwright.compiled import compiled, inlined, outlined


@inlined
def _twice(value: Any) -> Any:
    return 2 * value


@outlined
def _fill(values: Any, first: Any, value: Any) -> Any:
    for k in range(first, len(values)):
        values[k] = value
    return first


_uncached: Any = numba.njit
"""A kernel that is compiled in every run: what comes from the cache compiles no helpers."""


@_uncached  # type: ignore[untyped-decorator]
def _call_all(values: Any, narrow: Any) -> Any:
    at = 0  # a constant at first, an integer from then on
    while at < len(values):
        at = _fill(values, at, 1.0) + 1
    at = _fill(values, 2, 3.0) + _fill(values, narrow[0], value=4.0)
    return at + _twice(narrow[0]) + _twice(5) + _twice(at)


def test_what_kernels_call_is_compiled_once_for_all_integers_and_constants() -> None:
    values = np.zeros(4)
    # 2 + 3 are where the last two fills begin; then 2 * 3 + 2 * 5 + 2 * (2 + 3).
    assert _call_all(values, np.array([3], np.int32)) == 5 + 6 + 10 + 10
    assert values.tolist() == [1, 1, 3, 4]
    helpers: list[Any] = [_twice, _fill]
    assert [len(helper.overloads) for helper in helpers] == [1, 1]


def test_floats_and_integers_are_two_types() -> None:
    @outlined
    def half(value: Any) -> Any:
        return value / 2

    kernel = _uncached(lambda one, two: half(one) + half(two))
    assert kernel(3, 4.0) == 3.5
    helper: Any = half
    assert len(helper.overloads) == 2


@pytest.mark.parametrize("helper", [_twice, _fill])
def test_python_cannot_call_a_helper(helper: Any) -> None:
    with pytest.raises(TypeError, match=r"^_(twice|fill) is a helper, which only kernels can call"):
        helper(np.zeros(1), 0, 0.0)


def test_python_can_call_a_kernel() -> None:
    @compiled
    def total(values: Any) -> Any:
        found = 0.0
        for k in range(len(values)):
            found += values[k]
        return found

    assert total(np.array([1.0, 2.0])) == 3.0


def _first(values: Any) -> Any:
    return values[0]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where kernels are kept, by a process that has said nothing yet."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(meshwright.compiled, "_SAID", set())
    return tmp_path


def is_cached(dtype: Any = np.float64) -> bool:
    """Run the kernel as a new process would: whether it came from the cache."""
    kernel: Any = compiled(_first)
    assert kernel(np.array([7, 8], dtype)) == 7
    return bool(sum(kernel.stats.cache_hits.values()))


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flip(content: bytes) -> bytes:
    place = len(content) * 3 // 4
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


@pytest.mark.parametrize("suffix", ["nbi", "nbc"])
@pytest.mark.parametrize(
    "damage", [truncate, flip, lambda _: b"", lambda _: b"\x80garbage", lambda _: b"\x80\x04."]
)
def test_a_damaged_cache_costs_one_compilation(
    folder: Path,
    suffix: str,
    damage: Callable[[bytes], bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert not is_cached()
    assert is_cached()
    (path,) = folder.rglob(f"*.{suffix}")
    path.write_bytes(damage(path.read_bytes()))
    assert not is_cached()
    said = capsys.readouterr().err
    # A flipped bit in the index may only mean that it is of other sources.
    if suffix == "nbc" or damage is not flip:
        assert f"the kernels kept in {path.parent} are damaged" in said
        assert said.count("\n") == 1
    assert is_cached()
    assert capsys.readouterr().err == ""


def test_code_for_other_types_under_the_same_name_is_not_run(folder: Path) -> None:
    is_cached(np.float64)
    (index,) = folder.rglob("*.nbi")
    stale = index.read_bytes()
    index.unlink()  # as a process sees it that began before the other had compiled
    is_cached(np.int64)
    assert len(list(folder.rglob("*.nbc"))) == 1
    index.write_bytes(stale)  # and which writes its index last
    assert not is_cached(np.float64)
    assert is_cached(np.float64)


def test_a_full_disk_is_said_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    assert not is_cached(np.float64)
    assert not is_cached(np.int64)
    said = capsys.readouterr().err
    assert "compiled kernels cannot be kept in" in said
    assert "(No space left on device)" in said
    assert said.count("\n") == 1
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_without_any_folder_kernels_are_compiled(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CacheImpl, "_locator_classes", [])
    assert not is_cached()
    assert not is_cached()
    said = capsys.readouterr().err
    assert said.startswith("meshwright: compiled kernels cannot be kept (cannot cache function")
    assert said.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_a_path_that_is_no_folder_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "file").touch()
    for path in (folder / "file", folder / ("x" * 5000)):
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(path))
        assert compiled(_first)(np.array([7.0])) == 7.0


_RACE = """
import sys
import numpy as np
sys.path.insert(0, sys.argv[1])
from test_compiled import compiled, _first
for kind in (np.float64, np.int64, np.float32):
    assert compiled(_first)(np.array([7], kind)) == 7
"""


def test_two_processes_may_write_at_once(folder: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", _RACE, str(Path(__file__).parent)]
    processes = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) for _ in range(2)
    ]
    assert [process.communicate()[1] for process in processes] == [b"", b""]
    assert [process.returncode for process in processes] == [0, 0]
    for dtype in (np.float64, np.int64, np.float32):
        is_cached(dtype)
        assert is_cached(dtype)
