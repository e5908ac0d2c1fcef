"""What is computed again: by hand on chains, and as values on random steps."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.compute import op_seconds
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.recomputation import find_recomputation
from meshwright.cost.layer.team import Team
from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split, read_graph
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute
from meshwright.program.expand.expansion import Axis, Expansion, Owned, unexpanded
from meshwright.program.expand.recompute import SUFFIX as AGAIN
from meshwright.program.expand.recompute import recompute
from meshwright.program.expand.region import find_regions
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.program import Kind
from meshwright.program.work import expand
from meshwright.zoo.shipped import FOLDER, SUFFIX
from small import connected

H200 = DEVICE_TYPES["h200"]
NARROW, WIDE = 10.0, 100.0
FULL, SELECTIVE = Recompute.FULL, Recompute.SELECTIVE


def plan_of(graph: Graph, manner: Recompute, stage: Sequence[int] | None = None) -> Plan:
    """Each part on a device of its own; all in one unless `stage` says which op is where."""
    stage = stage or [0] * graph.num_ops
    members = [[] for _ in range(max(stage) + 1)]  # type: list[list[str]]
    for name, part in zip(graph.op_names, stage, strict=True):
        members[part].append(name)
    parts = [
        Part(ops=tuple(ops), devices=(f"d{number}",), recompute=manner)
        for number, ops in enumerate(members)
    ]
    return Plan(parts=tuple(parts))


def expanded(graph: Graph, manner: Recompute, stage: Sequence[int] | None = None) -> Expansion:
    plan = plan_of(graph, manner, stage)
    return expand(graph, resolve(graph, connected(len(plan.parts)), plan), plan)


def chain(num_layers: int, middle: str = "gelu", saved_bytes: float = 0.0) -> Graph:
    """Layers of three ops: x -> up -> h -> act -> a -> down -> the next x, with their backward.

    The gradient of down reads a, that of act reads h, that of up reads x.
    """
    builder = GraphBuilder("chain", batch=2)
    stem = builder.add_op("stem", kind="input")
    x = builder.add_tensor(stem, NARROW)
    layers = []
    for number in range(num_layers):
        ops, tensors = [], [x]
        for name, kind, size in (
            ("up", "matmul", WIDE),
            ("act", middle, WIDE),
            ("down", "matmul", NARROW),
        ):
            op = builder.add_op(
                f"h.{number}.{name}", kind=kind, module=f"h.{number}", flops=1.0,
                bytes_read=WIDE, saved_bytes=saved_bytes if name == "up" else 0.0,
            )  # fmt: skip
            builder.add_use(x, op)
            x = builder.add_tensor(op, size)
            ops.append(op)
            tensors.append(x)
        layers.append((ops, tensors))
    loss = builder.add_op("loss", kind="loss")
    start = builder.add_op("loss.grad", kind="loss_grad", phase=Phase.BACKWARD, partner=loss)
    builder.add_use(x, loss)
    builder.add_use(x, start)
    gradient = builder.add_tensor(start, NARROW)
    for number, (ops, tensors) in reversed(list(enumerate(layers))):
        for name, op, saved in list(zip(("up", "act", "down"), ops, tensors, strict=False))[::-1]:
            back = builder.add_op(
                f"h.{number}.{name}.grad", kind=f"{name}_grad", module=f"h.{number}",
                phase=Phase.BACKWARD, partner=op, flops=1.0,
            )  # fmt: skip
            builder.add_use(gradient, back)
            builder.add_use(saved, back)
            gradient = builder.add_tensor(back, NARROW if name == "up" else WIDE)
    return builder.finish()


def reads_of(graph: Graph, name: str) -> list[str]:
    """The names of the ops that an op reads."""
    return sorted({graph.op_names[op] for op in graph.predecessors[graph.index[name]]})


def copies(expansion: Expansion) -> list[int]:
    """Ops that run once more."""
    graph = expansion.graph
    return [op for op in range(graph.num_ops) if graph.op_names[op].endswith(".again")]


def test_a_layer_is_computed_again_right_before_the_first_op_that_reads_it() -> None:
    made = expanded(chain(2), FULL)
    # down's gradient reads a, so up and act run once more; down makes the next input, nobody's.
    assert made.graph.op_names == (
        "stem", "h.0.up", "h.0.act", "h.0.down", "h.1.up", "h.1.act", "h.1.down", "loss",
        "loss.grad",
        "h.1.up.again", "h.1.act.again", "h.1.down.grad", "h.1.act.grad", "h.1.up.grad",
        "h.0.up.again", "h.0.act.again", "h.0.down.grad", "h.0.act.grad", "h.0.up.grad",
    )  # fmt: skip
    # The input of the layer is kept; the copy waits for the gradient that comes to the layer.
    assert reads_of(made.graph, "h.0.up.again") == ["h.1.up.grad", "stem"]
    assert reads_of(made.graph, "h.1.up.again") == ["h.0.down", "loss.grad"]
    assert reads_of(made.graph, "h.1.act.again") == ["h.1.up.again"]
    assert reads_of(made.graph, "h.1.down.grad") == ["h.1.act.again", "loss.grad"]
    assert reads_of(made.graph, "h.1.act.grad") == ["h.1.down.grad", "h.1.up.again"]
    assert reads_of(made.graph, "h.1.up.grad") == ["h.0.down", "h.1.act.grad"]


def test_copies_are_of_their_op_in_backward_without_its_weights() -> None:
    graph = chain(2)
    graph = replace(graph, parameter_bytes=np.ones(graph.num_ops), state_bytes=np.ones(15))
    made = expanded(graph, FULL)
    for op in copies(made):
        origin = int(made.origin[op])
        assert made.graph.op_names[op] == f"{graph.op_names[origin]}.again"
        assert made.graph.phase[op] == Phase.BACKWARD
        assert made.graph.flops[op] == graph.flops[origin]
        assert made.graph.parameter_bytes[op] == made.graph.state_bytes[op] == 0
        (tensor,) = made.graph.outputs[op]
        (old,) = graph.outputs[origin]
        assert made.tensor_origin[tensor] == old
        assert made.graph.tensor_bytes[tensor] == graph.tensor_bytes[old]
    assert made.graph.state_bytes.sum() == graph.num_ops
    orders = made.tensor_origin < 0
    assert orders.sum() == 2  # one a layer
    assert not made.graph.tensor_bytes[orders].any()


def test_without_recomputation_nothing_changes() -> None:
    graph = chain(2)
    plan = plan_of(graph, Recompute.NONE)
    before = unexpanded(graph, resolve(graph, connected(1), plan))
    assert recompute(before, graph, plan) is before


def test_where_nothing_can_be_repeated_nothing_changes() -> None:
    builder = GraphBuilder("norms", batch=2)
    norm = builder.add_op("norm", kind="native_batch_norm")
    grad = builder.add_op("norm.grad", phase=Phase.BACKWARD, partner=norm)
    builder.add_tensor(norm, 1.0, [grad])
    graph = builder.finish()
    plan = plan_of(graph, FULL)
    before = unexpanded(graph, resolve(graph, connected(1), plan))
    assert recompute(before, graph, plan) is before


def test_what_keeps_running_statistics_runs_once() -> None:
    # up is repeated for the norm's gradient; the norm's output is kept.
    made = expanded(chain(2, middle="native_batch_norm"), FULL)
    assert [made.graph.op_names[op] for op in copies(made)] == ["h.1.up.again", "h.0.up.again"]
    assert reads_of(made.graph, "h.0.down.grad") == ["h.0.act", "h.1.up.grad"]
    assert reads_of(made.graph, "h.0.act.grad") == ["h.0.down.grad", "h.0.up.again"]


def test_what_an_op_saves_besides_its_tensors_is_saved_by_its_copy() -> None:
    made = expanded(chain(2, saved_bytes=7.0), FULL)
    assert not made.graph.saved_bytes.any()
    copy = made.graph.index["h.0.up.again"]
    _, saved = made.graph.outputs[copy]
    assert made.graph.tensor_bytes[saved] == 7.0
    assert made.graph.fixed_tensor_bytes[saved] == 0.0
    assert [made.graph.op_names[op] for op in made.graph.readers[saved]] == ["h.0.up.grad"]


def test_a_stage_keeps_its_own_inputs_and_not_what_it_sends() -> None:
    graph = chain(2)
    second = [int("h.1" in name or "loss" in name) for name in graph.op_names]
    made = expanded(graph, FULL, second)
    last = {
        name: max(made.graph.op_names[op] for op in made.graph.successors[made.graph.index[name]])
        for name in ("h.0.down", "h.0.act")
    }
    # Across stages copies wait for an op of their own stage.
    assert reads_of(made.graph, "h.0.up.again") == ["h.0.down", "stem"]
    assert last == {"h.0.down": "h.1.up.grad", "h.0.act": "h.0.down"}
    assert set(made.part_of_op[copies(made)].tolist()) == {0, 1}


def test_only_parts_that_say_so_compute_again() -> None:
    graph = chain(2)
    plan = plan_of(graph, FULL, [int("h.1" in name) for name in graph.op_names])
    plan = replace(plan, parts=(plan.parts[0], replace(plan.parts[1], recompute=Recompute.NONE)))
    made = expand(graph, resolve(graph, connected(2), plan), plan)
    assert [made.graph.op_names[op] for op in copies(made)] == ["h.0.up.again", "h.0.act.again"]


def test_given_priorities_put_copies_before_their_first_reader() -> None:
    graph = chain(2)
    plan = plan_of(graph, FULL)
    numbers = tuple(float(100 - op) for op in range(graph.num_ops))
    plan = replace(plan, parts=(replace(plan.parts[0], priorities=numbers),))
    made = expand(graph, resolve(graph, connected(1), plan), plan)
    order = np.argsort(-made.priority, kind="stable")
    assert order.tolist() == list(range(made.graph.num_ops))


def live_bytes(graph: Graph) -> float:
    """The most bytes of tensors that are alive at once in the graph's order."""
    last = graph.tensor_source.astype(np.int64)
    np.maximum.at(last, graph.use_tensor, graph.use_op)
    steps = np.zeros(graph.num_ops + 1)
    np.add.at(steps, graph.tensor_source, graph.tensor_bytes)
    np.subtract.at(steps, last + 1, graph.tensor_bytes)
    return float(np.cumsum(steps).max())


