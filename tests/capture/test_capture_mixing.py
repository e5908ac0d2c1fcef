"""Steps that compare samples with each other grow with powers of the batch, and are not divided."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.growth import fit_parts  # noqa: E402
from meshwright.cluster.catalogue import find_cluster  # noqa: E402
from meshwright.cost.compute import op_seconds  # noqa: E402
from meshwright.graph.graph import OP_LINES, Graph, Split  # noqa: E402
from meshwright.plan.answer import Stop  # noqa: E402
from meshwright.search.portfolio import find_plan  # noqa: E402

WIDTH = 32


class Contrast(nn.Module):
    """The logits of a contrastive loss: a product whose two sizes are the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        logits = self.a(x) @ self.b(x).T
        return F.cross_entropy(logits, torch.arange(x.shape[0]))


class Pairs(nn.Module):
    """A perceptron on every pair of samples, which lie one after the other in one dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2 * WIDTH, 1)

    def forward(self, x: Any) -> Any:
        count = x.shape[0]
        left = x[:, None].expand(count, count, WIDTH).reshape(-1, WIDTH)
        right = x[None].expand(count, count, WIDTH).reshape(-1, WIDTH)
        return self.a(torch.cat([left, right], dim=1)).square().mean()


class Powers(nn.Module):
    """A product of three sizes that are all the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        gram = self.a(x) @ x.T
        return (gram @ gram).square().mean()


def step(model: type[nn.Module], batch: int) -> Graph:
    with torch.device("meta"):
        made = model()
    return capture(made, (torch.empty(batch, WIDTH, device="meta"),))


@pytest.mark.parametrize("model", [Contrast, Pairs, Powers])
@pytest.mark.parametrize("batch", [2, 6, 24])
def test_another_batch_is_what_a_capture_of_it_gives(model: type[nn.Module], batch: int) -> None:
    captured, scaled = step(model, batch), step(model, 8).at_batch(batch)
    assert captured.op_names == scaled.op_names
    for name in (*OP_LINES, "tensor_bytes"):
        np.testing.assert_allclose(
            getattr(captured, name), getattr(scaled, name), rtol=1e-12, err_msg=name
        )


def test_products_of_samples_grow_with_the_square_and_need_all_samples() -> None:
    graph = step(Contrast, 8)
    product = graph.kind.index("mm")
    assert graph.superlinear["square_flops"][product] == graph.flops[product] == 2 * 8 * 8 * WIDTH
    steep = [graph.kind[op] for op in np.flatnonzero(graph.mixes)]
    # The numbers of samples are those in the whole batch; the products, what is made of them and
    # their gradients compare samples; the encoders, before and after them, do not.
    assert steep == [
        "mm", "arange", "_log_softmax", "nll_loss_forward", "nll_loss_backward",
        "_log_softmax_backward_data", "mm", "mm",
    ]  # fmt: skip
    assert all(graph.split[graph.mixes] == Split.NONE)
    assert graph.split[graph.kind.index("addmm")] == Split.BATCH


def test_a_product_of_three_batches_grows_with_the_cube() -> None:
    graph = step(Powers, 8)
    second = [op for op in range(graph.num_ops) if graph.kind[op] == "mm"][1]
    assert graph.superlinear["cube_flops"][second] == graph.flops[second] == 2 * 8**3
    assert graph.at_batch(16).flops[second] == 2 * 16**3


def test_numbers_of_samples_that_pick_within_each_are_their_own() -> None:
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            count = x.shape[0]
            return self.a(x)[torch.arange(count), torch.zeros(count, dtype=torch.long)].mean()

    graph = step(Picks, 8)
    assert not graph.mixes.any()
    assert graph.split[graph.kind.index("arange")] == Split.BATCH


@pytest.mark.parametrize("model", [Contrast, Pairs, Powers])
def test_times_never_rise_as_samples_fall(model: type[nn.Module]) -> None:
    graph = step(model, 256)
    kind = find_cluster("a100-80-x1").types["a100-80"]
    before = op_seconds(graph, kind, graph.batch)
    for samples in (200.0, 64.0, 3.0, 1.0, 1e-3, 1e-20):
        now = op_seconds(graph, kind, samples)
        assert np.all(now <= before), samples
        before = now


def test_nothing_impossible_is_proven_of_a_contrastive_loss() -> None:
    answer = find_plan(step(Contrast, 256), find_cluster("a100-80-x4"), "data", budget_seconds=1.0)
    assert 0 < answer.bound_seconds <= answer.step_seconds
    assert answer.stop is Stop.ENDED


@pytest.mark.parametrize(
    "parts", [(5, 0, 0, 0), (0, 3, 0, 0), (7, 1, 2, 0), (0, 0, 0, 4), (1, 2, 3, 4)]
)
def test_parts_are_those_that_the_sizes_are_made_of(parts: tuple[int, ...]) -> None:
    sizes = [sum(part * times**power for power, part in enumerate(parts)) for times in (1, 2, 3, 4)]
    found = fit_parts("flops", sizes, is_steep=True)
    expected = {"flops": sum(parts), "fixed_flops": parts[0]}
    assert found == expected | {"square_flops": parts[2], "cube_flops": parts[3]}


def test_sizes_that_are_no_sum_of_powers_still_add_up() -> None:
    found = fit_parts("flops", [10.0, 12.0, 30.0, 31.0], is_steep=True)
    assert all(part >= 0 for part in found.values())
    assert found["fixed_flops"] + found["square_flops"] + found["cube_flops"] <= 10.0 * (1 + 1e-12)
