"""Numbers made of random bits have the distributions that PyTorch's own have."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from meshwright.execute.draw import Drawing  # noqa: E402
from meshwright.execute.random.bits import KERNELS, WRITTEN  # noqa: E402
from meshwright.execute.random.keys import sample_keys  # noqa: E402

COUNT = 1 << 17

CASES: list[tuple[str, tuple[Any, ...], Any]] = [
    ("uniform_", (), torch.float32),
    ("uniform_", (-2.0, 3.0), torch.float64),
    ("normal_", (), torch.float32),
    ("normal_", (1.5, 0.2), torch.float32),
    ("exponential_", (), torch.float32),
    ("exponential_", (2.5,), torch.float32),
    ("log_normal_", (0.5, 0.4), torch.float32),
    ("cauchy_", (0.5, 2.0), torch.float32),
    ("geometric_", (0.3,), torch.float32),
    ("bernoulli_", (), torch.float32),
    ("bernoulli_", (0.9,), torch.bool),
    ("bernoulli_", (1.0,), torch.float32),
    ("bernoulli_", (0.0,), torch.float32),
    ("random_", (), torch.float32),
    ("random_", (), torch.int64),
    ("random_", (), torch.uint8),
    ("random_", (10,), torch.int64),
    ("random_", (-5, 6), torch.int32),
    ("random_", (-5, None), torch.int16),
]


@pytest.mark.parametrize("source", [KERNELS, WRITTEN], ids=["kernels", "written"])
@pytest.mark.parametrize(("method", "args", "dtype"), CASES)
def test_numbers_are_distributed_as_torch_draws_them(
    method: str, args: tuple[Any, ...], dtype: Any, source: Any
) -> None:
    """The greatest distance of the two distributions (Kolmogorov and Smirnov)."""
    torch.manual_seed(1)
    drawing = Drawing(None, (), lambda _: sample_keys(2, 3, 4, 0), source, None)
    own = drawing.fill(torch.zeros(COUNT, dtype=dtype), method, *args).double().sort().values
    theirs = getattr(torch.zeros(COUNT, dtype=dtype), method)(*args).double().sort().values
    points = torch.cat([own, theirs]).unique()
    shares = [torch.searchsorted(each, points, right=True) / COUNT for each in (own, theirs)]
    assert float((shares[0] - shares[1]).abs().max()) < 2.0 * (2 / COUNT) ** 0.5
    assert own.isfinite().all()