def test_the_peak_is_that_of_one_layer_and_the_inputs_of_all() -> None:
    graph = chain(12)
    # In the last layer's backward there are 12 inputs, the gradient that comes and the new one;
    # beside them h and a, of one layer or of all.
    shared = 12 * NARROW + NARROW + WIDE
    assert live_bytes(graph) == shared + 12 * 2 * WIDE
    assert live_bytes(expanded(graph, FULL).graph) == shared + 2 * WIDE


def anonymous(graph: Graph) -> Graph:
    """The same step as one that no two layers of are found."""
    names = tuple(f"op{number}x" for number in range(graph.num_ops))
    kinds = ("input", *(f"{kind} {number}" for number, kind in enumerate(graph.kind[1:])))
    return replace(graph, op_names=names, kind=kinds, module=("",) * graph.num_ops)


def test_without_layers_cuts_are_where_few_bytes_cross() -> None:
    graph = anonymous(chain(12))
    with pytest.raises(InputError):
        find_layers(graph)
    plan = plan_of(graph, FULL)
    regions = find_regions(graph, np.zeros(graph.num_ops, dtype=np.int32), plan)
    forward = np.flatnonzero(graph.phase == Phase.FORWARD)
    number = regions.number[forward]
    starts = forward[1:][np.diff(number) > 0]
    assert len(starts) > 1
    narrow = graph.tensor_bytes == NARROW
    for start in starts.tolist():  # what comes from before is an x
        entering = [t for t in graph.inputs[start] if graph.tensor_source[t] < start]
        assert narrow[entering].all()
    # A region to each layer is best: 12 x 10 kept; a region of two layers has 2 x 100 more.
    assert live_bytes(expanded(graph, FULL).graph) == live_bytes(expanded(chain(12), FULL).graph)


