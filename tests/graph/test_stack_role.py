"""What a team divides of each layer, held against what people write down for these models."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from formula import Gradient, StepBuilder, Value, add, cross_entropy, elementwise, linear, norm
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.architecture.vit import vit
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.product import key_bytes
from meshwright.graph.stack.stack import LayerKind, ProductCut, Role
from unfused import unfused_gpt

LAYERS = 2
SEQUENCE = 32
HIDDEN = 64


def models() -> dict[str, Graph]:
    shape: dict[str, Any] = {"hidden": HIDDEN, "layers": LAYERS, "batch": 2}
    tokens: dict[str, Any] = {"sequence": SEQUENCE, "vocabulary": 1000}
    grouped: dict[str, Any] = {"heads": 8, "key_heads": 2, "intermediate": 96}
    return {
        "gpt": gpt(heads=4, **shape, **tokens),
        "bert": bert(heads=4, **shape, **tokens),
        "llama": llama(**grouped, **shape, **tokens),
        "mixtral": mixtral(experts=4, **grouped, **shape, **tokens),
        "vit": vit(heads=4, **shape),
    }


MODELS = models()

# Modules of a layer by role, written by hand. What is not named is run whole.
INNER = {
    "gpt": ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj", "mlp.act"),
    "bert": (
        "attention.self.query", "attention.self.key", "attention.self.value",
        "attention.output.dense", "intermediate.dense", "intermediate.intermediate_act_fn",
        "output.dense",
    ),
    "llama": (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "self_attn", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "mlp.act_fn", "mlp",
    ),
    "mixtral": (
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn",
    ),
    "vit": (
        "attention.query", "attention.key", "attention.value", "attention.output",
        "perceptron.0", "perceptron.1", "perceptron.2", "perceptron.3",
    ),
}  # fmt: skip
EXPERT = {"_grouped_mm", "strided_silu", "silu"}


def layer_of(model: str) -> LayerKind:
    return find_layers(MODELS[model]).kinds[1]


def ops_of(kind: LayerKind, phase: Phase) -> Iterable[tuple[int, str]]:
    """Ops with the rest of their module path."""
    for op in np.flatnonzero(kind.graph.phase == phase).tolist():
        if op >= kind.num_entering:
            path = kind.graph.module[op].split(".")
            number = next(place for place, piece in enumerate(path) if piece.isdigit())
            yield op, ".".join(path[number + 1 :])


@pytest.mark.parametrize("model", ["gpt", "bert", "llama", "vit"])
def test_forward_roles_are_those_written_by_hand(model: str) -> None:
    kind = layer_of(model)
    for op, path in ops_of(kind, Phase.FORWARD):
        expected = Role.INNER if path in INNER[model] else Role.WHOLE
        if "attention" in kind.graph.kind[op]:
            expected = Role.ATTENTION
        assert kind.role[op] == expected, kind.graph.op_names[op]


def test_experts_are_divided_and_their_router_is_not() -> None:
    kind = layer_of("mixtral")
    for op, path in ops_of(kind, Phase.FORWARD):
        expected = Role.INNER if path in INNER["mixtral"] else Role.WHOLE
        name = kind.graph.kind[op]
        is_gated = name == "strided_mul" and path == "mlp.experts" and kind.graph.outputs[op].size
        if "attention" in name:
            expected = Role.ATTENTION
        elif path.startswith("mlp.experts") and name in EXPERT:
            expected = Role.EXPERT
        elif is_gated and kind.role[op] == Role.EXPERT:
            # of the two products there, silu(a) b is the experts', that with a weight is not
            expected = Role.EXPERT
            assert all(kind.is_expert[each] for each in kind.graph.inputs[op])
        assert kind.role[op] == expected, kind.graph.op_names[op]
    assert (kind.experts, kind.heads, kind.key_heads) == (4, 8, 2)


@pytest.mark.parametrize("model", list(MODELS))
def test_a_layer_has_two_row_products_and_two_spread_inputs(model: str) -> None:
    kind = layer_of(model)
    rows = kind.graph.tensor_source[kind.reduced]
    assert np.all(kind.tensor_cut[rows] == ProductCut.DEPTH)
    assert len(kind.reduced) == len(kind.spread) == 2


@pytest.mark.parametrize("model", list(MODELS))
def test_gradients_of_cut_weights_are_cut_and_biases_after_row_products_are_whole(
    model: str,
) -> None:
    kind = layer_of(model)
    rows = set(kind.graph.tensor_source[kind.reduced].tolist())
    divided = {Role.INNER, Role.EXPERT}
    for tensor in np.flatnonzero(kind.is_weight).tolist():
        op = int(kind.graph.tensor_source[tensor])
        partner = int(kind.graph.partner[op])
        is_bias = partner in rows and kind.graph.kind[op] == "sum"
        assert kind.is_cut[tensor] == (kind.role[partner] in divided and not is_bias)


@pytest.mark.parametrize("model", list(MODELS))
def test_backward_of_a_divided_op_is_divided(model: str) -> None:
    kind = layer_of(model)
    graph = kind.graph
    for op, _ in ops_of(kind, Phase.BACKWARD):
        if graph.product_count[op] > 0 and graph.flops[op] > 0:
            assert (kind.role[op] == Role.WHOLE) == (kind.role[graph.partner[op]] == Role.WHOLE)
            assert (kind.tensor_cut[op] == ProductCut.NONE) == (kind.role[op] == Role.WHOLE)


def test_sizes_that_must_divide() -> None:
    assert layer_of("gpt").features == (64, 192, 256)
    assert layer_of("llama").features == (16, 64, 96)
    assert (layer_of("llama").heads, layer_of("llama").key_heads) == (8, 2)
    assert (layer_of("gpt").heads, layer_of("gpt").key_heads) == (4, 4)
    assert layer_of("gpt").tokens == SEQUENCE
    assert layer_of("vit").tokens == 197  # 14 x 14 patches and the class


def test_tokens_meet_outside_attention_where_a_transform_or_windows_mix_them() -> None:
    assert not any(layer_of(model).mixes_rows for model in MODELS)
    graph = MODELS["bert"]
    fourier = tuple("_fft_c2c" if each == "gelu" else each for each in graph.kind)
    assert find_layers(replace(graph, kind=fourier)).kinds[1].mixes_rows
    windows = np.where(graph.product_rows == SEQUENCE, SEQUENCE / 2, graph.product_rows)
    fixed = np.minimum(graph.fixed_product_rows, windows)
    narrow = replace(graph, product_rows=windows, fixed_product_rows=fixed)
    assert find_layers(narrow).kinds[1].mixes_rows


def test_queries_may_lie_in_the_result_of_a_fused_product() -> None:
    assert key_bytes([12.0, 4.0, 4.0], 4.0) == 8  # keys and values are copies, as for a cache
    assert key_bytes([12.0], 4.0) == 8
    assert key_bytes([4.0, 8.0], 4.0) == 8
    assert key_bytes([4.0, 1.0, 1.0], 4.0) == 2  # grouped heads


def test_keys_and_values_are_what_attention_reads_beside_queries() -> None:
    query = 2 * SEQUENCE * HIDDEN * 4
    assert layer_of("gpt").key_bytes == 2 * query
    assert layer_of("llama").key_bytes == 2 * query / 4  # two of eight heads


def test_the_vocabulary_is_divided_in_embedding_and_head() -> None:
    embedding, _, head = find_layers(MODELS["gpt"]).kinds
    assert embedding.graph.kind[np.flatnonzero(embedding.role)[0]] == "embedding"
    assert len(embedding.reduced) == 1
    assert head.is_loss
    assert not head.features  # a vocabulary is padded
    cut = np.flatnonzero((head.graph.phase == Phase.FORWARD) & (head.role == Role.INNER))
    assert [head.graph.kind[op] for op in cut] == ["mm", "_log_softmax", "nll_loss_forward"]


def test_position_tables_are_whole() -> None:
    embedding = find_layers(MODELS["gpt"]).kinds[0]
    tables = [op for op, name in enumerate(embedding.graph.kind) if name == "embedding"]
    assert [Role(embedding.role[op]) for op in tables] == [Role.INNER, Role.WHOLE]


def test_a_product_before_a_norm_is_whole() -> None:
    """BERT's head: its transform is normed, its pooler is thin, its decoder is divided."""
    head = find_layers(MODELS["bert"]).kinds[-1]
    role = dict(zip(head.graph.module, head.role, strict=True))
    assert role["cls.predictions.transform.dense"] == Role.WHOLE
    assert role["cls.predictions.decoder"] == Role.INNER


