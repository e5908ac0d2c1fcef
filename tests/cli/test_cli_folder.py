import signal
from pathlib import Path

import pytest

from meshwright.cli.folder import write_folder
from meshwright.cli.interrupt import held_interrupt, noticed_interrupt
from meshwright.errors import InputError


def write_a(path: Path) -> None:
    path.write_text("a")


def test_missing_parents_are_made(tmp_path: Path) -> None:
    write_folder(tmp_path / "x" / "y", {"a": write_a})
    assert (tmp_path / "x" / "y" / "a").read_text() == "a"
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_relative_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("out"), {"a": write_a})
    write_folder(Path(), {"a": write_a})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "out"]


def test_nothing_is_left_when_the_second_file_fails(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_text("half")
        raise OSError(28, "No space left on device")

    for folder in (tmp_path, tmp_path / "new" / "deep"):
        with pytest.raises(InputError, match="No space left"):
            write_folder(folder, {"a": write_a, "b": fail})
        assert list(tmp_path.iterdir()) == []


def test_a_folder_in_a_files_place_is_refused_before_anything_moves(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        write_folder(tmp_path, {"a": write_a, "b": write_a})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_a_held_interrupt_comes_at_the_end() -> None:
    done = []

    def work() -> None:
        with held_interrupt():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done


def test_an_interrupt_is_noticed_and_raised() -> None:
    with noticed_interrupt() as notice:
        assert not notice.was_pressed
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert notice.was_pressed