def test_sixteen_alike_ops_become_three_regions() -> None:
    # k regions keep k - 1 tensors and have the 17 - k others among them. Three regions: 2 and at
    # least a third of 14, 5, in all 7. Four: 3 + 4; five: 4 + 3; two: 1 + 8. The fewest are taken.
    builder = GraphBuilder("alike", batch=1)
    ops = [builder.add_op(f"op{number}x", kind=f"{number}") for number in range(16)]
    tensors = [builder.add_tensor(op, 1.0) for op in ops]
    for tensor, op in zip(tensors, ops[1:], strict=False):
        builder.add_use(tensor, op)
    for op in reversed(ops):
        back = builder.add_op(f"op{op}x.grad", kind=f"{op}_", phase=Phase.BACKWARD, partner=op)
        builder.add_use(tensors[op], back)
    graph = builder.finish()
    plan = plan_of(graph, FULL)
    number = find_regions(graph, np.zeros(graph.num_ops, dtype=np.int32), plan).number
    assert np.bincount(number[:16]).tolist() == [5, 6, 5]
    assert number[16:].tolist() == number[15::-1].tolist()


def test_selective_without_roles_repeats_cheap_ops_whose_inputs_are_kept() -> None:
    # a is made of h, which act's own gradient reads; up and down are products.
    graph = chain(3)
    made = expanded(graph, SELECTIVE)
    names = [made.graph.op_names[op] for op in copies(made)]
    assert names == [f"h.{number}.act.again" for number in (2, 1, 0)]
    assert reads_of(made.graph, "h.1.act.again") == ["h.1.up", "h.2.up.grad"]
    assert reads_of(made.graph, "h.1.down.grad") == ["h.1.act.again", "h.2.up.grad"]


