"""Expands a plan's step: first shards by features and by tokens, tokens that travel to experts and
what replicas say about batch norm, then what is computed again, then what ZeRO divides.

In this order, because a member computes its own shards again, with what it said to the others
meanwhile, and gathers weights for both times.
"""

from meshwright.graph.graph import Graph
from meshwright.plan.check import Placement
from meshwright.plan.plan import Plan
from meshwright.program.expand.context import divide_tokens
from meshwright.program.expand.expansion import Expansion, unexpanded
from meshwright.program.expand.expert import divide_experts
from meshwright.program.expand.recompute import recompute
from meshwright.program.expand.shard import shard
from meshwright.program.expand.synchronise import synchronise
from meshwright.program.expand.zero import divide_state


def expand(graph: Graph, placement: Placement, plan: Plan) -> Expansion:
    """What one device of every part runs."""
    expansion = unexpanded(graph, placement)
    if plan.is_plain:
        return synchronise(expansion, plan)
    expansion = divide_tokens(shard(expansion, graph, plan), graph, plan)
    expansion = synchronise(divide_experts(expansion, plan), plan)
    expansion = recompute(expansion, graph, plan)
    return divide_state(expansion, graph, plan)
