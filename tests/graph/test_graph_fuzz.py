"""Whatever a file holds, reading it gives a graph or an InputError of one line."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_graph_build import diamond
from test_graph_formats import PIPEDREAM, dnn, network, piper

from meshwright.errors import InputError
from meshwright.graph.file import encode_columns
from meshwright.graph.graph import read_graph

FILES: dict[str, bytes] = {
    "own": encode_columns(diamond().columns()),
    "dnn-partitioning": json.dumps(dnn()).encode(),
    "piper": json.dumps(piper()).encode(),
    "node-link": json.dumps(networkx.node_link_data(network(), edges="edges")).encode(),
    "pipedream": PIPEDREAM.encode(),
}
JSON_FORMATS = [name for name in FILES if name != "pipedream"]

# As text, since some are not Python values: a marker is replaced by them.
STRANGE = (
    "NaN", "-1", "1e400", "-1e400", '"x"', "null", "true", "[]", "{}", "1" + "0" * 400,
    "9" * 5000, "2147483648", "-2147483649", "18446744073709551616", "0.5", '"\\ud800"', "1e-400",
    "[" * 3000 + "]" * 3000, '""', "Infinity",
)  # fmt: skip


def read_content(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_bytes(data)
        graph, message = None, ""
        try:
            graph = read_graph(path)
        except InputError as error:
            message = str(error)
        if graph is None:
            assert message.startswith(str(path))
            assert "\n" not in message
            return
        graph.save(Path(folder) / "again.json")  # what was read can be written, and read again
        assert read_graph(Path(folder) / "again.json").op_names == graph.op_names


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every value of a JSON document."""
    found = [path]
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        found += places(value, (*path, key))
    return found


def replaced(name: str, pick: Callable[[list[Any]], Any], text: str) -> bytes:
    document = json.loads(FILES[name])
    path = pick(places(document)[1:])
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = "MARKER"
    return json.dumps(document).replace('"MARKER"', text).encode()


@pytest.mark.parametrize("name", FILES)
def test_the_unharmed_files_are_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "input").write_bytes(FILES[name])
    assert read_graph(tmp_path / "input").num_ops >= 4


@settings(deadline=None, max_examples=300)
@given(data=st.binary(max_size=200))
@example(b"\x1f\x8b")
@example(b"\x1f\x8b\x08\x00")
@example(b"{")
@example(b"\xff\xfe{\x00")
@example(b"node \xff -- x")
@example(b"node1 -- x -- y")
def test_random_bytes(data: bytes) -> None:
    read_content(data)


@settings(deadline=None, max_examples=300)
@given(name=st.sampled_from(sorted(FILES)), cut=st.integers(0, 10_000))
def test_truncated_files(name: str, cut: int) -> None:
    read_content(FILES[name][: cut % len(FILES[name])])


@settings(deadline=None, max_examples=400)
@given(
    name=st.sampled_from(sorted(FILES)),
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_flipped_bytes(name: str, flips: list[tuple[int, int]]) -> None:
    data = bytearray(FILES[name])
    for place, value in flips:
        data[place % len(data)] = value
    read_content(bytes(data))


@settings(deadline=None, max_examples=600)
@given(
    name=st.sampled_from(JSON_FORMATS),
    place=st.integers(0, 10_000),
    text=st.sampled_from(STRANGE),
)
def test_strange_values_in_any_place(name: str, place: int, text: str) -> None:
    read_content(replaced(name, lambda found: found[place % len(found)], text))


@settings(deadline=None, max_examples=200)
@given(
    field=st.sampled_from(
        ["=1.000", "=64.000", "[10.0; 20.0]", "node1", "node2 -- ", "ReLU(inplace)", "\t", ", "]
    ),
    text=st.one_of(st.sampled_from(STRANGE).map(lambda each: f"={each}"), st.text(max_size=5)),
)
def test_strange_text_in_pipedream_files(field: str, text: str) -> None:
    read_content(PIPEDREAM.replace(field, text).encode("utf-8", "surrogatepass"))


@settings(deadline=None, max_examples=200)
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["nodes", "edges", "links", "id", "format", "TMPCs", "fpgaLatency"]
                ),
                inner,
            )
        ),
        max_leaves=10,
    )
)
def test_any_json(document: object) -> None:
    read_content(json.dumps(document).encode())
