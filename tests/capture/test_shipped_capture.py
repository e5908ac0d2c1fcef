"""Shipped graphs are what a capture gives today."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch", reason="capture needs the torch extra")

from meshwright.capture.capture import AUTOCASTS
from meshwright.capture.optimiser import Optimiser
from meshwright.capture.stepped import CLASSES
from meshwright.graph.graph import Graph
from meshwright.source import capture_model, zoo_graph
from meshwright.zoo import model as zoo_model
from meshwright.zoo.shipped import shipped_names
from meshwright.zoo.table import find_model

QUICK = "alexnet-32"
CAPTURED = [
    name for name in shipped_names() if name != QUICK and find_model(name).source != "graph"
]


def assert_equal(one: Graph, other: Graph) -> None:
    for each in dataclasses.fields(Graph):
        first, second = getattr(one, each.name), getattr(other, each.name)
        if isinstance(first, np.ndarray):
            np.testing.assert_array_equal(first, second, err_msg=each.name)
        else:
            assert first == second, each.name


def check(name: str) -> None:
    """A difference means: run scripts/ship-graphs."""
    if find_model(name).source == "transformers":
        pytest.importorskip("transformers", reason="these models need the zoo extra")
    assert_equal(zoo_graph(name), capture_model(name, use_cache=False))
    precision = "tf32" if find_model(name).precisions[0] == "fp32" else None
    assert_equal(
        zoo_graph(name, optimizer="adam", precision=precision),
        capture_model(name, "adam", precision=precision, use_cache=False),
    )


def test_a_small_shipped_graph_is_fresh() -> None:
    check(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPTURED)
def test_shipped_graphs_are_fresh(name: str) -> None:
    check(name)


def test_the_zoo_knows_the_names_that_capture_knows() -> None:
    assert (*Optimiser, *CLASSES) == zoo_model.OPTIMIZERS
    assert tuple(AUTOCASTS) == zoo_model.AUTOCASTS
