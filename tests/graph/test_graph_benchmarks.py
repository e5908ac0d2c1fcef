"""The published graphs load with the counts and totals that their authors report."""

from pathlib import Path

import numpy as np
import pytest

from meshwright.graph.graph import read_graph


@pytest.mark.parametrize(
    ("name", "num_ops", "num_uses", "milliseconds"),
    # Milliseconds: "one accelerator", the sum of fpgaLatency.
    [
        ("throughput/layer_bert24_inference", 32, 55, 92.406),
        ("throughput/layer_bert24_training", 64, 110, 217.813),
        ("throughput/layer_resnet50_inference", 177, 193, 201.45),
        ("throughput/layer_gnmt_inference", 96, 122, 182.563),
        ("throughput/op_bert_l-3_inference", 235, 250, 49.3526),
        ("throughput/op_bert_l-6_training", 1071, 1462, 192.917),
        ("throughput/op_resnet50_inference", 604, 619, 325.132),
        ("latency/layer_bert24_inference", 32, 55, 92.406),
        ("latency/op_bert_l-3_inference", 235, 250, 49.3526),
    ],
)
def test_dnn_partitioning(
    shared: Path, name: str, num_ops: int, num_uses: int, milliseconds: float
) -> None:
    graph = read_graph(shared / f"dnn-partitioning/{name}.json")
    assert graph.num_ops == num_ops
    assert len(graph.use_op) == num_uses
    assert graph.seconds["any"].sum() * 1e3 == pytest.approx(milliseconds, rel=2e-6)
    assert np.all(graph.group[graph.partner >= 0] == graph.group[graph.partner[graph.partner >= 0]])


def test_every_backward_layer_of_bert24_has_its_partner(shared: Path) -> None:
    graph = read_graph(shared / "dnn-partitioning/throughput/layer_bert24_training.json")
    backward = graph.phase == 1
    assert backward.sum() == 32
    assert np.array_equal(graph.partner >= 0, backward)


@pytest.mark.parametrize(
    ("name", "num_nodes", "num_weighted", "seconds"),
    # Seconds: the authors' time of a minibatch on one GPU, without the wait for input.
    [
        ("alexnet", 23, 8, 0.085321),
        ("vgg16", 41, 16, 0.672535),
        ("resnet50", 177, 107, 0.443419),
    ],
)
def test_pipedream(
    shared: Path, name: str, num_nodes: int, num_weighted: int, seconds: float
) -> None:
    graph = read_graph(shared / f"pipedream/{name}/graph.txt")
    assert graph.name == name
    assert graph.num_ops == 2 * num_nodes - 1 + num_weighted  # Input has no backward op
    assert graph.seconds["any"].sum() == pytest.approx(seconds, rel=1e-9)


def test_piper(shared: Path) -> None:
    graph = read_graph(shared / "piper/bert32a100.json")
    # 37 nodes; 34 of them (embedding, 32 layers, pooler) have weights.
    assert graph.num_ops == 37 * 2 + 34
    assert graph.seconds["any"].sum() == pytest.approx(0.972864, rel=1e-9)
    # One transformer layer: 176,997,120 bytes of weights.
    assert graph.parameter_bytes[graph.index["ParallelTransformerLayer#3"]] == 176997120.0
