"""A recorded step takes the steps that running it takes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import captured, make_workload  # noqa: E402
from small_trainer import LEARNING_RATE, make_trainer  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.execute import trainer as trainer_module  # noqa: E402
from meshwright.execute.groups import make_schedule, open_optimizer  # noqa: E402
from meshwright.execute.plain import RepeatedDraws  # noqa: E402
from meshwright.execute.recorded import Recorded, record_graph  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.plan.plan import Part, Plan  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402


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


class NoReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """As a stream that is recorded, which the host cannot wait for to read a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host reads a number"
        return func(*args, **(kwargs or {}))


def test_steps_are_recorded_once_and_replayed_on_each_batch() -> None:
    model = Model()
    step = Recorded(model.run, model.forget, print, record_calls)
    losses = [step({"x": torch.full((2,), float(k))}, 0.1) for k in range(1, 6)]
    assert [float(each) for each in losses] == [2.0, 6.0, 12.0, 20.0, 30.0]
    assert model.runs == 5


def test_a_batch_that_stays_where_it_is_is_read_there() -> None:
    model, recorded = Model(), list[int]()

    def record(run: Callable[[], Any]) -> Any:
        recorded.append(1)
        return record_calls(run)

    step = Recorded(model.run, model.forget, print, record)
    batch, key = torch.ones(2), torch.zeros(1)
    for k in range(1, 5):
        batch.fill_(k)
        step({"x": batch, "key": key.clone()}, 0.1)
    assert step.given["x"] is batch
    assert step.given["key"] is not key
    assert (float(model.number), len(recorded)) == (20.0, 1)
    others = [torch.full((2,), float(k)) for k in range(5, 8)]
    for other in others:  # then others come, to which nothing may be written
        step({"x": other, "key": key.clone()}, 0.1)
    assert (float(model.number), len(recorded)) == (56.0, 2)
    assert [float(each[0]) for each in (batch, *others)] == [4.0, 5.0, 6.0, 7.0]


def test_another_learning_rate_is_recorded_anew() -> None:
    recorded = []

    def record(run: Callable[[], Any]) -> Any:
        recorded.append(run)
        return record_calls(run)

    step = Recorded(Model().run, lambda: None, print, record)
    for rate in (0.1, 0.1, 0.1, 0.1, 0.2, 0.2):
        step({"x": torch.ones(1)}, rate)
    assert len(recorded) == 2


OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


@pytest.mark.parametrize(
    "optimizer",
    few([*OPTIMIZERS, *(f"mixed-{each}" for each in OPTIMIZERS)], "momentum", "mixed-adamw"),
)
def test_a_schedule_and_dropout_need_no_second_recording(optimizer: str, monkeypatch: Any) -> None:
    """The rates that a recorded step reads are those of the moment, as are its random numbers."""
    steps, recorded = 6, list[int]()

    def record(run: Callable[[], Any]) -> Any:
        recorded.append(1)

        def run_unread() -> Any:
            with NoReads():  # type: ignore[no-untyped-call]
                return run()

        return record_calls(run_unread)

    def scheduled(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))

    monkeypatch.setattr(trainer_module, "may_record", lambda *_: True)
    monkeypatch.setattr(trainer_module, "Recorded", partial(Recorded, record=record))
    name = "dropped layers"
    graph = captured(name, optimizer)
    workload = make_workload(name)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(connected(1).devices[0].name,)),))
    trainer = make_trainer(
        0, workload, graph, plan, connected(1), optimizer=optimizer, compiler=lambda _: None
    )
    schedule = make_schedule(scheduled, trainer.optimizer)
    assert schedule is not None
    losses = []
    for _ in range(steps):
        losses.append(trainer.step(workload.args).loss)
        schedule.advance()
    trainer.close()
    assert len(recorded) == 1
    plain = make_workload(name)
    update = open_optimizer(optimizer, plain.model, LEARNING_RATE)
    other = scheduled(update)
    repeated = RepeatedDraws(PlannedSteps(plain, graph, optimizer).draws(int(graph.batch)), 0)
    for step in range(steps):
        repeated.begin(step)
        with repeated:
            loss = plain.model(*plain.args)
        loss.backward()
        update.step()
        update.zero_grad()
        other.step()
        assert losses[step] == pytest.approx(float(loss.detach()), rel=1e-5)


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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("optimizer", [f"mixed-{each}" for each in OPTIMIZERS])
def test_a_step_with_weights_in_16_bits_is_replayed(optimizer: str) -> None:
    """And trains as the same kernels do that are launched one by one."""

    def train(compiler: Any) -> list[float]:
        workload = make_workload("dropped layers")
        workload.model.bfloat16()
        workload = replace(workload, args=tuple(each.bfloat16() for each in workload.args))
        graph = capture_workload(workload, optimizer)
        plan = Plan(parts=(Part(ops=graph.op_names, devices=(connected(1).devices[0].name,)),))
        trainer = make_trainer(
            0, workload, graph, plan, connected(1), optimizer=optimizer, compiler=compiler,
            device="cuda",
        )  # fmt: skip
        for step in range(6):
            trainer.optimizer.param_groups[0]["lr"] = LEARNING_RATE / (1 + step)
            trainer.step(workload.args)
        assert (trainer.recorded is None) == (compiler is None)
        assert trainer.recorded is None or trainer.recorded.replay is not None
        return trainer.gather_losses()

    assert train(lambda _: None) == pytest.approx(train(None), rel=1e-3)
