"""The fuzzer on every reader, and on readers that are known to fail."""

from pathlib import Path
from random import Random

import pytest
from fuzz_loop import Progress, Reader, fuzz, limits, make_input, run_input, save_failure
from fuzz_mutate import mutate
from fuzz_readers import READERS, SEEDS, warm_up

from meshwright.errors import InputError

INPUTS = 500
"""Of each reader in `scripts/test`."""
MANY_INPUTS = 100_000 // len(READERS) + 1
"""Of each reader in `scripts/test-all`: a hundred thousand in all. A million takes two cores most
of an hour, so that nobody ran that script to its end; `scripts/fuzz --inputs 45500` feeds as many.
"""
THOROUGH = 25
"""Every so many inputs are used thoroughly: searches take milliseconds each."""

by_name = pytest.mark.parametrize("reader", READERS, ids=[each.name for each in READERS])


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    warm_up()


def check(reader: Reader, inputs: int, folder: Path, seed: int = 0) -> None:
    report = fuzz(
        reader,
        inputs,
        seed=seed,
        thorough_every=THOROUGH,
        progress=Progress(reader.name, inputs),
    )
    lines = [f"{each.error}\n  {save_failure(each, folder)}" for each in report.failures]
    assert not lines, "\n".join(lines)
    assert report.accepted + report.refused == inputs
    # Inputs that are all refused would show nothing of what comes next.
    assert report.accepted >= inputs // 100


@by_name
def test_whatever_is_read_is_accepted_or_refused_in_a_line(reader: Reader, tmp_path: Path) -> None:
    check(reader, INPUTS, tmp_path)


@pytest.mark.slow
@by_name
def test_a_hundred_thousand_inputs(
    reader: Reader, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with capfd.disabled():  # it tells how far it is
        check(reader, MANY_INPUTS, tmp_path, seed=1)


@pytest.mark.parametrize("path", sorted(SEEDS.glob("*/*")), ids=lambda path: path.parent.name)
def test_seeds_are_accepted(path: Path, tmp_path: Path) -> None:
    reader = next(each for each in READERS if each.name == path.parent.name)
    with limits():
        assert run_input(reader, tmp_path / "input", path.read_bytes()) is None


def test_the_same_seed_gives_the_same_inputs() -> None:
    for reader in READERS:
        inputs = [make_input(reader, 5, number) for number in range(20)]
        assert inputs == [make_input(reader, 5, number) for number in range(20)]
        assert len(set(inputs)) > 10


def faulty(name: str) -> Reader:
    """A reader with a fault that some changes of `["abc", 1.5]` bring to light."""

    def feed(path: Path, data: bytes, _is_thorough: bool) -> None:
        assert path.read_bytes() == data
        if b"1e308" not in data:
            raise InputError("no")
        if name == "crash":
            raise KeyError("missing")
        if name == "hang":
            while True:
                pass
        bytearray(3 << 30)

    return Reader(name=name, make=lambda chance: mutate([b'["abc", 1.5]'], chance), feed=feed)


@pytest.mark.parametrize(
    ("name", "error"), [("crash", "KeyError"), ("hang", "TooSlow"), ("memory", "MemoryError")]
)
def test_faults_are_found_made_small_and_can_be_repeated(
    name: str, error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuzz_loop.MAX_SECONDS", 0.2)
    reader = faulty(name)
    report = fuzz(reader, 500)
    (failure,) = report.failures
    assert failure.error.startswith(error)
    if name == "crash":
        assert failure.data == b"1e308"
    path = tmp_path / f"{name}-0-{failure.number}"
    assert save_failure(failure, tmp_path) == f"scripts/fuzz --reader {name} --file {path}"
    if name == "crash":
        with limits():
            raised = run_input(reader, tmp_path / "input", path.read_bytes())
        assert isinstance(raised, KeyError)


def test_changes_reach_every_value() -> None:
    seed = b'{"a": [1, 2.5], "b": {"c": "text"}}'
    found = {mutate([seed], Random(number)) for number in range(300)}
    for part in (b'"a"', b"2.5", b'"text"', b'"b"'):
        assert any(part not in each for each in found)
        assert any(part in each for each in found)