def test_roles_do_not_depend_on_names() -> None:
    graph = MODELS["llama"]
    names = tuple(f"op_{number}_" for number in range(graph.num_ops))
    unnamed = replace(graph, op_names=names, module=("",) * graph.num_ops)
    assert np.array_equal(find_layers(unnamed).kinds[1].role, layer_of("llama").role)


def test_unfused_attention_is_attention_up_to_the_softmax_between() -> None:
    graph = unfused_gpt(layers=2, hidden=32, heads=2, sequence=8, batch=2)
    kind = find_layers(graph).kinds[1]
    attention = np.flatnonzero((kind.graph.phase == Phase.FORWARD) & (kind.role == Role.ATTENTION))
    names = [kind.graph.op_names[op].rpartition(".")[2] for op in attention]
    assert names == ["scores", "softmax", "context"]
    assert kind.key_bytes == 2 * (2 * 8 * 32 * 4)


def perceptron(step: StepBuilder, name: str, x: Value, *, has_norm: bool) -> Value:
    y = linear(step, f"{name}.up", x, 4, 128, 128)
    if has_norm:
        y = norm(step, f"{name}.norm", "layernorm", y, 4 * 128, 128)
    y = linear(step, f"{name}.down", y, 4, 128, 128)
    return add(step, f"{name}.add", [x, y], 4 * 128)


