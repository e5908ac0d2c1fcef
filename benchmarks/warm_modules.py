"""Imported once by the process that `warm` forks: loads what every rank would load again."""

import os

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

import torch._dynamo  # noqa: F401  (tracing imports it)

import auto_models
import meshwright.cli.run
import meshwright.execute.session  # noqa: F401
from meshwright.plan.plan import place_ops
from meshwright.search.warm import small_cluster, small_step
from meshwright.simulate.simulate import simulate

auto_models.load()
# Loads compiled kernels, which start no threads.
_graph, _cluster = small_step(), small_cluster()
simulate(
    _graph, _cluster, place_ops(_graph.op_names, [0] * _graph.num_ops, [_cluster.devices[0].name])
)
