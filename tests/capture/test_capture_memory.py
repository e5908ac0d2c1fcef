"""Memory of captured steps beyond the tensors between ops, and the peak of a step, by hand."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.product import find_product  # noqa: E402
from meshwright.capture.workspace import find_kept, find_workspace  # noqa: E402
from meshwright.cluster.cluster import Cluster, Device, DeviceType  # noqa: E402
from meshwright.graph.graph import Graph, Phase  # noqa: E402
from meshwright.plan.plan import place_ops  # noqa: E402
from meshwright.simulate.simulate import simulate  # noqa: E402
from small import dag  # noqa: E402

aten, ours = torch.ops.aten, torch.ops.meshwright
FLOAT = 4
BATCH, WIDTH, HIDDEN, CLASSES = 128, 4, 32, 8
LIBRARY_BYTES = 1000.0


class Perceptron(nn.Module):
    """Two layers; backward of GELU reads what GELU read, not what it made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, HIDDEN)
        self.second = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.second(F.gelu(self.first(x))).square().mean()


def perceptron() -> Graph:
    with torch.device("meta"):
        return capture(Perceptron(), (torch.empty(BATCH, WIDTH),))


def one_device() -> Cluster:
    kind = DeviceType(
        name="toy",
        flops_per_second={"fp32": 1e12},
        memory_bytes=1e9,
        memory_bytes_per_second=1e12,
        library_bytes=LIBRARY_BYTES,
    )
    device = Device(name="d0", type="toy", host="h", memory_bytes=1e9)
    return Cluster(name="one", types={"toy": kind}, devices=(device,))


def peak_bytes(graph: Graph) -> float:
    plan = place_ops(graph.op_names, [0] * graph.num_ops, ["d0"])
    return simulate(graph, one_device(), plan).peak_bytes[0]


