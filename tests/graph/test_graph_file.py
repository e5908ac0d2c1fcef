"""The own format: exact, small, fast, versioned."""

import gzip
import json
import pickle
from pathlib import Path

import pytest
from graph_strategies import assert_identical, graphs
from hypothesis import given, settings
from test_graph_build import diamond

from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.file import decode_columns, encode_columns
from meshwright.graph.graph import Graph, read_graph
from quick import few
from synthetic import synthetic_gpt
from work import count_lines


@settings(deadline=None)
@given(graph=graphs())
def test_any_graph_comes_back_bit_for_bit(graph: Graph) -> None:
    data = encode_columns(graph.columns())
    json.loads(data, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))
    assert_identical(Graph(**decode_columns(data, "test")), graph)


def test_a_graph_travels_to_a_worker_process() -> None:
    assert_identical(pickle.loads(pickle.dumps(diamond())), diamond())


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_save_and_load(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    diamond().save(path)
    assert_identical(Graph.load(path), diamond())
    assert_identical(read_graph(str(path)), diamond())
    is_gzip = path.read_bytes()[:2] == b"\x1f\x8b"
    assert is_gzip == name.endswith(".gz")


def test_what_is_at_its_default_is_left_out(tmp_path: Path) -> None:
    diamond().save(tmp_path / "g.json")
    assert json.loads((tmp_path / "g.json").read_text()) == {
        "format": "meshwright.graph",
        "version": 1,
        "name": "diamond",
        "batch": 4.0,
        "ops": {"names": ["a", "b", "c", "d"], "flops": 8.0},
        "tensors": {
            "source": [0, 1, 2],
            "bytes": [10.0, 20.0, 30.0],
            "readers": [[1, 2], [3], [3]],
        },
    }


def test_unknown_and_impossible_times_are_legal_json(tmp_path: Path) -> None:
    builder = GraphBuilder("times")
    for name, seconds in (("a", {}), ("b", {"any": float("inf")}), ("c", {"any": 0.5})):
        builder.add_op(name, seconds=seconds)
    builder.finish().save(tmp_path / "g.json")
    document = json.loads((tmp_path / "g.json").read_text())
    assert document["ops"]["seconds"] == {"any": [None, "inf", 0.5]}


@pytest.mark.parametrize("num_ops", few([5_000, 26_000], 5_000))
def test_a_graph_loads_in_a_few_lines_an_op(tmp_path: Path, num_ops: int) -> None:
    graph = synthetic_gpt(num_ops)
    path = tmp_path / "big.json.gz"
    graph.save(path)
    loaded, lines = count_lines(lambda: Graph.load(path))
    assert_identical(loaded, graph)
    # Arrays are read whole, names one by one: 8,000 and two lines an op when counted (2026-11).
    assert lines < 10_000 + 3 * graph.num_ops
    assert path.stat().st_size < 1_000_000


def test_half_a_surrogate_pair_cannot_be_saved(tmp_path: Path) -> None:
    builder = GraphBuilder("bad")
    builder.add_op("\ud800")
    with pytest.raises(InputError, match="not all text is Unicode"):
        builder.finish().save(tmp_path / "g.json")


def test_the_same_graph_packs_to_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.json.gz", "b.json.gz"):
        diamond().save(tmp_path / name)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()


def changed(path: tuple[str, ...], value: object) -> bytes:
    """The diamond's file with one field set to another value."""
    document = json.loads(encode_columns(diamond().columns()))
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("version",), 2, "meshwright.graph version must be 1, got 2; write the file again"),
        (("version",), "1", "Expected `int`, got `str`"),
        (("surprise",), 1, "unknown field `surprise`"),
        (("ops", "names"), [], "must have at least one op"),
        (("ops", "names"), ["a", "b", "a", "d"], "op names must be unique, 'a' stands twice"),
        (("ops", "flops"), [1, 2], r"flops must have one entry an op \(4\), got 2"),
        (("ops", "flops"), -1, "op 'a': flops must be finite and not negative"),
        (("ops", "flops"), None, "Expected `float | array`, got `null`"),
        (("ops", "phase"), "sideways", "ops.phase: must be one of forward, backward, update"),
        (("ops", "kind"), {"values": ["x"], "codes": [0, 1, 0, 0]}, "codes must be below"),
        (("ops", "seconds"), {"any": "fast"}, "Invalid enum value 'fast'"),
        (("ops", "ladders"), {"any": {"2": 1}}, "must be of a type of device that seconds has"),
        (("ops", "ladders"), {"any": {"many": 1}}, "ops.ladders: samples must be a number"),
        (("ops", "ladders"), {"any": {"2": 1, "2.0": 1}}, "'any' must be at different samples"),
        (("ops", "ladders"), {"any": {"2": "fast"}}, "Invalid enum value 'fast'"),
        (("ops", "group"), 2**31, "Expected `int` <= 2147483647"),
        (("tensors", "readers"), [[1]], r"tensors.readers must have one entry a tensor \(3\)"),
        (("tensors", "readers"), [[0], [], []], "must stand in a topological order"),
        (("tensors", "source"), [0, 1, 9], r"tensor_source\[2\] must be from 0 to 3, got 9"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(
    tmp_path: Path, path: tuple[str, ...], value: object, message: str
) -> None:
    file = tmp_path / "g.json"
    file.write_bytes(changed(path, value))
    with pytest.raises(InputError, match=message) as caught:
        Graph.load(file)
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


def test_truncated_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "g.json.gz"
    path.write_bytes(gzip.compress(encode_columns(diamond().columns()))[:-9])
    with pytest.raises(InputError, match="truncated or damaged gzip"):
        Graph.load(path)
