"""Backward of convolutions in two ops: which, in what order, what they cost, how they are run."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.fx import Interpreter, Node  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from meshwright.capture import trace as tracing  # noqa: E402
from meshwright.capture.call import describe_call  # noqa: E402
from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.optimiser import Optimiser  # noqa: E402
from meshwright.capture.trace import Trace, trace_step  # noqa: E402
from meshwright.cluster.builder.draft import Draft  # noqa: E402
from meshwright.cluster.devices import DEVICE_TYPES  # noqa: E402
from meshwright.cost.compute import op_seconds  # noqa: E402
from meshwright.graph.graph import Graph, Phase, Split  # noqa: E402
from meshwright.plan.plan import place_ops  # noqa: E402
from meshwright.simulate.simulate import simulate  # noqa: E402

FLOAT = 4
BATCH = 4
BACKWARD = torch.ops.aten.convolution_backward.default


def two_layers(**second: Any) -> nn.Module:
    """Images of 6 x 6 with 3 channels, then 8, then 4."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1, **second)
    )


def images(batch: int = BATCH) -> Any:
    return torch.randn(batch, 3, 6, 6)


def loss(made: Any) -> Any:
    return made.square().mean()


def captured(model: nn.Module, **options: Any) -> Graph:
    return capture(model, (images(),), loss=loss, **options)


def traced(model: nn.Module, batch: int = BATCH) -> Trace:
    return trace_step(model, (images(batch),), {}, loss=loss, optimizer=Optimiser.SGD)


def backward_nodes(trace: Trace) -> list[Node]:
    return [node for node in trace.graph.nodes if node.target is BACKWARD]


def masks(model: nn.Module) -> list[Any]:
    return [node.args[10] for node in backward_nodes(traced(model))]


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """While its context holds, both gradients are made by one op, as autograd calls it."""
    with monkeypatch.context() as context:
        context.setattr(tracing, "divide_convolutions", lambda _: [])
        yield context


def test_the_input_s_gradient_comes_first_and_the_parameters_after() -> None:
    assert masks(two_layers()) == [
        [True, False, False], [False, True, True],  # of the second layer
        [False, True, True],  # the first has no input that needs one
    ]  # fmt: skip


def test_without_a_bias_the_weight_s_gradient_is_alone() -> None:
    assert masks(two_layers(bias=False))[:2] == [[True, False, False], [False, True, False]]


def test_a_gradient_that_is_alone_stays_as_it_is() -> None:
    frozen = two_layers()
    frozen.get_parameter("2.weight").requires_grad_(False)
    assert masks(frozen) == [[True, False, True], [False, True, True]]
    frozen.get_parameter("2.bias").requires_grad_(False)
    assert masks(frozen) == [[True, False, False], [False, True, True]]


def test_each_op_makes_its_own_tensors_only() -> None:
    data, parameters, _ = backward_nodes(traced(two_layers()))
    assert [each is None for each in data.meta["val"]] == [False, True, True]
    assert [each is None for each in parameters.meta["val"]] == [True, False, False]
    assert data.meta["seq_nr"] == parameters.meta["seq_nr"] >= 0


def test_both_are_named_partnered_and_grouped_by_their_layer() -> None:
    graph = captured(two_layers())
    forward = graph.op_names.index("2/convolution_1")
    data, weight = (
        graph.op_names.index(name)
        for name in ("2/convolution_backward_input", "2/convolution_backward")
    )
    assert weight == data + 1
    assert graph.kind[data] == "input_convolution_backward"
    assert graph.kind[weight] == "biased_convolution_backward"
    for op in (data, weight):
        assert graph.partner[op] == forward
        assert graph.group[op] == graph.group[forward] >= 0
        assert graph.module[op] == "2"
        assert graph.phase[op] == Phase.BACKWARD
    assert (graph.split[data], graph.split[weight]) == (Split.BATCH, Split.SUM)


def test_no_op_waits_for_the_weight_s_gradient_but_its_update() -> None:
    graph = captured(two_layers())
    data = graph.op_names.index("2/convolution_backward_input")

    def readers(op: int) -> list[str]:
        return [graph.kind[each] for tensor in graph.outputs[op] for each in graph.readers[tensor]]

    assert readers(data) == ["threshold_backward"]
    assert readers(data + 1) == ["_fused_adamw_", "_fused_adamw_"]


def test_phases_end_where_they_did() -> None:
    graph = captured(two_layers())
    # Two convolutions and a relu, squares and their mean; four parameters.
    assert np.bincount(graph.phase)[[Phase.FORWARD, Phase.UPDATE]].tolist() == [5, 4]
    updates = [graph.kind[op] for op in np.flatnonzero(graph.phase == Phase.UPDATE)]
    assert updates == ["_fused_adamw_"] * 4


def test_a_gradient_taken_in_forward_is_divided_there() -> None:
    class Penalised(nn.Module):
        """The norm of a gradient with respect to a hidden value is part of the loss."""

        def __init__(self) -> None:
            super().__init__()
            self.first, _, self.second = two_layers().children()

        def forward(self, x: Any) -> Any:
            hidden = self.first(x)
            made = self.second(hidden)
            (found,) = torch.autograd.grad(made.square().sum(), hidden, create_graph=True)
            return made + found.square().sum()

    graph = captured(Penalised())
    kinds = [graph.kind[op] for op in np.flatnonzero(graph.phase == Phase.UPDATE)]
    assert kinds == ["_fused_adamw_"] * 4
    last = int(np.flatnonzero(graph.phase == Phase.FORWARD)[-1])
    assert graph.kind[last] == "mean"


