import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import Ranks

from meshwright.execute.gloo import FEW_BYTES, _reversed


def _all_ways(rank: int, count: int, length: int, is_alone: bool) -> list[bool]:
    """Whether each collective gives a rank what it should; all know what all have."""
    import torch
    import torch.distributed as dist

    from meshwright.execute import gloo
    from meshwright.execute.bundle import AS_GIVEN

    # Not in the order of their numbers, where torch leaves it.
    order = [*range(1, count), 0] if AS_GIVEN else list(range(count))
    ranks = gloo.Ranks(order, dist.new_group(order, **AS_GIVEN))
    place = order.index(rank)
    generator = torch.Generator().manual_seed(length)
    # [giver, receiver, number]: whole numbers, of which no sum depends on the order.
    numbers = torch.randint(-99, 99, (count, count, length), generator=generator).float()

    total = numbers[place].flatten().clone()
    gloo.start_sum(total, ranks).wait()
    most = numbers[place].flatten().clone()
    gloo.start_sum(most, ranks, is_max=True).wait()
    gathered = [torch.empty(length) for _ in order]
    gloo.start_gather(gathered, numbers[place, 0], ranks, is_alone=is_alone).wait()
    own = torch.empty(length)
    gloo.start_scatter(own, numbers[place], ranks, is_alone=is_alone).wait()
    # To the k-th rank the first k numbers.
    found = [torch.empty(min(place, length)) for _ in order]
    given = [numbers[place, k, :k] for k in range(count)]
    gloo.start_swap(found, given, ranks).wait()
    return [
        torch.equal(total, numbers.sum(0).flatten()),
        torch.equal(most, numbers.amax(0).flatten()),
        torch.equal(torch.stack(gathered), numbers[:, 0]),
        torch.equal(own, numbers[:, place].sum(0)),
        all(torch.equal(each, numbers[k, place, :place]) for k, each in enumerate(found)),
    ]


@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("length", [1, 7, FEW_BYTES // 4 + 1])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_collectives_of_sends_are_right(
    ranks: Ranks, count: int, length: int, is_alone: bool
) -> None:
    assert ranks.call(count, _all_ways, count, length, is_alone) == [[True] * 5] * count


def test_collectives_of_eight_are_right(ranks: Ranks) -> None:
    assert ranks.call(8, _all_ways, 8, 33, True) == [[True] * 5] * 8


@given(st.integers(min_value=0, max_value=10), st.data())
def test_bits_in_reverse_are_themselves_again(bits: int, data: st.DataObject) -> None:
    count = 1 << bits
    number = data.draw(st.integers(min_value=0, max_value=count - 1))
    assert _reversed(_reversed(number, count), count) == number
    assert bin(number).count("1") == bin(_reversed(number, count)).count("1")
