"""An answer keeps how its search went."""

import math

import pytest

import meshwright as mw
from meshwright.search.claim import Claim


@pytest.mark.parametrize("method", ["auto", "data", "pipeline"])
def test_history_ends_with_the_step_of_the_answer(method: str) -> None:
    answer = mw.plan("mlp", "v100-32-x2", method=method, budget_seconds=2)
    found = [each for each in answer.history if math.isfinite(each.step_seconds)]
    assert found[-1].step_seconds == answer.step_seconds
    times = [each.seconds for each in answer.history]
    assert times == sorted(times)
    for earlier, later in zip(answer.history, answer.history[1:], strict=False):
        assert later.step_seconds <= earlier.step_seconds
    for claim in Claim:
        bounds = [each.bound_seconds for each in answer.history if each.claim == claim]
        assert bounds == sorted(bounds)
    assert {each.claim for each in answer.history} <= set(Claim)


def test_history_is_written() -> None:
    one = mw.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)
    document = one.to_dict()
    assert [each["method"] for each in document["history"]] == ["data"] * len(one.history)
    assert document["history"][-1]["step_seconds"] == one.step_seconds
