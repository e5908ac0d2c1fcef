"""How the ops of a step split over its batch, from traces of it at two sizes.

An op's outputs grow with the batch (rows), or only what it reads does (a sum over the batch, such
as a weight gradient), or nothing does. What grows faster than the batch compares samples with each
other and does not split.
"""

from collections.abc import Sequence

from meshwright.capture.ledger import Ledger
from meshwright.graph.graph import Phase, Split

Reads = Sequence[Sequence[int]]
"""The versions that each kernel reads."""


def find_splits(
    small: Ledger,
    large: Ledger,
    reads: Reads,
    is_whole: Sequence[bool],
    phases: Sequence[Phase],
) -> tuple[list[Split], list[bool]]:
    """How each kernel splits, and which versions are partial sums when it does.

    What does not grow although its kernel does is summed over the batch. Backward is linear in the
    gradients it is given, so what it makes of partial sums alone is a partial sum, too. A kernel
    that runs on all samples, as `is_whole` says, does not split.
    """
    is_larger = _find_larger(small, large)
    partial = [False] * len(small.versions)
    splits = []
    for number, (kernel, grown) in enumerate(zip(small.kernels, large.kernels, strict=True)):
        grows = grown.bytes_read > kernel.bytes_read or grown.flops > kernel.flops
        is_backward = phases[number] is Phase.BACKWARD
        makes_larger = any(is_larger[version] for version in kernel.made)
        split = Split.NONE
        if is_whole[number]:
            pass
        elif grown.bytes_written > kernel.bytes_written or makes_larger:  # `empty` writes none
            split = Split.BATCH
        elif grows or (is_backward and any(partial[version] for version in reads[number])):
            split = Split.SUM
        splits.append(split)
        for version in kernel.made:
            partial[version] = split is not Split.NONE and not is_larger[version]
    return splits, partial


def find_whole(small: Ledger, large: Ledger, reads: Reads, is_steep: Sequence[bool]) -> list[bool]:
    """Which kernels run on all samples: those that compare them, and what numbers samples for
    these.

    What grows with the batch but reads nothing that does (`torch.arange(batch)`) numbers its
    samples. A reader that compares samples, as `is_steep` says, means numbers in the whole batch:
    all get these.
    """
    grows = _find_larger(small, large)
    numbers_samples: list[bool] = []
    for kernel, read in zip(small.kernels, reads, strict=True):
        made = any(grows[version] for version in kernel.made)
        given = (small.versions[version].source for version in read if grows[version])
        reads_samples = any(each < 0 or not numbers_samples[each] for each in given)
        numbers_samples.append(made and not reads_samples)
    is_whole = list(is_steep)
    for number in reversed(range(len(is_whole))):
        if numbers_samples[number]:
            versions = small.kernels[number].made
            readers = (each for v in versions for each in small.versions[v].readers)
            is_whole[number] = any(is_whole[each] for each in readers)
    for number, read in enumerate(reads):
        sources = [small.versions[version].source for version in read]
        if any(numbers_samples[each] and is_whole[each] for each in sources if each >= 0):
            is_whole[number] = True
    return is_whole


def _find_larger(small: Ledger, large: Ledger) -> list[bool]:
    """Which versions grow with the batch."""
    pairs = zip(small.versions, large.versions, strict=True)
    return [other.bytes > one.bytes for one, other in pairs]
