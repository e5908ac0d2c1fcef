"""Branches that a random draw seems to choose, and cannot."""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture.capture import capture, trace_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402

COMPARISONS: dict[str, Callable[..., bool]] = {
    "below": lambda drawn, rate: drawn < rate,
    "at most": lambda drawn, rate: drawn <= rate,
    "above": lambda drawn, rate: drawn > rate,
    "at least": lambda drawn, rate: drawn >= rate,
}


class Dropped(nn.Module):
    """Layers that are skipped where a draw says so, as those of BART are."""

    def __init__(self, comparison: str, rate: float, *, draws: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.skips = COMPARISONS[comparison]
        self.rate, self.draws = rate, draws

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            if self.draws and self.skips(torch.rand([]), self.rate):
                continue
            x = layer(x).relu()
        return x.sum()


def kernels(model: nn.Module) -> list[str]:
    workload = Workload(name="dropped", model=model, args=(torch.randn(2, 4),))
    return [str(node.target) for node in trace_workload(workload, "sgd").graph.nodes]


@pytest.mark.parametrize(
    ("comparison", "rate"), [("below", 0.0), ("below", -1), ("at most", -0.1), ("above", 1.0)]
)
def test_layers_that_no_draw_skips_are_traced_as_if_none_were_drawn(
    comparison: str, rate: float
) -> None:
    plain = Dropped(comparison, rate, draws=False)
    assert kernels(Dropped(comparison, rate)) == kernels(plain)


@pytest.mark.parametrize(("comparison", "rate"), [("below", 1.0), ("at least", 0), ("at most", 2)])
def test_layers_that_every_draw_skips_are_not_there(comparison: str, rate: float) -> None:
    model = nn.Sequential(nn.Linear(4, 4), Dropped(comparison, rate))
    assert len(kernels(model)) < len(kernels(nn.Sequential(nn.Linear(4, 4), Dropped("below", 0))))


@pytest.mark.parametrize(
    ("comparison", "rate"), [("below", 0.1), ("at most", 0.0), ("above", 0.0), ("at least", 0.999)]
)
def test_layers_that_some_draws_skip_are_refused(comparison: str, rate: float) -> None:
    with pytest.raises(InputError, match="depends on the values of a tensor"):
        capture(Dropped(comparison, rate), (torch.randn(2, 4),), optimizer="sgd")


def test_a_draw_that_is_used_besides_is_kept() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            drawn = torch.rand([])
            return self.layer(x).sum() if drawn < 0 else (self.layer(x) * drawn).sum()

    found = kernels(Scaled())
    assert found.count("aten.rand.default") == 1
    assert "aten.lt.Scalar" not in found
