"""A loader gives every sample once an epoch, in one order for all ranks, and goes on anywhere."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils.data import Dataset, IterableDataset  # noqa: E402

from meshwright.capture.inputs import as_inputs  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.loader import DataPlace, Loader, endless  # noqa: E402


class Numbers(Dataset[Any]):
    """A sample is its number, and its square by name."""

    def __init__(self, count: int) -> None:
        self.count, self.read = count, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        return {"id": torch.tensor(index), "square": torch.tensor([index * index])}


class Stream(IterableDataset[Any]):
    """The same, of which only the next can be had; epochs begin at another number."""

    def __init__(self, count: int) -> None:
        self.count, self.epoch = count, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(self.count):
            index = (number + self.epoch) % self.count
            yield {"id": torch.tensor(index), "square": torch.tensor([index * index])}


def take(loader: Loader, batches: int) -> list[list[int]]:
    """The ids of the next batches, each trained on."""
    found = []
    for _, batch in islice(endless(loader), batches):
        assert batch["square"].flatten().tolist() == [k * k for k in batch["id"].tolist()]
        found.append(batch["id"].tolist())
        loader.take()
    return found


def make(kind: str, count: int, batch: int, rows: Sequence[int], **more: Any) -> Loader:
    if kind == "stream":
        return Loader(Stream(count), batch, rows, **more)
    return Loader(Numbers(count), batch, rows, shuffles=kind == "shuffled", seed=5, **more)


KINDS = st.sampled_from(["stream", "shuffled", "plain"])


@settings(deadline=None)
@given(KINDS, st.integers(8, 23), st.integers(1, 8), st.booleans(), st.data())
def test_ranks_together_have_every_sample_once_an_epoch(
    kind: str, count: int, batch: int, drops_last: bool, draw: st.DataObject
) -> None:
    owner = draw.draw(st.lists(st.integers(0, 2), min_size=batch, max_size=batch))
    rows = [[row for row in range(batch) if owner[row] == rank] for rank in range(3)]
    loaders = [make(kind, count, batch, each, drops_last=drops_last) for each in rows]
    number = 4 * (count // batch + 1)
    own = [take(each, number) for each in loaders]
    whole = take(make(kind, count, batch, range(batch), drops_last=drops_last), number)
    for k, wanted in enumerate(whole):
        assert [wanted[row] for rank in rows for row in rank] == [
            sample for rank in own for sample in rank[k]
        ]
    samples = [sample for each in whole for sample in each]
    length = count - count % batch if drops_last else count
    for start in range(0, len(samples) - length, length):
        epoch = samples[start : start + length]
        assert len(set(epoch)) == length
    if kind == "shuffled" and count > 12 and not drops_last and len(samples) >= 2 * count:
        assert samples[:count] != samples[count : 2 * count]


@settings(deadline=None)
@given(KINDS, st.integers(8, 23), st.integers(1, 8), st.booleans(), st.integers(0, 9))
def test_a_loader_goes_on_from_any_place(
    kind: str, count: int, batch: int, drops_last: bool, taken: int
) -> None:
    first = make(kind, count, batch, range(batch), drops_last=drops_last)
    take(first, taken)
    again = make(kind, count, batch, range(batch), drops_last=drops_last)
    again.seek(first.place)
    assert again.epoch == first.place.epoch
    assert take(again, 6) == take(first, 6)
    assert again.place == first.place


def test_a_batch_that_was_not_trained_on_comes_again() -> None:
    loader = make("plain", 10, 4, range(4))
    batches = iter(loader)
    next(batches)
    loader.take()
    next(batches)  # nobody takes it
    assert loader.place == DataPlace(0, 4)
    assert take(loader, 1) == [[4, 5, 6, 7]]


def test_an_epoch_ends_and_leaves_its_rest_to_the_next() -> None:
    loader = make("plain", 10, 4, range(4))
    found = []
    for epoch in range(3):
        assert loader.epoch == epoch
        for batch in loader:
            loader.take()
            found.append((epoch, batch["id"].tolist()))
    assert found == [
        (0, [0, 1, 2, 3]), (0, [4, 5, 6, 7]), (1, [8, 9, 0, 1]), (1, [2, 3, 4, 5]),
        (1, [6, 7, 8, 9]), (2, [0, 1, 2, 3]), (2, [4, 5, 6, 7]),
    ]  # fmt: skip
    dropped = make("plain", 10, 4, range(4), drops_last=True)
    assert take(dropped, 3) == [[0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_rank_reads_its_own_rows_only() -> None:
    dataset = Numbers(12)
    loader = Loader(dataset, 4, [1, 3])
    assert take(loader, 3) == [[1, 3], [5, 7], [9, 11]]
    assert dataset.read == [1, 3, 5, 7, 9, 11]
    nothing = take(Loader(dataset, 4, []), 2)
    assert nothing == [[], []]


@pytest.mark.parametrize(("kind", "workers"), [("shuffled", 2), ("stream", 1)])
def test_workers_give_the_same(kind: str, workers: int) -> None:
    with_workers = make(kind, 10, 3, [0, 2], num_workers=workers)
    assert take(with_workers, 5) == take(make(kind, 10, 3, [0, 2]), 5)


def test_a_sampler_orders_samples() -> None:
    class Backwards:
        def __init__(self) -> None:
            self.epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __iter__(self) -> Iterator[int]:
            return iter(range(5, -1 + self.epoch, -1))

    loader = Loader(Numbers(6), 3, range(3), sampler=Backwards())
    assert take(loader, 3) == [[5, 4, 3], [2, 1, 0], [5, 4, 3]]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        (3, {}, "must have __getitem__ and __len__, or __iter__, got int"),
        (Stream(4), {"shuffles": True}, "Stream can only be iterated, in its own order"),
        (Stream(4), {"num_workers": 2}, "by one worker at most, got 2"),
        (Numbers(4), {"shuffles": True, "sampler": [1]}, "shuffled or have a sampler, not both"),
        (Numbers(2), {}, "must have a batch of 3 samples at least, got 2"),
    ],
)
def test_what_cannot_be_loaded_is_refused(
    dataset: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Loader(dataset, 3, [0], **options)


def test_a_stream_shorter_than_a_batch_fills_it_with_the_next_epoch() -> None:
    assert take(make("stream", 2, 3, range(3)), 2) == [[0, 1, 1], [0, 0, 1]]


def test_data_without_samples_is_refused() -> None:
    with pytest.raises(InputError, match="epoch after epoch has none"):
        next(endless(Loader(Stream(0), 3, [0])))


def test_a_batch_is_what_the_model_is_called_with() -> None:
    assert as_inputs({"x": 1}) == ((), {"x": 1})
    assert as_inputs([1, 2]) == ((1, 2), {})
    assert as_inputs(1) == ((1,), {})
