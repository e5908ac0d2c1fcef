"""Gives a rank its rows of one batch after the other, in an order that is the same for all ranks.

Batches are cut from the samples of one epoch after the other. Which sample comes when is a function
of the seed and the epoch, or the sampler's or the dataset's choice; never of the plan. So a place
in that order is two numbers, which a checkpoint keeps. Workers and collating are torch's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from hashlib import blake2b
from itertools import count, islice, repeat
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from meshwright.array import Longs
from meshwright.capture.inputs import Inputs, as_inputs
from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError
from meshwright.execute.message import gather

Collate = Callable[[list[Any]], Any]
"""From samples to a batch of them."""


class DataPlace(NamedTuple):
    """How far training has come in its data."""

    epoch: int = 0
    samples: int = 0
    """How many samples of that epoch have been trained on."""


class Loader:
    """Batches for `step`, of each this rank's rows; iterating gives what is left of an epoch.

    A plan's batches all have one size, so that the samples which an epoch leaves over begin the
    first batch of the next, unless they are dropped.
    """

    def __init__(
        self,
        dataset: Any,
        batch: int,
        rows: Sequence[int],
        *,
        shuffles: bool = False,
        sampler: Iterable[int] | None = None,
        seed: int = 0,
        collate: Collate | None = None,
        num_workers: int = 0,
        drops_last: bool = False,
        is_alone: bool = False,
    ) -> None:
        """`rows`: which samples of a batch are wanted. A dataset without a length is one that can
        only be iterated. All ranks call it alike, unless one `is_alone` with it."""
        self.is_alone = is_alone
        self.dataset, self.batch, self.rows = dataset, batch, np.array(rows, dtype=np.int64)
        self.shuffles, self.sampler, self.seed = shuffles, sampler, seed
        self.collate = collate or default_collate
        self.num_workers, self.drops_last = num_workers, drops_last
        self.is_indexed = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
        _check(self)
        self._place = self._given = DataPlace()
        self._begin, self._carried = DataPlace(), list[Any]()
        """Where iterating goes on, and samples before that which are in no batch yet."""
        self._lists = _Lists()
        self._stream: Iterator[tuple[bool, Any]] | None = None
        """What is left of a dataset that is iterated, at the beginning of an epoch."""

    @property
    def epoch(self) -> int:
        """The epoch that iterating goes on with, from 0."""
        return self._begin.epoch

    @property
    def place(self) -> DataPlace:
        """How far training has come: after the last batch that it took."""
        return self._place

    def seek(self, place: DataPlace) -> None:
        """Go on from a place where training has come to."""
        self._place = self._given = self._begin = place
        self._carried, self._stream = [], None

    def take(self) -> None:
        """Say that the batch which was given last has been trained on."""
        if self._given != self._place:
            self._place = self._begin = self._given
            self._carried = []

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left of the epoch."""
        (epoch, skipped), carried = self._begin, self._carried
        take = self._by_index if self.is_indexed else self._one_by_one
        batches, rest = take(epoch, skipped, carried)
        for number, own in enumerate(batches, start=1):
            self._given = DataPlace(epoch, skipped + number * self.batch - len(carried))
            yield own
        self._begin = DataPlace(epoch + 1, 0)
        self._carried = rest

    def _by_index(
        self, epoch: int, skipped: int, carried: list[Any]
    ) -> tuple[Iterable[Any], list[Any]]:
        order = self._order(epoch)[skipped:]
        order = np.concatenate([np.array(carried, dtype=np.int64), order])
        number = len(order) // self.batch
        rest = [] if self.drops_last else order[number * self.batch :].tolist()
        if not len(self.rows):
            return repeat(self._nothing, number), rest
        self._lists.indices = order[: number * self.batch].reshape(number, self.batch)[:, self.rows]
        return self._fetched, rest

    @cached_property
    def _fetched(self) -> Iterable[Any]:
        """The batches of `_lists`. Workers stay for all epochs: a process that is forked from one
        with many threads, as a rank is, may hang, and is best forked once, before the first step.
        """
        return DataLoader(
            self.dataset,
            batch_sampler=self._lists,
            collate_fn=self.collate,
            num_workers=self.num_workers,
            persistent_workers=self.num_workers > 0,
        )

    @cached_property
    def _nothing(self) -> Any:
        """The batch of a rank that reads no sample: none, in the form of one."""
        return _emptied(self.collate([self.dataset[0]]))

    def _order(self, epoch: int) -> Longs:
        """The indices of an epoch; that ranks have the same is checked."""
        if self.sampler is not None:
            _set_epoch(self.sampler, epoch)
            order = np.fromiter(self.sampler, dtype=np.int64)
        elif self.shuffles:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.dataset))
        else:
            order = np.arange(len(self.dataset), dtype=np.int64)
        own = blake2b(order.tobytes()).hexdigest()
        digests = [own] if self.is_alone else gather(own, str)
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise InputError(
                f"data: samples must have the same order on all ranks, in epoch {epoch} that of "
                f"rank {different[0]} is not that of rank 0; seed the sampler, or leave shuffling "
                f"to the loader"
            )
        return order

    def _one_by_one(
        self, epoch: int, skipped: int, carried: list[Any]
    ) -> tuple[Iterable[Any], list[Any]]:
        rest: list[Any] = []
        stream, self._stream = self._stream, None  # unless the epoch comes to its end, see below
        if stream is None:
            epochs = _Epochs(self, epoch, skipped, carried)
            stream = iter(DataLoader(epochs, batch_size=None, num_workers=self.num_workers))

        def given() -> Iterator[Any]:
            for is_batch, value in stream:
                if not is_batch:
                    rest.extend(value)
                    self._stream = stream
                    return
                yield value

        return given(), rest