def empty(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.empty(shape, dtype=dtype, device="meta")


def workspace(target: Any, *args: Any) -> float:
    return find_workspace(target, args, find_product(target, args, target(*args)))


# 128 rows are two blocks of 64, and each block has room for 128 fp32 numbers a column.
SECOND_SUM = 2 * 128 * CLASSES * FLOAT
FIRST_SUM = 2 * 128 * HIDDEN * FLOAT


def test_a_bias_is_summed_while_the_layers_input_is_still_held() -> None:
    graph = perceptron()
    second, first = (op for op, kind in enumerate(graph.kind) if kind == "sum")
    assert graph.workspace_bytes[second] == SECOND_SUM + BATCH * HIDDEN * FLOAT
    # The first layer's input is the step's, which stays anyway.
    assert graph.workspace_bytes[first] == FIRST_SUM


def test_inputs_stay_with_the_first_op_that_reads_them() -> None:
    graph = perceptron()
    assert graph.saved_bytes[0] == BATCH * WIDTH * FLOAT
    assert not graph.saved_bytes[1:].any()


def test_an_update_makes_no_tensors() -> None:
    graph = perceptron()
    assert not (graph.phase[graph.tensor_source] == Phase.UPDATE).any()


def test_running_means_are_overwritten_where_they_are() -> None:
    with torch.device("meta"):
        graph = capture(nn.BatchNorm2d(8), (torch.empty(4, 8, 3, 3),), loss=lambda y: y.sum())
    counter = graph.kind.index("add_")  # of the batches seen
    assert len(graph.outputs[counter]) == 0
    norm = graph.kind.index("native_batch_norm")
    # The normalised values, their means and deviations.
    sizes = sorted(graph.tensor_bytes[tensor] for tensor in graph.outputs[norm])
    assert sizes == [8 * FLOAT, 8 * FLOAT, 4 * 8 * 9 * FLOAT]


def test_the_peak_of_a_perceptron_is_where_the_last_bias_is_summed() -> None:
    weights = (WIDTH + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
    hidden, scores = BATCH * HIDDEN, BATCH * CLASSES
    numbers = (
        3 * weights + 4  # with two moments, and a counter for each of four parameters
        + BATCH * WIDTH  # the input
        + hidden  # what GELU read, for its backward
        + hidden  # what GELU made, which the second layer's weights were multiplied by
        + scores + hidden  # gradients of the scores and of what GELU made
        + (HIDDEN + 1) * CLASSES  # gradients of the second layer's parameters
    )  # fmt: skip
    assert peak_bytes(perceptron()) == numbers * FLOAT + SECOND_SUM + LIBRARY_BYTES


def test_libraries_take_nothing_where_sizes_are_not_those_of_a_real_step() -> None:
    assert peak_bytes(dag([1.0], {})) == 0


@pytest.mark.parametrize(
    ("shape", "dims", "expected"),
    [
        ((64, 8), [0], 0.0),  # one block
        ((65, 8), [0], 2 * 128 * 8 * FLOAT),
        ((4096, 256), [1], 0.0),  # along rows no partial sums are kept
        # Two blocks of columns: 2112 / 2 of rows fill the device, fewer than 10^5 / 64.
        ((100_000, 256), [0], 1056 * 128 * 256 * FLOAT),
    ],
)
def test_sums_over_rows_keep_partial_sums(
    shape: tuple[int, ...], dims: list[int], expected: float
) -> None:
    assert workspace(aten.sum.dim_IntList, empty(*shape), dims) == expected


@pytest.mark.parametrize(
    ("side", "window", "is_copied"),
    [(8, 3, True), (8, 1, False), (7, 1, True)],  # planes of 49 x 2 bytes are copied
)
def test_convolutions_copy_unless_images_are_taken_as_they_lie(
    side: int, window: int, is_copied: bool
) -> None:
    values = empty(2, 16, side, side, dtype=torch.bfloat16)
    weight = empty(32, 16, window, window, dtype=torch.bfloat16)
    rest = [1, 1], [window // 2] * 2, [1, 1], False, [0, 0], 1
    made = aten.convolution.default(values, weight, None, *rest)
    copied = 2 * (values.numel() + weight.numel() + made.numel())
    expected = copied if is_copied else 0
    assert workspace(aten.convolution.default, values, weight, None, *rest) == expected
    backward = made, values, weight, None, *rest
    for mask in ([True, True, False], [True, False, False], [False, True, False]):
        assert workspace(aten.convolution_backward.default, *backward, mask) == expected


@pytest.mark.parametrize(
    ("dtype", "key_heads", "bytes_each"),
    [
        (torch.bfloat16, 4, 4),
        (torch.float32, 4, 4),
        (torch.bfloat16, 2, 4 + 2 * 2),  # keys and values of each of the queries' heads
    ],
)
def test_backward_attention_adds_up_the_queries_gradient_in_fp32(
    dtype: Any, key_heads: int, bytes_each: int
) -> None:
    query, key = empty(2, 4, 6, 8, dtype=dtype), empty(2, key_heads, 10, 8, dtype=dtype)
    rest = None, 0.0, False, None
    made = ours.attention.default(query, key, key, *rest)
    args = made[0], query, key, key, *made, *rest
    expected = query.numel() * bytes_each
    assert workspace(ours.attention_backward.default, *args) == expected


@pytest.mark.parametrize(("dropout", "kept"), [(0.0, 4), (0.1, 9)])
def test_grouped_heads_in_fp32_store_their_scores(dropout: float, kept: int) -> None:
    query, key = empty(2, 4, 6, 8), empty(2, 2, 10, 8)
    rest = None, dropout, False, None
    scores = 2 * 4 * 6 * 10
    made = ours.attention.default(query, key, key, *rest)
    product = find_product(ours.attention.default, (query, key, key), made)
    # Keys and values are kept for each of the queries' heads, 2 more of 10 x 8 each.
    repeated = 2 * (query.numel() - key.numel()) * 4
    found = find_kept(ours.attention.default, (query, key, key, *rest), product)
    assert found == kept * scores + repeated
    assert workspace(ours.attention.default, query, key, key, *rest) == (9 - kept) * scores
    args = made[0], query, key, key, *made, *rest
    assert workspace(ours.attention_backward.default, *args) == 12 * scores
    half = query.bfloat16(), key.bfloat16(), key.bfloat16(), *rest
    assert find_kept(ours.attention.default, half, product) == 0


def fp32_workspace(target: Any, *args: Any) -> float:
    product = find_product(target, args, target(*args))
    return find_workspace(target, args, product, is_tf32=False)


def test_gradients_of_convolutions_in_fp32_are_made_of_transformed_tensors() -> None:
    values, weight, made = empty(2, 64, 30, 30), empty(128, 64, 3, 3), empty(2, 128, 30, 30)
    backward = made, values, weight, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    # 8 x 8 tiles of 4 x 4 pixels, each 36 numbers, of 2 x 192 planes, and 64 x 128 windows.
    winograd = 4 * 36 * (2 * 192 * 64 + 64 * 128)
    target = aten.convolution_backward.default
    assert fp32_workspace(target, *backward, [False, True, False]) == winograd
    # One tile of 32 x 17 complex numbers for each pair of channels and each plane.
    spectra = 32 * 17 * 8 * (64 * 128 + 2 * 192)
    assert fp32_workspace(target, *backward, [True, False, False]) == spectra


def test_large_convolutions_in_fp32_go_by_spectra() -> None:
    values, weight = empty(8, 512, 14, 14), empty(512, 512, 3, 3)
    rest = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1
    # Padded to 16 x 16: 16 x 9 complex numbers; spectra of windows are there twice.
    spectra = 16 * 9 * 8 * (2 * 512 * 512 + 8 * 1024)
    assert fp32_workspace(aten.convolution.default, values, weight, *rest) == spectra
    few = empty(8, 64, 14, 14), empty(64, 64, 3, 3)
    assert fp32_workspace(aten.convolution.default, *few, *rest) == 0


def test_convolutions_of_each_channel_by_itself_copy_nothing() -> None:
    values, weight = empty(2, 16, 8, 8), empty(16, 1, 3, 3)
    rest = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 16
    assert workspace(aten.convolution.default, values, weight, *rest) == 0


def test_some_ops_copy_what_they_are_given() -> None:
    values = empty(4, 6, 8)
    softmax = values, values, -1, torch.float32
    assert workspace(aten._softmax_backward_data.default, *softmax) == values.nbytes
    assert workspace(aten.roll.default, values, [1, 1], [0, 1]) == values.nbytes
    assert workspace(aten.roll.default, values, [1], [0]) == 0
    norm = [8], None, None, 1e-5
    assert workspace(aten.native_layer_norm.default, values, *norm) == 0
    turned = empty(6, 4, 8).transpose(0, 1)
    assert workspace(aten.native_layer_norm.default, turned, *norm) == values.nbytes


def test_memory_follows_the_batch() -> None:
    graph = perceptron().at_batch(BATCH / 2)
    assert graph.saved_bytes.sum() == BATCH / 2 * WIDTH * FLOAT
    np.testing.assert_array_equal(graph.state_bytes, perceptron().state_bytes)
