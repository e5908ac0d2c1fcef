"""Values of a traced step have the types that kernels of GPUs give them."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from meshwright.capture.capture import trace_workload  # noqa: E402
from meshwright.capture.ledger import op_name  # noqa: E402
from meshwright.capture.retype import retype_for_gpu  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402


class Normed(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A norm between two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.line = torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.line(self.norm(self.line(x))).float().sum()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_statistics_of_norms_are_in_32_bits(dtype: Any) -> None:
    model, batch = Normed().to(dtype), torch.randn(4, 8, dtype=dtype)
    trace = trace_workload(Workload(name="normed", model=model, args=(batch,)), "sgd")
    before = trace.ledger
    after = retype_for_gpu(trace)
    assert (after.ledger is before) == (dtype is torch.float32)
    nodes = {op_name(node): node for node in trace.graph.nodes}
    made, mean, spread = nodes["native_layer_norm"].meta["val"]
    assert (made.dtype, mean.dtype, spread.dtype) == (dtype, torch.float32, torch.float32)
    # Backward is given the same two, through whatever views lie between.
    given = [each.meta["val"] for each in nodes["native_layer_norm_backward"].args[3:5]]
    assert [each.dtype for each in given] == [torch.float32] * 2
    assert given[0].untyped_storage()._cdata == mean.untyped_storage()._cdata
