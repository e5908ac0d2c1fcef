"""Ops of equal layers are asked once for what they give on fake tensors."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from meshwright.capture.capture import capture_traced, trace_workload  # noqa: E402
from meshwright.capture.fake import StepMode  # noqa: E402
from meshwright.capture.recall import Recall  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402

aten = torch.ops.aten


class Stack(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Layers of attention, a norm and a perceptron."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
        self.layers = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, x: Any) -> Any:
        return self.layers(x).sum()


def workload(layers: int) -> Workload:
    return Workload(name="stack", model=Stack(layers), args=(torch.randn(2, 3, 8),))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each op is asked for what it gives."""
    count: Counter[str] = Counter()
    ask = StepMode.dispatch

    def dispatch(mode: StepMode, func: Any, *rest: Any, **more: Any) -> Any:
        count[str(func)] += 1
        return ask(mode, func, *rest, **more)

    monkeypatch.setattr(StepMode, "dispatch", dispatch)
    return count


def test_more_equal_layers_ask_no_more_ops(asked: Counter[str]) -> None:
    trace_workload(workload(2), "adamw")  # what torch itself remembers, it knows from now on
    asked.clear()
    nodes = len(trace_workload(workload(3), "adamw").graph.nodes)
    few = asked.copy()
    asked.clear()
    assert len(trace_workload(workload(9), "adamw").graph.nodes) > 2 * nodes
    assert asked == few


def test_a_capture_traces_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def traced(given: Workload, *rest: Any, **more: Any) -> Any:
        sizes.append(given.num_samples)
        return trace_workload(given, *rest, **more)

    monkeypatch.setattr("meshwright.capture.capture.trace_workload", traced)
    graph, trace = capture_traced(workload(1), "sgd")
    assert sizes == [2, 4]
    assert len(trace.ledger.kernels) == graph.num_ops


def describe(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [describe(each) for each in value]
    storage = value.untyped_storage().nbytes()
    return value.shape, value.stride(), value.storage_offset(), value.dtype, storage, value.device


CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "new": (aten.add.Tensor, (torch.ones(3, 1), torch.ones(4))),
    "numbers by type": (aten.mul.Tensor, (torch.ones(3, dtype=torch.int64), 2.5)),
    "view": (aten.transpose.int, (torch.ones(3, 4), 0, 1)),
    "offset": (aten.select.int, (torch.ones(3, 4), 0, 2)),
    "expanded": (aten.expand.default, (torch.ones(3, 1), [3, 5])),
    "in place": (aten.add_.Tensor, (torch.ones(3), 1)),
    "several": (aten.native_layer_norm.default, (torch.ones(2, 4), [4], None, None, 1e-5)),
    "views": (aten.split.Tensor, (torch.ones(6, 2), 4)),
    "relaid": (aten.t_.default, (torch.ones(3, 4),)),
    "conjugate": (aten._conj.default, (torch.ones(3, dtype=torch.complex64),)),
    "empty": (aten.mm.default, (torch.ones(0, 3), torch.ones(3, 2))),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_remembered_is_what_was_given(name: str) -> None:
    func, args = CALLS[name]
    mode = StepMode(allow_non_fake_inputs=True)
    recall = Recall(mode)
    found = []
    for _ in range(3):
        given = [
            mode.from_tensor(each.clone()) if isinstance(each, torch.Tensor) else each
            for each in args
        ]
        with mode:
            made, value = recall(func, given, {})
        assert describe(value) == describe(made)
        first, *rest = made if isinstance(made, tuple | list) else (made,)
        storage, own = first.untyped_storage()._cdata, given[0].untyped_storage()._cdata
        found.append((describe(made), first.is_conj(), first is given[0], storage == own))
        assert not rest or rest[0] is not first
    assert found[0] == found[1] == found[2]


def test_types_and_steps_tell_calls_apart() -> None:
    mode = StepMode(allow_non_fake_inputs=True)
    recall = Recall(mode)
    whole = mode.lay((4, 3), (3, 1), torch.int64)
    turned = mode.lay((4, 3), (1, 4), torch.int64)
    with mode:
        made = [
            recall(aten.mul.Tensor, (each, factor), {})[0]
            for each in (whole, turned)
            for factor in (2, 2.0)
        ]
    assert [each.dtype for each in made] == [torch.int64, torch.float32] * 2
    assert [each.stride() for each in made] == [(3, 1)] * 2 + [(1, 4)] * 2
