"""Steps without a loss: the kernels are torch's without gradients, and nothing is kept for them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import Tensor, nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import meshwright as mw  # noqa: E402
from counted import counted_clock  # noqa: E402
from meshwright.cluster.cluster import Cluster  # noqa: E402
from meshwright.cost.memory import MEMORY_MARGIN, usable_bytes  # noqa: E402
from meshwright.graph.graph import Phase  # noqa: E402
from meshwright.plan.plan import place_ops  # noqa: E402

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the ATen ops that make a new tensor, views left out."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.names.append(func._schema.name.removeprefix("aten::"))
        return made


class UNet(nn.Module):
    """Two levels with skips, batch norm and pooling."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.down, self.deep = self._block(3, width), self._block(width, 2 * width)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.out = self._block(2 * width, 1)

    @staticmethod
    def _block(inner: int, outer: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        down = self.down(x)
        deep = self.deep(nn.functional.max_pool2d(down, 2))
        found: Tensor = self.out(torch.cat([self.up(deep), down], 1))
        return found


def unet() -> Case:
    return UNet(), (torch.zeros(4, 3, 8, 8),), {}


def mlp() -> Case:
    layers = nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Dropout(0.5), nn.Linear(16, 4)
    return nn.Sequential(*layers), (torch.zeros(4, 8),), {}


def bert() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        vocab_size=50,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    return model, (), {"input_ids": torch.zeros(4, 8, dtype=torch.long)}


def gpt() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=50, n_positions=16, bos_token_id=1,
        eos_token_id=1,
    )  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    return model, (), {"input_ids": torch.zeros(4, 8, dtype=torch.long)}


def resnet() -> Case:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 2], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config)
    return model, (), {"pixel_values": torch.zeros(4, 3, 16, 16)}


@cache
def captured(make: Callable[[], Case]) -> mw.Graph:
    model, args, kwargs = make()
    return mw.capture(model, args, kwargs, inference=True)


def on_one(graph: mw.Graph, cluster: Cluster) -> mw.Timeline:
    plan = place_ops(graph.op_names, [0] * graph.num_ops, [cluster.devices[0].name])
    return mw.simulate(graph, cluster, plan)


@pytest.mark.parametrize("make", [mlp, unet, resnet])
def test_kernels_are_those_of_torch_without_gradients(make: Callable[[], Case]) -> None:
    model, args, kwargs = make()
    graph = mw.capture(model, args, kwargs, inference=True)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    model.eval()
    with torch.no_grad(), Kernels() as kernels:
        model(*args, **kwargs)
    names = [kind.removeprefix("biased_") for kind in graph.kind]
    assert names == kernels.names
    assert set(graph.phase.tolist()) == {Phase.FORWARD}
    assert graph.is_inference


def test_memory_of_a_chain_is_two_layers_at_a_time() -> None:
    # Three products of 256 x 1,024 fp32 (1 MiB each) with weights of 4 MiB and without biases, on
    # an input of 1 MiB that the caller holds. While the second runs, its input and output are
    # there: 12 + 1 + 2 MiB, and so for the third; training would hold all of them.
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(3)))
    graph = mw.capture(model, torch.zeros(256, 1024), inference=True)
    cluster = mw.cluster("h200-x1")
    library = cluster.types["h200"].library_bytes
    mib = 1 << 20
    assert on_one(graph, cluster).peak_bytes[0] == library + 15 * mib
    assert graph.state_bytes.sum() == 12 * mib


def test_what_only_backward_would_read_is_let_go() -> None:
    # The places of maxima have eight bytes where the maxima have four, and go at once.
    model = nn.Sequential(nn.MaxPool2d(2), nn.ReLU())
    graph = mw.capture(model, torch.zeros(2, 1, 8, 8), inference=True)
    assert list(graph.kind) == ["max_pool2d_with_indices", "relu"]
    assert graph.tensor_bytes.tolist() == [2 * 16 * 4, 2 * 16 * 4]
    assert graph.workspace_bytes.tolist() == [2 * 16 * 8, 0]


