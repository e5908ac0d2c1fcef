"""A plan evaluates as one process does in `eval` mode, and trains as if it had not."""

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import Ranks  # noqa: E402
from small_plans import data_plan  # noqa: E402
from small_trainer import OPTIMIZER, make_trainer, train_plainly  # noqa: E402
from team_models import captured, expected, make  # noqa: E402
from team_plans import RANKS, Case, Stage, make_plan  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.trace import find_loss  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.evaluation import find_changes  # noqa: E402
from meshwright.execute.plain import RepeatedDraws  # noqa: E402
from meshwright.execute.region.recipe import RegionRecipe, run_recipe  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.graph.graph import Graph  # noqa: E402
from meshwright.plan.plan import Plan, Recompute, ScheduleKind  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402

STEPS, TOLERANCE = 2, 1e-5
CPU = torch.device("cpu")


def evaluate(
    rank: int, case: Case, graph: Graph, plan: Plan, merges: bool
) -> tuple[list[float], list[float]]:
    """Losses of evaluation before, between and after steps; and of the steps."""

    def compiler(recipe: RegionRecipe) -> Any:
        return lambda given: run_recipe(recipe, given, CPU)

    workload = make(case.model)
    trainer = make_trainer(
        rank, workload, graph, plan, connected(RANKS), optimizer=case.optimizer,
        compiler=compiler if merges else None,
    )  # fmt: skip
    found = []
    for _ in range(STEPS):
        found.append(trainer.evaluate(workload.args, workload.kwargs).loss)
        trainer.step(workload.args, workload.kwargs)
    found.append(trainer.evaluate(workload.args, workload.kwargs).loss)
    losses = trainer.gather_losses()
    trainer.close()
    return found, losses


@cache
def plain_evaluations(name: str) -> list[float]:
    """The losses of one process in `eval` mode after no step, one step, ..."""
    graph, found = captured(name), []
    draws = PlannedSteps(make(name), graph, OPTIMIZER).draws(int(graph.batch))
    for steps in range(STEPS + 1):
        workload = make(name)
        train_plainly(workload, steps, repeated=RepeatedDraws(draws, 0))
        made = workload.model.eval()(*workload.args, **workload.kwargs)
        found.append(float(find_loss(made, workload.loss).detach()))
    return found


def stages(*given: Stage) -> dict[str, Any]:
    return {"stages": given, "kind": ScheduleKind.ONE_F_ONE_B, "microbatches": 2}


CASES = [
    Case(model="gpt2-dropping"),
    Case(model="gpt2-dropping", stages=(Stage(replicas=4, shares=(0.5, 0.25, 0.125, 0.125)),)),
    Case(model="gpt2-dropping", stages=(Stage(tensor=2, sequence=True, replicas=2, zero=3),)),
    Case(model="gpt2-dropping", stages=(Stage(context=2, again=Recompute.FULL),)),
    Case(model="bert-dropping", **stages(Stage(tensor=2), Stage(replicas=2, zero=1))),
    Case(model="vit-dropping", stages=(Stage(tensor=2, replicas=2),)),
    Case(model="t5-dropping", stages=(Stage(replicas=2),)),
    Case(model="swin-dropping", stages=(Stage(replicas=2),)),
    Case(model="normed", stages=(Stage(replicas=4),)),
    Case(model="normed", stages=(Stage(), Stage()), kind=ScheduleKind.GPIPE),
    Case(model="residual", stages=(Stage(),)),
    Case(model="normed unet", stages=(Stage(replicas=2, zero=3),)),
    Case(model="mixtral", stages=(Stage(replicas=2),)),
    Case(model="sorted-mixtral", stages=(Stage(replicas=2, expert=2),)),
    Case(model="llama", **stages(Stage(tensor=2), Stage(tensor=2))),
]


WAYS = list(product(CASES, ("ops", "regions")))
QUICK = (CASES[2], "ops"), (CASES[3], "regions"), (CASES[4], "regions"), (CASES[8], "ops")