def test_selective_of_gpt2_repeats_what_the_cost_of_layers_charges() -> None:
    graph = read_graph(FOLDER / f"gpt2{SUFFIX}")
    stack = find_layers(graph)
    made = expanded(graph, SELECTIVE)
    expected: set[str] = set()
    for layer in range(stack.num_layers):
        kind = stack.kind_of(layer)
        again = np.flatnonzero(find_recomputation(kind).again) - kind.num_entering
        expected |= {graph.op_names[op] for op in np.flatnonzero(stack.layer_of_op == layer)[again]}
    repeated = copies(made)
    assert {graph.op_names[made.origin[op]] for op in repeated} == expected
    charged = 0.0
    for layer in range(stack.num_layers):
        none, selective = (
            price_layer(stack.kind_of(layer), Team(), manner, H200, graph.batch)
            for manner in (Recompute.NONE, SELECTIVE)
        )
        charged += selective.backward_seconds - none.backward_seconds
    seconds = op_seconds(made.graph, H200, graph.batch)[repeated].sum()
    assert seconds == pytest.approx(charged)


def with_collectives(graph: Graph, before: Expansion) -> Expansion:
    """Let members gather rows before up, and add up terms after down."""
    rewrite = Rewrite(before)
    for op, name in enumerate(graph.op_names):
        if not name.endswith((".up", ".down")):
            continue
        if name.endswith(".up"):
            (tensor,) = rewrite.reads[op]
            kind, place = Kind.ALL_GATHER, op - 0.5
        else:
            (tensor,) = graph.outputs[op].tolist()
            kind, place = Kind.REDUCE_SCATTER, op + 0.5
        readers = [each for each, reads in enumerate(rewrite.reads) if tensor in reads]
        if kind is Kind.ALL_GATHER:
            readers = [op]
        added = rewrite.add_collective(kind, Axis.TENSOR, op, place, [tensor])
        moved = rewrite.like(tensor, added)
        rewrite.tensors[tensor]["held"] = int(
            Owned.ROWS if kind is Kind.ALL_GATHER else Owned.TERMS
        )
        for reader in readers:
            rewrite.replace_read(reader, tensor, moved)
    return rewrite.done()


