"""A small GPT as a pipeline of two stages on two local processes.

python examples/gpt_pipeline.py build/gpt-pipeline
"""

import sys
from pathlib import Path

from by_module import pipeline, run_and_compare

import meshwright as mw
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan


def make_plan(graph: Graph, cluster: mw.Cluster) -> Plan:
    """The first two blocks on one device, the others on the other, four microbatches."""
    first, second = (device.name for device in cluster.devices)
    return pipeline(graph, ["blocks.2"], [[first], [second]], microbatches=4)


if __name__ == "__main__":
    sys.exit(run_and_compare("tiny_gpt:factory", "cpu-x2", make_plan, Path(sys.argv[1])))