def residual_chain(*, has_norm: bool) -> Graph:
    step = StepBuilder("chain", 4.0)
    x = linear(step, "first", step.input("input", 4.0 * 4 * 128), 4, 128, 128)
    for number in range(3):
        x = perceptron(step, f"h.{number}", x, has_norm=has_norm)
    return step.finish(cross_entropy(step, "loss", x, 4, 128))


def test_a_norm_over_cut_features_keeps_both_products_whole() -> None:
    """What the norm needs whole is not cut, so that neither the second product can be a row's."""
    assert find_layers(residual_chain(has_norm=False)).kinds[1].role.any()
    assert not find_layers(residual_chain(has_norm=True)).kinds[1].role.any()


def test_a_single_product_in_a_residual_is_whole() -> None:
    step = StepBuilder("chain", 4.0)
    x = linear(step, "first", step.input("input", 4.0 * 4 * 16), 4, 16, 16)
    for number in range(3):
        y = linear(step, f"h.{number}.only", x, 4, 16, 16)
        y = elementwise(step, f"h.{number}.act", "relu", y, 4 * 16)
        x = add(step, f"h.{number}.add", [x, y], 4 * 16)
    kind = find_layers(step.finish(cross_entropy(step, "loss", x, 4, 16))).kinds[1]
    assert not kind.role.any()


def test_a_gate_by_one_number_a_row_may_meet_cut_features() -> None:
    step = StepBuilder("chain", 4.0)
    x = linear(step, "first", step.input("input", 4.0 * 4 * 256), 4, 256, 256)
    for number in range(3):
        name = f"h.{number}"
        gate = elementwise(step, f"{name}.gate", "tanh", x, 4)
        y = linear(step, f"{name}.up", x, 4, 256, 256)
        backward = (Gradient(into=(0, 1), kind="mul", flops=4 * 256.0, saved=(y, gate)),)
        y = step.apply(f"{name}.mul", "mul", [y, gate], 4 * 256, 4 * 256.0, backward)
        y = linear(step, f"{name}.down", y, 4, 256, 256)
        x = add(step, f"{name}.add", [x, y], 4 * 256)
    kind = find_layers(step.finish(cross_entropy(step, "loss", x, 4, 256))).kinds[1]
    role = dict(zip(kind.graph.op_names, kind.role, strict=True))
    assert role["h.0.up"] == role["h.0.mul"] == role["h.0.down"] == Role.INNER
    assert role["h.0.gate"] == Role.WHOLE


