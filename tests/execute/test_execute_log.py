"""A run's CSV file has one row a step, whatever happened to the run."""

import struct
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.log import COLUMNS, Entry, Log  # noqa: E402
from meshwright.execute.pulse import Pulse  # noqa: E402

TITLES = ",".join(COLUMNS)


class Clock:
    """Goes on by half a second at every look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def pulse(step: int) -> Pulse:
    return Pulse(step, torch.tensor(1.0 / step, dtype=torch.float64))


def test_every_step_has_a_row(tmp_path: Path) -> None:
    path, said = tmp_path / "log.csv", list[str]()
    log = Log(path, 8, 0, 30, said.append, Clock())
    for step in range(1, 4):
        log.add(pulse(step), 0.1)
        assert len(path.read_text().splitlines()) == step  # one behind
    log.finish()
    log.finish()
    titles, *rows = path.read_text().splitlines()
    assert titles == TITLES
    assert [row.split(",")[:3] for row in rows] == [
        ["1", "1.0", "0.1"],
        ["2", "0.5", "0.1"],
        ["3", repr(1 / 3), "0.1"],
    ]
    assert all(float(row.split(",")[3]) > 0 for row in rows)
    assert said == []


def test_a_resumed_run_goes_on_after_its_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    for first, last in ((0, 5), (3, 6)):
        log = Log(path, 8, first, None, print, Clock())
        for step in range(first + 1, last + 1):
            log.add(pulse(step), 0.1)
        log.finish()
    assert steps_in(path) == [1, 2, 3, 4, 5, 6]


def steps_in(path: Path) -> list[int]:
    return [int(row.split(",")[0]) for row in path.read_text().splitlines()[1:]]


def test_a_run_that_goes_back_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    log = Log(path, 8, 0, None, print, Clock())
    for first, last in ((1, 5), (3, 6)):
        for step in range(first, last + 1):
            log.add(pulse(step), 0.1)
        log.seek(2)
        assert steps_in(path) == [1, 2]
    log.add(pulse(3), 0.1)
    log.finish()
    assert steps_in(path) == [1, 2, 3]
    Log(None, 8, 0, None, print, Clock()).seek(0)


def test_the_file_is_opened_once_until_it_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes = tmp_path / "log.csv", list[str]()
    log = Log(path, 8, 0, None, print, Clock())
    opened = Path.open

    def note(self: Path, mode: str = "r", **options: Any) -> Any:
        modes.append(mode)
        return opened(self, mode, **options)

    monkeypatch.setattr(Path, "open", note)
    for step in range(1, 4):
        log.add(pulse(step), 0.1)
    log.finish()
    assert modes == ["a"]
    log.add(pulse(4), 0.1)  # a run may go on after it
    log.finish()
    assert modes == ["a", "a"]
    assert len(path.read_text().splitlines()) == 1 + 4


def test_now_and_then_a_line_is_said() -> None:
    said: list[str] = []
    log = Log(None, 8, 0, 30, said.append, Clock())
    for step in range(1, 25):
        log.add(pulse(step), 0.1)
    assert said[0].startswith("step 10 of 30: loss 0.1000, ")
    assert len(said) == 2


def test_a_file_of_something_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("precious\n")
    with pytest.raises(InputError, match="is there, and is none of a training run"):
        Log(path, 8, 0, None, print)
    assert path.read_text() == "precious\n"
    with pytest.raises(InputError, match="cannot be written"):
        Log(tmp_path / "nowhere" / "log.csv", 8, 0, None, print)


def test_callbacks_are_told_of_every_step_once() -> None:
    told: list[Entry] = []
    log = Log(None, 8, 0, None, print, Clock(), callbacks=[told.append])
    for step in range(1, 4):
        log.add(pulse(step), 0.1)
        assert len(told) == step - 1
    log.finish()
    assert [(each.step, each.loss, each.learning_rate) for each in told] == [
        (1, 1.0, 0.1),
        (2, 0.5, 0.1),
        (3, 1 / 3, 0.1),
    ]
    assert all(each.samples_per_second == pytest.approx(8 / each.seconds) for each in told)


def read_events(folder: Path) -> list[Any]:
    """The events of TensorBoard's files: each is its length, a checksum, itself, a checksum."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for path in sorted(folder.glob("events*")):
        content = path.read_bytes()
        while content:
            (size,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + size]))
            content = content[16 + size :]
    return found


def test_tensorboard_has_every_step_and_forgets_those_that_are_taken_again(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="curves need the tensorboard extra")
    log = Log(None, 8, 0, None, print, Clock(), tensorboard=tmp_path / "board")
    for step in range(1, 4):
        log.add(pulse(step), 0.1)
    log.finish()
    points = {
        (value.tag, event.step): value.simple_value
        for event in read_events(tmp_path / "board")
        for value in event.summary.value
    }
    assert points["loss", 2] == pytest.approx(0.5)
    assert points["learning_rate", 3] == pytest.approx(0.1)
    assert {tag for tag, _ in points} == {"loss", "learning_rate", "samples_per_second"}
    assert len(points) == 9
    log.seek(1)
    log.add(pulse(2), 0.1)
    log.finish()
    events = read_events(tmp_path / "board")
    assert sorted(each.step for each in events if each.HasField("session_log")) == [1, 2]
    assert sorted(each.step for each in events if each.summary.value) == sorted([1, 2, 3, 2] * 3)


def test_without_its_package_tensorboard_is_refused(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(InputError, match=r"pip install meshwright\[tensorboard\]"):
        Log(None, 8, 0, None, print, tensorboard=tmp_path)


def test_validation_stands_beside_the_step_before_it(tmp_path: Path) -> None:
    path, said, told = tmp_path / "log.csv", list[str](), list[Entry]()
    clock = Clock()
    log = Log(path, 8, 0, 3, said.append, clock, callbacks=[told.append])
    for step in (1, 2, 3):
        log.add(pulse(step), 0.1)
        if step == 2:
            clock.now += 5.0  # what validation takes is no step's time
            log.add_validation(step, 0.25)
    log.finish()
    assert [row.split(",")[-1] for row in path.read_text().splitlines()[1:]] == ["", "0.25", ""]
    assert [each.validation_loss for each in told] == [None, 0.25, None]
    assert all(each.seconds < 5 for each in told)
    assert said == ["step 2: validation loss 0.2500"]
