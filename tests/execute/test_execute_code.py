"""What is generated for a segment: as few calls as can be, with the same numbers."""

from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from small_models import captured, make_workload  # noqa: E402
from small_plans import data_plan  # noqa: E402
from small_trainer import make_trainer  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402


class Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the ops that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count[func._overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def train(**settings: Any) -> tuple[Counter[str], dict[str, Any]]:
    """The calls of a second step, and all that is held after it."""
    graph = captured("language", "adamw")
    plan = data_plan(graph, 1)
    workload = make_workload("language")
    trainer = make_trainer(0, workload, graph, plan, optimizer="adamw", **settings)
    trainer.step(workload.args)
    with Calls() as calls:
        trainer.step(workload.args)
    state = {name: each.clone() for name, each in trainer.state.items()}
    trainer.close()
    return calls.count, state


def test_updates_are_one_call() -> None:
    count, state = train()
    single, wanted = train(checks_ops=True)  # looks at the results of each op
    parameters = sum(1 for _ in make_workload("language").model.parameters())
    assert single["_fused_adamw_"] == parameters > 1
    assert count["_fused_adamw_"] == 1
    assert count["_foreach_add_"] == 1, "the optimiser's counters"
    assert count.total() < single.total()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in state)
