"""Optimisers of torch.optim with groups, and schedulers: a plan updates as they themselves do."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import Ranks  # noqa: E402
from small_models import captured, make_workload  # noqa: E402
from small_plans import data_plan, hybrid, pipeline_plan  # noqa: E402
from small_trainer import make_trainer, split_groups, train_scheduled  # noqa: E402
from torch import nn, optim  # noqa: E402
from torch.optim.lr_scheduler import (  # noqa: E402
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
)

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.optimiser import Optimiser, find_optimiser  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.groups import (  # noqa: E402
    advance,
    make_schedule,
    make_scheduler,
    open_optimizer,
    read_settings,
)
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402

STEPS = 6
MODEL = "heads"


def split(model: nn.Module, **first: Any) -> list[dict[str, Any]]:
    """The same groups, the second of them without decay."""
    matrices, vectors = split_groups(model, **first)
    return [matrices, {**vectors, "weight_decay": 0.0}]


def sgd(model: nn.Module) -> Any:
    groups = split(model, weight_decay=0.1, momentum=0.5)
    return optim.SGD(groups, lr=0.05, momentum=0.9, dampening=0.3)


def nesterov(model: nn.Module) -> Any:
    return optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.01)


def adam(model: nn.Module) -> Any:
    return optim.Adam(split(model, lr=0.02, betas=(0.8, 0.9)), lr=0.01, weight_decay=0.1, eps=1e-6)


def adamw(model: nn.Module) -> Any:
    return optim.AdamW(split(model, weight_decay=0.3), lr=0.01, betas=(0.7, 0.95))


def upwards(model: nn.Module) -> Any:
    return optim.AdamW(model.parameters(), lr=0.01, maximize=True)


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda _: None,
    "warm-up": lambda made: LambdaLR(made, lambda step: min(1.0, (step + 1) / 4)),
    "cosine": lambda made: CosineAnnealingLR(made, STEPS),
    "one cycle": lambda made: OneCycleLR(made, max_lr=0.05, total_steps=STEPS + 1),
}
"""The last of these also moves momentum."""
OPTIMIZERS = {each.__name__: each for each in (sgd, nesterov, adam, adamw, upwards)}
PLANS: dict[str, Callable[[Graph], Plan]] = {
    "data": lambda graph: data_plan(graph, 2),
    "pipeline": lambda graph: pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 4),
    "zero": lambda graph: hybrid(data_plan(graph, 2), 3, Recompute.NONE),
}


def train_by(
    rank: int, graph: Graph, plan: Plan, optimizer: str, scheduler: str
) -> tuple[list[float], list[float]]:
    """Losses, and the learning rates at the end."""
    workload = make_workload(MODEL)
    trainer = make_trainer(rank, workload, graph, plan, optimizer=OPTIMIZERS[optimizer])
    schedule = make_scheduler(SCHEDULERS[scheduler](trainer.optimizer), trainer.optimizer)
    for _ in range(STEPS):
        trainer.step(workload.args, workload.kwargs)
        if schedule is not None:
            advance(schedule, trainer.optimizer)
    losses = trainer.gather_losses()
    trainer.close()
    return losses, [group["lr"] for group in trainer.optimizer.param_groups]


CASES = [
    *((each, "none", "data") for each in OPTIMIZERS),
    *(("adamw", each, "pipeline") for each in SCHEDULERS),
    ("sgd", "one cycle", "zero"),
    ("adamw", "warm-up", "zero"),
    ("sgd", "cosine", "pipeline"),
]
QUICK = [("adam", "none", "data"), ("sgd", "one cycle", "zero"), ("adamw", "warm-up", "pipeline")]


@pytest.mark.filterwarnings("error::UserWarning")  # as torch's of schedulers
@pytest.mark.parametrize("case", few(CASES, *QUICK))
def test_a_plan_updates_as_the_optimizer_does(ranks: Ranks, case: tuple[str, str, str]) -> None:
    optimizer, scheduler, plan = case
    kind = find_optimiser(OPTIMIZERS[optimizer](make_workload(MODEL).model))
    assert isinstance(kind, Optimiser)
    graph = captured(MODEL, kind.value)
    workload, make = make_workload(MODEL), OPTIMIZERS[optimizer]
    expected = train_scheduled(workload, make, SCHEDULERS[scheduler], STEPS)
    for losses, rates in ranks.train(2, train_by, graph, PLANS[plan](graph), optimizer, scheduler):
        assert losses == pytest.approx(expected[0], rel=2e-5)
        assert rates == expected[1]


def test_a_step_is_captured_with_an_optimizer_that_was_made() -> None:
    workload = make_workload("perceptron")
    made = optim.SGD(workload.model.parameters(), momentum=0.9)
    names = capture_workload(workload, "momentum").op_names
    assert capture_workload(workload, made).op_names == names


def test_kinds_are_told_apart() -> None:
    weight = [nn.Parameter(torch.zeros(2))]
    assert find_optimiser(optim.SGD(weight)) is Optimiser.SGD
    assert find_optimiser(optim.SGD(weight, momentum=0.1)) is Optimiser.MOMENTUM
    assert find_optimiser(optim.Adam(weight)) is Optimiser.ADAM
    assert find_optimiser(optim.AdamW(weight)) is Optimiser.ADAMW
    decoupled = optim.Adam(weight, decoupled_weight_decay=True)
    assert find_optimiser(decoupled) is Optimiser.ADAMW


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda _: 3, "must be a torch.optim.Optimizer, or a function from the model to one"),
        (
            lambda model: optim.SGD(split(model, momentum=0.0), momentum=0.9),
            "all groups of SGD must have momentum, or none",
        ),
        (lambda model: optim.Adam(model.parameters(), differentiable=True), "with differentiable"),
        (
            lambda model: optim.SGD(model.parameters(), lr=torch.tensor(0.1)),
            "must be numbers, got a tensor",
        ),
    ],
)
def test_other_optimizers_are_refused(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        open_optimizer(make, make_workload("perceptron").model, 1e-3)


def test_every_parameter_must_be_in_a_group() -> None:
    workload = make_workload("perceptron")
    made = optim.SGD([next(iter(workload.model.parameters()))])
    graph = captured("perceptron", "sgd")
    with pytest.raises(InputError, match=r"lacks 'layers\.0\.bias'; let it have none"):
        make_trainer(0, workload, graph, data_plan(graph, 1), optimizer=made)


def test_schedulers_that_go_by_losses_are_left_to_the_script() -> None:
    made = optim.SGD([nn.Parameter(torch.zeros(2))])
    with pytest.raises(InputError, match="call its step in a loop of your own"):
        make_scheduler(ReduceLROnPlateau, made)
    with pytest.raises(InputError, match="or a function from the optimizer to one, got int"):
        make_scheduler(lambda _: 3, made)


class Bare:
    """A scheduler that only takes steps."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] /= 2


