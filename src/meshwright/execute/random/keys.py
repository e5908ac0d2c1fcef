"""Keys of random numbers: a pair of 32 bits for a seed, a step, an op and a sample.

Whichever device draws for a sample, in whichever microbatch, beside whichever other samples: it has
the sample's key, and so its numbers. All keys that a rank needs in a step lie in one small tensor,
so that neither a compiled region nor a recorded step has any of them in its code.
"""

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from meshwright.kernel.word import GOLDEN, Words, mix_words

_NO_SAMPLE = -1


def make_keys(
    seed: int, step: int, ops: Iterable[int], samples: Iterable[int]
) -> npt.NDArray[np.int32]:
    """The keys of ops and samples: shape (ops, samples, 2)."""
    word = _mix(np.full((1, 1), seed & 0xFFFF_FFFF_FFFF_FFFF, dtype=np.uint64))
    word = _mix(word + np.uint64(step))
    word = _mix(word + np.array(list(ops), dtype=np.int64).astype(np.uint64)[:, None])
    word = _mix(word + np.array(list(samples), dtype=np.int64).astype(np.uint64)[None, :])
    halves = np.stack([word & np.uint64(0xFFFF_FFFF), word >> np.uint64(32)], axis=-1)
    return halves.astype(np.uint32).view(np.int32)


def sample_keys(seed: int, step: int, op: int, samples: int) -> torch.Tensor:
    """The keys of the first samples of a batch, of one op: shape (samples, 2); of none: the key
    of what has no samples."""
    wanted = range(samples) if samples else (_NO_SAMPLE,)
    return torch.from_numpy(make_keys(seed, step, [op], wanted)[0])


def seed_of(seed: int, step: int, op: int, first: int) -> int:
    """A seed for torch's own generators, where an op draws for its samples together."""
    words = make_keys(seed, step, [op], [first])[0, 0].view(np.uint32).tolist()
    return int(words[0] | (words[1] >> 1) << 32)


def _mix(word: Words) -> Words:
    with np.errstate(over="ignore"):
        return mix_words(word + GOLDEN)


class SampleKeys:
    """The keys that a rank draws with in a step."""

    def __init__(
        self, seed: int, ops: Iterable[int], samples: Iterable[int], device: torch.device
    ) -> None:
        self.seed, self.ops = seed, sorted(set(ops))
        self.samples = [_NO_SAMPLE, *sorted(set(samples))]
        self.row = {op: row for row, op in enumerate(self.ops)}
        self.column = {sample: column for column, sample in enumerate(self.samples)}
        shape = len(self.ops), len(self.samples), 2
        self.table = torch.zeros(shape, dtype=torch.int32, device=device)

    def begin(self, step: int) -> None:
        """Take those of a step."""
        if self.ops:
            made = torch.from_numpy(make_keys(self.seed, step, self.ops, self.samples))
            if self.table.is_cuda:
                made = made.pin_memory()  # or the copy would wait for all that the device does
            self.table.copy_(made, non_blocking=True)

    def of(self, op: int, first: int, samples: int) -> torch.Tensor:
        """Those of an op for samples from one on, or, of no samples, for none."""
        column = self.column[first if samples else _NO_SAMPLE]
        return self.table[self.row[op], column : column + max(samples, 1)]
