"""Plans that cannot be run yet are refused before anything starts."""

from typing import Any

import pytest

from meshwright.errors import InputError
from meshwright.execute.trainer import lower_frozen
from meshwright.plan.plan import Recompute
from small import connected, layers, stages


@pytest.mark.parametrize(
    "change", [{"tensor": 2}, {"context": 2}, {"zero": 1}, {"recompute": Recompute.FULL}]
)
def test_teams_zero_and_recomputation_are_refused(change: dict[str, Any]) -> None:
    graph = layers(2)
    plan = stages(graph, [["d0", "d1"], ["d2", "d3"]], **change)
    with pytest.raises(InputError) as caught:
        lower_frozen(graph, connected(4), plan)
    assert str(caught.value) == (
        "part 0: running plans with tensor, context or expert widths, ZeRO or recomputation is "
        "not possible yet"
    )
