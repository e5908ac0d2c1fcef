"""Imported once by the process that `forked` forks: loads what every run would load again."""

import torch._dynamo  # noqa: F401  (tracing imports it)

import meshwright.cli.run
import meshwright.execute.session  # noqa: F401
from meshwright.simulate.simulate import simulate
from small import connected, layers, stages

# Loads compiled kernels, which start no threads.
_graph = layers(2)
simulate(_graph, connected(2), stages(_graph, [["d0"], ["d1"]], "1f1b", 2))
