"""The times of steps are those that training takes: a GPU's host runs ahead while it is timed."""

import math
import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from meshwright.execute import recorder as recorder_module  # noqa: E402
from meshwright.execute.group import CommonClock  # noqa: E402
from meshwright.execute.pulse import Pulse  # noqa: E402
from meshwright.execute.recorder import Recorder  # noqa: E402
from meshwright.execute.walk import Times  # noqa: E402
from meshwright.report.evidence import wall_seconds  # noqa: E402
from meshwright.simulate.measured import TIMED_STEPS, Run  # noqa: E402

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
CYCLES = 200_000_000
"""A GPU's kernel that takes some 100 ms."""


def make_recorder(num_steps: int, device: str, **settings: Any) -> Recorder:
    program = SimpleNamespace(num_instructions=2, device_names=("gpu0",))
    lowered: Any = SimpleNamespace(program=program, num_planned=2)
    return Recorder(lowered, num_steps, None, torch.device(device), **settings)


def test_the_last_steps_are_timed_in_full() -> None:
    recorder, timed = make_recorder(5, "cpu"), list[bool]()

    def run(times: Times | None) -> None:
        timed.append(times is not None)

    for _ in range(5):
        recorder.step(run)
    assert timed == [False] * (5 - TIMED_STEPS) + [True] * TIMED_STEPS
    run_ = recorder.finish(is_emulated=True, losses=(), software={})
    assert len(run_.step_seconds) == 5
    assert run_.measured_step >= 5 - TIMED_STEPS


def test_times_of_a_gpu_are_read_when_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of one second that the device comes to later than its host; nobody waits for the last
    one while the next is queued."""
    now, waited = [0.0], list[float]()

    class Event:
        """A moment that the device comes to at the end of what it was given."""

        def __init__(self) -> None:
            self.moment = now[0]

        def synchronize(self) -> None:
            waited.append(self.moment)

        def elapsed_time(self, other: "Event") -> float:
            return 1000 * (other.moment - self.moment)

    def run(_: Times | None) -> None:
        now[0] += 1.0

    monkeypatch.setattr(recorder_module, "_gpu_mark", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    recorder = make_recorder(100, "cuda", is_measured=False)
    recorder.clock.offset = time.perf_counter()
    for number in range(6):
        now[0] += 0.5  # between steps
        recorder.step(run)
        assert all(each <= now[0] - 1.5 for each in waited), number
    made = recorder.finish(is_emulated=False, losses=(), software={})
    assert made.step_seconds == pytest.approx([1.0] * 6)


def test_a_gpu_s_clock_is_set_again_where_ranks_begin_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device's clock runs a tenth too fast: over steps that begin together nothing adds up."""
    now = [0.0]

    class Event:
        def __init__(self) -> None:
            self.moment = now[0]

        def synchronize(self) -> None: ...

        def elapsed_time(self, other: "Event") -> float:
            return 1100 * (other.moment - self.moment)

    def run(_: Times | None) -> None:
        now[0] += 1.0

    monkeypatch.setattr(recorder_module, "_gpu_mark", Event)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    monkeypatch.setattr(CommonClock, "_measure_offset", lambda _: 0.0)
    monkeypatch.setattr(CommonClock, "now", lambda _: now[0])
    monkeypatch.setattr(CommonClock, "start_together", lambda _: now[0])
    recorder = make_recorder(20, "cuda")
    for _ in range(20):
        recorder.step(run)
    monkeypatch.setattr(recorder_module, "gather", lambda value, _: [value])
    made = recorder.finish(is_emulated=False, losses=(), software={})
    assert made.step_seconds == pytest.approx([1.1] * 20)


def test_warming_and_timed_steps_count_only_where_there_are_no_others() -> None:
    def run(*seconds: float) -> Run:
        return Run(device_names=("gpu0",), step_seconds=seconds, start=(), finish=())  # type: ignore[arg-type]

    # The third step of a compiled run records it, as which it takes long.
    assert wall_seconds(run(9.0, 2.0, 7.0, 1.0, 1.0, 1.5, 3.0, 3.0, 3.0)) == 1.0
    assert wall_seconds(run(9.0, 2.0, 7.0, 2.0, 2.0, 2.0)) == 2.0
    assert wall_seconds(run(9.0, 3.0, 2.0, 3.0)) == 3.0
    assert wall_seconds(run(9.0)) == 9.0
    assert math.isnan(wall_seconds(run()))


@gpu
def test_a_host_runs_ahead_of_its_gpu_while_it_is_timed() -> None:
    recorder = make_recorder(10, "cuda", is_measured=False)
    recorder.step(lambda _: torch.cuda._sleep(CYCLES))
    began = time.perf_counter()
    recorder.step(lambda _: torch.cuda._sleep(CYCLES))
    queued = time.perf_counter() - began
    seconds = recorder.finish(is_emulated=False, losses=(), software={}).step_seconds
    assert queued < seconds[1] / 4
    assert seconds[1] == pytest.approx(seconds[0], rel=0.2)


@gpu
def test_a_gpu_that_is_alone_does_not_wait_for_its_host_where_ops_are_timed() -> None:
    ones = torch.ones(10, device="cuda")

    def run(times: Times | None) -> None:
        if times is not None:
            assert times.when_fed is not None
            times.when_fed()
        for _ in range(20):
            ones.add_(1)
            time.sleep(0.002)  # a slow host

    recorder = make_recorder(2 + TIMED_STEPS, "cuda")
    for _ in range(2 + TIMED_STEPS):
        recorder.step(run)
    made = recorder.finish(is_emulated=False, losses=(), software={})
    assert made.measured_step > 2, "the first one that is timed waits for its host"
    assert max(made.step_seconds[3:]) < 0.01 < 0.04 < min(made.step_seconds[:3])


@gpu
def test_a_loss_is_read_while_the_gpu_is_given_other_work() -> None:
    pulse = Pulse(1, torch.ones((), device="cuda", dtype=torch.float64))
    torch.cuda.synchronize()
    done = torch.cuda.Event()
    torch.cuda._sleep(10 * CYCLES)
    done.record()
    assert pulse.loss == 1.0
    assert not done.query()
