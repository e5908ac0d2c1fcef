"""Products and systems in pieces are those of the whole."""

import numpy as np
import pytest

from meshwright.search.method.bandwidth.rate.master import product, solve


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (300, 90), (90, 9000), (2, 300_000)])
def test_products_in_pieces_are_those_of_the_whole(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(0)
    one, vector = generator.normal(size=shape), generator.normal(size=shape[1])
    assert product(one, vector) == pytest.approx(one @ vector)
    other = generator.normal(size=(shape[1], 4))
    assert product(one, other) == pytest.approx(one @ other)


@pytest.mark.parametrize("count", [0, 1, 96, 97, 150, 401])
def test_systems_by_halves_have_the_same_answer(count: int) -> None:
    generator = np.random.default_rng(count)
    rows = generator.normal(size=(count, 40)) * np.exp(3 * generator.normal(size=(count, 1)))
    system = rows @ rows.T + np.eye(count)
    known = generator.normal(size=(count, 2))
    found = solve(system, known)
    assert found == pytest.approx(np.linalg.solve(system, known), rel=1e-5, abs=1e-6)
