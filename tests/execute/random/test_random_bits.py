"""Random bits are one function on every device, and as random as dropout needs them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from meshwright.execute.random.bits import KERNELS, WRITTEN, limit  # noqa: E402
from meshwright.execute.random.keys import SampleKeys, make_keys, sample_keys, seed_of  # noqa: E402

CPU = torch.device("cpu")
FULL = (1 << 32) - 1


def mix(word: int) -> int:
    """The permutation, on whole numbers."""
    word ^= word >> 16
    word = word * 0x7FEB352D & FULL
    word ^= word >> 15
    word = word * 0x846CA68B & FULL
    return word ^ word >> 16


def signed(word: int) -> int:
    return word - (1 << 32) if word >> 31 else word


def expected(keys: Sequence[Sequence[int]], rows: int, inner: int) -> list[Any]:
    return [
        [
            [
                signed(mix(mix((row * inner + place) ^ first & FULL) ^ second & FULL))
                for place in range(inner)
            ]
            for first, second in keys
        ]
        for row in range(rows)
    ]


words = st.integers(-(1 << 31), (1 << 31) - 1)


@given(
    keys=st.lists(st.tuples(words, words), min_size=1, max_size=3),
    rows=st.integers(1, 3),
    inner=st.integers(1, 5),
    share=st.floats(0, 1),
)
def test_kernels_and_ops_make_the_bits_of_the_formula(
    keys: list[tuple[int, int]], rows: int, inner: int, share: float
) -> None:
    tensor = torch.tensor(keys, dtype=torch.int32)
    wanted = torch.tensor(expected(keys, rows, inner), dtype=torch.int32)
    for source in (KERNELS, WRITTEN):
        assert torch.equal(source.bits(tensor, rows, inner), wanted)
        below = wanted.long() < limit(share)
        assert torch.equal(source.mask(tensor, rows, inner, share), below)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: torch sees none")
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (16, 33, 1025), (2, 1, 4_000_000)])
def test_a_gpu_makes_the_same_bits(shape: tuple[int, int, int]) -> None:
    rows, samples, inner = shape
    keys = sample_keys(0, 1, 2, samples)
    own = keys.cuda()
    assert torch.equal(KERNELS.bits(own, rows, inner).cpu(), KERNELS.bits(keys, rows, inner))
    for share in (0.0, 0.1, 0.9, 1.0):
        made = KERNELS.mask(own, rows, inner, share)
        assert torch.equal(made.cpu(), KERNELS.mask(keys, rows, inner, share))


def test_mixed_words_are_those_of_splitmix64() -> None:
    """Of seed 0: its first output (Vigna's reference implementation) is that of the state 0."""
    from meshwright.execute.random.keys import _mix

    assert int(_mix(np.zeros(1, dtype=np.uint64))[0]) == 0xE220A8397B1DCDAF


def test_bits_are_as_random_as_they_must_be() -> None:
    rows, samples, inner = 8, 64, 4096
    bits = KERNELS.bits(sample_keys(5, 3, 2, samples), rows, inner).numpy().view(np.uint32)
    count = bits.size
    for shift in range(32):  # each bit is set half the time
        share = ((bits >> np.uint32(shift)) & 1).mean()
        assert abs(share - 0.5) < 5 * 0.5 / np.sqrt(count)
    cells = np.bincount((bits >> np.uint32(24)).ravel(), minlength=256)
    chi = ((cells - count / 256) ** 2 / (count / 256)).sum()
    assert 255 - 5 * np.sqrt(510) < chi < 255 + 5 * np.sqrt(510)
    signs = np.where(bits >> np.uint32(31), 1.0, -1.0)
    bound = 5 / np.sqrt(count)
    assert abs((signs[..., 1:] * signs[..., :-1]).mean()) < bound * 1.1  # neighbours
    assert abs((signs[:, 1:] * signs[:, :-1]).mean()) < bound * 1.1  # samples
    assert abs((signs[1:] * signs[:-1]).mean()) < bound * 1.2  # rows


def test_samples_ops_and_steps_are_not_alike() -> None:
    """Signs of one stream tell nothing of another's, also of the next place."""
    length = 1 << 14
    signs = []
    for step in range(4):
        for op in range(4):
            bits = KERNELS.bits(sample_keys(0, step, op, 8), 1, length)[0]
            signs.append(np.where(bits < 0, 1.0, -1.0))
    streams = np.concatenate(signs)
    for shift in (0, 1):
        products = streams @ np.roll(streams, shift, axis=1).T / np.sqrt(length)
        if shift == 0:
            np.fill_diagonal(products, 0)
        assert abs(products).max() < 5.5
        assert products.std() == pytest.approx(1, abs=0.05)


def test_a_rank_has_the_keys_of_its_samples_and_of_no_sample() -> None:
    keys = SampleKeys(11, ops=[4, 2], samples=[6, 7, 3], device=CPU)
    keys.begin(5)
    whole = torch.from_numpy(make_keys(11, 5, [2, 4], range(8)))
    assert torch.equal(keys.of(4, 6, 2), whole[1, 6:8])
    assert torch.equal(keys.of(2, 3, 1), whole[0, 3:4])
    assert torch.equal(keys.of(2, 3, 0), sample_keys(11, 5, 2, 0))
    keys.begin(6)
    assert not torch.equal(keys.of(4, 6, 2), whole[1, 6:8])


def test_keys_differ_in_all_that_they_are_for() -> None:
    made = {
        (seed, step, op, sample): tuple(make_keys(seed, step, [op], [sample])[0, 0].tolist())
        for seed in (0, 1, -1, 1 << 63)
        for step in range(5)
        for op in range(5)
        for sample in range(-1, 5)
    }
    assert len(set(made.values())) == len(made)
    assert seed_of(0, 1, 2, 3) != seed_of(0, 1, 2, 4)
    assert 0 <= seed_of(0, 1, 2, 3) < 1 << 63
