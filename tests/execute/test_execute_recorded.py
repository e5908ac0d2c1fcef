"""A recorded step takes the steps that running it takes."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from meshwright.execute.recorded import Recorded, record_graph  # noqa: E402


class Model:
    """A number that each step adds its batch to."""

    def __init__(self) -> None:
        self.number, self.runs, self.forgotten = torch.zeros(()), 0, 0

    def run(self, inputs: Mapping[Any, Any]) -> Any:
        self.runs += 1
        self.number.add_(inputs["x"].sum())
        return self.number.clone()

    def forget(self) -> None:
        self.forgotten += 1


def record_calls(run: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
    """As a graph does: what is recorded happens at every replay, to the same memory."""
    made = torch.zeros(())
    return lambda: made.copy_(run()), made


def test_steps_are_recorded_once_and_replayed_on_each_batch() -> None:
    model = Model()
    step = Recorded(model.run, model.forget, print, record_calls)
    losses = [step({"x": torch.full((2,), float(k))}, 0.1) for k in range(1, 6)]
    assert [float(each) for each in losses] == [2.0, 6.0, 12.0, 20.0, 30.0]
    assert model.runs == 5


def test_another_learning_rate_is_recorded_anew() -> None:
    recorded = []

    def record(run: Callable[[], Any]) -> Any:
        recorded.append(run)
        return record_calls(run)

    step = Recorded(Model().run, lambda: None, print, record)
    for rate in (0.1, 0.1, 0.1, 0.1, 0.2, 0.2):
        step({"x": torch.ones(1)}, rate)
    assert len(recorded) == 2


def test_settings_that_change_at_every_step_are_not_recorded() -> None:
    model, recorded, shown = Model(), list[int](), list[str]()

    def record(run: Callable[[], Any]) -> Any:
        recorded.append(1)
        return record_calls(run)

    step = Recorded(model.run, model.forget, shown.append, record)
    losses = [float(step({"x": torch.ones(1)}, rate)) for rate in range(8)]
    assert losses == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    assert len(recorded) == 2
    assert shown == ["not recorded as a CUDA graph, steps are run: the optimizer's numbers change"]


def test_a_step_that_cannot_be_recorded_is_run_and_not_tried_again() -> None:
    model, tries, shown = Model(), list[int](), list[str]()

    def refuse(_: Callable[[], Any]) -> Any:
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    step = Recorded(model.run, model.forget, shown.append, refuse)
    losses = [float(step({"x": torch.ones(1)}, 0.1)) for _ in range(4)]
    assert losses == [1.0, 2.0, 3.0, 4.0]
    assert (len(tries), model.forgotten) == (1, 1)
    assert shown == [
        "not recorded as a CUDA graph, steps are run: "
        "operation not permitted when stream is capturing"
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_cuda_graph_is_replayed() -> None:
    number = torch.zeros((), device="cuda")

    def run(inputs: Mapping[Any, Any]) -> Any:
        number.add_(inputs["x"].sum())
        return number.clone()

    step = Recorded(run, lambda: None, print, record_graph)
    losses = [step({"x": torch.full((2,), float(k), device="cuda")}, 0.1) for k in range(1, 6)]
    assert [float(each) for each in losses] == [2.0, 6.0, 12.0, 20.0, 30.0]