class _Lists:
    """The indices of this rank's rows, batch by batch; others in every epoch."""

    def __init__(self) -> None:
        self.indices: Longs = np.zeros((0, 0), dtype=np.int64)

    def __iter__(self) -> Iterator[list[int]]:
        return (each.tolist() for each in self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class _Epochs(IterableDataset[Any]):
    """This rank's rows of the batches of one epoch after the other, collated; and after each epoch
    the samples that it leaves over, with which the next one begins."""

    def __init__(self, loader: Loader, epoch: int, skipped: int, carried: list[Any]) -> None:
        self.samples, self.epoch, self.skipped = loader.dataset, epoch, skipped
        self.carried, self.drops_last = carried, loader.drops_last
        self.batch, self.rows, self.collate = loader.batch, loader.rows.tolist(), loader.collate

    def __iter__(self) -> Iterator[tuple[bool, Any]]:
        several, skipped = list(self.carried), self.skipped
        for epoch in count(self.epoch):
            _set_epoch(self.samples, epoch)
            for sample in self._left(skipped):
                several.append(sample)
                if len(several) == self.batch:
                    own = [several[row] for row in self.rows]
                    yield True, self.collate(own) if own else _emptied(self.collate(several[:1]))
                    several = []
            several = [] if self.drops_last else several
            yield False, list(several)
            skipped = 0

    def _left(self, skipped: int) -> Iterator[Any]:
        if skipped and hasattr(self.samples, "skip"):  # as datasets of the Hub have
            return iter(self.samples.skip(skipped))
        return islice(self.samples, skipped, None)


def endless(loader: Loader) -> Iterator[Inputs]:
    """The batches of one epoch after the other, as the model is called with them."""
    carried = -1
    while True:
        for batch in loader:
            carried = -1
            yield as_inputs(batch)
        if len(loader._carried) <= carried:
            raise InputError("data: must have samples, epoch after epoch has none")
        carried = len(loader._carried)


def _check(loader: Loader) -> None:
    is_indexed = loader.is_indexed
    if not is_indexed and not isinstance(loader.dataset, Iterable):
        raise InputError(
            f"data: must have __getitem__ and __len__, or __iter__, got "
            f"{type(loader.dataset).__name__}"
        )
    if not is_indexed and (loader.shuffles or loader.sampler is not None):
        raise InputError(
            f"data: {type(loader.dataset).__name__} can only be iterated, in its own order; "
            f"without a sampler, and not shuffled"
        )
    if not is_indexed and loader.num_workers > 1:
        raise InputError(
            f"data: {type(loader.dataset).__name__} can only be iterated, by one worker at most, "
            f"got {loader.num_workers:,}"
        )
    if loader.shuffles and loader.sampler is not None:
        raise InputError("data: must be shuffled or have a sampler, not both")
    if is_indexed and len(loader.dataset) < loader.batch:
        raise InputError(
            f"data: must have a batch of {loader.batch:,} samples at least, got "
            f"{len(loader.dataset):,}"
        )


def _set_epoch(samples: Any, epoch: int) -> None:
    """Tell a sampler or dataset the epoch, where it asks for it."""
    if hasattr(samples, "set_epoch"):
        samples.set_epoch(epoch)


def _emptied(batch: Any) -> Any:
    """A batch of one sample without it."""
    return pytree.tree_map_only(torch.Tensor, lambda each: each[:0] if each.dim() else each, batch)
