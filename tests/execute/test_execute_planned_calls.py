"""The calls of a step's ops, by which measured times are found again when a model is captured."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture.call import describe_call  # noqa: E402
from meshwright.capture.capture import capture_workload, trace_workload  # noqa: E402
from meshwright.capture.profile import list_calls  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402


class Pictures(nn.Module):
    """Convolutions that GPUs run channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 96, 3, padding=1)
        self.second = nn.Conv2d(96, 96, 3, padding=1)

    def forward(self, pictures: Any) -> Any:
        return self.second(self.first(pictures).relu()).square().mean()


class Rows(nn.Module):
    """A norm in 16 bits, whose mean and spread have 32 on GPUs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8, dtype=torch.bfloat16)

    def forward(self, rows: Any) -> Any:
        return self.norm(rows).square().mean()


def workload(kind: type[nn.Module], shape: tuple[int, ...], dtype: Any) -> Workload:
    with torch.device("meta"):
        return Workload(name="step", model=kind(), args=(torch.empty(shape, dtype=dtype),))


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [(Pictures, (4, 3, 6, 6), torch.float32), (Rows, (4, 8), torch.bfloat16)],
)
def test_calls_on_gpus_are_those_that_a_capture_looks_for(
    kind: type[nn.Module], shape: tuple[int, ...], dtype: Any
) -> None:
    given = workload(kind, shape, dtype)
    steps = PlannedSteps(given, capture_workload(given, "adamw"), "adamw", on_gpu=True)
    captured = list_calls(trace_workload(given, "adamw"))
    assert steps.calls(4) == captured
    assert [describe_call(kernel.node) for kernel in steps[4].ledger.kernels] != captured
    assert PlannedSteps(given, steps.graph, "adamw").calls(4) == captured
