"""Workloads built without memory: their tensors are what a direct build gives, from a seed."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from test_zoo_step import CLASSES, OWN, SMALL_CONFIGS, TOKENS  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from meshwright.capture.capture import trace_workload  # noqa: E402
from meshwright.capture.deferred.deferred import DeferredWorkload, record  # noqa: E402
from meshwright.capture.deferred.recording import Recording  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.capture.zoo import build, language  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from quick import few  # noqa: E402

Build = Callable[[], Workload]


def own(name: str) -> Workload:
    make, inputs = OWN[name]
    model, (args, kwargs) = make(), inputs()
    return Workload(name=name, model=model, args=args, kwargs=kwargs)


def transformer(name: str) -> Workload:
    family, config = SMALL_CONFIGS[name]
    small = {**config, "vocab_size": TOKENS, "pad_token_id": 0}
    small |= {"bos_token_id": 0, "eos_token_id": 0}
    model = language.build_transformer(family, small)
    args, kwargs = family.inputs(2, 6, TOKENS)
    return Workload(name=name, model=model, args=args, kwargs=kwargs)


def step(model: nn.Module, **more: Any) -> Workload:
    """A step of a model that takes three numbers a sample."""
    given = {"args": (torch.randn(4, 3),), "loss": lambda output: output.sum(), **more}
    return Workload(name="mine", model=model, **given)


def tensors(deferred: DeferredWorkload, seed: int | None = None) -> dict[str, Any]:
    model = deferred.workload.model
    named = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: deferred.real(each, seed) for name, each in named.items()}


def describe(workload: Workload) -> list[str]:
    """Every op of the traced step, with the shapes and types of what it makes."""
    trace = trace_workload(workload, "adamw")
    return [
        f"{node.format_node()} {pytree.tree_map(str, node.meta.get('val'))}"
        for node in trace.graph.nodes
    ]


def check_like(found: Any, direct: Any) -> None:
    """Equal where a direct build has one value, else of equal mean and deviation."""
    assert (found.shape, found.stride(), found.dtype) == (
        direct.shape,
        direct.stride(),
        direct.dtype,
    )
    if direct.numel() < 2 or direct.std() == 0:
        assert torch.equal(found, direct)
        return
    # Six deviations of the estimates, each from n values: s / sqrt(2 n) and s / sqrt(n), twice.
    tolerance = 6 * float(direct.std()) / math.sqrt(direct.numel())
    assert abs(found.std() - direct.std()) <= tolerance
    assert abs(found.mean() - direct.mean()) <= tolerance * math.sqrt(2)


def check_workload(make: Build) -> None:
    before = torch.get_rng_state()
    deferred = record(make, seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    assert deferred.remark == ""
    graph = describe(deferred.workload)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(0)
    direct = make()
    assert describe(direct) == graph
    found = tensors(deferred)
    for name, each in direct.model.named_parameters():
        check_like(found[name], each.detach())
    for name, buffer in direct.model.named_buffers():
        torch.testing.assert_close(found[name], buffer, rtol=0, atol=0)
    again, other = tensors(record(make, seed=1)), tensors(record(make, seed=2))
    assert all(torch.equal(each, again[name]) for name, each in found.items())
    for name, each in direct.model.named_parameters():
        is_random = each.numel() > 1 and float(each.detach().std()) > 0
        assert torch.equal(found[name], other[name]) is not is_random


@pytest.mark.parametrize("name", few(OWN, "alexnet"))
def test_own_models_are_as_built_directly(name: str) -> None:
    check_workload(lambda: own(name))


@pytest.mark.parametrize("name", few(SMALL_CONFIGS, "bert"))
def test_models_of_transformers_are_as_built_directly(name: str) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")
    check_workload(lambda: transformer(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-base", "llama-2-7b", "mixtral-8x7b", "resnet50"])
def test_zoo_models_give_the_graph_that_meta_tensors_give(name: str) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")
    deferred = record(lambda: build(name, device="cpu"))
    assert describe(deferred.workload) == describe(build(name))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_transformers_on_the_meta_device_get_their_own_initial_values(name: str) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")

    def on_meta() -> Workload:
        with torch.device("meta"):
            return transformer(name)

    direct = transformer(name)
    with torch.device("meta"):
        earlier = transformer(name)
    for deferred in (record(on_meta), record(lambda: earlier)):
        found = tensors(deferred)
        for key, each in direct.model.named_parameters():
            check_like(found[key], each.detach())
        for key, buffer in direct.model.named_buffers():
            torch.testing.assert_close(found[key], buffer, rtol=0, atol=0)


@pytest.mark.slow
def test_a_tensor_alone_is_as_among_all_in_any_order() -> None:
    deferred = record(lambda: own("swin"), seed=3)
    named = dict(deferred.workload.model.named_parameters())
    names = sorted(named)
    random.Random(0).shuffle(names)
    together = {name: deferred.real(named[name]) for name in names}
    for name in list(named)[::5]:
        alone = record(lambda: own("swin"), seed=3)
        parameter = alone.workload.model.get_parameter(name)
        assert torch.equal(alone.real(parameter), together[name])


def test_no_two_draws_are_equal() -> None:
    found = tensors(record(lambda: step(nn.Sequential(*(nn.Linear(3, 3) for _ in range(500))))))
    assert len({tuple(each.flatten().tolist()) for each in found.values()}) == 1000


def test_inputs_take_another_seed() -> None:
    deferred = record(lambda: own("resnet"), seed=1)
    pictures, labels = deferred.workload.args
    assert torch.equal(deferred.real(pictures), deferred.real(pictures, 1))
    assert not torch.equal(deferred.real(pictures), deferred.real(pictures, 2))
    assert abs(deferred.real(pictures).std() - 1) < 0.05
    assert set(deferred.real(labels).tolist()) <= set(range(CLASSES))


def test_what_fits_no_memory_is_built() -> None:
    width = 2_000_000  # a layer of 16 TB

    def make() -> Workload:
        first, last = nn.Linear(3, width), nn.Linear(width, width)
        return step(nn.Sequential(first, last, nn.Linear(width, 3)).to(torch.bfloat16))

    deferred = record(make)
    found = deferred.real(deferred.workload.model.get_parameter("0.weight"))
    assert found.dtype == torch.bfloat16
    # Uniform within 1 / sqrt(3), of which the deviation is a third.
    assert abs(float(found.float().std()) - 1 / 3) < 1e-3


def test_tied_parameters_stay_tied_when_converted() -> None:
    def make() -> Workload:
        model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        return step(model.double(), args=(torch.randint(5, (4,)),))

    deferred = record(make)
    model: Any = deferred.workload.model
    assert deferred.remark == ""
    assert model[0].weight is model[1].weight
    assert deferred.real(model[0].weight).dtype == torch.float64


def test_parameters_of_one_storage_have_the_same_values() -> None:
    def make() -> Workload:
        model: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = nn.Parameter(model[0].weight.data)
        return step(model, args=(torch.randint(5, (4,)),))

    deferred = record(make)
    first, last = deferred.workload.model.parameters()
    assert first is not last
    assert torch.equal(deferred.real(first), deferred.real(last))


def test_copied_layers_start_equal_and_are_not_one() -> None:
    def make() -> Workload:
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        return step(model, args=(torch.randn(2, 3, 8),))

    deferred = record(make)
    assert deferred.remark == ""
    named = dict(deferred.workload.model.named_parameters())
    first, last = (named[f"layers.{layer}.linear1.weight"] for layer in range(2))
    assert first is not last
    assert torch.equal(deferred.real(first), deferred.real(last))


def test_writes_through_views_count() -> None:
    def make() -> Workload:
        model = nn.Linear(3, 3)
        nn.init.eye_(model.weight)
        with torch.no_grad():
            model.weight[1].fill_(3)
            model.weight.T[0].mul_(2)
            model.bias.copy_(model.weight[:, 0])
        return step(model)

    found = tensors(record(make))
    assert found["weight"].tolist() == [[2, 0, 0], [6, 3, 3], [0, 0, 1]]
    assert found["bias"].tolist() == [2, 6, 0]


def test_orthogonal_weights_are_orthogonal() -> None:
    def make() -> Workload:
        model = nn.Linear(3, 3)
        nn.init.orthogonal_(model.weight)
        return step(model)

    weight = tensors(record(make))["weight"]
    torch.testing.assert_close(weight @ weight.T, torch.eye(3))


def test_generators_of_the_program_keep_their_seed() -> None:
    def make() -> Workload:
        model = nn.Linear(3, 2)
        first, second = (torch.Generator().manual_seed(5) for _ in range(2))
        for name, generator in (("a", first), ("b", second), ("c", second)):
            model.register_buffer(name, torch.randn(3, generator=generator))
        return step(model)

    deferred = record(make)
    found, other = tensors(deferred), tensors(deferred, seed=9)
    assert torch.equal(found["a"], found["b"])
    assert not torch.equal(found["b"], found["c"])
    assert all(torch.equal(found[name], other[name]) for name in "abc")
    assert not torch.equal(found["weight"], other["weight"])


def test_a_program_may_look_at_what_it_makes() -> None:
    def make() -> Workload:
        layers = [nn.Linear(3, 3) for _ in range(int(torch.randint(2, 50, ())))]
        model: Any = nn.Sequential(*layers)
        model.register_buffer("rates", torch.linspace(0, 1, 5))
        model.rate = sum(model.rates.tolist())
        model.register_buffer("large", (model.rates > 0.4).nonzero()[:, 0])
        return step(model)

    deferred = record(make, seed=1)
    model: Any = deferred.workload.model
    assert deferred.remark == ""
    assert model.rate == 2.5
    assert deferred.real(model.large).tolist() == [2, 3, 4]
    again: list[Any] = [record(make, seed=seed).workload.model for seed in range(4)]
    assert len(again[1]) == len(model)
    assert len({len(each) for each in again}) > 1


def test_arrays_are_kept_as_they_were() -> None:
    def make() -> Workload:
        model = nn.Linear(3, 2)
        array = np.arange(3.0)
        model.register_buffer("first", torch.from_numpy(array) + 1)
        array[:] = 7
        model.register_buffer("second", torch.from_numpy(array) + 1)
        model.register_buffer("third", torch.tensor([1, 2]))
        model.register_buffer("fourth", torch.from_numpy(np.random.rand(3)))
        return step(model)

    found, again = tensors(record(make)), tensors(record(make))
    assert found["first"].tolist() == [1, 2, 3]
    assert found["second"].tolist() == [8, 8, 8]
    assert found["third"].tolist() == [1, 2]
    assert torch.equal(found["fourth"], again["fourth"])


def test_tensors_from_elsewhere_are_used_and_returned_as_they_are() -> None:
    outside = torch.arange(4.0)

    def make() -> Workload:
        model = nn.Linear(3, 2)
        model.register_buffer("doubled", outside[1:] * 2)
        model.register_buffer("same", outside)
        return step(model)

    deferred = record(make)
    model: Any = deferred.workload.model
    assert deferred.remark == ""
    assert deferred.real(model.doubled).tolist() == [2, 4, 6]
    assert deferred.real(model.same) is outside


@pytest.mark.parametrize("is_earlier", [False, True])
def test_modules_on_the_meta_device_are_initialised(is_earlier: bool) -> None:
    def model() -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(nn.Linear(3, 200), nn.BatchNorm1d(200))

    earlier = model()
    found = tensors(record(lambda: step(earlier if is_earlier else model())))
    assert abs(float(found["0.weight"].std()) - 1 / 3) < 0.03  # as above
    assert found["1.weight"].tolist() == [1] * 200
    assert found["1.running_var"].tolist() == [1] * 200
    assert found["1.num_batches_tracked"].item() == 0


def test_a_model_moved_off_the_meta_device_is_recorded() -> None:
    def make() -> Workload:
        with torch.device("meta"):
            model = nn.Linear(3, 200)
        model.to_empty(device="cpu").reset_parameters()
        return step(model)

    deferred = record(make)
    assert deferred.remark == ""
    assert abs(float(tensors(deferred)["weight"].std()) - 1 / 3) < 0.03


class Bare(nn.Module):
    """Never sets its parameter."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(3, 2, device=device))

    def forward(self, x: Any) -> Any:
        return x @ self.weight


