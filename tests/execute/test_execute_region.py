"""Regions compute what the ops that they are made of compute."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import MODELS, NORMED, captured, make_workload, train_eagerly  # noqa: E402
from small_trainer import make_trainer, take_steps  # noqa: E402
from torch import nn  # noqa: E402

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.execute.region.recipe import RegionRecipe, run_recipe  # noqa: E402
from meshwright.execute.walk import Times  # noqa: E402
from meshwright.plan.plan import Part, Plan  # noqa: E402
from quick import few  # noqa: E402
from small import connected  # noqa: E402

pytestmark = [  # Inductor's own
    pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex"),
]

STEPS = 3
WIDTH = 16
"""Of the small transformers."""
ALL = [*MODELS, *(each for each in NORMED if each not in MODELS)]
QUICK = ("heads", "residual", "experts", "fourier", "dropping", "gated")
"""With attention, batch norm written in place, a choice of tokens, complex and random numbers."""
CPU = torch.device("cpu")
LAYERS = 6
"""Of the model of that name."""


def call_ops(recipe: RegionRecipe) -> Callable[[list[Any]], Sequence[Any]]:
    """In place of a compiler."""

    def run(given: list[Any]) -> list[Any]:
        made = run_recipe(recipe, given, CPU)
        given.clear()
        return made

    return run


def alone(name: str) -> Plan:
    return Plan(parts=(Part(ops=captured(name).op_names, devices=(connected(1).devices[0].name,)),))


def train_compiled(name: str, compiler: Any) -> tuple[list[float], dict[str, Any]]:
    """Losses of a few steps on one device, and the tensors then."""
    trainer = make_trainer(
        0, make_workload(name), captured(name), alone(name), connected(1), compiler=compiler
    )
    losses = take_steps(trainer, STEPS)
    state = {key: each.clone() for key, each in trainer.state.items()}
    trainer.close()
    return losses, state


@pytest.mark.parametrize("name", few(ALL, *QUICK))
def test_regions_train_as_plain_pytorch(name: str) -> None:
    recipes = []

    def compiler(recipe: RegionRecipe) -> Any:
        recipes.append(recipe)
        return call_ops(recipe)

    losses, state = train_compiled(name, compiler)
    expected, tensors = train_eagerly(name, STEPS)
    assert losses == pytest.approx(expected, rel=1e-6)
    for key, wanted in tensors.items():
        torch.testing.assert_close(state[key], wanted, rtol=1e-5, atol=1e-6)
    assert recipes


@pytest.mark.parametrize(("name", "op"), [("gated", "rsqrt"), ("dropping", "Drawn")])
def test_norms_and_dropout_are_in_regions(name: str, op: str) -> None:
    targets: list[str] = []

    def compiler(recipe: RegionRecipe) -> Any:
        targets.extend(repr(step.call.target) for step in recipe.steps)
        return call_ops(recipe)

    train_compiled(name, compiler)
    assert any(op in each for each in targets)


def test_layers_that_drop_have_one_recipe() -> None:
    """Keys of random numbers are given to it."""
    recipes: list[RegionRecipe] = []

    def compiler(recipe: RegionRecipe) -> Any:
        recipes.append(recipe)
        return call_ops(recipe)

    losses, _ = train_compiled("dropped layers", compiler)
    assert losses == pytest.approx(train_eagerly("dropped layers", STEPS)[0], rel=1e-6)
    assert max(recipes.count(each) for each in recipes) >= LAYERS - 2


@pytest.mark.parametrize("name", few(ALL, "heads", "residual", "dropping", "gated"))
def test_what_the_compiler_is_given_computes_the_same(name: str) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    from meshwright.execute.region.inductor import trace_recipe

    seen = 0

    def compiler(recipe: RegionRecipe) -> Any:
        module = trace_recipe(recipe, CPU, FakeTensorMode())[0]

        def run(given: list[Any]) -> Any:
            nonlocal seen
            seen += 1
            copies = [each.clone() for each in given]
            made = module(*given)
            expected = run_recipe(recipe, copies, CPU)
            torch.testing.assert_close(list(made), expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(given, copies, rtol=1e-4, atol=1e-5)
            return made

        return run

    trainer = make_trainer(
        0, make_workload(name), captured(name), alone(name), connected(1), compiler=compiler
    )
    take_steps(trainer, 1)
    assert seen
    trainer.close()


@pytest.mark.slow  # a C++ compiler takes most of a minute
@pytest.mark.parametrize("name", ALL)
def test_compiled_regions_train_as_plain_pytorch(name: str) -> None:
    from meshwright.execute.region.inductor import Inductor

    shown: list[str] = []
    losses, state = train_compiled(name, Inductor(CPU, shown.append))
    expected, tensors = train_eagerly(name, STEPS)
    assert losses == pytest.approx(expected, rel=1e-5)
    for key, wanted in tensors.items():
        torch.testing.assert_close(state[key], wanted, rtol=1e-4, atol=1e-5)
    assert len(shown) > 0
    assert not any("not compiled" in each for each in shown)


def test_what_cannot_be_compiled_is_named_and_runs_op_by_op(monkeypatch: Any) -> None:
    from meshwright.execute.region import inductor

    def refuse(*_: object, **__: object) -> None:
        raise NotImplementedError("no such kernel\nand more")

    monkeypatch.setattr(inductor, "compile_fx_inner", refuse)
    shown: list[str] = []
    losses, _ = train_compiled("perceptron", inductor.Inductor(CPU, shown.append))
    assert losses == pytest.approx(train_eagerly("perceptron", STEPS)[0])
    failed = [each for each in shown if "not compiled" in each]
    assert failed[0].endswith("NotImplementedError: no such kernel")


@pytest.mark.parametrize("name", few(ALL, "heads", "dropping"))
def test_regions_are_right_beside_one_that_cannot_be_compiled(name: str) -> None:
    refused: list[RegionRecipe] = []
    accepted: list[RegionRecipe] = []

    def compiler(recipe: RegionRecipe) -> Any:
        """Refuses every other one that is new."""
        if recipe not in [*refused, *accepted]:
            (refused if len(refused) <= len(accepted) else accepted).append(recipe)
        return None if recipe in refused else call_ops(recipe)

    losses, state = train_compiled(name, compiler)
    expected, tensors = train_eagerly(name, STEPS)
    assert refused
    assert losses == pytest.approx(expected, rel=1e-6)
    for key, wanted in tensors.items():
        torch.testing.assert_close(state[key], wanted, rtol=1e-5, atol=1e-6)


def test_forward_does_not_keep_what_backward_computes_again() -> None:
    recipes: list[RegionRecipe] = []

    def compiler(recipe: RegionRecipe) -> Any:
        recipes.append(recipe)
        return call_ops(recipe)

    train_compiled("heads", compiler)
    targets = [step.call.target for recipe in recipes for step in recipe.steps]
    # Two layers, each in forward and once more in backward.
    assert targets.count(torch.ops.aten.gelu.default) == 4
    # An activation's result has three dimensions, its argument, a product, two.
    returned = [layout.shape for recipe in recipes for layout in _output_layouts(recipe)]
    assert not [shape for shape in returned if len(shape) == 3 and shape[-1] == 2 * WIDTH]


class Pooled(nn.Module):
    """Convolutions around a pool, layer by layer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(6))

    def forward(self, pictures: Any) -> Any:
        for each in self.convolutions:
            pictures = torch.nn.functional.max_pool2d(each(pictures).relu(), 3, 1, padding=1)
        return pictures.square().mean()


