"""Labels that a loss ignores must be as many in every part of a batch."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from small_plans import data_plan, pipeline_plan  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from meshwright.capture.capture import capture_workload  # noqa: E402
from meshwright.capture.workload import Workload  # noqa: E402
from meshwright.errors import InputError  # noqa: E402
from meshwright.execute.labels import (  # noqa: E402
    check_labels,
    count_labels,
    divided_bounds,
    find_labels,
)
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.steps import PlannedSteps  # noqa: E402
from meshwright.plan.plan import Plan, ScheduleKind  # noqa: E402
from small import connected  # noqa: E402

BATCH, TOKENS, WORDS = 4, 6, 10


class Shifted(nn.Module):
    """A loss over next tokens, of which the last has none."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, ids: Any, labels: Any) -> Any:
        after = F.pad(labels, (0, 1), value=-100)[:, 1:]
        return F.cross_entropy(self.head(self.words(ids)).flatten(0, 1), after.flatten())


class Padded(Shifted):
    """A loss that ignores the padding, which is 0, by itself."""

    def forward(self, ids: Any, labels: Any) -> Any:
        return super().forward(ids, torch.where(labels == 0, -100, labels))


def make_shifted(
    *places: tuple[int, int], model: nn.Module | None = None, value: int = -100
) -> Workload:
    """A model with a batch in which the labels at these places, by sample and token, are ignored;
    `value` says so."""
    ids = torch.randint(1, WORDS, (BATCH, TOKENS))
    labels = ids.clone()
    for sample, token in places:
        labels[sample, token] = value
    return Workload(name="shifted", model=model or Shifted(), args=(ids, labels))


def check(plan_of: Any, *places: tuple[int, int], **options: Any) -> None:
    """Look at a batch in which labels are ignored."""
    workload = make_shifted(*places, **options)
    graph = capture_workload(workload, "momentum")
    plan: Plan = plan_of(graph)
    lowered = lower_frozen(graph, connected(4), plan)
    steps = PlannedSteps(workload, graph, "momentum")
    bounds = divided_bounds(lowered.program, lowered.rows)
    found = find_labels(steps[2])
    assert len(found) == 1
    check_labels(found, workload.args, bounds, BATCH)


PLANS = {
    "replicas": lambda graph: data_plan(graph, 2),
    "microbatches": lambda graph: pipeline_plan(graph, 2, 2, ScheduleKind.GPIPE, 2),
}


@pytest.mark.parametrize("kind", PLANS)
def test_labels_that_are_ignored_unevenly_are_refused(kind: str) -> None:
    """The first two samples have 4.5 labels each, since none belongs to the last token."""
    line = r"not -100\), got 4.5 in samples 0 to 1 and 5 in 2 to 3; leave the batch whole"
    with pytest.raises(InputError, match=line):
        check(PLANS[kind], (0, 3))


@pytest.mark.parametrize("kind", PLANS)
def test_parts_with_as_many_labels_are_trained(kind: str) -> None:
    check(PLANS[kind])
    check(PLANS[kind], (0, 3), (2, 1))
    check(PLANS[kind], (1, 0))  # nobody's next token


def test_a_whole_batch_may_ignore_any_label() -> None:
    check(lambda graph: data_plan(graph, 1), (0, 3))


def test_labels_that_a_model_ignores_by_itself_are_counted() -> None:
    """No input holds -100: the first two samples have 4.5 labels each, the others 5."""
    even = {"model": Padded(), "value": 0}
    check(PLANS["replicas"], **even)
    check(PLANS["replicas"], (0, 3), (2, 1), **even)
    with pytest.raises(InputError, match=r"got 4.5 in samples 0 to 1 and 5 in 2 to 3"):
        check(PLANS["replicas"], (0, 3), **even)


def test_labels_of_all_tokens_but_the_last_are_known_from_shapes() -> None:
    """Where the model itself ignores some, their number is not."""
    for model, full in ((Shifted(), TOKENS - 1.0), (Padded(), None)):
        workload = make_shifted(model=model)
        (found,) = find_labels(
            PlannedSteps(workload, capture_workload(workload, "momentum"), "momentum")[2]
        )
        assert found.full == full


@pytest.mark.parametrize(("places", "mean"), [((), 5.0), (((2, 3),), 4.5)])
def test_a_rank_counts_the_labels_of_its_own_rows(
    places: tuple[tuple[int, int], ...], mean: float
) -> None:
    """The second replica has samples 2 and 3; the last token of each has no label."""
    workload = make_shifted(*places)
    graph = capture_workload(workload, "momentum")
    found = find_labels(PlannedSteps(workload, graph, "momentum")[2])
    own = [each[2:] for each in workload.args]
    count = count_labels(found, own, ((0, 2), (2, 4)), (2, 3))
    assert (count.parts, count.means) == (1.0, mean)