def test_parameters_on_the_meta_device_that_nothing_sets_are_refused() -> None:
    with pytest.raises(InputError, match=r"no values for 0\.weight, made on the meta device"):
        record(lambda: step(nn.Sequential(Bare("meta"))))


def test_parameters_on_the_cpu_that_nothing_sets_are_zero() -> None:
    assert tensors(record(lambda: step(Bare("cpu"))))["weight"].tolist() == [[0, 0]] * 3


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_inputs_that_nothing_sets_get_values(device: str) -> None:
    def make() -> Workload:
        kwargs = {"labels": torch.empty(4, dtype=torch.long, device=device)}
        return step(nn.Linear(3, 2), args=(torch.empty(400, 3, device=device),), kwargs=kwargs)

    deferred = record(make)
    workload = deferred.workload
    assert deferred.remark == (
        "inputs that nothing sets are random or zero: args[0], kwargs['labels']"
    )
    assert abs(float(deferred.real(workload.args[0]).std()) - 1) < 0.1
    assert deferred.real(workload.kwargs["labels"]).tolist() == [0] * 4


class Holder(nn.Module):
    """Holds tensors that are neither parameters nor buffers."""

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.table = torch.arange(float(size))
        self.listed = [torch.ones(2)]
        self.paired = (torch.ones(2), 3)
        self.named = {"a": torch.full((2,), 7.0)}

    def forward(self, x: Any) -> Any:
        output = self.layer(x) * self.table[:2] + self.listed[0]
        return output * self.paired[0] + self.named["a"]


