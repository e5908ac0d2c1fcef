"""Foreign formats, on files small enough to work out by hand."""

import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase, Split, read_graph


def load(tmp_path: Path, content: object) -> Graph:
    path = tmp_path / "tiny.data"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read_graph(path)


def reads(graph: Graph) -> set[tuple[str, str, float]]:
    """(source, reader, bytes) of every use."""
    source, target = graph.edges
    return {
        (graph.op_names[a], graph.op_names[b], float(graph.tensor_bytes[t]))
        for a, b, t in zip(source, target, graph.use_tensor, strict=True)
    }


def dnn_node(number: int, **changes: Any) -> dict[str, Any]:
    node = {
        "name": f"n{number}", "id": number, "supportedOnFpga": 1, "cpuLatency": 10.0,
        "fpgaLatency": 2.0, "isBackwardNode": 0, "colorClass": number, "size": 100.0,
    }  # fmt: skip
    return node | changes


def dnn() -> dict[str, Any]:
    """A forward pair and its backward pair; node 3 cannot run on the accelerator."""
    return {
        "maxFPGAs": 2,
        "maxSizePerFPGA": 1e9,
        "maxCPUs": 1,
        "nodes": [
            dnn_node(4, isBackwardNode=1, colorClass=1),
            dnn_node(1),
            dnn_node(2, colorClass=7),
            dnn_node(3, isBackwardNode=True, colorClass=7, supportedOnFpga=False),
            dnn_node(5, isBackwardNode=1, colorClass=None),
        ],
        "edges": [
            {"sourceId": 1, "destId": 2, "cost": 4.0, "size": 0},
            {"sourceId": 1, "destId": 3, "cost": 4.0},
            {"sourceId": 2, "destId": 3, "cost": 0.5},
            {"sourceId": 3, "destId": 4, "cost": 1.0},
            {"sourceId": 4, "destId": 5, "cost": 0},
        ],
    }


def test_dnn_partitioning_by_hand(tmp_path: Path) -> None:
    graph = load(tmp_path, dnn())
    assert graph.op_names == ("n1", "n2", "n3", "n4", "n5")
    assert graph.seconds["any"].tolist() == [0.002, 0.002, np.inf, 0.002, 0.002]
    assert graph.seconds["cpu-host"].tolist() == [0.01] * 5
    assert graph.phase.tolist() == [0, 0, 1, 1, 1]
    assert graph.partner.tolist() == [-1, -1, 1, 0, -1]
    assert graph.state_bytes.tolist() == [100.0] * 5
    assert set(graph.split.tolist()) == {Split.BATCH}
    groups = graph.group.tolist()
    assert groups[0] == groups[3] != groups[1] == groups[2]
    assert groups[4] == -1
    # At 2^31 bytes a second a transfer takes the file's milliseconds.
    assert graph.tensor_source.tolist() == [0, 1, 2, 3]
    assert (graph.tensor_bytes / 2**31 * 1e3).tolist() == [4.0, 0.5, 1.0, 0.0]
    assert graph.readers[0].tolist() == [1, 2]


def test_two_forward_ops_of_a_colour_leave_no_partner(tmp_path: Path) -> None:
    document = dnn()
    document["nodes"][2]["colorClass"] = 1
    assert load(tmp_path, document).partner.tolist() == [-1] * 5


def test_equal_names_are_told_apart_by_id(tmp_path: Path) -> None:
    document = dnn()
    for node in document["nodes"]:
        node["name"] = "relu"
    assert load(tmp_path, document).op_names[0] == "relu#1"


