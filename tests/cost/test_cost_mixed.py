"""What a parameter of a mixed step costs: bytes by how ZeRO divides them, and the update's time."""

import numpy as np
import pytest

import meshwright as mw
from meshwright.cost.compute import op_seconds
from meshwright.cost.fitted import find_stream
from meshwright.graph.architecture.shape import build_shape
from meshwright.graph.graph import Graph, Phase
from meshwright.report.hybrid_facts import hybrid_facts

RANKS = 8


def make_graph(precision: str = "mixed") -> Graph:
    sizes = "hidden=256,heads=4,layers=3,sequence=32,intermediate=512,vocabulary=500,batch=16"
    return build_shape(f"llama:{sizes}", precision=precision)


@pytest.mark.parametrize(
    ("zero", "expected"),
    # Weights and gradients of two bytes each; the copy and two moments of four.
    [(0, 16.0), (1, 4 + 12 / RANKS), (2, 2 + 14 / RANKS), (3, 16 / RANKS)],
)
def test_zero_divides_the_bytes_of_a_parameter(zero: int, expected: float) -> None:
    graph, cluster = make_graph(), mw.cluster(f"h100-x{RANKS}")
    plan = mw.Plan.from_degrees(graph, cluster, data=RANKS, zero=zero)
    timeline = mw.simulate(graph, cluster, plan, granularity="layer")
    facts = hybrid_facts(graph, cluster, plan, timeline)
    assert facts is not None
    memory = facts.stages[0].memory
    held = memory["parameters"] + memory["gradients"] + memory["optimiser"]
    numbers = graph.parameter_bytes.sum() / 2
    # A little more: each weight's number of steps, and the frequencies of rotations.
    assert held / numbers == pytest.approx(expected, rel=1e-4)


def test_op_by_op_state_is_divided_alike() -> None:
    graph, cluster = make_graph(), mw.cluster(f"h100-x{RANKS}")
    numbers = graph.parameter_bytes.sum() / 2
    held = []
    for zero in range(4):
        plan = mw.Plan.from_degrees(graph, cluster, data=RANKS, zero=zero)
        held.append(mw.simulate(graph, cluster, plan, granularity="op").program.state_bytes[0])
    saved = (held[0] - np.array(held)) / numbers
    state = 12 * (1 - 1 / RANKS)
    assert saved == pytest.approx([0, state, state, 14 * (1 - 1 / RANKS)], rel=1e-3)


def test_the_update_takes_as_long_as_its_bytes() -> None:
    kind = mw.cluster("h200-x1").types["h200"]
    seconds = {}
    for precision in ("mixed", "bf16"):
        graph = make_graph(precision)
        seconds[precision] = op_seconds(graph, kind, graph.batch)[graph.phase == Phase.UPDATE].sum()
    # 2 + 2 + 4 + 8 bytes are read and 2 + 4 + 8 written; of bf16 alone 2 + 2 + 4 and 2 + 4.
    numbers = make_graph().parameter_bytes.sum() / 2
    rate = find_stream("_fused_adamw_", True).share * kind.memory_bytes_per_second
    assert seconds["mixed"] == pytest.approx(30 * numbers / rate, rel=1e-3)
    assert seconds["mixed"] / seconds["bf16"] == pytest.approx(30 / 14, rel=1e-3)


def test_llama_of_70_billion_does_not_fit_on_eight_h100() -> None:
    graph = mw.load_graph("llama-3-70b", precision="mixed")
    assert graph.state_bytes.sum() == pytest.approx(70_553_706_496 * 14, rel=1e-3)
    answer = mw.plan(graph, "h100-x8", "hybrid", engine=mw.open_engine("one"))
    assert answer.plan is None
    # 16 bytes a parameter on eight devices: 131.4 GiB each, before anything else.
    need = float(answer.binding.partition("every plan needs ")[2].partition(" GiB")[0])
    assert 131.4 < need < 136