def test_plain_tensors_are_made_real_for_tracing() -> None:
    def make() -> Workload:
        weight = torch.rand(2)
        scaled = nn.CrossEntropyLoss(weight=torch.rand(2))
        return step(Holder(), loss=lambda output: scaled(output * weight, output.argmax(1)))

    deferred = record(make)
    model: Any = deferred.workload.model
    assert model.table.tolist() == [0, 1]
    assert model.named["a"].tolist() == [7, 7]
    assert describe(deferred.workload) == describe(make())


def test_plain_tensors_that_are_large_are_refused() -> None:
    with pytest.raises(InputError, match="use register_buffer for larger ones"):
        record(lambda: step(Holder(20_000_000)))


def test_a_recurrent_layer_is_captured() -> None:
    def make() -> Workload:
        inputs = (torch.randn(2, 5, 3),)
        return step(nn.LSTM(3, 4, batch_first=True), args=inputs, loss=lambda out: out[0].sum())

    describe(make())  # torch's cache of fake results forgets that two gradients are one tensor
    assert describe(record(make).workload) == describe(make())


def test_a_checkpoint_is_read_for_real(tmp_path: Path) -> None:
    saved = nn.Linear(3, 2)
    torch.save(saved.state_dict(), tmp_path / "weights.pt")

    def make() -> Workload:
        model = nn.Linear(3, 2)
        model.load_state_dict(torch.load(tmp_path / "weights.pt"))
        return step(model)

    deferred = record(make)
    reason = "built for real on every rank, because it loads tensors from a file"
    assert deferred.remark == reason
    assert torch.equal(tensors(deferred)["weight"], saved.weight)