def test_what_is_returned_stays_although_others_read_it() -> None:
    class Both(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            first = x.exp()
            return {"first": first, "last": first.sin().cos()}

    graph = mw.capture(Both(), torch.zeros(4, 25), inference=True)
    # The input and what `exp` makes have 400 bytes each; `sin` has a reader and is freed.
    assert graph.saved_bytes.tolist() == [800, 0, 0]


@pytest.mark.parametrize("make", [bert, gpt, resnet, unet])
def test_models_of_four_kinds_are_planned(make: Callable[[], Case]) -> None:
    graph = captured(make)
    for method in ("placement", "pipeline", "data"):
        answer = mw.plan(graph, "h200-x2", method=method, budget_seconds=0.05)
        assert answer.plan is not None
        timeline = mw.simulate(graph, "h200-x2", answer.plan)
        assert timeline.step_seconds == pytest.approx(answer.step_seconds)


def test_replicas_have_no_gradients_to_sum() -> None:
    graph = captured(mlp)
    answer = mw.plan(graph, "h200-x2", method="data", budget_seconds=0.05)
    timeline = mw.simulate(graph, "h200-x2", answer.plan)
    assert timeline.attribution["collective"] == timeline.attribution["transfer"] == 0


def test_teams_are_planned_without_zero_and_recomputation() -> None:
    graph = captured(bert)
    answer = mw.plan(graph, "h200-x2", method="hybrid", budget_seconds=0.05)
    assert answer.plan is not None
    assert all(part.zero == 0 for part in answer.plan.parts)
    with pytest.raises(mw.InputError, match="zero must be 0 for a step without gradients"):
        mw.plan(graph, "h200-x2", method="hybrid", scope=mw.Scope(zero=(1,)))
    degrees = mw.Plan.from_degrees(graph, mw.cluster("h200-x2"), data=2, recompute="full")
    with pytest.raises(mw.InputError, match=r"recompute must be none, .* \(inference\), got full"):
        mw.simulate(graph, "h200-x2", degrees)


DEGREES: list[dict[str, Any]] = [
    {"data": 4},
    {"tensor": 2, "data": 2},
    {"pipeline": 2, "data": 2, "microbatches": 2},
    {"pipeline": 2, "tensor": 2, "microbatches": 2},
    {"pipeline": 4, "microbatches": 4},
]


@pytest.mark.parametrize("make", [bert, gpt])
def test_whole_stages_take_and_hold_what_their_ops_do(make: Callable[[], Case]) -> None:
    graph = captured(make)
    cluster = mw.cluster("h200-x4")
    for degrees in DEGREES:
        plan = mw.Plan.from_degrees(graph, cluster, **degrees)
        by_op = mw.simulate(graph, cluster, plan, granularity="op")
        by_layer = mw.simulate(graph, cluster, plan, granularity="layer")
        moved = [each.program.instructions["bytes"].sum() for each in (by_op, by_layer)]
        if "tensor" not in degrees:  # by layer a team's transfers stand once
            assert moved[0] == pytest.approx(moved[1])
            assert by_layer.device_seconds == pytest.approx(by_op.device_seconds, rel=1e-9)
        # By layer, what a product reads is gathered also where it is there already.
        assert by_op.device_seconds <= by_layer.device_seconds * (1 + 1e-9)
        assert by_layer.device_seconds <= 1.05 * by_op.device_seconds
        for fine, coarse in zip(by_op.peak_bytes, by_layer.peak_bytes, strict=True):
            assert fine <= coarse


def test_all_microbatches_outputs_are_held_by_a_stage() -> None:
    # Four microbatches of one row: each stage holds 4 x 4 MiB of weights, the first the input of
    # 4 x 4 KiB, the last the outputs of all four microbatches and what the last one reads.
    model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(2)))
    graph = mw.capture(model, torch.zeros(4, 1024), inference=True)
    cluster = mw.cluster("h200-x2")
    names = [device.name for device in cluster.devices]
    stages = place_ops(graph.op_names, [0, 1], names)
    schedule = mw.Schedule(kind=mw.ScheduleKind.ONE_F_ONE_B, microbatches=4)
    plan = mw.Plan(parts=stages.parts, schedule=schedule)
    kib, library = 1 << 10, cluster.types["h200"].library_bytes
    for granularity in ("op", "part"):
        peak = mw.simulate(graph, cluster, plan, granularity=granularity).peak_bytes[1]
        assert peak >= library + (4 << 20) + (4 + 1) * 4 * kib


def test_tied_weights_are_copies_that_nothing_updates() -> None:
    graph = captured(gpt)
    answer = mw.plan(graph, "h200-x2", method="hybrid", budget_seconds=0.05)
    assert answer.plan is not None
    holders = graph.group[graph.parameter_bytes == 50 * 32 * 4].tolist()
    assert len(holders) == len(set(holders)) == 2
    ends = mw.Plan.from_degrees(graph, mw.cluster("h200-x2"), pipeline=2, microbatches=2)
    assert mw.simulate(graph, "h200-x2", ends).step_seconds > 0


OTHERS: dict[str, list[dict[str, Any]]] = {
    "placement": [{"pipeline": 2}],
    "pipeline": [{"pipeline": 2, "microbatches": 4}, {"data": 2}],
    "hybrid": [{"pipeline": 2, "microbatches": 4}, {"data": 2}, {"tensor": 2}],
}
"""Plans that a method that finds none must not overlook."""


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5, 0.3])
@pytest.mark.parametrize("method", OTHERS)
def test_plans_under_tight_memory_fit_and_refusals_are_true(method: str, share: float) -> None:
    graph = captured(bert)
    roomy = mw.cluster("h200-x2")
    whole = on_one(graph, roomy).peak_bytes[0]
    library = roomy.types["h200"].library_bytes
    memory = (library + share * (whole - library)) / (1 - MEMORY_MARGIN)
    devices = tuple(replace(device, memory_bytes=memory) for device in roomy.devices)
    cluster = replace(roomy, devices=devices)
    with counted_clock():  # on a busy machine 0.2 s end before a search has tried what fits
        answer = mw.plan(graph, cluster, method=method, budget_seconds=0.2)
    usable = usable_bytes(graph, cluster)[0] * (1 + 1e-9)
    plans = [mw.Plan.from_degrees(graph, cluster, **degrees) for degrees in OTHERS[method]]
    fits = [max(mw.simulate(graph, cluster, each).peak_bytes) <= usable for each in plans]
    assert (answer.plan is not None) >= any(fits)
    if answer.plan is not None:
        assert max(mw.simulate(graph, cluster, answer.plan).peak_bytes) <= usable


def test_a_loss_and_nothing_returned_are_refused() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> None:
            x.exp()

    with pytest.raises(mw.InputError, match="model Nothing: must return a tensor"):
        mw.capture(Nothing(), torch.zeros(4, 2), inference=True)
    with pytest.raises(mw.InputError, match="loss: must be None for inference"):
        mw.capture(nn.Linear(2, 2), torch.zeros(4, 2), loss=torch.sum, inference=True)
