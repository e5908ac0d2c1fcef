"""Captures of one sample, with measured times, and under torch's settings for TF32."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture.call import describe_call  # noqa: E402
from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.convert import are_alike  # noqa: E402
from meshwright.capture.ledger import Ledger  # noqa: E402
from meshwright.capture.optimiser import Optimiser  # noqa: E402
from meshwright.capture.trace import trace_step  # noqa: E402
from meshwright.graph.graph import OP_LINES, Graph  # noqa: E402
from quick import few  # noqa: E402

SINE = (
    '{"args":[{"dtype":"float32","shape":[4,8],"stride":[8,1]}],"kwargs":{},'
    '"op":"aten.sin.default"}'
)
"""Of four rows of eight."""


class Sines(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x: Any) -> Any:
        return ((x * self.weight).sin().sin().view(-1, 4).sin()).sum()


class Shaped(nn.Module):
    """One sample has fewer ops: a row need not be copied to stand for each of several."""

    def __init__(self) -> None:
        super().__init__()
        self.row = nn.Parameter(torch.ones(1, 8))

    def forward(self, x: Any) -> Any:
        rows = self.row.expand(x.shape[0], -1).contiguous()
        return (rows.exp() * x).sum()


def tiny_llama() -> nn.Module:
    transformers: Any = pytest.importorskip("transformers", reason="this model needs the zoo extra")
    config = transformers.LlamaConfig(
        num_hidden_layers=1, hidden_size=32, intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=64, loss_type="ForCausalLM",
    )  # fmt: skip
    made: nn.Module = transformers.LlamaForCausalLM(config)
    return made


def tokens(batch: int) -> dict[str, Any]:
    ids = torch.empty(batch, 8, dtype=torch.long)
    return {"input_ids": ids, "labels": ids}


def rows(batch: int) -> dict[str, Any]:
    return {"x": torch.empty(batch, 8)}


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Any]]]] = {
    "shaped": (Shaped, rows),
    "llama": (tiny_llama, tokens),
}


def read(name: str, batch: int) -> Ledger:
    make, inputs = CASES[name]
    with torch.device("meta"):
        step = trace_step(make(), (), inputs(batch), loss=None, optimizer=Optimiser.ADAMW)
    return step.ledger


def captured(name: str, batch: int, **more: Any) -> Graph:
    make, inputs = CASES[name]
    with torch.device("meta"):
        return capture(make(), kwargs=inputs(batch), **more)


@pytest.mark.parametrize("name", few(CASES, "shaped"))
def test_one_sample_equals_a_larger_capture_scaled_down(name: str) -> None:
    one, scaled = captured(name, 1), captured(name, 4).at_batch(1)
    assert one.batch == 1
    assert (one.op_names, one.kind) == (scaled.op_names, scaled.kind)
    for column in (*OP_LINES, "tensor_bytes", "saved_bytes", "state_bytes"):
        np.testing.assert_array_equal(getattr(one, column), getattr(scaled, column))


def test_calls_of_one_sample_get_the_times_of_one_sample() -> None:
    one = read("shaped", 1)
    assert not are_alike(one, read("shaped", 2))
    texts = [describe_call(kernel.node) for kernel in one.kernels]
    measured = {"h200": {text: float(len(text)) for text in texts}}
    graph = captured("shaped", 1, measured=measured)
    unknown = np.isnan(graph.seconds["h200"])
    # Two samples copy the row and sum its gradient; all other ops are those of one.
    assert [graph.kind[op] for op in np.flatnonzero(unknown)] == ["strided_clone", "sum"]
    exponential = SINE.replace("[4,8]", "[1,8]").replace("sin", "exp")
    assert graph.seconds["h200"][graph.kind.index("exp")] == measured["h200"][exponential]


def test_measured_times_are_found_by_what_is_called_on_which_shapes() -> None:
    measured = {"h200": {SINE: 0.5, SINE.replace("float32", "bfloat16"): 9.0}, "t4": {"{}": 1.0}}
    with torch.device("meta"):
        graph = capture(Sines(), (torch.empty(4, 8),), measured=measured)
    assert list(graph.seconds) == ["h200"]  # nothing is known of the other type
    seconds = dict(zip(graph.op_names, graph.seconds["h200"], strict=True))
    assert seconds["sin"] == seconds["sin_1"] == 0.5
    assert np.isnan(seconds["sin_2"])  # eight rows of four
    assert np.isnan(graph.seconds["h200"]).sum() == graph.num_ops - 2


def precisions(model: nn.Module, *shape: int, **more: Any) -> set[str]:
    """Of the ops that have FLOPs."""
    with torch.device("meta"):
        graph = capture(
            model.to("meta"), (torch.empty(shape),), loss=lambda made: made.sum(), **more
        )
    return {graph.precision[op] for op in np.flatnonzero(graph.flops)}


def test_by_default_convolutions_run_in_tf32_and_products_do_not() -> None:
    assert precisions(nn.Conv2d(3, 4, 3), 2, 3, 8, 8) == {"tf32"}
    assert precisions(nn.Linear(8, 4), 4, 8) == {"fp32"}


@pytest.fixture
def settings() -> Iterator[tuple[Any, Any]]:
    """torch's for products and for convolutions, restored afterwards."""
    both = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [each.allow_tf32 for each in both]
    yield both
    for each, value in zip(both, before, strict=True):
        each.allow_tf32 = value


def test_torchs_settings_say_what_runs_in_tf32(settings: tuple[Any, Any]) -> None:
    matmul, cudnn = settings
    matmul.allow_tf32, cudnn.allow_tf32 = True, False
    assert precisions(nn.Conv2d(3, 4, 3), 2, 3, 8, 8) == {"fp32"}
    assert precisions(nn.Linear(8, 4), 4, 8) == {"tf32"}
    assert precisions(nn.Linear(8, 4), 4, 8, autocast=torch.bfloat16) == {"bf16"}
