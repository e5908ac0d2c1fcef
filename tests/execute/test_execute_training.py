"""`mw.training`: a script of one's own under torchrun's variables, one process a device."""

import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from small_models import captured, make_workload, train_eagerly  # noqa: E402
from small_plans import data_plan, pipeline_plan  # noqa: E402
from small_trainer import LEARNING_RATE  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

import meshwright as mw  # noqa: E402
from meshwright.capture.capture import capture_workload, trace_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import NonFiniteError  # noqa: E402
from meshwright.execute.attempt import Launch  # noqa: E402
from meshwright.execute.launch import launch  # noqa: E402
from meshwright.execute.pulse import Pulse  # noqa: E402
from meshwright.graph.fuse import fuse_elementwise  # noqa: E402
from meshwright.plan.plan import ScheduleKind  # noqa: E402
from small import connected  # noqa: E402

SCRIPT = """
import json, sys
import meshwright as mw
from small_models import make_workload

folder = sys.argv[1]
plan, cluster = mw.Plan.load(f"{folder}/plan.json"), mw.cluster(f"{folder}/cluster.yaml")
workload = make_workload("language")
settings = dict(optimizer="momentum", learning_rate=1e-2)
with mw.training(plan, cluster, workload.model, workload.args, **settings) as training:
    training.step(*workload.args)
    training.step(*workload.args)
    training.save(f"{folder}/kept")
    training.step(*workload.args)
graph = mw.load_graph(f"{folder}/graph.json.gz")
settings |= dict(graph=graph, log=f"{folder}/log.csv")
with mw.training(plan, cluster, workload.model, workload.args, **settings) as training:
    assert training.resume(f"{folder}/kept") == 2
    timeline = training.measure(*workload.args)
    training.step(*workload.args)
    losses = training.losses()
if training.rank == 0:
    with open(f"{folder}/answer.json", "w") as file:
        json.dump({"losses": losses, "step_seconds": timeline.step_seconds}, file)
"""


@pytest.mark.slow
def test_a_script_trains_measures_saves_and_resumes(tmp_path: Path) -> None:
    import json

    graph = captured("language")
    cluster = connected(2)
    plan = pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 4)
    plan.save(tmp_path / "plan.json")
    cluster.save(tmp_path / "cluster.yaml")
    graph.save(tmp_path / "graph.json.gz")
    (tmp_path / "script.py").write_text(SCRIPT)
    said: list[str] = []
    paths = ":".join([str(Path(__file__).parent), *sys.path])
    first = Launch(
        command=[sys.executable, str(tmp_path / "script.py"), str(tmp_path)],
        num_ranks=2,
        environment={"PYTHONPATH": paths},
    )
    code = launch(first, say=said.append)
    assert code == 0, said
    answer = json.loads((tmp_path / "answer.json").read_text())
    expected, _ = train_eagerly("language", 4)
    assert answer["losses"] == pytest.approx(expected, rel=1e-5)
    assert answer["step_seconds"] > 0
    rows = (tmp_path / "log.csv").read_text().splitlines()[1:]
    assert [row.partition(",")[0] for row in rows] == ["3", "4"]  # a measured step is one, too


def test_the_model_must_have_values() -> None:
    graph = captured("perceptron")
    plan = pipeline_plan(graph, 2, 2, ScheduleKind.GPIPE, 2)
    model = make_workload("perceptron").model.to("meta")
    with (
        pytest.raises(mw.InputError, match=r"Perceptron: layers\.0\.weight must have values"),
        mw.training(plan, connected(2), model, make_workload("perceptron").args, graph=graph),
    ):
        pass


@pytest.mark.parametrize("checks_ops", [False, True])
def test_a_step_that_is_not_finite_raises_with_its_number(checks_ops: bool, tmp_path: Path) -> None:
    workload = make_workload("perceptron")
    graph = capture_workload(workload, "sgd")
    x, y = workload.args
    opened = mw.training(
        data_plan(graph, 1), connected(1), workload.model, (x, y), graph=graph, optimizer="sgd",
        checks_ops=checks_ops,
    )  # fmt: skip
    run = opened.__enter__()
    run.step(x, y)
    run.save(tmp_path)
    with pytest.raises(NonFiniteError) as caught:
        run.step(x * float("inf"), y)
    run.trainer.pulses.clear()
    opened.__exit__(None, None, None)
    op = "op 'layers.0/addmm' makes nan, while input 0 holds inf at its start"
    said = f"rank 0 (d0): step 2: {op}" if checks_ops else "step 2: the loss is nan"
    assert str(caught.value) == said
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


def test_losses_that_are_not_finite_are_not_given() -> None:
    workload = make_workload("perceptron")
    graph = capture_workload(workload, "sgd")
    with mw.training(
        data_plan(graph, 1), connected(1), workload.model, workload.args, graph=graph,
        optimizer="sgd",
    ) as run:  # fmt: skip
        run.step(*workload.args)
        assert len(run.losses()) == 1
        # As on a GPU, where a loss is looked at one step later.
        run.trainer.pulses.append(Pulse(2, torch.tensor(float("inf"), dtype=torch.float64)))
        with pytest.raises(NonFiniteError, match=r"^step 2: the loss is inf$"):
            run.losses()
        run.trainer.pulses.clear()


