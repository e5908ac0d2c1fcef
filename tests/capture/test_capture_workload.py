"""A workload on another number of samples."""

import pytest

torch = pytest.importorskip("torch", reason="capture needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402


def workload(batch: int | None = None) -> Workload:
    with torch.device("meta"):
        return Workload(
            name="mine",
            model=nn.Linear(8, 4),
            args=(torch.empty(4, 8), 3),
            kwargs={"labels": torch.empty(4, dtype=torch.long), "scale": torch.empty(())},
            batch=batch,
        )


@pytest.mark.parametrize("batch", [None, 4])
def test_inputs_that_have_the_batch_first_change(batch: int | None) -> None:
    made = workload(batch).at_batch(6)
    assert made.args[0].shape == (6, 8)
    assert made.args[1] == 3
    assert made.kwargs["labels"].shape == (6,)
    assert made.kwargs["labels"].dtype is torch.long
    assert made.kwargs["scale"].shape == ()
    assert made.batch == 6


def test_the_same_batch_changes_nothing() -> None:
    given = workload()
    made = given.at_batch(4)
    assert made.args[0] is given.args[0]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (0, "mine: batch must be positive, got 0"),
        (10**30, f"batch: {10**30:,} samples are too many"),
    ],
)
def test_what_cannot_be_a_batch_is_refused(batch: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        workload().at_batch(batch)
