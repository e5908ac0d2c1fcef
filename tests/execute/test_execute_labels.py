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
from meshwright.execute.labels import check_labels, divided_bounds, find_labels  # noqa: E402
from meshwright.execute.lowered import lower_frozen  # noqa: E402
from meshwright.execute.steps import Steps  # noqa: E402
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


def check(plan_of: Any, *places: tuple[int, int]) -> None:
    """Look at a batch in which the labels at these places, by sample and token, are ignored."""
    ids = torch.randint(0, WORDS, (BATCH, TOKENS))
    labels = ids.clone()
    for sample, token in places:
        labels[sample, token] = -100
    workload = Workload(name="shifted", model=Shifted(), args=(ids, labels))
    graph = capture_workload(workload, "momentum")
    plan: Plan = plan_of(graph)
    lowered = lower_frozen(graph, connected(4), plan)
    steps = Steps(workload, graph, "momentum")
    bounds = divided_bounds(lowered.program, lowered.rows)
    found = find_labels(steps[2])
    assert len(found) == 1
    check_labels(found, workload.args, bounds, 2, BATCH)


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