@pytest.mark.parametrize("way", few(WAYS, *QUICK), ids=lambda way: "{}-{}".format(*way))
def test_plans_evaluate_as_one_process_and_train_on(ranks: Ranks, way: tuple[Case, str]) -> None:
    case, merges = way[0], way[1] == "regions"
    plan = make_plan(case)
    count = len({device for part in plan.parts for device in part.devices})
    answers = ranks.train(count, evaluate, case, case.graph, plan, merges)
    for found, losses in answers:
        assert found == pytest.approx(plain_evaluations(case.model), rel=TOLERANCE)
        assert losses == pytest.approx(expected(case.model, STEPS)[0], rel=TOLERANCE)


class Dropper(nn.Module):
    """A perceptron that drops something in a way of its own."""

    def __init__(self, drop: nn.Module) -> None:
        super().__init__()
        self.enter, self.drop, self.leave = nn.Linear(6, 6), drop, nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        made = F.gelu(self.enter(x))
        return self.leave(self.drop(made[..., None, None]).flatten(1) + x).square().mean()


class Depth(nn.Module):
    """Stochastic depth, as torchvision and timm write it."""

    def forward(self, x: Any) -> Any:
        if not self.training:
            return x
        kept = torch.floor(0.8 + torch.rand((len(x), 1, 1, 1), dtype=x.dtype))
        return x.div(0.8) * kept


class Always(nn.Module):
    """Drops in evaluation, too."""

    def forward(self, x: Any) -> Any:
        return F.dropout(x, 0.5, training=True)


class Scaled(nn.Module):
    """Another factor in evaluation, which is no dropping."""

    def forward(self, x: Any) -> Any:
        return x * (2.0 if self.training else 3.0)


class Auxiliary(nn.Module):
    """A second head in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.more = nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return x if self.training else self.more(x)


def kind_of(drop: nn.Module) -> str:
    return type(drop).__name__


def make_dropper(drop: nn.Module) -> Workload:
    torch.manual_seed(1)
    return Workload(name="dropper", model=Dropper(drop), args=(torch.randn(4, 6),))


def changes_of(drop: nn.Module) -> dict[int, Any]:
    workload = make_dropper(drop)
    steps = PlannedSteps(workload, capture_workload(workload, "sgd"), "sgd")
    return find_changes(steps[4], steps.evaluated(4))


def evaluate_dropper(rank: int, drop: nn.Module, graph: Graph, plan: Plan) -> float:
    workload = make_dropper(drop)
    trainer = make_trainer(rank, workload, graph, plan)
    found = trainer.evaluate(workload.args).loss
    trainer.close()
    return found


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.3), nn.Dropout(0.3, inplace=True), nn.Dropout2d(0.3), nn.AlphaDropout(0.2),
        nn.FeatureAlphaDropout(0.2), Depth(), nn.Sequential(nn.Dropout(0.1), nn.Dropout(0.2)),
    ],
    ids=kind_of,
)  # fmt: skip
def test_whatever_drops_passes_on_what_it_was_given(ranks: Ranks, drop: nn.Module) -> None:
    workload = make_dropper(drop)
    graph = capture_workload(workload, OPTIMIZER)
    (found,) = ranks.call(1, evaluate_dropper, drop, graph, data_plan(graph, 1))
    plain = workload.model.eval()(*workload.args)
    assert found == pytest.approx(float(plain.detach()), rel=TOLERANCE)


@pytest.mark.parametrize("drop", [nn.Identity(), Always(), nn.Dropout(0.0)], ids=kind_of)
def test_what_evaluation_does_alike_is_not_changed(drop: nn.Module) -> None:
    assert not changes_of(drop)


@pytest.mark.parametrize("drop", [Scaled(), Auxiliary()], ids=kind_of)
def test_other_differences_are_refused(drop: nn.Module) -> None:
    with pytest.raises(InputError, match="evaluation: a model must compute in eval mode what"):
        changes_of(drop)


def test_modules_keep_their_modes() -> None:
    drop = nn.Dropout(0.3)
    model = Dropper(drop).train()
    drop.eval()
    workload = replace(make_dropper(drop), model=model)
    steps = PlannedSteps(workload, capture_workload(workload, "sgd"), "sgd")
    assert not find_changes(steps[4], steps.evaluated(4))
    assert model.training
    assert not drop.training
