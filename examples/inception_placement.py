"""An Inception-style network whose operators are placed on three local processes.

python examples/inception_placement.py build/inception-placement
"""

import sys
from pathlib import Path

from by_module import run_and_compare

import meshwright as mw
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, place_ops

BRANCHES = {"one": 0, "pooled": 0, "three": 1, "five": 2}


def make_plan(graph: Graph, cluster: mw.Cluster) -> Plan:
    """Each branch of the mixed layers on a device of its own, the rest on the first."""
    branch = [path.split(".")[1] if "." in path else "" for path in graph.module]
    devices = [BRANCHES.get(name, 0) for name in branch]
    return place_ops(graph.op_names, devices, [device.name for device in cluster.devices])


if __name__ == "__main__":
    sys.exit(run_and_compare("tiny_inception:factory", "cpu-x3", make_plan, Path(sys.argv[1])))
