"""Equal layers are equal regions, and regions end after products."""

import pytest

pytest.importorskip("torch")

from meshwright.execute.region.find import find_turns

LAYER = ["norm", "qkv", "attend", "out", "add", "norm", "up", "gelu", "down", "add"]
PRODUCTS = {"qkv", "attend", "out", "up", "down", "head"}


def turns(ops: list[str]) -> list[range]:
    return find_turns(ops, [each in PRODUCTS for each in ops])


def test_every_layer_is_a_turn_that_begins_after_a_product() -> None:
    ops = ["word", "add", *LAYER * 4, "norm", "head", "loss"]
    found = turns(ops)
    # The lines repeat from the first `add` on, but there no product stands before; after the first
    # `qkv` one does, and the turns [attend .. qkv] are three.
    assert [len(each) for each in found] == [10, 10, 10]
    assert all(ops[each.start - 1] in PRODUCTS for each in found)
    assert all(ops[each.start : each.stop] == ops[found[0].start : found[0].stop] for each in found)
    assert [each.stop for each in found[:-1]] == [each.start for each in found[1:]]


def test_no_turn_is_lost_where_a_product_stands_before_the_first() -> None:
    ops = ["head", *LAYER * 3, "loss"]
    assert turns(ops) == [range(1, 11), range(11, 21), range(21, 31)]


def test_what_does_not_repeat_has_no_turns() -> None:
    assert turns([*LAYER, "loss"]) == []


def test_two_kinds_of_layers_have_turns_of_their_own() -> None:
    other = ["conv", "norm", "relu", "conv", "norm", "relu", "conv", "norm", "add", "relu"]
    found = turns([*LAYER * 3, *other * 4])
    assert sum(map(len, found)) >= 50
    kinds = {tuple(([*LAYER * 3, *other * 4])[each.start : each.stop]) for each in found}
    assert len(kinds) == 2
