"""What tests share: ranks that are forked once their model is traced (see `ranks`)."""

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from ranks import Ranks
from small_models import captured, make_workload
from small_plans import data_plan
from small_trainer import make_trainer

from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan


def steps_of(rank: int, graph: Graph, plan: Plan) -> int:
    """Where a rank's traced steps lie: a fork has what was made before where its parent has it."""
    trainer = make_trainer(rank, make_workload("perceptron"), graph, plan)
    trainer.close()
    return id(trainer.planned)


def test_ranks_of_all_calls_share_what_was_traced(ranks: Ranks) -> None:
    graph = captured("perceptron")
    found = {
        each
        for count in (1, 2)
        for each in ranks.train(count, steps_of, graph, data_plan(graph, count))
    }
    assert len(found) == 1
