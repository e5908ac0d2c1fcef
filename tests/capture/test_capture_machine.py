"""This machine's CPU, measured by a clock that the tests keep."""

import json
import platform
import sys
from collections.abc import Callable
from datetime import date
from importlib.metadata import version

import pytest

from meshwright.capture import machine
from meshwright.capture.machine import machine_facts, measure_machine, time_run
from meshwright.cluster.cluster import Cluster


class Ticking:
    """A clock that goes on by a second whenever it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SIDE", 4), ("NUM_ELEMENTS", 16), ("MESSAGE_BYTES", 64)):
        monkeypatch.setattr(machine, name, value)


def measured(monkeypatch: pytest.MonkeyPatch, has_torch: bool) -> Cluster:
    monkeypatch.setattr(machine, "find_spec", lambda _: object() if has_torch else None)
    return measure_machine(1, date(2026, 11, 18), Ticking())


def check_figures(found: Cluster, calls: int) -> None:
    kind = found.types["cpu"]
    # Every run takes one tick: 2 x 4^3 FLOPs, 3 x 16 numbers of 4 bytes, so many calls.
    assert kind.flops_per_second["fp32"] == 128
    assert kind.memory_bytes_per_second == 192
    assert kind.call_seconds == 1 / calls
    assert kind.memory_bytes == found.devices[0].memory_bytes == machine.memory_bytes() > 1 << 20
    assert not kind.is_asynchronous
    # A message there and its answer are a tick, too: half of it is the latency.
    assert found.links[0].latency_seconds == 0.25
    assert found.links[0].bytes_per_second == 128
    where, what = platform.node(), machine.processor_name()
    assert kind.source.startswith(f"measured on {where} 2026-11-18: {what}")
    assert kind.source.endswith("spread 0 %")


@pytest.mark.usefixtures("small")
def test_figures_are_amounts_by_the_best_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        found = measured(monkeypatch, has_torch=True)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    check_figures(found, 8)
    assert found.types["cpu"].flops_per_second["bf16"] == 128
    # As it was installed: what torch calls itself may also name its build ("2.11.0+cu130").
    assert f"torch {version('torch')}, " in found.types["cpu"].source


@pytest.mark.usefixtures("small")
def test_without_torch_numpy_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    found = measured(monkeypatch, has_torch=False)
    check_figures(found, 4)
    assert list(found.types["cpu"].flops_per_second) == ["fp32"]
    assert "NumPy, with all cores" in found.types["cpu"].source


def test_the_best_run_counts_and_the_median_tells_the_spread() -> None:
    # The first run is not counted; five more take 3, 1, 2, 4 and 2 s.
    ticks: list[float] = [0.0]
    lengths = iter([9.0, 3.0, 1.0, 2.0, 4.0, 2.0])

    def run() -> None:
        ticks[0] += next(lengths)

    clock: Callable[[], float] = lambda: ticks[0]  # noqa: E731
    found = time_run(run, clock)
    assert found == (1.0, 2.0)
    assert found.spread == 1.0


def test_other_threads_are_another_machine() -> None:
    one, two = machine_facts(1), machine_facts(2)
    assert one != two
    assert {**one, "threads": "2"} == two
    json.dumps(one)
