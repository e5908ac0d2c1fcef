"""Layers that stand in line: encoders with decoders, and connections that skip layers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from line_models import WIDE, encoder_decoder, ladder, step_of, towers
from meshwright.graph.graph import Graph, Phase, read_graph
from meshwright.graph.stack.crossing import Crossings
from meshwright.graph.stack.find import find_layers
from meshwright.zoo.shipped import FOLDER, SUFFIX


def load_shipped(name: str) -> Graph:
    return read_graph(FOLDER / f"{name}{SUFFIX}")


def anonymous(graph: Graph) -> Graph:
    """The same step without a name that means anything."""
    names = tuple(f"op_{number:x}_" for number in range(graph.num_ops))
    return replace(graph, module=("",) * graph.num_ops, op_names=names)


def sent(stack: Any) -> dict[tuple[int, int], tuple[float, float]]:
    """By pair of layers, the bytes of a sample that go there and come back."""
    count = stack.num_layers
    return {
        (each.origin, each.goal): (each.forward.per_sample, each.backward.per_sample)
        for each in stack.crossings.links(range(count + 1))
    }


def test_an_encoder_stands_before_its_decoder() -> None:
    stack = find_layers(load_shipped("transformer"))
    # The last layer of the decoder has no gradient of the encoder's output to add to; the first
    # gives it back; the target's embedding stands with the source's.
    assert stack.layers == (0, *[1] * 6, 2, *[3] * 4, 4, 5)
    assert stack.tied_bytes == 37000 * 512 * 2
    assert stack.side_bytes == 0


def test_structure_alone_finds_both_chains() -> None:
    graph = load_shipped("transformer")
    named, unnamed = find_layers(graph), find_layers(anonymous(graph))
    assert unnamed.layers == named.layers
    assert np.array_equal(unnamed.layer_of_op, named.layer_of_op)


def test_all_layers_of_a_decoder_read_the_encoder_and_hand_one_gradient_back() -> None:
    passed = sent(find_layers(load_shipped("transformer")))
    state = 64 * 512 * 2.0  # tokens, features, bytes
    for layer in range(7, 13):
        assert passed[6, layer][0] == state if layer > 7 else state
    assert passed[0, 7] == (state, state)
    assert passed[6, 7] == (state, state)
    assert passed[6, 9] == (state, 0.0)
    assert passed[9, 10] == (state, 2 * state)  # the decoder's own, and the sum so far


def test_the_way_up_of_a_u_net_reads_the_way_down() -> None:
    stack = find_layers(load_shipped("unet"))
    assert stack.num_layers == 1 + 5 + 4 + 1
    passed = sent(stack)
    largest = 256 * 256 * 64 * 4.0  # what the first layer gives, in four bytes
    assert passed[1, 9][0] == largest
    # Its gradient is added to that of the layer below, which gives back the sum.
    assert passed[2, 9] == (0.0, largest)
    assert passed[1, 2][1] == largest


def test_layers_may_skip_others() -> None:
    graph = step_of([(f"h.{n}", [n - 1, n - 3] if n > 1 else [n - 1]) for n in range(5)])
    stack = find_layers(graph)
    assert stack.crossings is not None
    assert stack.num_layers == 7
    assert sent(stack)[1, 4][0] == WIDE * 4


def test_chains_have_no_crossings() -> None:
    assert find_layers(load_shipped("gpt2")).crossings is None
    assert find_layers(step_of([(f"h.{n}", [n - 1]) for n in range(4)])).crossings is None


def test_chains_that_need_each_other_are_one_chain_in_turn() -> None:
    """Layers of two names that alternate stand in the order in which they run."""
    graph = step_of([(f"{'ab'[n % 2]}.{n // 2}", [n - 1]) for n in range(6)])
    stack = find_layers(graph)
    names = np.array(graph.op_names)
    first = [int(stack.layer_of_op[names == f"{'ab'[n % 2]}.{n // 2}.linear"][0]) for n in range(6)]
    assert first == [1, 2, 3, 4, 5, 6]


def test_names_that_need_each_other_leave_it_to_structure() -> None:
    names = ["a.0", "b.0", "a.1", "b.1", "a.0.again", "b.0.again"]
    stack = find_layers(step_of([(name, [n - 1]) for n, name in enumerate(names)]))
    assert stack.crossings is None
    assert stack.layers == (0, *[1] * 6, 2)


def test_a_tensor_is_counted_once_a_stage() -> None:
    stack = find_layers(encoder_decoder(3))
    # encoder 1-3, decoder 4-6
    links = stack.crossings.links((0, 4, 7, 8)) if stack.crossings else []
    found = {(each.origin, each.goal): each for each in links}
    # The decoder's first layer reads the first product, which stands with the embedding.
    assert found[0, 1].forward.per_sample == 2 * WIDE * 4
    assert found[0, 1].backward.per_sample == 2 * WIDE * 4


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_stages_of_random_lines_pass_what_their_layers_do(data: Any) -> None:
    """Against loops over tensors."""
    crossings = draw_crossings(data.draw)
    count = crossings.num_layers
    first = data.draw(st.integers(0, count - 1))
    after = data.draw(st.integers(first + 1, count))
    found, wanted = crossings.of(first, after), by_hand(crossings, first, after)
    for name, size in wanted.items():
        assert getattr(found, name).per_sample == pytest.approx(size), name


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_what_stages_send_adds_up_to_what_comes(data: Any) -> None:
    crossings = draw_crossings(data.draw)
    count = crossings.num_layers
    inner = data.draw(st.sets(st.integers(1, count - 1), max_size=count - 1))
    bounds = [0, *sorted(inner), count]
    links = crossings.links(bounds)
    for stage in range(len(bounds) - 1):
        coming = sum(each.forward.per_sample for each in links if each.goal == stage)
        coming += sum(each.backward.per_sample for each in links if each.origin == stage)
        own = crossings.of(bounds[stage], bounds[stage + 1])
        assert own.coming.per_sample == pytest.approx(coming)


def draw_crossings(draw: Any) -> Crossings:
    """Tensors between layers, forward to later ones and back to earlier ones."""
    count = draw(st.integers(2, 7))
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        is_gradient = draw(st.booleans())
        source = draw(st.integers(1, count - 1) if is_gradient else st.integers(0, count - 2))
        others = range(source) if is_gradient else range(source + 1, count)
        readers = draw(st.sets(st.sampled_from(others), min_size=1))
        rows.append((source, readers, is_gradient, float(draw(st.integers(1, 9)))))
    reads = np.array([[layer in row[1] for layer in range(count)] for row in rows])
    return Crossings(
        source=np.array([row[0] for row in rows], dtype=np.int32),
        reads=reads,
        is_gradient=np.array([row[2] for row in rows]),
        fixed_bytes=np.zeros(len(rows)),
        sample_bytes=np.array([row[3] for row in rows]),
    )


def by_hand(crossings: Crossings, first: int, after: int) -> dict[str, float]:
    inside = range(first, after)
    found = dict.fromkeys(("coming", "leaving", "cut", "over"), 0.0)
    waits = {layer: [0.0, 0.0] for layer in inside}
    for source, reads, back, size in zip(
        crossings.source.tolist(), crossings.reads, crossings.is_gradient.tolist(),
        crossings.sample_bytes.tolist(), strict=True,
    ):  # fmt: skip
        readers = np.flatnonzero(reads).tolist()
        if source not in inside and any(each in inside for each in readers):
            found["coming"] += size
        if source in inside and any(each not in inside for each in readers):
            found["leaving"] += size
        low, high = (min(readers), source) if back else (source, max(readers))
        if low < after <= high:
            found["cut"] += size
        if source in inside:
            for layer in inside:
                waits[layer][back] += size * (low < layer < high)
    ways = 2 if crossings.is_gradient.any() else 1
    found["cut"] /= ways
    found["over"] = max(max(each[0] for each in waits.values()), 0.0)
    found["over"] = max(found["over"], max(each[1] for each in waits.values()))
    return found


def test_backward_stands_with_forward() -> None:
    graph = ladder(3)
    stack = find_layers(graph)
    layer, partner = stack.layer_of_op, graph.partner
    backward = np.flatnonzero((graph.phase == Phase.BACKWARD) & (partner >= 0))
    differs = backward[layer[backward] != layer[partner[backward]]]
    assert all("sum" in graph.op_names[op] for op in differs.tolist())


def test_towers_stand_one_after_the_other() -> None:
    stack = find_layers(towers(2))
    assert stack.crossings is not None
    passed = sent(stack)
    assert (2, 3) not in passed  # the second begins with what the embedding made
    # Both towers' gradients of it are added up in the first of them.
    assert passed[0, 3] == (WIDE * 4, 0)
    assert passed[1, 3] == (0, WIDE * 4)
    assert stack.crossings.reads_of(range(2, 3), range(3, 4)) == (False, False)
    assert stack.crossings.reads_of(range(3), range(3, 5)) == (True, False)
    assert stack.crossings.reads_of(range(3, 5), range(3)) == (False, True)
