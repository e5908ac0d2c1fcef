"""Random graphs for the tests of the graph layer."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from meshwright.graph.build import GraphBuilder
from meshwright.graph.column import (
    OP_CODES,
    OP_LINES,
    OP_SIZES,
    OP_TEXTS,
    TENSOR_SIZES,
    Phase,
    Split,
)
from meshwright.graph.graph import Graph

sizes = st.floats(min_value=0, max_value=1e18, allow_nan=False)
seconds = st.one_of(st.floats(min_value=0, max_value=1e6), st.just(math.nan), st.just(math.inf))
# Without surrogates: half of a pair is no text.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def steep_parts(draw: st.DrawFn, name: str, whole: float) -> dict[str, Any]:
    """Parts of an op's quantity that grow with different powers of the batch, in quarters."""
    powers = draw(st.lists(st.sampled_from(("fixed", "square", "cube")), max_size=4))
    parts = {each: whole * powers.count(each) / 4 for each in ("fixed", "square", "cube")}
    return {f"{each}_{name}": size for each, size in parts.items()}


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 8) -> Graph:
    """Any legal graph."""
    num_ops = draw(st.integers(1, max_ops))
    builder = GraphBuilder(draw(texts), draw(st.floats(min_value=1e-3, max_value=1e6)))
    names = draw(st.lists(texts, min_size=num_ops, max_size=num_ops, unique=True))
    for name in names:
        quantities: dict[str, Any] = {each: draw(sizes) for each in OP_SIZES}
        mixes = draw(st.booleans()) and draw(st.booleans())
        for each in OP_LINES:
            quantities[f"fixed_{each}"] = quantities[each] * draw(st.floats(0, 1))
            if mixes:
                quantities |= steep_parts(draw, each, quantities[each])
        builder.add_op(
            name,
            kind=draw(texts),
            phase=draw(st.sampled_from(Phase)),
            split=Split.NONE if mixes else draw(st.sampled_from(Split)),
            mixes=mixes,
            group=draw(st.integers(-1, 3)),
            partner=draw(st.integers(-1, num_ops - 1)),
            module=draw(texts),
            precision=draw(st.sampled_from(["fp32", "bf16"])),
            seconds=draw(st.dictionaries(st.sampled_from(["any", "h200", "cpu"]), seconds)),
            **quantities,
        )
    for _ in range(draw(st.integers(0, 2 * num_ops))):
        source = draw(st.integers(0, num_ops - 1))
        later = range(source + 1, num_ops)
        targets = draw(st.lists(st.sampled_from(later), max_size=4)) if later else []
        size = draw(sizes)
        builder.add_tensor(
            source,
            size,
            targets,
            fixed_bytes=draw(st.sampled_from([None, 0.0, size / 2, size])),
            partial=draw(st.sampled_from([None, True, False])),
        )
    return with_rungs(draw, builder.finish())


def with_rungs(draw: st.DrawFn, graph: Graph) -> Graph:
    """Times at other numbers of samples, of some types that have times at the batch."""
    ladders: dict[str, dict[float, Any]] = {}
    known = st.one_of(st.floats(min_value=0, max_value=1e6), st.just(math.nan))
    for kind in graph.seconds:
        for share in draw(st.lists(st.sampled_from([0.25, 0.5, 2.0]), unique=True, max_size=3)):
            times = st.lists(known, min_size=graph.num_ops, max_size=graph.num_ops)
            ladders.setdefault(kind, {})[graph.batch * share] = np.array(draw(times))
    return replace(graph, ladders=ladders)


ARRAYS = (
    *OP_CODES, *OP_SIZES, *TENSOR_SIZES, "tensor_source", "tensor_partial", "use_tensor", "use_op",
    "mixes",
)  # fmt: skip


def assert_identical(first: Graph, second: Graph) -> None:
    """Equal in every field, arrays bit for bit."""
    assert first.name == second.name
    assert first.batch == second.batch
    for name in OP_TEXTS:
        assert getattr(first, name) == getattr(second, name)
    assert dict(first.superlinear).keys() == dict(second.superlinear).keys()
    for name, part in first.superlinear.items():
        assert part.tobytes() == second.superlinear[name].tobytes()
    for name in ARRAYS:
        assert_same_bits(getattr(first, name), getattr(second, name))
    assert set(first.seconds) == set(second.seconds)
    for kind, array in first.seconds.items():
        assert np.array_equal(array, second.seconds[kind], equal_nan=True)
    assert first.ladders.keys() == second.ladders.keys()
    for kind, ladder in first.ladders.items():
        assert ladder.keys() == second.ladders[kind].keys()
        for samples, array in ladder.items():
            assert np.array_equal(array, second.ladders[kind][samples], equal_nan=True)


def assert_same_bits(first: Any, second: Any) -> None:
    assert first.dtype == second.dtype
    assert first.tobytes() == second.tobytes()
