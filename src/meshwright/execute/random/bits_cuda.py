"""Random bits on a GPU; see `meshwright.execute.random.bits`."""

import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

_BLOCK = 1024


@triton.jit
def mix(word):  # type: ignore[no-untyped-def]
    """A permutation of 32 bits."""
    word = word ^ (word >> 16)
    word = word * 0x7FEB352D
    word = word ^ (word >> 15)
    word = word * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit  # type: ignore[untyped-decorator]
def _fill(keys, made, below, samples, inner, blocks, is_mask: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    line = tl.program_id(0) // blocks  # of a row, a sample
    place = (tl.program_id(0) % blocks) * block + tl.arange(0, block)
    sample = line % samples
    position = ((line // samples) * inner + place).to(tl.uint32)
    first = tl.load(keys + 2 * sample).to(tl.uint32, bitcast=True)
    second = tl.load(keys + 2 * sample + 1).to(tl.uint32, bitcast=True)
    word = mix(mix(position ^ first) ^ second).to(tl.int32, bitcast=True)
    own = made + line.to(tl.int64) * inner + place
    if is_mask:
        tl.store(own, word < below, mask=place < inner)
    else:
        tl.store(own, word, mask=place < inner)


def run_bits(keys: Tensor, made: Tensor, below: int | None) -> Tensor:
    """Fill a tensor of rows, samples and places with bits, or whether they are below a limit."""
    rows, samples, inner = made.shape
    if made.numel():
        block = min(_BLOCK, triton.next_power_of_2(inner))
        blocks = triton.cdiv(inner, block)
        limit = 0 if below is None else below
        _fill[rows * samples * blocks,](
            keys, made, limit, samples, inner, blocks, is_mask=below is not None, block=block
        )
    return made