def test_collectives_of_a_region_are_repeated_with_it() -> None:
    graph = chain(2)
    plan = plan_of(graph, FULL)
    before = with_collectives(graph, unexpanded(graph, resolve(graph, connected(1), plan)))
    made = recompute(before, graph, plan)
    names = [made.graph.op_names[op] for op in copies(made)]
    one = ["h.1.up.all_gather.again", "h.1.up.again", "h.1.act.again"]
    assert names == [*one, *(name.replace("1", "0") for name in one)]
    gather = made.graph.index["h.1.up.all_gather.again"]
    assert made.collective[gather] == Kind.ALL_GATHER
    assert made.axis[gather] == Axis.TENSOR
    assert made.origin[gather] == -1
    # What it gathers are the rows that the terms were added up to in forward.
    assert "h.0.down.reduce_scatter" in reads_of(made.graph, "h.1.up.all_gather.again")


def test_a_plan_that_computes_again_may_have_ops_that_mix_samples() -> None:
    graph = chain(2)
    mixes = np.array([name == "h.1.act" for name in graph.op_names])
    split = np.where(mixes, Split.NONE, graph.split).astype(np.int8)
    graph = replace(graph, mixes=mixes, split=split)
    made = expanded(graph, FULL)
    assert not made.graph.mixes[copies(made)].any()
    wide = plan_of(graph, FULL)
    wide = replace(wide, parts=(replace(wide.parts[0], zero=1),))
    with pytest.raises(InputError, match=r"no ZeRO, because op .* mixes the samples"):
        resolve(graph, connected(1), wide)


@st.composite
def steps(draw: st.DrawFn) -> Graph:
    """A training step of random layers, alike or not, whose backward reads random tensors."""
    is_alike = draw(st.booleans())
    num_layers = draw(st.integers(2, 4))
    builder = GraphBuilder("random", batch=4)
    x = builder.add_tensor(builder.add_op("stem", kind="input"), 1.0)
    kinds = st.sampled_from(["matmul", "gelu", "native_batch_norm", "dropout"])
    drawn = st.tuples(kinds, st.integers(0, 3), st.integers(0, 3), st.integers(0, 9), st.booleans())
    shape = draw(st.lists(drawn, min_size=1, max_size=5))
    layers: list[tuple[list[int], list[int], list[tuple[str, int, int, int, bool]]]] = []
    for number in range(num_layers):
        if not is_alike:
            shape = draw(st.lists(drawn, min_size=1, max_size=5))
        ops, tensors = [], [x]
        for place, (kind, first, second, size, saves) in enumerate(shape):
            op = builder.add_op(
                f"h.{number}.f{place}", kind=kind, module=f"h.{number}", flops=1.0,
                saved_bytes=3.0 if saves else 0.0, bytes_read=4.0,
            )  # fmt: skip
            for back in {0, first, second}:  # 0: the one before
                builder.add_use(tensors[max(0, len(tensors) - 1 - back)], op)
            tensors.append(builder.add_tensor(op, float(size)))
            ops.append(op)
        layers.append((ops, tensors, shape))
        x = tensors[-1]
    loss = builder.add_op("loss", kind="loss")
    builder.add_use(x, loss)
    start = builder.add_op("loss.grad", kind="grad", phase=Phase.BACKWARD, partner=loss)
    builder.add_use(builder.add_tensor(loss, 1.0), start)
    gradient = builder.add_tensor(start, 1.0)
    updates = []
    for number, (ops, tensors, shape) in reversed(list(enumerate(layers))):
        has_partner = is_alike or draw(st.booleans())
        for place, op in reversed(list(enumerate(ops))):
            back = builder.add_op(
                f"h.{number}.b{place}", kind="grad", module=f"h.{number}", phase=Phase.BACKWARD,
                partner=op if has_partner else -1,
            )  # fmt: skip
            builder.add_use(gradient, back)
            builder.add_use(tensors[place + (shape[place][3] % 2)], back)
            gradient = builder.add_tensor(back, 1.0)
            updates.append((number, place, gradient))
    for number, place, gradient in updates:
        update = builder.add_op(f"h.{number}.u{place}", kind="update", phase=Phase.UPDATE)
        builder.add_use(gradient, update)
    return builder.finish()