def test_bytes_are_of_what_each_gradient_is_made_of() -> None:
    graph = captured(two_layers())
    data = graph.op_names.index("2/convolution_backward_input")
    hidden, made = BATCH * 8 * 36 * FLOAT, BATCH * 4 * 36 * FLOAT
    weight, bias = 4 * 8 * 9 * FLOAT, 4 * FLOAT
    assert graph.bytes_read[data] == made + weight
    assert graph.bytes_written[data] == hidden
    # The output's gradient is summed for the bias by a kernel of its own.
    assert graph.bytes_read[data + 1] == 2 * made + hidden
    assert graph.bytes_written[data + 1] == weight + bias


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_two_ops_take_the_time_memory_and_flops_of_one(
    precision: Any, whole: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.ReLU(),
        nn.Conv2d(64, 128, 3, padding=1, bias=False), nn.ReLU(),
        nn.Conv2d(128, 64, 1, bias=False),
    ).to(device="meta", dtype=precision)  # fmt: skip

    def seen() -> tuple[Graph, float, float]:
        values = torch.empty(16, 3, 64, 64, device="meta", dtype=precision)
        graph = capture(model, (values,), loss=loss)
        seconds = op_seconds(graph, DEVICE_TYPES["h200"], graph.batch)
        return graph, float(seconds.sum()), peak_bytes(graph)

    one, one_seconds, one_peak = seen()
    whole.undo()
    two, two_seconds, two_peak = seen()
    assert two.num_ops == one.num_ops + 2
    assert two.flops.sum() == one.flops.sum()
    assert two_seconds == pytest.approx(one_seconds, rel=1e-9)
    assert two_peak == one_peak


def peak_bytes(graph: Graph) -> float:
    draft = Draft("one")
    draft.add_host("host", "h200", 1)
    cluster = draft.finish()
    plan = place_ops(graph.op_names, [0] * graph.num_ops, [cluster.devices[0].name])
    return max(simulate(graph, cluster, plan).peak_bytes)


def test_flops_are_those_that_torch_counts() -> None:
    model, values = two_layers(), images()
    with FlopCounterMode(display=False) as counter:
        loss(model(values)).backward()
    assert captured(model).flops.sum() == counter.get_total_flops()


@pytest.mark.parametrize(
    "second", [{}, {"stride": 2}, {"bias": False}, {"groups": 4}, {"dilation": 2}]
)
def test_gradients_are_those_of_eager_torch(second: dict[str, Any]) -> None:
    model, values = two_layers(**second), images()
    trace = traced(model)
    expected = torch.autograd.grad(loss(model(values)), list(model.parameters()))
    held = [each.detach().clone() for each in model.parameters()]
    _, *found = Interpreter(trace.module).run(*held, values)
    assert trace.gradient_names == tuple(name for name, _ in model.named_parameters())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)
    _, *written = trace.module(*(each.detach().clone() for each in model.parameters()), values)
    for one, other in zip(found, written, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def calls_of(model: nn.Module, batch: int = BATCH) -> list[str]:
    return [describe_call(kernel.node) for kernel in traced(model, batch).ledger.kernels]


@pytest.mark.parametrize("device_type", ["h200", "cpu", "nobody-knows"])
def test_the_time_of_one_call_is_shared_out(device_type: str, whole: pytest.MonkeyPatch) -> None:
    model = two_layers()
    measured = {device_type: dict.fromkeys(calls_of(model), 0.001)}
    whole.undo()
    graph = captured(model, measured=measured, optimizer="sgd")
    data = graph.op_names.index("2/convolution_backward_input")
    seconds = graph.seconds[device_type]
    assert seconds[data : data + 2].sum() == pytest.approx(1e-3)
    assert min(seconds[data : data + 2]) > 0
    assert (np.delete(seconds, [data, data + 1]) == 1e-3).all()
    like = DEVICE_TYPES.get(device_type, DEVICE_TYPES["h200"])
    expected = op_seconds(captured(model, optimizer="sgd"), like, BATCH)[data : data + 2]
    assert seconds[data] / seconds[data + 1] == pytest.approx(expected[0] / expected[1])


def test_the_time_of_one_call_is_shared_out_on_one_sample(whole: pytest.MonkeyPatch) -> None:
    model = two_layers()
    measured = {"h200": dict.fromkeys(calls_of(model, 1), 0.001)}
    whole.undo()
    graph = capture(model, (images(1),), loss=loss, measured=measured, optimizer="sgd")
    data = graph.op_names.index("2/convolution_backward_input")
    assert graph.seconds["h200"][data : data + 2].sum() == pytest.approx(1e-3)


def test_gradients_that_were_timed_apart_keep_their_own_times(whole: pytest.MonkeyPatch) -> None:
    model = two_layers()
    times = dict.fromkeys(calls_of(model), 1.0)
    whole.undo()
    calls = calls_of(model)
    times |= {call: float(number) for number, call in enumerate(calls) if "backward" in call}
    graph = captured(model, measured={"h200": times}, optimizer="sgd")
    data = graph.op_names.index("2/convolution_backward_input")
    assert graph.seconds["h200"][data : data + 2].tolist() == [data, data + 1]


def test_without_the_time_of_one_call_there_is_none() -> None:
    model = two_layers()
    calls = {call: 1.0 for call in calls_of(model) if "backward" not in call}
    graph = captured(model, measured={"h200": calls}, optimizer="sgd")
    data = graph.op_names.index("2/convolution_backward_input")
    assert np.isnan(graph.seconds["h200"][data : data + 2]).all()
