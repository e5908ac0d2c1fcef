"""Layers found in whole models: by names, by names of ops, and by structure alone."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from formula import StepBuilder, Value, add, cross_entropy, elementwise, linear, mlp, norm
from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.graph import Graph, Phase, read_graph
from meshwright.graph.stack.find import find_layers
from meshwright.zoo.shipped import FOLDER, SUFFIX

HIDDEN = 16


def load_shipped(name: str) -> Graph:
    return read_graph(FOLDER / f"{name}{SUFFIX}")


def small_gpt(layers: int = 3) -> Graph:
    return gpt(hidden=64, heads=4, layers=layers, sequence=32, vocabulary=1000, batch=2)


def small_llama() -> Graph:
    return llama(
        hidden=64, heads=8, key_heads=2, layers=3, sequence=32, intermediate=96, vocabulary=500,
        batch=2,
    )  # fmt: skip


def anonymous(graph: Graph) -> Graph:
    """The same step without a name that means anything."""
    names = tuple(f"{number:x}" for number in range(graph.num_ops))
    return replace(graph, module=("",) * graph.num_ops, op_names=tuple(f"op_{n}_" for n in names))


Body = Callable[[StepBuilder, str, Value], Value]


def block(wide: int) -> Body:
    """A perceptron with its residual."""

    def build(step: StepBuilder, name: str, x: Value) -> Value:
        y = norm(step, f"{name}.norm", "layernorm", x, 4 * HIDDEN, HIDDEN)
        y = linear(step, f"{name}.up", y, 4, HIDDEN, wide)
        y = elementwise(step, f"{name}.act", "gelu", y, 4 * wide, saves_output=False)
        y = linear(step, f"{name}.down", y, 4, wide, HIDDEN)
        return add(step, f"{name}.add", [x, y], 4 * HIDDEN)

    return build


def deeper(step: StepBuilder, name: str, x: Value) -> Value:
    """A layer of another kind: one more op."""
    y = block(32)(step, name, x)
    return elementwise(step, f"{name}.last", "tanh", y, 4 * HIDDEN)


def chain_of(bodies: Sequence[Body], prefix: str = "h") -> Graph:
    step = StepBuilder("chain", 4.0)
    x = linear(step, "first", step.input("input", 4.0 * 4 * HIDDEN), 4, HIDDEN, HIDDEN)
    for number, body in enumerate(bodies):
        x = body(step, f"{prefix}.{number}", x)
    logits = linear(step, "last", x, 4, HIDDEN, 10)
    return step.finish(cross_entropy(step, "loss", logits, 4, 10))


def test_gpt2_has_an_embedding_twelve_alike_layers_and_a_head() -> None:
    stack = find_layers(load_shipped("gpt2"))
    assert stack.layers == (0, *[1] * 12, 2)
    assert [kind.name for kind in stack.kinds] == ["embedding", "layer 1", "head"]


def test_every_op_is_in_one_layer_and_layers_are_as_long_as_their_kind() -> None:
    stack = find_layers(load_shipped("bert-small"))
    sizes = np.bincount(stack.layer_of_op, minlength=stack.num_layers)
    assert sizes.sum() == stack.graph.num_ops
    for layer, size in enumerate(sizes):
        kind = stack.kind_of(layer)
        # the head has the update of its copy of the embedding's weights, too
        copies = int(layer == stack.num_layers - 1)
        assert kind.graph.num_ops - kind.num_entering == size + copies


def test_the_sum_of_two_heads_gradients_stands_in_the_head() -> None:
    """So that the last layer of BERT, whose output two heads read, is like the others."""
    stack = find_layers(load_shipped("bert-small"))
    assert stack.layers == (0, 1, 1, 1, 1, 2)


def test_backward_ops_stand_with_their_partners_and_updates_with_their_gradients() -> None:
    graph = load_shipped("gpt2")
    layer = find_layers(graph).layer_of_op
    blocks = [name.startswith("transformer.h.") for name in graph.op_names]
    for op in np.flatnonzero(blocks).tolist():
        assert layer[op] == int(graph.op_names[op].split(".")[2].partition("/")[0]) + 1
    assert {int(each) for each in layer[graph.phase == Phase.UPDATE]} == set(range(14))


def test_two_layers_are_enough() -> None:
    assert find_layers(small_gpt(2)).layers == (0, 1, 1, 2)


@pytest.mark.parametrize("graph", [small_gpt(), small_llama()], ids=["gpt", "llama"])
def test_structure_alone_finds_the_same_layers(graph: Graph) -> None:
    named, unnamed = find_layers(graph), find_layers(anonymous(graph))
    assert unnamed.layers == named.layers
    assert np.array_equal(unnamed.layer_of_op, named.layer_of_op)


def test_names_of_ops_serve_where_there_are_no_module_paths() -> None:
    graph = chain_of([block(32)] * 3)
    stack = find_layers(replace(graph, module=("",) * graph.num_ops))
    assert stack.layers == (0, 1, 1, 1, 2)


def test_a_residual_that_the_model_adds_itself_belongs_to_the_layer() -> None:
    """Also the last layer's, which nothing but the order tells from the head's ops."""
    graph = load_shipped("gpt2")
    own = tuple(
        "transformer" if kind == "add" and phase == Phase.FORWARD else module
        for kind, phase, module in zip(graph.kind, graph.phase, graph.module, strict=True)
    )
    stack = find_layers(replace(graph, module=own))
    assert stack.layers == (0, *[1] * 12, 2)


def test_kinds_alternate_where_layers_do() -> None:
    stack = find_layers(chain_of([block(32), deeper] * 3))
    assert stack.layers == (0, 1, 2, 1, 2, 1, 2, 3)


def test_layers_of_different_sizes_are_of_different_kinds() -> None:
    stack = find_layers(chain_of([block(32), block(48), block(64)]))
    assert stack.layers == (0, 1, 2, 3, 4)


def test_a_number_in_the_path_before_does_no_harm() -> None:
    stack = find_layers(chain_of([block(32)] * 4, prefix="encoder.9.stage"))
    assert stack.layers == (0, 1, 1, 1, 1, 2)


def test_boundaries_are_the_residual_stream() -> None:
    graph = small_gpt()
    # 2 samples, 32 tokens, 64 features, 4 bytes
    assert find_layers(graph).boundary_bytes == (2 * 32 * 64 * 4,) * 4


def test_rotary_tables_are_side_inputs() -> None:
    stack = find_layers(small_llama())
    # cosines and sines of 32 places of 8 features, in four bytes; alike for all samples
    assert stack.side_bytes == stack.fixed_side_bytes == 2 * 32 * 8 * 4
    assert stack.side_bytes_at(100) == stack.side_bytes
    assert stack.kinds[1].is_side.sum() == 2


def test_a_tied_head_holds_a_copy_of_the_embedding() -> None:
    stack = find_layers(load_shipped("gpt2"))
    words = 50257 * 768 * 2
    assert stack.tied_bytes == words
    head = stack.kinds[-1].graph
    assert head.parameter_bytes.sum() == words + 2 * 768 * 2  # and the last norm's
    # In 16 bits; a copy and two moments of it are in 32.
    assert (head.state_bytes - head.parameter_bytes).sum() == pytest.approx(
        6 * head.parameter_bytes.sum(), rel=1e-6
    )


def test_an_untied_model_has_no_copy() -> None:
    assert find_layers(small_llama()).tied_bytes == 0


def test_experts_are_no_layers() -> None:
    graph = mixtral(
        hidden=64, heads=8, key_heads=2, layers=2, sequence=32, intermediate=96, vocabulary=500,
        batch=2,
    )  # fmt: skip
    assert find_layers(graph).layers == (0, 1, 1, 2)


def test_measured_times_of_alike_layers_are_averaged() -> None:
    graph = small_gpt(2)
    layer = find_layers(graph).layer_of_op
    measured = replace(graph, seconds={"h100": np.where(layer == 1, 1.0, 3.0)})
    kind = find_layers(measured).kinds[1]
    assert np.all(kind.graph.seconds["h100"][kind.num_entering :] == 2.0)


def test_a_model_without_repeated_layers_is_refused_in_one_line() -> None:
    step = StepBuilder("odd", 4.0)
    x = step.input("input", 4.0 * 4 * 8)
    x = linear(step, "one", x, 4, 8, 12)
    x = elementwise(step, "two", "relu", x, 4 * 12)
    x = linear(step, "three", x, 4, 12, 10)
    graph = step.finish(cross_entropy(step, "four", x, 4, 10))
    with pytest.raises(
        InputError, match=r"^graph odd: must have repeated layers, found no"
    ) as info:
        find_layers(graph)
    assert "\n" not in str(info.value)


def test_a_perceptron_is_a_chain_of_layers() -> None:
    graph = mlp("mlp", 8, (16, 16, 16, 16, 16))
    assert find_layers(graph).num_layers >= 4


def test_a_group_that_spans_layers_is_refused() -> None:
    """Its ops must share a device, and layers may be on different ones."""
    graph = gpt(hidden=64, heads=4, layers=4, sequence=32, vocabulary=128, batch=2, untie=True)
    stack = find_layers(graph)
    group = graph.group.copy()
    second, third = (np.flatnonzero(stack.layer_of_op == layer)[0] for layer in (2, 3))
    group[[second, third]] = group.max() + 1
    with pytest.raises(InputError, match=r"group .* is in layers 2 and 3"):
        find_layers(replace(graph, group=group))