class PooledInPlace(Pooled):
    """Activations overwrite what they are given, as those of most image models do."""

    def forward(self, pictures: Any) -> Any:
        for each in self.convolutions:
            pictures = torch.nn.functional.max_pool2d(each(pictures).relu_(), 3, 1, padding=1)
        return pictures.square().mean()


class Halves(nn.Module):
    """A product reads the same rows as another, as queries and keys do."""

    def __init__(self) -> None:
        super().__init__()
        self.ones = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.others = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, rows: Any) -> Any:
        for one, other in zip(self.ones, self.others, strict=True):
            rows = rows + one(rows.tanh()).float() * other(rows.tanh()).float()
        return rows.square().mean()


@pytest.mark.parametrize(
    ("model", "shape", "autocast"),
    [
        (Pooled, (4, 3, 8, 8), None),
        (PooledInPlace, (4, 3, 8, 8), None),
        (Halves, (4, 8), "bf16"),
    ],
)
def test_neither_places_of_maxima_nor_casts_are_kept(
    model: Any, shape: tuple[int, ...], autocast: str | None
) -> None:
    returned: list[Any] = []

    def compiler(recipe: RegionRecipe) -> Any:
        returned.extend(_output_layouts(recipe))
        return call_ops(recipe)

    torch.manual_seed(0)
    workload = Workload(name="small", model=model(), args=(torch.randn(shape),), batch=4)
    graph = capture_workload(workload, "sgd", autocast)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(connected(1).devices[0].name,)),))
    losses = []
    for each in (compiler, None):
        trainer = make_trainer(
            0, workload, graph, plan, connected(1),
            optimizer="sgd", autocast=autocast, compiler=each,
        )  # fmt: skip
        losses.append(take_steps(trainer, STEPS))
        trainer.close()
    assert losses[0] == losses[1]
    assert returned
    assert torch.int64 not in [each.dtype for each in returned]
    weights = {tuple(each.shape) for each in workload.model.parameters()}
    casts = [each for each in returned if each.dtype is torch.bfloat16 and each.shape in weights]
    assert not casts


def _output_layouts(recipe: RegionRecipe) -> list[Any]:
    layouts = list(recipe.inputs)
    for step in recipe.steps:
        layouts += [layout for _, layout in step.made]
    return [layouts[number] for number in recipe.outputs]


def test_each_op_of_a_region_is_given_a_share_of_its_time() -> None:
    plan, given = alone("heads"), connected(1)
    trainer = make_trainer(
        0, make_workload("heads"), captured("heads"), plan, given, compiler=call_ops
    )
    times = Times()
    trainer.step(trainer.workload.args, trainer.workload.kwargs, times=times)
    assert set(times.start) == set(range(trainer.lowered.program.num_instructions))
    order = sorted(times.start, key=lambda each: (times.start[each], times.finish[each]))
    for one, other in pairwise(order):
        assert times.start[one] <= times.finish[one] <= times.start[other] + 1e-9
    trainer.close()