def test_what_cannot_be_recorded_runs_for_real_from_the_seed() -> None:
    def make() -> Workload:
        model: Any = nn.Linear(3, 2)
        model.scale = float(torch.rand(()).numpy()) + random.random()
        model.register_buffer("scratch", torch.empty(1000))
        return step(model)

    before = (torch.get_rng_state(), random.getstate())
    first, second, other = record(make, 1), record(make, 1), record(make, 2)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert first.remark.startswith("built for real on every rank, because RuntimeError: .numpy()")
    models: list[Any] = [each.workload.model for each in (first, second, other)]
    assert models[0].scale == models[1].scale != models[2].scale
    assert torch.equal(models[0].weight, models[1].weight)
    assert not torch.equal(models[0].weight, models[2].weight)
    assert models[0].scratch.tolist() == [0] * 1000
    assert first.real(models[0].weight) is models[0].weight


def test_the_error_of_a_factory_is_its_own() -> None:
    def make() -> Workload:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        record(make)


def test_a_tensor_of_no_recording_is_refused() -> None:
    deferred = record(lambda: step(nn.Linear(3, 2)))
    inputs = deferred.workload.at_batch(8).args[0]
    with pytest.raises(InputError, match=r"shape \(8, 3\): its values were not recorded"):
        deferred.real(inputs)
    with pytest.raises(InputError, match=r"shape \(4, 3\): its values were not recorded"):
        record(lambda: step(nn.Linear(3, 2))).real(deferred.workload.args[0])