@pytest.mark.parametrize(
    ("where", "key", "value", "message"),
    [
        ("edges", "cost", 5.0, "out-edges of node '1' must have one cost, got 5.0 and 4.0"),
        ("edges", "cost", 4.0000001, "must have one cost"),
        ("edges", "cost", -1.0, "must be finite and at least 0"),
        ("edges", "destId", 77, "77 is none"),
        ("edges", "destId", 1, "must have no cycle"),
        ("edges", "cost", "much", "Expected `float`, got `str`"),
        ("nodes", "id", 1, "node ids must be unique, 1 stands twice"),
        ("nodes", "fpgaLatency", -2.0, "op 'n4': seconds on 'any' must not be negative"),
        ("nodes", "size", -2.0, "op 'n4': state_bytes must be finite and not negative"),
        ("nodes", "size", None, "Expected `float`, got `null`"),
    ],
)
def test_dnn_partitioning_mistakes(
    tmp_path: Path, where: str, key: str, value: object, message: str
) -> None:
    document = dnn()
    document[where][0][key] = value
    with pytest.raises(InputError, match=message):
        load(tmp_path, document)


PIPEDREAM = """\
node3 -- Linear(in=2 -- out=3) -- forward_compute_time=4.000, backward_compute_time=8.000, \
activation_size=[10.0; 20.0], parameter_size=64.000 -- stage_id=1
node1 -- Input -- forward_compute_time=900.000, backward_compute_time=0.000, \
activation_size=100.0, parameter_size=0.000
node2 -- ReLU(inplace) -- forward_compute_time=1.000, backward_compute_time=2.000, \
activation_size=50.0, parameter_size=0.000
\tnode1 -- node2
\tnode2 -- node3
"""


def test_pipedream_by_hand(tmp_path: Path) -> None:
    graph = load(tmp_path, PIPEDREAM)
    at = graph.index
    assert set(graph.op_names) == {
        "node1", "node2", "node3", "node2.backward", "node3.backward", "node3.update",
    }  # fmt: skip
    assert graph.kind[at["node3"]] == "Linear"
    seconds = dict(zip(graph.op_names, graph.seconds["any"].tolist(), strict=True))
    # The wait for input data counts nothing.
    assert seconds == {
        "node1": 0.0, "node2": 0.001, "node3": 0.004,
        "node2.backward": 0.002, "node3.backward": 0.008, "node3.update": 0.0,
    }  # fmt: skip
    assert reads(graph) == {
        ("node1", "node2", 100.0),
        ("node1", "node2.backward", 100.0),  # what the forward op read
        ("node2", "node3", 50.0),
        ("node2", "node2.backward", 50.0),  # its own output
        ("node2", "node3.backward", 50.0),
        ("node3", "node3.backward", 30.0),
        ("node3.backward", "node2.backward", 50.0),  # the gradient of node2's output
        ("node3.backward", "node3.update", 64.0),
    }
    gradient = graph.inputs[at["node3.update"]][0]
    assert graph.tensor_partial[gradient]
    assert graph.fixed_tensor_bytes[gradient] == 64.0
    assert graph.split[at["node3.update"]] == Split.NONE
    assert graph.phase[at["node3.update"]] == Phase.UPDATE
    assert graph.partner[at["node3.backward"]] == at["node3"]
    assert graph.parameter_bytes[at["node3"]] == graph.state_bytes[at["node3"]] == 64.0
    group = graph.group
    assert group[at["node3"]] == group[at["node3.backward"]] == group[at["node3.update"]]


def test_only_a_source_is_the_input_of_pipedream(tmp_path: Path) -> None:
    # GNMT has Input0, Input1, ...; a layer further down may be called InputNorm.
    text = PIPEDREAM.replace("-- Input --", "-- Input0 --").replace("ReLU(", "InputNorm(")
    graph = load(tmp_path, text)
    assert graph.seconds["any"][graph.index["node1"]] == 0.0
    assert graph.seconds["any"][graph.index["node2"]] == 0.001
    assert "node1.backward" not in graph.index


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\tnode1 -- node2", "\tnode1 -- node9", "line 4: edge 'node1' -> 'node9' must join"),
        ("\tnode1 -- node2", "\tnode3 -- node2", "must have no cycle"),
        ("node2 -- ReLU", "node3 -- ReLU", "node ids must be unique, 'node3' stands twice"),
        ("forward_compute_time=1.000", "forward_compute_time=nan", "line 3: forward_compute_time"),
        ("forward_compute_time=1.000", "forward_compute_time=x", "must be a number, got 'x'"),
        ("parameter_size=64.000", "parameter_size=-1", "line 1: parameter_size must be finite"),
        ("parameter_size=64.000", "parameter_size=1e400", "parameter_size must be finite"),
        ("[10.0; 20.0]", "[10.0; ]", "activation_size must be a number"),
        (", parameter_size=64.000", "", r"line 1: must have parameter_size=\.\.\."),
        ("\tnode1 -- node2", "node1 -- node2", "line 4: must be 'node -- description"),
    ],
)
def test_pipedream_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, PIPEDREAM.replace(old, new))


