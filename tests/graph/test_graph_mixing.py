"""Ops that mix samples: what makes them legal, and what becomes of them on other batches."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.coarsen.coarsening import contract
from meshwright.graph.fuse import fuse_elementwise
from meshwright.graph.graph import Graph, Split
from meshwright.graph.stack.find import find_layers


def step(**changes: Any) -> Graph:
    """Rows, a product of them with themselves (a square), and its exponentials."""
    builder = GraphBuilder("step", batch=4)
    rows = builder.add_op("rows", flops=40.0, bytes_written=16.0)
    columns: dict[str, Any] = {"flops": 32.0, "square_flops": 32.0, "bytes_written": 64.0}
    columns |= {"square_bytes_written": 64.0, "mixes": True, "split": Split.NONE}
    product = builder.add_op("product", kind="mul", bytes_read=16.0, **columns | changes)
    exponent = builder.add_op(
        "exponent", kind="exp", bytes_read=64.0, square_bytes_read=64.0, mixes=True,
        split=Split.NONE, bytes_written=64.0, square_bytes_written=64.0,
    )  # fmt: skip
    builder.add_tensor(rows, 16.0, [product])
    builder.add_tensor(product, 64.0, [exponent], fixed_bytes=0.0, square_tensor_bytes=64.0)
    builder.add_tensor(exponent, 64.0, fixed_bytes=0.0, square_tensor_bytes=64.0)
    return builder.finish()


def test_what_mixes_samples_grows_with_its_powers_and_stays_whole_on_a_share() -> None:
    graph = step()
    assert graph.at_batch(8).flops.tolist() == [80.0, 128.0, 0.0]
    assert graph.at_batch(8).tensor_bytes.tolist() == [32.0, 256.0, 256.0]
    assert graph.at_batch(8).at_batch(4).flops.tolist() == graph.flops.tolist()
    assert graph.scaled("flops", 2.0).tolist() == [20.0, 32.0, 0.0]
    assert graph.scaled("tensor_bytes", 2.0).tolist() == [8.0, 64.0, 64.0]
    assert graph.mixing_op == "exponent"  # whose parts are the largest


def test_measured_times_of_what_mixes_samples_grow_with_its_bytes() -> None:
    graph = step(seconds={"any": 1.0})
    # 16 bytes grow with the batch and 64 with its square: 32 + 256 over 80.
    assert graph.at_batch(8).seconds["any"][1] == pytest.approx(288 / 80)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": Split.BATCH}, "op 'product': mixes samples and needs all of them, so its split"),
        ({"mixes": False}, "op 'product': must be marked as one that mixes samples, because its f"),
        ({"fixed_flops": 1.0}, "op 'product': the fixed, square and cube parts of flops must not"),
        ({"cube_flops": 1e-3}, "op 'product': the fixed, square and cube parts of flops must not"),
        ({"square_flops": -1.0}, "op 'product': square_flops must be finite and not negative"),
    ],
)
def test_parts_of_what_mixes_samples_are_checked(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        step(**changes)


def test_a_reader_of_a_square_mixes_samples() -> None:
    builder = GraphBuilder("step", batch=4)
    source = builder.add_op("source", split=Split.NONE, mixes=True)
    reader = builder.add_op("reader", split=Split.NONE)
    builder.add_tensor(source, 8.0, [reader], fixed_bytes=0.0, square_tensor_bytes=8.0)
    with pytest.raises(InputError, match=r"op 'reader': must be marked.*its tensor_bytes grows"):
        builder.finish()


def test_unknown_parts_are_refused() -> None:
    columns = step().columns()
    columns["superlinear"] = {"quartic_flops": np.zeros(3)}
    with pytest.raises(InputError, match=r"superlinear must be of square_flops, .*got 'quartic_fl"):
        Graph(**columns)


def test_a_file_keeps_what_mixes_samples(tmp_path: Path) -> None:
    graph = step()
    graph.save(tmp_path / "step.json")
    again = Graph.load(tmp_path / "step.json")
    assert again.mixes.tolist() == [False, True, True]
    assert {name: part.tolist() for name, part in again.superlinear.items()} == {
        name: part.tolist() for name, part in graph.superlinear.items()
    }


def test_merged_ops_mix_samples_and_grow_as_their_members() -> None:
    graph = step()
    coarse = contract(graph, np.array([0, 0, 1], dtype=np.int32)).graph
    assert coarse.mixes.tolist() == [True, True]
    assert coarse.at_batch(8).flops.tolist() == [80.0 + 128.0, 0.0]
    fused = fuse_elementwise(graph)
    assert fused.num_ops == 2
    assert fused.mixes.tolist() == [False, True]
    # The product's 64 bytes are neither written nor read again.
    for batch in (4, 8):
        merged, apart = fused.at_batch(batch), fuse_elementwise(graph.at_batch(batch))
        assert merged.bytes_written.tolist() == apart.bytes_written.tolist()
        assert merged.bytes_read.tolist() == apart.bytes_read.tolist()
        assert merged.flops.tolist() == apart.flops.tolist()


def test_layers_must_not_mix_samples() -> None:
    with pytest.raises(InputError, match="must treat samples one by one, but op 'exponent' mixes"):
        find_layers(step())
