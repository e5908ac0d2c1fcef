"""What layers hold, against the simulator's peak of a plain step on one device."""

from typing import Any

import numpy as np
import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.architecture.vit import vit
from meshwright.graph.graph import Graph, read_graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.part import Part, Recompute
from meshwright.plan.plan import Plan
from meshwright.simulate.simulate import simulate
from meshwright.zoo.shipped import FOLDER, SUFFIX

H200 = DEVICE_TYPES["h200"]


def plain_peak(graph: Graph) -> float:
    """The simulated peak of the whole step on one device, without what libraries hold."""
    cluster = find_cluster("h200-x1")
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(cluster.devices[0].name,)),))
    library = H200.library_bytes if graph.calls.any() else 0.0
    return simulate(graph, cluster, plan).peak_bytes[0] - library


def layered_peak(graph: Graph) -> float:
    """The same of layers: at each one's turn, what is saved before it and made after it."""
    stack = find_layers(graph)
    costs = [
        price_layer(stack.kind_of(layer), Team(), Recompute.NONE, H200, graph.batch)
        for layer in range(stack.num_layers)
    ]
    dense = sum(cost.parameter_bytes + cost.optimiser_bytes for cost in costs)
    experts = sum(cost.expert_parameter_bytes + cost.expert_optimiser_bytes for cost in costs)
    # One device holds tied weights once, with their two moments, or with a copy and moments that
    # each are twice as large.
    held = 7 if "_fused_mixed-adamw_" in graph.kind else 3
    state = dense + experts - held * stack.tied_bytes
    saved = np.cumsum([cost.saved_bytes for cost in costs])
    gradients = np.cumsum(
        [cost.gradient_bytes + cost.expert_gradient_bytes for cost in costs[::-1]]
    )
    workspace = np.array([cost.workspace_bytes for cost in costs])
    return float((state + stack.side_bytes + saved + gradients[::-1] + workspace).max())


def models() -> dict[str, Graph]:
    shape: dict[str, Any] = {"hidden": 256, "heads": 8, "layers": 6, "sequence": 128, "batch": 32}
    grouped: dict[str, Any] = {"key_heads": 4, "intermediate": 512}
    return {
        "gpt": gpt(**shape, vocabulary=4096),
        "gpt-bf16": gpt(**shape, vocabulary=4096, precision="bf16"),
        "gpt-mixed": gpt(**shape, vocabulary=4096, precision="mixed"),
        "bert": bert(**shape, vocabulary=4096),
        "llama": llama(**shape, **grouped, vocabulary=4096),
        "mixtral": mixtral(**shape, **grouped, vocabulary=4096),
        "vit": vit(hidden=256, heads=8, layers=6, batch=64),
        "gpt2": read_graph(FOLDER / f"gpt2{SUFFIX}"),
        "bert-small": read_graph(FOLDER / f"bert-small{SUFFIX}"),
    }


MODELS = models()


@pytest.mark.parametrize("model", list(MODELS))
def test_layers_hold_what_the_plain_step_holds_and_never_less(model: str) -> None:
    """Above it by gradients that are counted while the first of them is being made."""
    graph = MODELS[model]
    peak = plain_peak(graph)
    assert peak <= layered_peak(graph) <= 1.05 * peak


def test_saved_bytes_grow_with_samples_and_weights_do_not() -> None:
    kind = find_layers(MODELS["gpt"]).kinds[1]
    one, four = (price_layer(kind, Team(), Recompute.NONE, H200, samples) for samples in (1.0, 4.0))
    assert four.saved_bytes == pytest.approx(4 * one.saved_bytes)
    assert four.parameter_bytes == one.parameter_bytes


def test_a_context_team_saves_its_tokens_only_and_gathers_keys_for_a_while() -> None:
    kind = find_layers(MODELS["gpt"]).kinds[1]
    alone = price_layer(kind, Team(), Recompute.NONE, H200, 4.0)
    half = price_layer(kind, Team(context=2), Recompute.NONE, H200, 4.0)
    assert half.saved_bytes == alone.saved_bytes / 2
    keys = 2 * 4 * 128 * 256 * 4.0
    assert half.workspace_bytes <= alone.workspace_bytes / 2 + keys
    assert half.workspace_bytes > alone.workspace_bytes / 2


def test_rows_that_are_gathered_are_held_whole_for_a_while() -> None:
    kind = find_layers(MODELS["gpt"]).kinds[1]
    team = Team(tensor=4, sequence=True)
    rows = price_layer(kind, team, Recompute.NONE, H200, 4.0)
    whole = price_layer(kind, Team(tensor=4), Recompute.NONE, H200, 4.0)
    assert rows.saved_bytes < whole.saved_bytes
    # saved, and one input of a column product in full
    stream = 4 * 128 * 256 * 4.0
    assert rows.saved_bytes + rows.workspace_bytes >= rows.saved_bytes + stream * 3 / 4