@pytest.mark.parametrize("keeps", [False, True])
def test_going_back_to_a_checkpoint_forgets_the_losses_after_it(
    keeps: bool, tmp_path: Path
) -> None:
    workload = make_workload("perceptron")
    graph = capture_workload(workload, "sgd")
    with mw.training(
        data_plan(graph, 1), connected(1), workload.model, workload.args, graph=graph,
        optimizer="sgd", checkpoint=tmp_path / "kept" if keeps else None, every=2,
    ) as run:  # fmt: skip
        for _ in range(3):
            run.step(*workload.args)
            if run.num_steps == 2:
                run.save(tmp_path / "own")
        before = run.losses()
        assert len(set(before)) == 3
        run.step(*workload.args)
        assert run.resume(tmp_path / "own") == 2
        assert run.losses() == before[:2]
        run.step(*workload.args)
        assert run.losses() == before
        assert run.resume(tmp_path / "nowhere") == 3
        assert run.losses() == before


def test_a_run_that_goes_back_trains_as_it_did_the_first_time(tmp_path: Path) -> None:
    """The rates of steps 1 to 4 are 1, 1/2, 1/3 and 1/4 of the optimiser's own."""
    workload = make_workload("perceptron")
    graph = capture_workload(workload, "sgd")
    with mw.training(
        data_plan(graph, 1), connected(1), workload.model, workload.args, graph=graph,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.12),
        scheduler=lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (step + 1)),
    ) as run:  # fmt: skip
        (group,) = run.trainer.optimizer.param_groups
        rates = []
        for _ in range(4):
            rates.append(group["lr"])
            run.step(*workload.args)
            if run.num_steps == 2:
                run.save(tmp_path)
        assert rates == pytest.approx([0.12, 0.06, 0.04, 0.03])
        losses = run.losses()
        assert run.resume(tmp_path) == 2
        assert group["lr"] == pytest.approx(0.04)
        run.step(*workload.args)
        assert group["lr"] == pytest.approx(0.03)
        run.step(*workload.args)
        assert run.losses() == losses


def test_there_must_be_a_plan() -> None:
    with (
        pytest.raises(mw.InputError, match="there is none to train by"),
        mw.training(None, connected(2), torch.nn.Linear(2, 2)),
    ):
        pass


def test_a_script_is_told_of_every_step_and_trains_in_fp16(tmp_path: Path) -> None:
    pytest.importorskip("tensorboardX", reason="curves need the tensorboard extra")
    workload, told = make_workload("perceptron"), list[float]()
    graph = capture_workload(workload, "sgd", "fp16")
    with mw.training(
        data_plan(graph, 1), connected(1), workload.model, workload.args, graph=graph,
        optimizer="sgd", autocast="fp16", tensorboard=tmp_path / "curves",
        callbacks=[lambda entry: told.append(entry.loss)],
    ) as run:  # fmt: skip
        for _ in range(3):
            run.step(*workload.args)
        losses = run.losses()
        assert run.trainer.scale is not None
    assert told == losses
    assert losses[2] < losses[0]
    assert list((tmp_path / "curves").glob("events*"))


def test_a_script_trains_by_a_plan_of_merged_ops() -> None:
    workload = make_workload("gated")
    merged = fuse_elementwise(capture_workload(workload, "momentum"))
    with mw.training(
        data_plan(merged, 1), connected(1), workload.model, workload.args, graph=merged,
        optimizer="momentum", learning_rate=LEARNING_RATE, compile=False,
    ) as run:  # fmt: skip
        for _ in range(3):
            run.step(*workload.args)
        losses = run.losses()
    assert losses == pytest.approx(train_eagerly("gated", 3)[0], rel=1e-5)


@pytest.mark.parametrize("form", ["captured here", "merged"])
def test_the_step_that_was_captured_is_not_traced_again(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice for the graph, at the batch and at twice of it, and never to run it."""
    workload, sizes = make_workload("gated"), list[int]()
    graph = captured("gated").at_batch(workload.num_samples)

    def traced(workload: Workload, *rest: Any, **more: Any) -> Any:
        sizes.append(workload.num_samples)
        return trace_workload(workload, *rest, **more)

    monkeypatch.setattr("meshwright.capture.capture.trace_workload", traced)
    monkeypatch.setattr("meshwright.execute.steps.trace_workload", traced)
    merged = fuse_elementwise(graph) if form == "merged" else None
    with mw.training(
        data_plan(merged or graph, 1), connected(1), workload.model, workload.args, graph=merged,
        optimizer="momentum", learning_rate=LEARNING_RATE, compile=False,
    ) as run:  # fmt: skip
        for _ in range(2):
            run.step(*workload.args)
        losses = run.losses()
        assert sizes == [workload.num_samples, 2 * workload.num_samples]
        assert float(run.evaluate(*workload.args)) > 0
        assert len(sizes) == 3  # in the other mode it is another step
    assert losses == pytest.approx(train_eagerly("gated", 2)[0], rel=1e-5)


def test_a_script_validates_and_trains_on_as_if_it_had_not() -> None:
    """The mean of two whole batches; the two samples that are left over are not in it."""
    torch.manual_seed(3)
    data = TensorDataset(torch.randn(34, 8), torch.rand(34, 4))
    workload = make_workload("perceptron")
    graph = capture_workload(workload, "sgd")

    def train(validates: bool) -> tuple[list[float], list[float]]:
        found = []
        with mw.training(
            data_plan(graph, 1), connected(1), make_workload("perceptron").model, workload.args,
            graph=graph, optimizer="sgd",
        ) as run:  # fmt: skip
            for _ in range(2):
                if validates:
                    found.append(run.validate(data))
                    assert float(run.evaluate(*data[:16])) > 0
                run.step(*workload.args)
            return found, run.losses()

    found, losses = train(True)
    assert train(False)[1] == losses
    model = workload.model
    plain = [float(model(*data[k : k + 16]).detach()) for k in (0, 16)]
    assert found[0] == pytest.approx(sum(plain) / 2, rel=1e-6)
    assert found[1] < found[0]
