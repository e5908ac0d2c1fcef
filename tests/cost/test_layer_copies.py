"""Layers of models whose first and last layer share weights, by one tensor or by copies."""

from typing import Any

import pytest

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.stack.find import find_layers
from meshwright.plan.part import Recompute


@pytest.mark.parametrize("build", [gpt, bert])
@pytest.mark.parametrize("tensor", [1, 2])
def test_copies_of_tied_weights_cost_what_tied_ones_do(build: Any, tensor: Any) -> None:
    """A tied head is taken to hold a copy anyway; a graph that has the copy says the same."""
    stacks = [
        find_layers(
            build(hidden=64, heads=4, layers=2, sequence=32, vocabulary=1000, batch=2, untie=untie)
        )
        for untie in (False, True)
    ]
    assert stacks[0].tied_bytes == stacks[1].tied_bytes == 1000 * 64 * 4
    for layer in range(4):
        costs = [
            price_layer(
                stack.kind_of(layer), Team(tensor=tensor), Recompute.NONE, DEVICE_TYPES["h100"], 2.0
            )
            for stack in stacks
        ]
        for name in ("parameter_bytes", "gradient_bytes", "optimiser_bytes", "saved_bytes"):
            assert getattr(costs[0], name) == getattr(costs[1], name), name