@pytest.mark.parametrize("name", [name for name in SCHEDULERS if name != "none"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_schedule_that_goes_back_is_one_that_was_never_further(name: str, optimizer: str) -> None:
    def make() -> tuple[Any, Any]:
        made = OPTIMIZERS[optimizer](make_workload(MODEL).model)
        return made, make_schedule(SCHEDULERS[name], made)

    made, schedule = make()
    start = read_settings(made)
    for first, second in ((4, 1), (3, 2), (2, 0)):
        schedule.seek(first)
        schedule.seek(second)
        other, expected = make()
        for _ in range(second):
            expected.advance()
        assert schedule.step == expected.step == second
        assert read_settings(made) == read_settings(other)
    assert read_settings(made) == start
    schedule.advance()
    expected.advance()
    assert read_settings(made) == read_settings(other)


def test_a_scheduler_without_a_state_goes_forward_only() -> None:
    made = sgd(make_workload(MODEL).model)
    schedule = make_schedule(Bare, made)
    assert schedule is not None
    schedule.seek(3)
    before = read_settings(made)
    line = (
        "must have state_dict and load_state_dict for a run to go back from step 3 to step 1, Bare"
    )
    with pytest.raises(InputError, match=line):
        schedule.seek(1)
    assert read_settings(made) == before
