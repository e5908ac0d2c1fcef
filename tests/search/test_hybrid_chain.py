"""The dynamic programme against every chain of stages, one by one."""

from itertools import combinations, product
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.method.hybrid.stage_chain import least_load, pick_options, read_chain


@st.composite
def problems(draw: Any) -> Any:
    num_layers = draw(st.integers(1, 5))
    num_stages = draw(st.integers(1, num_layers))
    sizes = sorted(draw(st.sets(st.integers(1, 3), min_size=2, max_size=3)))
    num_units = draw(st.integers(1, 6))
    num_places = draw(st.integers(1, 3))
    first, after = np.triu_indices(num_layers + 1, 1)
    shape_of = np.full((num_layers + 1, num_layers + 1), -1)
    shape_of[first, after] = np.arange(len(first))
    values = st.sampled_from([1.0, 2.0, 3.0, 5.0, 8.0, np.inf])
    flat = draw(
        st.lists(
            values,
            min_size=num_places * num_stages * len(first),
            max_size=num_places * num_stages * len(first),
        )
    )
    loads = np.array(flat).reshape(num_places, num_stages, len(first))
    places = np.array(
        [[draw(st.integers(0, num_places - 1)) for _ in range(num_units + 1)] for _ in sizes]
    )
    return loads, places, shape_of, np.array(sizes)


def every_chain(loads: Any, places: Any, shape_of: Any, sizes: Any) -> Any:
    """The loads of every chain, by its number of stages; the units are counted from the end."""
    num_layers, num_units = len(shape_of) - 1, places.shape[1] - 1
    for num_stages in range(1, loads.shape[1] + 1):
        for cut in combinations(range(1, num_layers), num_stages - 1):
            bounds = (0, *cut, num_layers)
            for choice in product(range(len(sizes)), repeat=num_stages):
                units = sum(int(sizes[k]) for k in choice)
                if units > num_units:
                    continue
                # What is left over stands before the first stage.
                used, found = units, []
                for stage, size in enumerate(choice):
                    shape = shape_of[bounds[stage], bounds[stage + 1]]
                    place = places[size, used]
                    found.append(float(loads[place, num_stages - 1 - stage, shape]))
                    used -= int(sizes[size])
                yield num_stages, found


@given(problems())
@settings(max_examples=150, deadline=None)
def test_least_largest_load_and_least_sum_equal_every_chain(problem: Any) -> None:
    loads, places, shape_of, sizes = problem
    largest: dict[int, float] = {}
    sums: dict[int, float] = {}
    for count, found in every_chain(*problem):
        largest[count] = min(largest.get(count, np.inf), max(found))
        if max(found) <= 5.0:
            sums[count] = min(sums.get(count, np.inf), sum(found))
    value, *_ = least_load(loads, places, shape_of, sizes, np.inf, False)
    total, *_ = least_load(loads, places, shape_of, sizes, 5.0, True)
    for count in range(1, loads.shape[1] + 1):
        assert value[count, 0].min() == largest.get(count, np.inf)
        assert total[count, 0].min() == sums.get(count, np.inf)


@given(problems())
@settings(max_examples=50, deadline=None)
def test_the_chain_that_is_read_has_the_value(problem: Any) -> None:
    loads, places, shape_of, sizes = problem
    value, layers, picked = least_load(loads, places, shape_of, sizes, np.inf, False)
    for count in range(1, loads.shape[1] + 1):
        if value[count, 0].min() == np.inf:
            continue
        chain = read_chain(layers, picked, sizes, count, int(np.argmin(value[count, 0])))
        assert [first for first, *_ in chain] == [0, *(after for _, after, *_ in chain[:-1])]
        assert chain[-1][1] == len(shape_of) - 1
        found = [
            loads[places[size, units], count - 1 - number, shape_of[first, after]]
            for number, (first, after, size, units) in enumerate(chain)
        ]
        assert max(found) == value[count, 0].min()


def test_an_option_counts_only_where_it_fits() -> None:
    # Two options, one shape, stages that hold 1, 2 and 4 microbatches: the fast one fits two.
    load, most = np.array([[1.0], [3.0]]), np.array([[2.0], [9.0]])
    best, chosen = np.empty((1, 3)), np.empty((1, 3), dtype=np.int64)
    pick_options(load, most, np.array([1.0, 2.0, 4.0]), best, chosen)
    assert best.tolist() == [[1.0, 1.0, 3.0]]
    assert chosen.tolist() == [[0, 0, 1]]
