"""The ops that route tokens to experts and put them back."""

from typing import Any

from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.stack.block import find_block
from meshwright.graph.stack.find import find_layers

SHAPE: dict[str, Any] = {
    "hidden": 64, "heads": 4, "layers": 2, "batch": 2, "sequence": 16, "vocabulary": 256,
    "key_heads": 2, "intermediate": 96,
}  # fmt: skip


def test_a_block_begins_after_the_norm_and_ends_before_the_residual_sum() -> None:
    stack = find_layers(mixtral(**SHAPE, experts=4))
    kind = next(each for each in stack.kinds if each.experts)
    found = find_block(kind)
    graph = kind.graph
    inside = [graph.op_names[op] for op in range(graph.num_ops) if found[op]]
    assert inside[0].endswith("mlp.gate/mm_4")
    assert inside[-1].endswith("mlp.experts/_to_copy_9")
    assert all("mlp." in name for name in inside)
    forward = [op for op in range(graph.num_ops) if "mlp." in graph.op_names[op]]
    outside = {graph.kind[op] for op in forward if graph.phase[op] == 0 and not found[op]}
    assert outside == {"cumsum", "empty_like", "arange"}  # they read no rows


def test_layers_without_experts_have_no_block() -> None:
    for kind in find_layers(llama(**SHAPE)).kinds:
        assert not find_block(kind).any()