def way(name: str, seconds: float) -> dict[str, Any]:
    return {
        "id": name, "timePerSample": seconds, "parameterSize": 8.0, "memoryUsageA": 5.0,
        "memoryUsageB": 16.0, "syncTimeFw": {}, "syncTimeBw": {},
    }  # fmt: skip


def piper() -> dict[str, Any]:
    """0 -> 1, 2 with one cost; 1 -> 2 and 1 -> 3 with two."""
    nodes: list[dict[str, Any]] = [
        {"id": i, "name": "layer", "TMPCs": {"1": [way("recompute", 9.0), way("vanilla", 3.0)]}}
        for i in range(4)
    ]
    nodes[3]["TMPCs"] = {"1": [way("recompute", 6.0)], "2": [way("vanilla", 1.0)]}
    edges = [(0, 1, 10.0), (0, 2, 10.0), (1, 2, 20.0), (1, 3, 30.0)]
    return {
        "maxDevices": 4,
        "nodes": nodes,
        "edges": [{"sourceId": a, "destId": b, "communicationCost": cost} for a, b, cost in edges],
    }


def test_piper_by_hand(tmp_path: Path) -> None:
    graph = load(tmp_path, piper())
    at = graph.index
    assert graph.num_ops == 12  # forward, backward, update of each
    # A third of the time forward, two thirds backward; node 3 has no plain way on one device.
    assert graph.seconds["any"][at["layer#0"]] == pytest.approx(1.0)
    assert graph.seconds["any"][at["layer#0.backward"]] == pytest.approx(2.0)
    assert graph.seconds["any"][at["layer#3"]] == pytest.approx(2.0)
    assert graph.saved_bytes[at["layer#0"]] == 5.0
    assert graph.state_bytes[at["layer#0"]] == 16.0
    assert graph.parameter_bytes[at["layer#0"]] == 8.0
    forward = {use for use in reads(graph) if "." not in use[0] + use[1]}
    assert forward == {
        ("layer#0", "layer#1", 10.0), ("layer#0", "layer#2", 10.0),
        ("layer#1", "layer#2", 20.0), ("layer#1", "layer#3", 30.0),
    }  # fmt: skip
    assert len(graph.outputs[at["layer#0"]]) == 1  # equal costs: one tensor, two readers
    assert len(graph.outputs[at["layer#1"]]) == 2
    assert ("layer#2.backward", "layer#0.backward", 10.0) in reads(graph)
    assert ("layer#3", "layer#3.backward", 0.0) in reads(graph)  # a sink's, for the order


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"TMPCs": {"2": []}}, "node '0' must have a way to run on one device"),
        ({"id": 1}, "node ids must be unique, 1 stands twice"),
        ({"TMPCs": {"1": [way("vanilla", -1.0)]}}, "must not be negative"),
        ({"TMPCs": {"1": [{"id": "vanilla"}]}}, "missing required field `timePerSample`"),
    ],
)
def test_piper_mistakes(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    document = piper()
    document["nodes"][0] |= change
    with pytest.raises(InputError, match=message):
        load(tmp_path, document)


def network() -> Any:
    graph: Any = networkx.DiGraph(batch=16)
    graph.add_node("a", seconds=0.5, flops=8, kind="matmul", colour="red", group="left")
    graph.add_node("b", seconds={"h200": 1, "cpu": 2.5}, phase="backward", group="left")
    graph.add_node("c", split="sum", bytes_written=6.0, group=-1)
    graph.add_node("d", split="none", flops=4.0, module="m.d", saved_bytes=1.0, state_bytes=2.0)
    graph.add_edge("a", "b", bytes=10, tensor="t")
    graph.add_edge("a", "c", bytes=10, tensor="t")
    graph.add_edge("a", "d", size=20)
    graph.add_edge("c", "d", weight=6.0)
    return graph


@pytest.mark.parametrize("key", ["links", "edges"])
def test_node_link_by_hand(tmp_path: Path, key: str) -> None:
    graph = load(tmp_path, networkx.node_link_data(network(), edges=key))
    assert graph.batch == 16
    assert graph.op_names == ("a", "b", "c", "d")
    assert graph.kind == ("matmul", "op", "op", "op")
    assert graph.module == ("", "", "", "m.d")
    assert graph.phase.tolist() == [0, 1, 0, 0]
    assert graph.split.tolist() == [Split.BATCH, Split.BATCH, Split.SUM, Split.NONE]
    assert graph.group.tolist() == [0, 0, -1, -1]
    assert np.array_equal(graph.seconds["any"], [0.5] + [np.nan] * 3, equal_nan=True)
    assert graph.seconds["cpu"][1] == 2.5
    assert graph.flops.tolist() == [8.0, 0.0, 0.0, 4.0]
    assert graph.fixed_flops.tolist() == [0.0, 0.0, 0.0, 4.0]
    assert graph.fixed_bytes_written.tolist() == [0.0, 0.0, 6.0, 0.0]
    assert graph.tensor_bytes.tolist() == [10.0, 20.0, 6.0]
    assert graph.readers[0].tolist() == [1, 2]
    assert graph.tensor_partial.tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"directed": False}, "must be directed"),
        ({"nodes": []}, "at least one node"),
        ({"nodes": [{"id": "a"}, {"id": "a"}]}, "node ids must be unique, 'a' stands twice"),
        ({"nodes": [{"id": 1}, {"id": "1"}], "edges": []}, "op names must be unique"),
        ({"nodes": [{"id": "a", "seconds": -1}], "edges": []}, "must not be negative, got -1"),
        ({"nodes": [{"id": "a", "phase": "up"}]}, "Invalid enum value 'up'"),
        ({"edges": [{"source": "a", "target": "z"}]}, "'z' is none"),
        ({"edges": [{"source": "b", "target": "b"}]}, "must have no cycle, found 'b' -> 'b'"),
        ({"edges": [{"source": "a"}]}, "missing required field `target`"),
        (
            {"edges": [{"source": "a", "target": x, "tensor": 1, "bytes": ord(x)} for x in "bc"]},
            "with tensor '1' must have one size, got 98.0 and 99.0",
        ),
    ],
)
def test_node_link_mistakes(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    document = networkx.node_link_data(network(), edges="edges") | change
    with pytest.raises(InputError, match=message):
        load(tmp_path, document)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "must hold a graph, but is empty"),
        (" \n ", "must hold a graph, but is empty"),
        ("hello", "not a graph in a known format: meshwright.graph .*Piper.*node-link"),
        ("{}", "not a graph in a known format .* has none of their keys"),
        ('{"format": "meshwright.cluster"}', "has format 'meshwright.cluster'"),
        ("[1, 2]", "not a graph in a known format"),
        ('{"nodes": [', "truncated"),
        (b"\x80\x02}q\x00.", "not a graph in a known format"),
        ("{" + '"nodes":[' * 100_000, "nested too deeply|malformed"),
    ],
)
def test_what_is_no_graph_says_which_formats_are_known(
    tmp_path: Path, content: str | bytes, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load(tmp_path, content)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_graph(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be read"):
        read_graph(tmp_path)
