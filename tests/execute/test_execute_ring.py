"""Blocks of attention together make what attention makes of all keys at once."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from meshwright.capture.attention import attention, attention_backward  # noqa: E402
from meshwright.execute.cut.attention import LaterRows  # noqa: E402
from meshwright.execute.ring import AddKeys, Block, Skipped, pack_keys  # noqa: E402

SAMPLES, HEADS, TOKENS, SIZE, WIDTH = 2, 4, 12, 8, 3
OWN = TOKENS // WIDTH
FORWARD = torch.ops.meshwright.attention.default
BACKWARD = torch.ops.meshwright.attention_backward.default


def inputs(key_heads: int) -> list[Any]:
    torch.manual_seed(0)
    heads = (HEADS, key_heads, key_heads)
    return [torch.randn(SAMPLES, each, TOKENS, SIZE) for each in heads]


def names_of(target: Any) -> tuple[str, ...]:
    return tuple(each.name for each in target._schema.arguments)


def block_of(target: Any, member: int, owner: int, hop: int, is_causal: bool) -> Any:
    combined = 0 if hop == 0 else 2 if target is FORWARD else 1
    inner = LaterRows(target, (member - owner) * OWN, names_of(target)) if is_causal else target
    return Block(inner, names_of(target), owner * OWN, combined, hop == WIDTH - 1)


def rows(tensor: Any, member: int) -> Any:
    return tensor.narrow(2, member * OWN, OWN)


def attend(member: int, parts: list[Any], mask: Any, is_causal: bool) -> tuple[Any, ...]:
    """A member's rows of the result, block by block as they come around."""
    query, key, value = parts
    found: tuple[Any, ...] = ()
    for hop in range(WIDTH):
        owner = (member - hop) % WIDTH
        block = block_of(FORWARD, member, owner, hop, is_causal)
        if is_causal and owner > member:
            block = Skipped(2, hop == WIDTH - 1, None)
        own = None if mask is None else rows(mask, member) if mask.shape[2] > 1 else mask
        found = block(
            rows(query, member), rows(key, owner), rows(value, owner), own, 0.0, is_causal, None,
            *found,
        )  # fmt: skip
    return found


def masks() -> dict[str, Any]:
    hides = torch.rand(SAMPLES, 1, TOKENS, TOKENS) < 0.5
    hides[:, :, 3] = True  # a query that sees nothing
    hides[:, :, 5, : 2 * OWN] = True  # one that sees the last block only
    hides[:, :, 5, -1] = False
    padded = torch.zeros(SAMPLES, 1, 1, TOKENS)
    padded[0, :, :, OWN:] = torch.finfo(torch.float32).min
    added = torch.zeros(hides.shape).masked_fill(hides, float("-inf"))
    return {"none": None, "chosen": ~hides, "added": added, "padded": padded}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("mask", ["none", "chosen", "added", "padded"])
def test_blocks_make_the_whole(mask: str, key_heads: int, is_causal: bool) -> None:
    given = masks()[mask]
    if is_causal and given is not None:
        pytest.skip("the kernel takes one of both")
    parts = inputs(key_heads)
    made, sums = attention(*parts, given, 0.0, is_causal, None)
    gradient = torch.randn_like(made)
    wanted = attention_backward(gradient, *parts, made, sums, given, 0.0, is_causal, None)
    keys = [torch.zeros(pack_keys(*(rows(each, 0) for each in parts[1:])).shape)] * WIDTH
    for member in range(WIDTH):
        found = attend(member, parts, given, is_causal)
        torch.testing.assert_close(found[0], rows(made, member))
        torch.testing.assert_close(found[1], rows(sums, member))
        total: list[Any] = []
        for hop in range(WIDTH):
            owner = (member - hop) % WIDTH
            block = block_of(BACKWARD, member, owner, hop, is_causal)
            if is_causal and owner > member:
                block = Skipped(1, hop == WIDTH - 1, (2, 3))
            own = given if given is None or given.shape[2] == 1 else rows(given, member)
            *total, term = block(
                rows(gradient, member), rows(parts[0], member), rows(parts[1], owner),
                rows(parts[2], owner), *found, own, 0.0, is_causal, None, *total,
            )  # fmt: skip
            keys[owner] = keys[owner] + term
        torch.testing.assert_close(total[0], rows(wanted[0], member))
    shape = tuple(rows(parts[1], 0).shape)
    stride = rows(parts[1], 0).contiguous().stride()
    add = AddKeys((shape, shape), (stride, stride))
    for owner in range(WIDTH):
        key, value = add(keys[owner], torch.zeros_like(keys[owner]))
        torch.testing.assert_close(key, rows(wanted[1], owner))
        torch.testing.assert_close(value, rows(wanted[2], owner))


def test_what_is_combined_is_in_fp32_until_the_last_block() -> None:
    parts = [each.bfloat16() for each in inputs(HEADS)]
    query, key, value = (rows(each, 0) for each in parts)
    first = block_of(FORWARD, 0, 0, 0, False)(query, key, value, None, 0.0, False, None)
    assert first[0].dtype is torch.float32
    last = Block(FORWARD, names_of(FORWARD), OWN, 2, True)
    made = last(query, key, value, None, 0.0, False, None, *first)
    assert made[0].dtype is torch.bfloat16
