"""Steps captured as torch.compile runs them: fewer ops, less traffic, the same work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.cli.parser import make_parser  # noqa: E402
from meshwright.cluster.cluster import DeviceType  # noqa: E402
from meshwright.cost.compute import op_seconds  # noqa: E402
from meshwright.cost.stream import USUAL  # noqa: E402
from meshwright.graph.fuse import fuse_elementwise  # noqa: E402
from meshwright.graph.graph import Graph, Phase  # noqa: E402
from meshwright.source import capture_model  # noqa: E402
from meshwright.zoo.cache import GraphCache  # noqa: E402
from meshwright.zoo.model import choose  # noqa: E402
from meshwright.zoo.shipped import is_shipped  # noqa: E402
from meshwright.zoo.table import find_model  # noqa: E402


class Block(nn.Module):
    """Half a layer of a transformer, and a head."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.after = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any, labels: Any) -> Any:
        hidden = F.gelu(self.up(self.before(x)))
        x = x + F.dropout(self.down(hidden), 0.1)
        return F.cross_entropy(self.head(self.after(x)).flatten(0, 1), labels.flatten())


class Residual(nn.Module):
    """A block of a ResNet, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any, labels: Any) -> Any:
        x = F.relu(self.norms[0](self.first(x)))
        x = F.relu(x + self.norms[1](self.second(x)))
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def block() -> tuple[Any, Any]:
    with torch.device("meta"):
        return Block(), (torch.empty(4, 16, 64), torch.empty(4, 16, dtype=torch.int64))


def residual() -> tuple[Any, Any]:
    with torch.device("meta"):
        return Residual(), (torch.empty(4, 3, 8, 8), torch.empty(4, dtype=torch.int64))


def bytes_moved(graph: Graph) -> float:
    return float(graph.bytes_read.sum() + graph.bytes_written.sum())


@pytest.mark.parametrize("make", [block, residual])
def test_a_compiled_step_has_fewer_ops_and_moves_fewer_bytes(make: Any) -> None:
    eager = capture(*make())
    compiled = capture(*make(), compile=True)
    assert compiled.num_ops < eager.num_ops
    assert bytes_moved(compiled) < bytes_moved(eager)
    assert compiled.calls.sum() < eager.calls.sum()
    assert compiled.flops.sum() == eager.flops.sum()
    for name in ("parameter_bytes", "state_bytes", "saved_bytes"):
        assert getattr(compiled, name).sum() == getattr(eager, name).sum()
    is_update = eager.phase == Phase.UPDATE
    assert np.sum(compiled.phase == Phase.UPDATE) == np.sum(is_update)


def test_dropout_residual_and_norm_are_one_kernel() -> None:
    eager, compiled = capture(*block()), capture(*block(), compile=True)
    norm = compiled.op_names.index("after/native_layer_norm_1")
    assert compiled.kind[norm] == "fused"  # generated code moves its bytes as element-wise ops do
    assert "native_dropout" not in compiled.kind
    # Reads x and the projection (4 x 16 x 64 numbers each) and the norm's weight and bias; writes
    # the sum for backward, the result, both statistics of 64 rows, and the mask of a byte a number.
    numbers = 4 * 16 * 64
    assert compiled.bytes_read[norm] == 4 * (2 * numbers + 2 * 64)
    assert compiled.bytes_written[norm] == 4 * 2 * numbers + 4 * 2 * 64 + numbers
    assert eager.num_ops - compiled.num_ops >= 3


@pytest.mark.parametrize("make", [block, residual])
def test_a_compiled_step_is_that_of_its_batch(make: Any) -> None:
    model, args = make()
    grown = [torch.empty((8, *each.shape[1:]), dtype=each.dtype, device="meta") for each in args]
    scaled = capture(model, args, compile=True).at_batch(8)
    traced = capture(model, grown, compile=True)
    assert scaled.op_names == traced.op_names
    assert scaled.bytes_read == pytest.approx(traced.bytes_read)
    assert scaled.bytes_written == pytest.approx(traced.bytes_written)


def test_a_merged_op_is_timed_by_the_bytes_it_moves() -> None:
    compiled = capture(*residual(), compile=True)
    device = DeviceType(
        name="gpu",
        flops_per_second={"fp32": 1e15},
        memory_bytes=1e12,
        memory_bytes_per_second=1e9,
        is_asynchronous=True,
    )
    op = compiled.kind.index("fused")
    moved = compiled.bytes_read[op] + compiled.bytes_written[op]
    expected = USUAL.launch_seconds + moved / (USUAL.share * 1e9)
    assert op_seconds(compiled, device, compiled.batch)[op] == pytest.approx(expected)


def test_a_factory_can_be_captured_as_compiled() -> None:
    name = f"{__name__}:block"
    compiled = capture_model(name, compile=True)
    assert compiled.op_names == fuse_elementwise(capture_model(name)).op_names


def test_a_model_of_the_zoo_is_kept_apart_from_its_eager_step(cache: Path) -> None:
    kept = set(cache.iterdir())
    eager = capture_model("alexnet-32", batch=2)
    compiled = capture_model("alexnet-32", batch=2, compile=True)
    assert compiled.num_ops < eager.num_ops
    assert len(set(cache.iterdir()) - kept) == 2
    again = capture_model("alexnet-32", batch=2, compile=True)
    assert again.op_names == compiled.op_names


def test_whether_a_step_is_compiled_is_in_its_key(tmp_path: Path) -> None:
    eager = choose(find_model("alexnet-32"))
    compiled = replace(eager, compile=True)
    folder = GraphCache(folder=tmp_path, code="c", versions={})
    assert folder.path(eager) != folder.path(compiled)
    assert is_shipped(eager)
    assert not is_shipped(compiled)


def test_the_command_line_takes_it() -> None:
    words = ["capture", "alexnet-32", "-o", "step.json"]
    assert not make_parser().parse_args(words).compile
    assert make_parser().parse_args([*words, "--compile"]).compile