def values(expansion: Expansion) -> dict[int, set[Hashable]]:
    """By planned op: what the ops that it became give, as a hash of all that it depends on."""
    graph = expansion.graph
    value: list[int] = []
    found: dict[int, set[Hashable]] = {}
    for op in range(graph.num_ops):
        read = [
            (int(expansion.tensor_origin[tensor]), value[graph.tensor_source[tensor]])
            for tensor in graph.inputs[op]
            if expansion.tensor_origin[tensor] >= 0
        ]
        value.append(hash((int(expansion.origin[op]), tuple(sorted(read)))))
        found.setdefault(int(expansion.origin[op]), set()).add(value[-1])
    return found


@settings(max_examples=60)
@given(data=st.data(), graph=steps(), manner=st.sampled_from([FULL, SELECTIVE]))
def test_every_op_gives_what_it_gave(data: st.DataObject, graph: Graph, manner: Recompute) -> None:
    cuts = data.draw(st.sets(st.integers(1, 3), max_size=2))
    layer = [int(name.split(".")[1]) if name.startswith("h.") else 0 for name in graph.op_names]
    stage = np.unique([sum(n >= cut for cut in cuts) for n in layer], return_inverse=True)[
        1
    ].tolist()
    plan = plan_of(graph, manner, stage)
    placement = resolve(graph, connected(len(plan.parts)), plan)
    before = unexpanded(graph, placement)
    made = expand(graph, placement, plan)
    assert values(made) == values(before)
    check_reads(graph, before, made, plan)
    saved = made.graph.saved_bytes.sum()
    extra = made.graph.tensor_bytes[made.tensor_origin < 0].sum()
    assert saved + extra == graph.saved_bytes.sum()


def check_reads(graph: Graph, before: Expansion, made: Expansion, plan: Plan) -> None:
    """What backward still reads of forward is kept by a rule."""
    regions = find_regions(graph, before.part_of_op, plan)
    source, reader = made.graph.edges
    for use, (first, second) in enumerate(zip(source.tolist(), reader.tolist(), strict=True)):
        phases = made.graph.phase[first], made.graph.phase[second]
        old = int(made.tensor_origin[made.graph.use_tensor[use]])
        if phases != (Phase.FORWARD, Phase.BACKWARD) or old < 0:
            continue
        planned, region = int(made.origin[first]), regions.number[made.origin[second]]
        if regions.again[planned] and regions.number[planned] == region:
            others = regions.number[graph.readers[old]] != region
            assert (
                others & (before.part_of_op[graph.readers[old]] == made.part_of_op[first])
            ).any()


@pytest.mark.parametrize("num_layers", [2, 3])
def test_full_recomputation_repeats_the_layers_and_nothing_else(num_layers: int) -> None:
    # Forward of a layer by hand, with h features, s tokens and b samples: 24 b s h^2 for weights'
    # products, 4 b s^2 h for attention. Neither the embedding nor norm, head and loss run again.
    b, s, h = 2, 32, 64
    graph = gpt(
        hidden=h, heads=4, layers=num_layers, sequence=s, vocabulary=128, positions=64, batch=b,
        precision="bf16",
    )  # fmt: skip
    made = expanded(graph, FULL).graph
    names = np.array(made.op_names)
    again = np.array([f".{AGAIN}" in name or name.endswith(AGAIN) for name in names])
    products = again & (made.product_count > 0)
    assert made.flops[products].sum() == num_layers * (24 * b * s * h * h + 4 * b * s * s * h)
    stack = find_layers(graph)
    inner = (stack.layer_of_op > 0) & (stack.layer_of_op < stack.num_layers - 1)
    forward = inner & (graph.phase == Phase.FORWARD)
    assert made.flops[again].sum() <= graph.flops[forward].sum()
    for kind in stack.kinds:
        plain, full = (price_layer(kind, Team(), each, H200, b) for each in (Recompute.NONE, FULL))
        extra = plain.forward_seconds if kind.is_wrapped else 0.0
        assert full.backward_seconds == pytest.approx(plain.backward_seconds + extra)
        if not kind.is_wrapped:
            assert full == plain