# Random programs: what is repeated for one tensor is what eager PyTorch gives.
VIEWS: list[Callable[[Any], Any]] = [
    lambda x: x[1:],
    lambda x: x.T,
    lambda x: x[:, ::2],
    lambda x: x.view(-1)[:2] if x.is_contiguous() else x,
    lambda x: x.detach(),
]
CHANGES: list[Callable[[Any, Any], Any]] = [
    lambda x, _: x.fill_(3),
    lambda x, _: x.mul_(2),
    lambda x, y: x.add_(y.sum()),
    lambda x, y: x.copy_(y.sum()),
    lambda x, _: x.zero_(),
]
MAKES: list[Callable[[Any, Any], Any]] = [
    lambda x, y: x + y.sum(),
    lambda x, _: torch.arange(float(x.numel()) + 6).view(2, -1),
    lambda x, _: x.clone(),
    lambda _x, _y: torch.empty(3, 2).fill_(5),
    lambda _x, _y: torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
    lambda x, y: torch.cat([x.reshape(1, -1), y.reshape(1, -1)], 1),
]
STEPS = st.lists(
    st.tuples(st.sampled_from("vvcccm"), st.integers(0, 5), st.integers(0, 9), st.integers(0, 9)),
    max_size=25,
)


def run_program(steps: list[tuple[str, int, int, int]]) -> list[Any]:
    held = [torch.ones(3, 4), torch.arange(12.0).view(3, 4)]
    for kind, which, first, second in steps:
        x, y = held[first % len(held)], held[second % len(held)]
        if kind == "c":
            CHANGES[which % len(CHANGES)](x, y)
        elif kind == "m":
            held.append(MAKES[which](x, y))
        elif x.dim() == 2:
            held.append(VIEWS[which % len(VIEWS)](x))
    return held


@given(STEPS)
def test_repeated_programs_give_what_eager_gives(steps: list[tuple[str, int, int, int]]) -> None:
    recording = Recording(0)
    with recording.running():
        recorded = run_program(steps)
    for fake, expected in zip(recorded, run_program(steps), strict=True):
        found = recording.real(fake, 0)
        assert torch.equal(found, expected)
        assert found.shape == expected.shape