def test_a_weight_that_is_cast_for_its_product_is_divided_with_it() -> None:
    """Under autocast: the cast holds the parameters, and the product reads a tensor."""
    builder = GraphBuilder("cast", batch=2)
    x = builder.add_tensor(builder.add_op("input", kind="input", bytes_written=64), 64)
    for number in range(2):
        inner = _cast_product(builder, f"h.{number}.up", x, group=2 * number, columns=8, depth=4)
        y = _cast_product(
            builder, f"h.{number}.down", inner, group=2 * number + 1, columns=4, depth=8
        )
        total = builder.add_op(f"h.{number}.add", kind="add", module=f"h.{number}")
        builder.add_use(x, total)
        builder.add_use(y, total)
        x = builder.add_tensor(total, 64)
    kind = find_layers(builder.finish()).kinds[1]
    divided = [kind.graph.op_names[op] for op in np.flatnonzero(kind.role).tolist()]
    assert divided == ["h.0.up.cast", "h.0.up", "h.0.down.cast", "h.0.down"]
    assert kind.graph.op_names[kind.graph.tensor_source[kind.reduced[0]]] == "h.0.down"


def _cast_product(
    builder: GraphBuilder, name: str, x: int, *, group: int, columns: int, depth: int
) -> int:
    weight = 2.0 * columns * depth
    module = name.rpartition(".")[0]
    cast = builder.add_op(
        f"{name}.cast", kind="_to_copy", module=module, group=group, split=Split.NONE,
        parameter_bytes=2 * weight, state_bytes=2 * weight, bytes_read=2 * weight,
        fixed_bytes_read=2 * weight,
    )  # fmt: skip
    op = builder.add_op(
        name, kind="mm", module=module, flops=4.0 * columns * depth, bytes_read=weight + 16,
        fixed_bytes_read=weight, product_rows=2, product_columns=columns,
        fixed_product_columns=columns, product_depth=depth, fixed_product_depth=depth,
        product_count=1, fixed_product_count=1,
    )  # fmt: skip
    builder.add_use(builder.add_tensor(cast, weight, fixed_bytes=weight), op)
    builder.add_use(x, op)
    return builder.add_tensor(op, 16.0 * columns)


@pytest.mark.parametrize("kind", ["cumsum", "strided_sort", "_fft_r2c"])
def test_features_that_an_op_may_need_all_of_are_not_divided(kind: str) -> None:
    graph = MODELS["gpt"]
    kinds = tuple(kind if each == "tanh" else each for each in graph.kind)  # of GELU
    found = find_layers(replace(graph, kind=kinds)).kinds[1]
    for op, path in ops_of(found, Phase.FORWARD):
        if path in ("mlp.c_fc", "mlp.c_proj", "mlp.act"):
            assert found.role[op] == Role.WHOLE, found.graph.op_names[op]
        if path in ("attn.c_attn", "attn.c_proj"):
            assert found.role[op] == Role.INNER, found.graph.op_names[op]


@pytest.mark.parametrize("kind", ["mse_loss", "mean"])
def test_only_losses_of_classes_are_summed_by_a_team(kind: str) -> None:
    graph = MODELS["gpt"]
    for wanted, loss in ((Role.INNER, "nll_loss_forward"), (Role.WHOLE, kind)):
        kinds = tuple(loss if each == "nll_loss_forward" else each for each in graph.kind)
        head = find_layers(replace(graph, kind=kinds)).kinds[-1]
        product = int(np.argmax(head.graph.product_columns * (head.graph.phase == Phase.FORWARD)))
        assert head.role[product] == wanted
