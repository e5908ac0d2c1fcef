"""A small GPT as two stages of two replicas each, on four local processes.

python examples/gpt_pipeline_data.py build/gpt-pipeline-data
"""

import sys
from pathlib import Path

from by_module import pipeline, run_and_compare

import meshwright as mw
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan


def make_plan(graph: Graph, cluster: mw.Cluster) -> Plan:
    """Two replicas of the first two blocks, two of the others, four microbatches."""
    names = [device.name for device in cluster.devices]
    return pipeline(graph, ["blocks.2"], [names[:2], names[2:]], microbatches=4)


if __name__ == "__main__":
    sys.exit(run_and_compare("tiny_gpt:factory", "cpu-x4", make_plan, Path(sys.argv[1])))
